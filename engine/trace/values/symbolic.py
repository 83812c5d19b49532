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

from engine.ir.marks import DYNAMIC_DIMS_ATTR, STATIC_DIMS_ATTR
from engine.ir.origin import AttrSource, IteratorItemSource, IteratorStateSource, Source
from engine.ir.relation_guard import SymbolicShapeGuard
from engine.trace.outcomes import fold_condition
from engine.trace.signals import Unsupported
from engine.trace.unbacked import data_dependent_break
from engine.trace.values.base import ConstantVariable, Variable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.state import Tracer


class SymNodeVariable(Variable):
    """A SymInt, SymFloat or SymBool. Asking for its Python value specialises: the guard says which value was assumed."""

    __slots__ = ("depends_on_unbacked_float", "node", "rounding_symbols", "source", "sym", "symbol")

    def __init__(
        self,
        node: torch.fx.Node,
        sym: Any,
        *,
        depends_on_unbacked_float: bool = False,
        rounding_symbols: frozenset[Any] = frozenset(),
    ) -> None:
        self.node = node
        self.sym = sym
        self.rounding_symbols = rounding_symbols
        """The symbols that it is calculated from, where algebra calculates otherwise than Python, which rounds at each step."""
        self.depends_on_unbacked_float = depends_on_unbacked_float
        """Whether it follows from a float that is known only when the graph runs: that may be NaN, of which algebra knows nothing."""
        self.source: Source | None = None
        self.symbol: Any = None
        """The symbol that was made for it, whatever that turned out to equal."""

    def python_type(self) -> type:
        if isinstance(self.sym, torch.SymInt):
            return int
        return float if isinstance(self.sym, torch.SymFloat) else bool

    def describe(self) -> str:
        return f"symbol {self.sym}"

    def as_python_constant(self, tx: Tracer) -> Any:
        return self._specialize(tx, self.python_type())

    def _specialize(self, tx: Tracer, kind: Callable[[Any], Any]) -> Any:
        """The value that it has in this call, from here on taken for granted.

        Raises:
            Unsupported: only the running graph knows it.
        """
        try:
            if (
                self.rounding_symbols
                and not self.depends_on_unbacked_float
                and self.rounding_symbols <= tx.shape_env.backed_var_to_val.keys()
            ):
                for symbol in self.rounding_symbols:
                    _specialize_symbol(tx, symbol)
                return kind(self.sym.node.hint)
            if not self.depends_on_unbacked_float and not self.rounding_symbols:
                return bool(self.sym != 0) if kind is bool and self.python_type() is float else kind(self.sym)
        except GuardOnDataDependentSymNode:
            pass
        raise data_dependent_break(
            tx,
            self.sym,
            "data-dependent",
            f"a number that comes from a tensor's values ({self.sym}) is needed in Python",
        )

    def hash_key(self, tx: Tracer) -> Any:
        return self.as_python_constant(tx)

    def is_truthy(self, tx: Tracer) -> bool:
        try:
            return bool(self._specialize(tx, bool))
        except Unsupported:
            decided = fold_condition(tx, self.node)
            if decided is not None:
                return decided
            raise data_dependent_break(
                tx, self.sym, "tensor-jump", f"the truth of a number that comes from a tensor's values ({self.sym})"
            ) from None

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, self.sym

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return tx.get_constant_attr(ConstantVariable(self.as_python_constant(tx)), name)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_graph_output(self.node)


_ROUNDING_OPS = frozenset(
    (operator.add, operator.sub, operator.mul, operator.iadd, operator.isub, operator.imul, operator.neg)
)
_MAX_FLOAT = 1e308
"""The greatest float that a symbol stands for: neither infinity nor what is no number, which equals not even itself."""


def collect_rounding_symbols(node: torch.fx.Node, result: Any) -> frozenset[Any]:
    """The symbols of a number that algebra may take for another than Python calculates: a sum or product of floats that are sums or products
    themselves is put in another order, and each step rounds.
    """
    found: frozenset[Any] = frozenset().union(*(n.meta.get("rounded", ()) for n in node.all_input_nodes))
    if isinstance(result, torch.SymFloat) and node.target in _ROUNDING_OPS:
        operands = [n.meta.get("example_value") for n in node.all_input_nodes]
        known = [v.node.expr for v in operands if isinstance(v, torch.SymInt | torch.SymFloat)]
        if any(isinstance(e, sympy.Add | sympy.Mul) and not e.is_integer for e in known):
            found = found.union(*(e.free_symbols for e in known))
    if isinstance(result, torch.SymInt) and node.target in _REMAINDER_OPS:
        found = found.union(_wrongly_simplified_symbols(node.args[0], node.args[1], result.node.expr))
    node.meta["rounded"] = found
    return found


_REMAINDER_OPS = frozenset((operator.mod, operator.imod))


def _wrongly_simplified_symbols(dividend: Any, divisor: Any, remainder: sympy.Expr) -> set[sympy.Symbol]:
    """The symbols of a dividend that algebra took for a multiple, which it need not be: sympy holds a product of sums for one, as (2n + 2)**2 of 100."""
    given = dividend.meta.get("example_value") if isinstance(dividend, torch.fx.Node) else dividend
    if remainder != 0 or not isinstance(given, torch.SymInt) or not given.node.expr.has(sympy.Add):
        return set()
    terms = sympy.expand(given.node.expr).as_coefficients_dict()
    is_multiple = isinstance(divisor, int) and all(number % divisor == 0 for number in terms.values())
    return set() if is_multiple else given.node.expr.free_symbols


def _specialize_symbol(tx: Tracer, symbol: sympy.Symbol) -> None:
    """Take the value that a symbol has in this call for granted."""
    env = tx.shape_env
    kind: Any = int if symbol.is_integer else float
    make: Any = env.create_symintnode if kind is int else env.create_symfloatnode
    kind(make(symbol, hint=kind(env.backed_var_to_val[symbol]), source=None))


def symbolize_number(tx: Tracer, real: float, origin: Source) -> Variable | None:
    """A symbol for an int or a float seen to change; None where it stays a constant."""
    why = _dynamic_number_reason(tx, real, origin)
    # Algebra knows neither infinity nor a zero's sign.
    if not why or not (0 < abs(real) <= _MAX_FLOAT if type(real) is float else -(2**63) <= real < 2**63):
        return None
    env = tx.shape_env
    symbol: Any = env.create_unspecified_symbol(real, source=origin, dynamic_dim=DimDynamic.DYNAMIC)
    make: Any = env.create_symintnode if type(real) is int else env.create_symfloatnode
    made = make(symbol, hint=real, source=origin)
    if not isinstance(made, (torch.SymInt, torch.SymFloat)):
        return None
    tx.symbol_reasons[symbol] = why
    tx.guard_type(real, origin, f"it is a number of type {type(real).__name__} whose value was seen to change")
    if type(real) is float:
        cause = tx.guard_cause("algebra knows only finite numbers")
        for bound in (sympy.Ge(symbol, -_MAX_FLOAT), sympy.Le(symbol, _MAX_FLOAT)):
            tx.add_guard(SymbolicShapeGuard(origin, bound, ((symbol, origin, -1),), cause=cause))
    value = SymNodeVariable(tx.graph.placeholder(origin, made, real), made)
    value.source, value.symbol = origin, symbol
    tx.symbolic_input_scalars.append(value)
    return value


def _dynamic_number_reason(tx: Tracer, real: float, origin: Source) -> str:
    """Why a number becomes a symbol; empty where it stays a constant."""
    if tx.options.dynamic is False:
        return ""
    if -1 in _automatic_dynamic_dims(tx, origin) or origin in tx.known_dynamic_sources:
        return f"its value changed between calls ({real!r} in this one)"
    return "dynamic=True" if tx.options.dynamic is True and origin.is_argument_or_item() else ""


def is_dynamic_number(tx: Tracer, origin: Source) -> bool:
    """Whether a value was seen to change between calls, where that may make a symbol of it."""
    return tx.options.dynamic is not False and -1 in _automatic_dynamic_dims(tx, origin)


def _automatic_dynamic_dims(tx: Tracer, origin: Source) -> frozenset[int]:
    """Dimensions of an origin seen to change; of what a moving iterator gives next, those of any item of what it goes through."""
    seen = tx.request.dynamic_dims.get(origin.expr, frozenset())
    upcoming = next((link for link in origin.chain() if isinstance(link, IteratorItemSource)), None)
    if upcoming is None:
        return seen
    items = f"{IteratorStateSource(upcoming.base).expr}[1][0]["
    below = f"]{origin.expr.removeprefix(upcoming.expr)}"
    alike = (d for expr, d in tx.request.dynamic_dims.items() if expr.startswith(items) and expr.endswith(below))
    return seen.union(*alike)


def symbolic_context(tx: Tracer, tensor: torch.Tensor, origin: Source) -> StatelessSymbolicContext[Any, Any] | None:
    """Which dimensions of an input, and of the tensors inside of it, become symbols; None when none does."""
    if _is_wrapper_subclass(tensor):
        if tensor._base is not None and _is_wrapper_subclass(tensor._base):
            return None  # torch would make symbols of all that the base is made of
        reasons = _inner_dim_reasons(tx, tensor, origin, {}, isinstance(tensor, torch.nn.Parameter))
        if any(reasons.values()):
            ragged = [d for d, size in enumerate(tensor.shape) if is_nested_int(size)]
            reasons[origin] |= dict.fromkeys(ragged, "its size is ragged")
    else:
        reasons = {origin: _dynamic_dim_reasons(tx, tensor, origin)}
    if not any(reasons.values()):
        return None
    tx.dynamic_size_reasons.update(reasons)
    return _build_symbolic_context(tensor, origin, reasons)


def _dynamic_dim_reasons(tx: Tracer, tensor: torch.Tensor, origin: Source) -> dict[int, str]:
    return {d: reason for d in range(tensor.dim()) if (reason := _dynamic_dim_reason(tx, tensor, origin, d))}


def _inner_dim_reasons(
    tx: Tracer, tensor: torch.Tensor, origin: Source, outer: dict[int, str], is_parameter: bool
) -> dict[Source, dict[int, str]]:
    """Per tensor that a wrapper is made of, itself first, why its dimensions become symbols.

    What has the shape of the whole varies as the whole does. What is in a parameter stays as it is, like other parameters.
    """
    why = outer | (_dynamic_dim_reasons(tx, tensor, origin) if not is_parameter or not _is_dynamic_forced(tx) else {})
    found = {origin: why}
    for name, part in inner_tensors(tensor):
        alike = why if part.shape == tensor.shape else {}
        found |= _inner_dim_reasons(tx, part, AttrSource(origin, name), alike, is_parameter)
    return found


def _is_dynamic_forced(tx: Tracer) -> bool:
    return tx.options.dynamic is True


def _is_wrapper_subclass(tensor: Any) -> bool:
    return bool(is_traceable_wrapper_subclass(tensor))


def inner_tensors(tensor: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors that a subclass is directly made of, by name; none for plain tensors."""
    if not _is_wrapper_subclass(tensor):
        return []
    found = ((name, getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return [(name, part) for name, part in found if isinstance(part, torch.Tensor)]


def unify_inner_shapes(fake: Any, real: Any) -> None:
    """Take for granted that what has the shape of the whole in this call has it in all: one symbol stands for both."""
    for name, part in inner_tensors(real):
        inside = getattr(fake, name)
        if part.shape == real.shape:
            for outer, inner in zip(fake.shape, inside.shape, strict=True):
                torch._check(outer == inner)
        unify_inner_shapes(inside, part)


def _build_symbolic_context(
    tensor: torch.Tensor, origin: Source, reasons: Mapping[Source, dict[int, str]]
) -> StatelessSymbolicContext[Any, Any]:
    why = reasons[origin]
    kinds = [DimDynamic.DYNAMIC if d in why else DimDynamic.STATIC for d in range(tensor.dim())]
    if not _is_wrapper_subclass(tensor):
        return StatelessSymbolicContext(dynamic_sizes=kinds, constraint_sizes=_dim_constraints(tensor, why))
    inner: dict[str, Any] = {
        name: _build_symbolic_context(part, AttrSource(origin, name), reasons) for name, part in inner_tensors(tensor)
    }
    return SubclassSymbolicContext(
        dynamic_sizes=kinds, constraint_sizes=_dim_constraints(tensor, why), tensor_source=origin, inner_contexts=inner
    )


def _dynamic_dim_reason(tx: Tracer, tensor: torch.Tensor, origin: Source, dim: int) -> str:
    """Why a dimension becomes a symbol; empty where it stays a number."""
    if tensor.shape[dim] <= 1 or dim in getattr(tensor, STATIC_DIMS_ATTR, ()):
        return ""
    if dim in _marked_dynamic_dims(tensor):
        return "marked dynamic"
    if tx.options.dynamic is False:
        return ""
    if dim in _automatic_dynamic_dims(tx, origin):
        return "its size changed between calls"
    return "dynamic=True" if tx.options.dynamic is True and not isinstance(tensor, torch.nn.Parameter) else ""


def _dim_constraints(tensor: torch.Tensor, dims: Mapping[int, str]) -> list[Any]:
    """The bounds that were given with ``mark_dynamic``, by dimension."""
    given = getattr(tensor, DYNAMIC_DIMS_ATTR, {})

    def bound(dim: int) -> Any:
        low, high = given.get(dim, (None, None)) if dim in dims else (None, None)
        if low is None and high is None:
            return None
        return StrictMinMaxConstraint(
            vr=ValueRanges(max(2, low or 2), int_oo if high is None else high), warn_only=False
        )

    return [bound(d) for d in range(tensor.dim())]


def _marked_dynamic_dims(tensor: torch.Tensor) -> set[int]:
    ours = getattr(tensor, DYNAMIC_DIMS_ATTR, {})
    return set(ours) | set(getattr(tensor, "_dynamo_dynamic_indices", ()))


def has_hint(number: Any) -> bool:
    """Whether the value that a size or number has in this call is known."""
    return not isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) or bool(number.node.has_hint())


def hint(number: Any) -> Any:
    """The value that a size or number has in this call, without taking it for granted."""
    return number.node.hint if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool) else number
