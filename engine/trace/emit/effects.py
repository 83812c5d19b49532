"""Nodes that the tracer adds for their effect on torch's state, without ``emit_node``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch.fx

from engine.ir.graph_callable import GraphCallable
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Variable


def append_node(tx: Tracer, target: Any, args: Sequence[Any] = (), example: Any = None) -> torch.fx.Node:
    """Append a call of ``target``. ``example`` is the fake of its result."""
    node = tx.graph.create_node("call_function", target, tuple(args), {}, tx.node_provenance())
    node.meta["example_value"] = example
    return node


def emit_effect(tx: Tracer, target: Any, args: Sequence[Any] = ()) -> torch.fx.Node:
    """Append a call that changes state and may raise, where a handler of the user may see it."""
    node = append_node(tx, target, args)
    tx.fallback.update_op_in_try_block()
    return node


def undo_after_tracing(tx: Tracer, undo: Callable[[], Any]) -> None:
    """Call ``undo`` when tracing ends."""
    at_end = contextlib.ExitStack()
    at_end.callback(undo)
    tx.torch_state.contexts_to_exit.append(at_end)


def switch_state(tx: Tracer, name: str, switch: Callable[[], Any], undo: Callable[[], Any]) -> Variable:
    """Switch a state of torch now and in the graph; ``undo`` is called when tracing ends."""
    if tx.in_subgraph():
        raise Unsupported("higher-order-side-effect", f"{name} is called in the body of a higher-order operator")
    undo_after_tracing(tx, undo)
    result = tx.fold_constant(switch)
    emit_effect(tx, GraphCallable(name, switch, changes_state=True))
    tx.side_effects.mutation_count += 1
    return result
