"""Forward-mode gradients in traced code: ``dual_level``, and tensors that carry a tangent inside of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd import forward_ad

from engine.ir.in_graph import InGraph
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import Const, Value
from engine.trace.values.graph_contexts import GraphContext
from engine.trace.values.rules import special

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


class DualLevel(GraphContext):
    """``dual_level()``: entered in the graph, and here, where fakes carry tangents too."""

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        entered = super().call_method(tx, name, args, kwargs)
        return Const(forward_ad._current_level) if name == "__enter__" else entered


@special(forward_ad.dual_level)
def _dual_level(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return DualLevel(forward_ad.dual_level, {})


def _in_graph(function: Any) -> None:
    """A function that is a node, which only the graph as traced may run: tangents are no part of functional graphs."""
    target = InGraph(function.__name__, function, changes_state=True, effect="carries tangents beside tensors")

    @special(function)
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        if forward_ad._current_level < 0:
            raise Unsupported("unknown-call", f"{function.__name__} is called outside of a dual level")
        tx.changes += 1
        return emit(tx, "call_function", target, args, kwargs)


_in_graph(forward_ad.make_dual)
_in_graph(forward_ad.unpack_dual)
