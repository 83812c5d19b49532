"""A graph module whose code is generated when it is first read or run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch.fx

from engine.torch_private.entries import is_available
from engine.torch_private.fx import make_fx, use_lazy_graph_module

_GENERATED = ("_code", "_lineno_map", "_prologue_start")


class LazyGraphModule(torch.fx.GraphModule):
    """A graph that one stage hands to the next, and that seldom runs.

    Generating code costs more than many a pass over the graph.
    """

    def recompile(self) -> Any:
        """Discard the code; the next read or run generates it."""
        for name in _GENERATED:
            self.__dict__.pop(name, None)
        type(self).forward = LazyGraphModule.forward  # type: ignore[method-assign]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Generate the code and run it."""
        torch.fx.GraphModule.recompile(self)
        return type(self).forward(self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Generate the code if it is read."""
        if name in _GENERATED:
            torch.fx.GraphModule.recompile(self)
            return self.__dict__[name]
        return super().__getattr__(name)

    def __reduce__(self) -> Any:
        """Pickle as a module with code."""
        return torch.fx.GraphModule(self, self.graph).__reduce__()


def trace_lazily(function: Callable[..., Any], *values: Any, **options: Any) -> LazyGraphModule:
    """Trace a function with ``make_fx`` over fake values, and generate no code."""
    lazy = use_lazy_graph_module(True) if is_available(use_lazy_graph_module) else contextlib.nullcontext()
    with lazy:
        traced = make_fx(function, tracing_mode="real", **options)(*values)
    return LazyGraphModule(traced, traced.graph)
