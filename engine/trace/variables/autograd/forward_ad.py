"""Forward-mode AD in traced code: ``dual_level``, ``make_dual``, ``unpack_dual``."""

from __future__ import annotations

from typing import Any

from engine.ir.graph_callable import GraphCallable
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.register_once import register_each
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.roots import ConstantSource
from engine.torch_private.autograd import forward_ad
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.torch_api.context_managers import GraphContextVariable


class DualLevelVariable(GraphContextVariable):
    """``dual_level()``, entered in the graph and while tracing, so that fakes have tangents."""

    def enter(self, tx: Tracer) -> Variable:
        super().enter(tx)
        return ConstantVariable(forward_ad._current_level)

    def reconstruct(self, cg: PyCodegen) -> None:
        if self.active:
            raise Unsupported("forward-ad", "a graph break inside a dual level would lose all tangents")
        super().reconstruct(cg)


register_rule(forward_ad.dual_level)(lambda tx, args, kwargs: DualLevelVariable(forward_ad.dual_level, {}))


def _unpack_without_level(tx: Tracer, tensor: Variable) -> Variable:
    """Trace ``unpack_dual`` without an open level, and guard that there is none."""
    level = AttrSource(ConstantSource(forward_ad, forward_ad.__name__), "_current_level")
    tx.guard(EqualsMatch, level, forward_ad._current_level, why="the tangent of a tensor was read")
    return tx.wrap_static(forward_ad.UnpackedDualTensor).call(tx, [tensor, NONE], {})


@register_each(register_rule, forward_ad.make_dual, forward_ad.unpack_dual)
def _dual_function(function: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace the call as a node of a graph that runs as traced.

    Functionalization does not handle tangents.
    """
    target = GraphCallable(function.__name__, function, changes_state=True, effect="uses forward-mode tangents")
    if forward_ad._current_level < 0 and function is forward_ad.unpack_dual and len(args) == 1 and not kwargs:
        return _unpack_without_level(tx, args[0])
    if forward_ad._current_level < 0:
        raise Unsupported("forward-ad", f"{function.__name__} is called outside of a dual level")
    if function is forward_ad.unpack_dual and not any(
        c.make is forward_ad.dual_level for c, _ in tx.torch_state.open_graph_contexts
    ):
        what = "unpack_dual is called in a dual level that was entered outside the function"
        raise Unsupported("forward-ad", what)
    tx.side_effects.mutation_count += 1
    return emit_node(tx, "call_function", target, args, kwargs)
