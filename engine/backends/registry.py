"""Backends by name, and what every backend falls back to: the traced graph, run eagerly."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch.distributed
import torch.fx

from engine.ir.graph_callable import Run
from engine.ir.introspection.operator_facts import draws_random
from engine.ir.rerun_after_error import restore_inputs_on_error
from engine.ir.traced_frame import TracedGraph
from engine.runtime.collective_order import watch_collectives

BACKENDS: dict[str, Callable[..., Any] | None] = {"eager": None, "aot_eager": None, "triton": None, "inductor": None}
"""Backends by name: None if built in, else ``(graph_module, example_inputs) -> callable``."""


def backend_name(backend: str | Run) -> str:
    """Return the name that records show for a backend: its own, or that of the callable."""
    return backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)


def backend_callable(backend: str | Run) -> Run | None:
    """Return the callable of a registered or custom backend; None for built-in ones."""
    return BACKENDS[backend] if isinstance(backend, str) else backend


def eager_run(graph: torch.fx.GraphModule) -> Run:
    """Return the traced graph's forward, without the overhead of ``nn.Module.__call__``."""
    return types.MethodType(type(graph).forward, graph)


def watched_run(run: Run, graph: torch.fx.Graph) -> Run:
    """Return a run that also notes the graph's collectives, in a process of a group."""
    distributed = torch.distributed
    return watch_collectives(graph, run) if distributed.is_available() and distributed.is_initialized() else run


def restoring_inputs(run: Run, traced: TracedGraph) -> Run:
    """Return a run that restores its inputs on error, if the original code runs after it."""
    if not traced.reruns_after_error:
        return run
    nodes = traced.graph.graph.nodes
    draws = any(draws_random(n) for n in nodes)
    counts = not any(n.target is getattr and n.args[1] == "data" for n in nodes)
    return restore_inputs_on_error(run, traced.restorable_inputs, draws_random=draws, counts_writes=counts)
