"""Sizes and numbers that may differ from call to call: symbols of torch's ShapeEnv with a node of the graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import sympy
import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
    SubclassSymbolicContext,
    is_nested_int,
)
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from engine.ir.marks import DYNAMIC, STATIC
from engine.ir.origin import Attr, IteratorState, Origin, Upcoming
from engine.ir.relation_guard import ShapeRelation
from engine.trace.outcomes import outcome
from engine.trace.signals import Unsupported
from engine.trace.unbacked import needs_number
from engine.trace.values.base import Const, Value

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class SymValue(Value):
    """A SymInt, SymFloat or SymBool. Asking for its Python value specialises: the guard says which value was assumed."""

    __slots__ = ("is_opaque", "node", "origin", "rounded", "sym", "symbol")

    def __init__(
        self, node: torch.fx.Node, sym: Any, *, is_opaque: bool = False, rounded: frozenset[Any] = frozenset()
    ) -> None:
        self.node = node
        self.sym = sym
        self.rounded = rounded
        """The symbols that it is calculated from, where algebra calculates otherwise than Python, which rounds at each step."""
        self.is_opaque = is_opaque
        """Whether it follows from a float that is known only when the graph runs: that may be NaN, of which algebra knows nothing."""
        self.origin: Origin | None = None
        self.symbol: Any = None
        """The symbol that was made for it, whatever that turned out to equal."""

    def type(self) -> type:
        if isinstance(self.sym, torch.SymInt):
            return int
        return float if isinstance(self.sym, torch.SymFloat) else bool

    def describe(self) -> str:
        return f"symbol {self.sym}"

    def python(self, tx: Tracer) -> Any:
        return self._settle(tx, self.type())

    def _settle(self, tx: Tracer, kind: Callable[[Any], Any]) -> Any:
        """The value that it has in this call, from here on taken for granted.

        Raises:
            Unsupported: only the running graph knows it.
        """
        try:
            if self.rounded and not self.is_opaque and self.rounded <= tx.shape_env.backed_var_to_val.keys():
                for symbol in self.rounded:
                    _pin(tx, symbol)
                return kind(self.sym.node.hint)
            if not self.is_opaque and not self.rounded:
                return bool(self.sym != 0) if kind is bool and self.type() is float else kind(self.sym)
        except GuardOnDataDependentSymNode:
            pass
        raise needs_number(
            tx,
            self.sym,
            "data-dependent",
            f"a number that comes from a tensor's values ({self.sym}) is needed in Python",
        )

    def key(self, tx: Tracer) -> Any:
        return self.python(tx)

    def truth(self, tx: Tracer) -> bool:
        try:
            return bool(self._settle(tx, bool))
        except Unsupported:
            decided = outcome(tx, self.node)
            if decided is not None:
                return decided
            raise needs_number(
                tx, self.sym, "tensor-jump", f"the truth of a number that comes from a tensor's values ({self.sym})"
            ) from None

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, self.sym

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return tx.constant_attr(Const(self.python(tx)), name)

    def reconstruct(self, cg: Codegen) -> None:
        cg.graph_output(self.node)


_ROUNDING = frozenset(
    (operator.add, operator.sub, operator.mul, operator.iadd, operator.isub, operator.imul, operator.neg)
)
_MOST = 1e308
"""The greatest float that a symbol stands for: neither infinity nor what is no number, which equals not even itself."""


def rounded_symbols(node: torch.fx.Node, result: Any) -> frozenset[Any]:
    """The symbols of a number that algebra may take for another than Python calculates: a sum or product of floats that are sums or products
    themselves is put in another order, and each step rounds.
    """
    found: frozenset[Any] = frozenset().union(*(n.meta.get("rounded", ()) for n in node.all_input_nodes))
    if isinstance(result, torch.SymFloat) and node.target in _ROUNDING:
        operands = [n.meta.get("example_value") for n in node.all_input_nodes]
        known = [v.node.expr for v in operands if isinstance(v, torch.SymInt | torch.SymFloat)]
        if any(isinstance(e, sympy.Add | sympy.Mul) and not e.is_integer for e in known):
            found = found.union(*(e.free_symbols for e in known))
    if isinstance(result, torch.SymInt) and node.target in _REMAINDERS:
        found = found.union(_misjudged(node.args[0], node.args[1], result.node.expr))
    node.meta["rounded"] = found
    return found


_REMAINDERS = frozenset((operator.mod, operator.imod))


def _misjudged(dividend: Any, divisor: Any, remainder: sympy.Expr) -> set[sympy.Symbol]:
    """The symbols of a dividend that algebra took for a multiple, which it need not be: sympy holds a product of sums for one, as (2n + 2)**2 of 100."""
    given = dividend.meta.get("example_value") if isinstance(dividend, torch.fx.Node) else dividend
    if remainder != 0 or not isinstance(given, torch.SymInt) or not given.node.expr.has(sympy.Add):
        return set()
    terms = sympy.expand(given.node.expr).as_coefficients_dict()
    is_multiple = isinstance(divisor, int) and all(number % divisor == 0 for number in terms.values())
    return set() if is_multiple else given.node.expr.free_symbols


def _pin(tx: Tracer, symbol: sympy.Symbol) -> None:
    """Take the value that a symbol has in this call for granted."""
    env = tx.shape_env
    kind: Any = int if symbol.is_integer else float
    make: Any = env.create_symintnode if kind is int else env.create_symfloatnode
    kind(make(symbol, hint=kind(env.backed_var_to_val[symbol]), source=None))


def symbolic_number(tx: Tracer, real: float, origin: Origin) -> Value | None:
    """A symbol for an int or a float seen to change; None where it stays a constant."""
    why = _why_number(tx, real, origin)
    # Algebra knows neither infinity nor a zero's sign.
    if not why or not (0 < abs(real) <= _MOST if type(real) is float else -(2**63) <= real < 2**63):
        return None
    env = tx.shape_env
    symbol: Any = env.create_unspecified_symbol(real, source=origin, dynamic_dim=DimDynamic.DYNAMIC)
    make: Any = env.create_symintnode if type(real) is int else env.create_symfloatnode
    made = make(symbol, hint=real, source=origin)
    if not isinstance(made, (torch.SymInt, torch.SymFloat)):
        return None
    tx.symbols_why[symbol] = why
    tx.guard_type(real, origin, f"it is a number of type {type(real).__name__} whose value was seen to change")
    if type(real) is float:
        cause = tx.cause("algebra knows only finite numbers")
        for bound in (sympy.Ge(symbol, -_MOST), sympy.Le(symbol, _MOST)):
            tx.guard(ShapeRelation(origin, bound, ((symbol, origin, -1),), cause=cause))
    value = SymValue(tx.graph.placeholder(origin, made, real), made)
    value.origin, value.symbol = origin, symbol
    tx.input_ints.append(value)
    return value


def _why_number(tx: Tracer, real: float, origin: Origin) -> str:
    """Why a number becomes a symbol; empty where it stays a constant."""
    if tx.options.dynamic is False:
        return ""
    if -1 in _seen_to_change(tx, origin) or origin in tx.changing:
        return f"its value changed between calls ({real!r} in this one)"
    return "dynamic=True" if tx.options.dynamic is True and origin.is_passed() else ""


def is_changing(tx: Tracer, origin: Origin) -> bool:
    """Whether a value was seen to change between calls, where that may make a symbol of it."""
    return tx.options.dynamic is not False and -1 in _seen_to_change(tx, origin)


def _seen_to_change(tx: Tracer, origin: Origin) -> frozenset[int]:
    """Dimensions of an origin seen to change; of what a moving iterator gives next, those of any item of what it goes through."""
    seen = tx.request.dynamic.get(origin.expr, frozenset())
    upcoming = next((link for link in origin.chain() if isinstance(link, Upcoming)), None)
    if upcoming is None:
        return seen
    items = f"{IteratorState(upcoming.base).expr}[1][0]["
    below = f"]{origin.expr.removeprefix(upcoming.expr)}"
    alike = (d for expr, d in tx.request.dynamic.items() if expr.startswith(items) and expr.endswith(below))
    return seen.union(*alike)


def symbolic_context(tx: Tracer, tensor: torch.Tensor, origin: Origin) -> StatelessSymbolicContext[Any, Any] | None:
    """Which dimensions of an input, and of the tensors inside of it, become symbols; None when none does."""
    if _is_wrapper(tensor):
        if tensor._base is not None and _is_wrapper(tensor._base):
            return None  # torch would make symbols of all that the base is made of
        reasons = _reasons_inside(tx, tensor, origin, {}, isinstance(tensor, torch.nn.Parameter))
        if any(reasons.values()):
            ragged = [d for d, size in enumerate(tensor.shape) if is_nested_int(size)]
            reasons[origin] |= dict.fromkeys(ragged, "its size is ragged")
    else:
        reasons = {origin: _reasons(tx, tensor, origin)}
    if not any(reasons.values()):
        return None
    tx.sizes_why.update(reasons)
    return _context(tensor, origin, reasons)


def _reasons(tx: Tracer, tensor: torch.Tensor, origin: Origin) -> dict[int, str]:
    return {d: reason for d in range(tensor.dim()) if (reason := _why_symbol(tx, tensor, origin, d))}


def _reasons_inside(
    tx: Tracer, tensor: torch.Tensor, origin: Origin, outer: dict[int, str], is_parameter: bool
) -> dict[Origin, dict[int, str]]:
    """Per tensor that a wrapper is made of, itself first, why its dimensions become symbols.

    What has the shape of the whole varies as the whole does. What is in a parameter stays as it is, like other parameters.
    """
    why = outer | (_reasons(tx, tensor, origin) if not is_parameter or not _is_for_all(tx) else {})
    found = {origin: why}
    for name, part in parts_of(tensor):
        alike = why if part.shape == tensor.shape else {}
        found |= _reasons_inside(tx, part, Attr(origin, name), alike, is_parameter)
    return found


def _is_for_all(tx: Tracer) -> bool:
    return tx.options.dynamic is True


def _is_wrapper(tensor: Any) -> bool:
    return bool(is_traceable_wrapper_subclass(tensor))


def parts_of(tensor: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors that a subclass is directly made of, by name; none for plain tensors."""
    if not _is_wrapper(tensor):
        return []
    found = ((name, getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return [(name, part) for name, part in found if isinstance(part, torch.Tensor)]


def keep_shapes_alike(fake: Any, real: Any) -> None:
    """Take for granted that what has the shape of the whole in this call has it in all: one symbol stands for both."""
    for name, part in parts_of(real):
        inside = getattr(fake, name)
        if part.shape == real.shape:
            for outer, inner in zip(fake.shape, inside.shape, strict=True):
                torch._check(outer == inner)
        keep_shapes_alike(inside, part)


def _context(
    tensor: torch.Tensor, origin: Origin, reasons: Mapping[Origin, dict[int, str]]
) -> StatelessSymbolicContext[Any, Any]:
    why = reasons[origin]
    kinds = [DimDynamic.DYNAMIC if d in why else DimDynamic.STATIC for d in range(tensor.dim())]
    if not _is_wrapper(tensor):
        return StatelessSymbolicContext(dynamic_sizes=kinds, constraint_sizes=_bounds(tensor, why))
    inner: dict[str, Any] = {name: _context(part, Attr(origin, name), reasons) for name, part in parts_of(tensor)}
    return SubclassSymbolicContext(
        dynamic_sizes=kinds, constraint_sizes=_bounds(tensor, why), tensor_source=origin, inner_contexts=inner
    )


def _why_symbol(tx: Tracer, tensor: torch.Tensor, origin: Origin, dim: int) -> str:
    """Why a dimension becomes a symbol; empty where it stays a number."""
    if tensor.shape[dim] <= 1 or dim in getattr(tensor, STATIC, ()):
        return ""
    if dim in _marked(tensor):
        return "marked dynamic"
    if tx.options.dynamic is False:
        return ""
    if dim in _seen_to_change(tx, origin):
        return "its size changed between calls"
    return "dynamic=True" if tx.options.dynamic is True and not isinstance(tensor, torch.nn.Parameter) else ""


def _bounds(tensor: torch.Tensor, dims: Mapping[int, str]) -> list[Any]:
    """The bounds that were given with ``mark_dynamic``, by dimension."""
    given = getattr(tensor, DYNAMIC, {})

    def bound(dim: int) -> Any:
        low, high = given.get(dim, (None, None)) if dim in dims else (None, None)
        if low is None and high is None:
            return None
        return StrictMinMaxConstraint(
            vr=ValueRanges(max(2, low or 2), int_oo if high is None else high), warn_only=False
        )

    return [bound(d) for d in range(tensor.dim())]


def _marked(tensor: torch.Tensor) -> set[int]:
    ours = getattr(tensor, DYNAMIC, {})
    return set(ours) | set(getattr(tensor, "_dynamo_dynamic_indices", ()))


def has_hint(number: Any) -> bool:
    """Whether the value that a size or number has in this call is known."""
    return not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) or bool(number.node.has_hint())


def hint(number: Any) -> Any:
    """The value that a size or number has in this call, without taking it for granted."""
    return number.node.hint if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) else number
