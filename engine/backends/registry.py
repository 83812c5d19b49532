"""Backends by name, and what every backend falls back to: the traced graph, run eagerly."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch.fx

Run = Callable[..., Any]

BACKENDS: dict[str, Callable[..., Any] | None] = {"eager": None, "aot_eager": None, "triton": None, "inductor": None}
"""Backends by name: None if built in, else ``(graph_module, example_inputs) -> callable``."""


def backend_name(backend: str | Run) -> str:
    """Return the name of a backend."""
    return backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)


def backend_callable(backend: str | Run) -> Run | None:
    """Return the callable of a registered or custom backend; None for built-in ones."""
    return BACKENDS[backend] if isinstance(backend, str) else backend


def eager_run(graph: torch.fx.GraphModule) -> Run:
    """Return the traced graph's forward, without the overhead of ``nn.Module.__call__``."""
    return types.MethodType(type(graph).forward, graph)
