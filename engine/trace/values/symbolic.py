"""Sizes and numbers that may differ from call to call: symbols of torch's ShapeEnv with a node of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from engine.ir.marks import DYNAMIC, STATIC
from engine.ir.origin import Origin
from engine.trace.values.base import Const, Value

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class SymValue(Value):
    """A SymInt, SymFloat or SymBool. Asking for its Python value specialises: the guard says which value was assumed."""

    __slots__ = ("node", "origin", "sym")

    def __init__(self, node: torch.fx.Node, sym: Any) -> None:
        self.node = node
        self.sym = sym
        self.origin: Origin | None = None

    def type(self) -> type:
        if isinstance(self.sym, torch.SymInt):
            return int
        return float if isinstance(self.sym, torch.SymFloat) else bool

    def describe(self) -> str:
        return f"symbol {self.sym}"

    def python(self, tx: Tracer) -> Any:
        return self.type()(self.sym)

    def key(self, tx: Tracer) -> Any:
        return self.python(tx)

    def truth(self, tx: Tracer) -> bool:
        return bool(self.sym)

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, self.sym

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return tx.constant_attr(Const(self.python(tx)), name)

    def reconstruct(self, cg: Codegen) -> None:
        cg.graph_output(self.node)


def symbolic_int(tx: Tracer, real: int, origin: Origin) -> Value | None:
    """A symbol for an int seen to change; None where it stays a constant. 0 and 1 always do."""
    wanted = -1 in tx.request.dynamic.get(origin.expr, frozenset()) and tx.options.dynamic is not False
    if not wanted or real in (0, 1):
        return None
    env = tx.shape_env
    symbol = env.create_unspecified_symbol(real, source=origin, dynamic_dim=DimDynamic.DYNAMIC)
    size = env.create_symintnode(symbol, hint=real, source=origin)
    if not isinstance(size, torch.SymInt):
        return None
    tx.guard_type(real, origin, "it is an int whose value was seen to change")
    value = SymValue(tx.graph.placeholder(origin, size, real), size)
    value.origin = origin
    tx.input_ints.append(value)
    return value


def symbolic_context(tx: Tracer, tensor: torch.Tensor, origin: Origin) -> StatelessSymbolicContext[Any, Any] | None:
    """Which dimensions of an input become symbols; None when none does."""
    marked = _marked(tensor)
    seen = tx.request.dynamic.get(origin.expr, frozenset())
    fixed: frozenset[int] = getattr(tensor, STATIC, frozenset())
    everything = tx.options.dynamic is True and not isinstance(tensor, torch.nn.Parameter)
    wanted = [
        (d in marked or ((everything or d in seen) and tx.options.dynamic is not False))
        and d not in fixed
        and tensor.shape[d] > 1
        for d in range(tensor.dim())
    ]
    if not any(wanted):
        return None
    kinds = [DimDynamic.DYNAMIC if w else DimDynamic.STATIC for w in wanted]
    return StatelessSymbolicContext(dynamic_sizes=kinds)


def _marked(tensor: torch.Tensor) -> set[int]:
    ours = getattr(tensor, DYNAMIC, {})
    return set(ours) | set(getattr(tensor, "_dynamo_dynamic_indices", ()))
