"""Graphs that call Python functions which read objects."""

from __future__ import annotations

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.ir.fallback import Fallback
from engine.ir.graph_callable import graph_callable_of


def check_python_callables(call: CheckedCall) -> Fallback | None:
    """Return a fallback if the graph runs user Python that may read objects the frame mutates."""
    for node in call.traced.graph.nodes:
        if graph_callable_of(node).runs_user_python:
            return Fallback.for_node(
                node,
                AotFallback.CALL_READS_MUTATED_OBJECTS,
                "calls a Python function that may read objects which the traced code mutates",
            )
    return None
