"""Sizes and numbers that may differ from call to call: symbols of torch's ShapeEnv with a node of the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
)
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from engine.ir.marks import DYNAMIC, STATIC
from engine.ir.origin import Origin
from engine.trace.signals import Unsupported
from engine.trace.unbacked import needs_number
from engine.trace.values.base import Const, Value

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class SymValue(Value):
    """A SymInt, SymFloat or SymBool. Asking for its Python value specialises: the guard says which value was assumed."""

    __slots__ = ("is_opaque", "node", "origin", "sym", "symbol")

    def __init__(self, node: torch.fx.Node, sym: Any, *, is_opaque: bool = False) -> None:
        self.node = node
        self.sym = sym
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
            if not self.is_opaque:
                return kind(self.sym)
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
            raise needs_number(
                tx, self.sym, "tensor-jump", f"the truth of a number that comes from a tensor's values ({self.sym})"
            ) from None

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, self.sym

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return tx.constant_attr(Const(self.python(tx)), name)

    def reconstruct(self, cg: Codegen) -> None:
        cg.graph_output(self.node)


def symbolic_number(tx: Tracer, real: float, origin: Origin) -> Value | None:
    """A symbol for an int or a float seen to change; None where it stays a constant."""
    why = _why_number(tx, real, origin)
    # Algebra knows neither infinity nor a zero's sign.
    if not why or (type(real) is float and not (math.isfinite(real) and real)):
        return None
    env = tx.shape_env
    symbol = env.create_unspecified_symbol(real, source=origin, dynamic_dim=DimDynamic.DYNAMIC)
    make: Any = env.create_symintnode if type(real) is int else env.create_symfloatnode
    made = make(symbol, hint=real, source=origin)
    if not isinstance(made, (torch.SymInt, torch.SymFloat)):
        return None
    tx.symbols_why[symbol] = why
    tx.guard_type(real, origin, f"it is a number of type {type(real).__name__} whose value was seen to change")
    value = SymValue(tx.graph.placeholder(origin, made, real), made)
    value.origin, value.symbol = origin, symbol
    tx.input_ints.append(value)
    return value


def _why_number(tx: Tracer, real: float, origin: Origin) -> str:
    """Why a number becomes a symbol; empty where it stays a constant."""
    if tx.options.dynamic is False:
        return ""
    if -1 in tx.request.dynamic.get(origin.expr, frozenset()):
        return f"its value changed between calls ({real!r} in this one)"
    is_size = type(real) is int and real not in (0, 1) and origin.is_passed()
    return "dynamic=True" if tx.options.dynamic is True and is_size else ""


def symbolic_context(tx: Tracer, tensor: torch.Tensor, origin: Origin) -> StatelessSymbolicContext[Any, Any] | None:
    """Which dimensions of an input become symbols; None when none does."""
    if hasattr(tensor, "__tensor_flatten__"):
        return None  # the sizes of what is inside it follow no rule that is known here
    why = {d: reason for d in range(tensor.dim()) if (reason := _why_symbol(tx, tensor, origin, d))}
    if not why:
        return None
    kinds = [DimDynamic.DYNAMIC if d in why else DimDynamic.STATIC for d in range(tensor.dim())]
    tx.sizes_why[origin] = why
    return StatelessSymbolicContext(dynamic_sizes=kinds, constraint_sizes=_bounds(tensor, why))


def _why_symbol(tx: Tracer, tensor: torch.Tensor, origin: Origin, dim: int) -> str:
    """Why a dimension becomes a symbol; empty where it stays a number."""
    if tensor.shape[dim] <= 1 or dim in getattr(tensor, STATIC, ()):
        return ""
    if dim in _marked(tensor):
        return "marked dynamic"
    if tx.options.dynamic is False:
        return ""
    if dim in tx.request.dynamic.get(origin.expr, frozenset()):
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
