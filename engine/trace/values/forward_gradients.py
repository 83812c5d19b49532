"""Forward-mode gradients in traced code: ``dual_level``, and tensors that carry a tangent inside of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd import forward_ad

from engine.ir.in_graph import InGraph
from engine.ir.origin import Attr, Fixed
from engine.ir.value_guard import Equals
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value
from engine.trace.values.graph_contexts import GraphContext
from engine.trace.values.rules import special

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


class DualLevel(GraphContext):
    """``dual_level()``: entered in the graph, and here, where fakes carry tangents too."""

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        entered = super().call_method(tx, name, args, kwargs)
        return Const(forward_ad._current_level) if name == "__enter__" else entered

    def reconstruct(self, cg: Codegen) -> None:
        if self.active:
            raise Unsupported("side-effect", "a dual level is open, and leaving it would take all tangents away")
        super().reconstruct(cg)


@special(forward_ad.dual_level)
def _dual_level(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return DualLevel(forward_ad.dual_level, {})


def _without_tangent(tx: Tracer, tensor: Value) -> Value:
    """What ``unpack_dual`` gives where no level is open, which the compiled code takes for granted."""
    level = Attr(Fixed(forward_ad, forward_ad.__name__), "_current_level")
    tx.guard(Equals(level, forward_ad._current_level, cause=tx.cause("a tensor was asked for its tangent")))
    return tx.fixed(forward_ad.UnpackedDualTensor).call(tx, [tensor, NONE], {})


def _in_graph(function: Any) -> None:
    """A function that is a node, which only the graph as traced may run: tangents are no part of functional graphs."""
    target = InGraph(function.__name__, function, changes_state=True, effect="carries tangents beside tensors")

    @special(function)
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        if forward_ad._current_level < 0 and function is forward_ad.unpack_dual and len(args) == 1 and not kwargs:
            return _without_tangent(tx, args[0])
        if forward_ad._current_level < 0:
            raise Unsupported("unknown-call", f"{function.__name__} is called outside of a dual level")
        if function is forward_ad.unpack_dual and not any(c.make is forward_ad.dual_level for c, _ in tx.entered):
            what = "a tensor is asked for its tangent in a dual level that was open already: while tracing it has none"
            raise Unsupported("unknown-call", what)
        tx.changes += 1
        return emit(tx, "call_function", target, args, kwargs)


_in_graph(forward_ad.make_dual)
_in_graph(forward_ad.unpack_dual)
