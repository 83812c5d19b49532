"""Nodes that the tracer adds for their effect on torch's state, without ``emit_node``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.fx

from engine.trace.annotations import Tracer


def append_node(tx: Tracer, target: Any, args: Sequence[Any] = (), example: Any = None) -> torch.fx.Node:
    """Append a call of ``target``. ``example`` is the fake of its result."""
    node = tx.graph.create_node("call_function", target, tuple(args), {}, tx.node_provenance())
    node.meta["example_value"] = example
    return node


def emit_effect(tx: Tracer, target: Any, args: Sequence[Any] = (), example: Any = None) -> torch.fx.Node:
    """Append a call that changes state and may raise, where a handler of the user may see it."""
    node = append_node(tx, target, args, example)
    tx.fallback.update_op_in_try_block()
    return node
