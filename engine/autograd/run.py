"""Runs a captured backward: operator by operator, or what a backend made of it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from engine.autograd.capture import Captured
from engine.autograd.finish import leaving
from engine.autograd.order import Node
from engine.autograd.program import Writer, callable_of, runs_users_code
from engine.autograd.reasons import Shape
from engine.graph.straight import straight_line

Run = Callable[..., Any]


@dataclass(eq=False)
class CapturedBackward:
    """One capture, kept by torch's cache: the graph, and how each backend runs it, once it has been asked to."""

    id: str
    graph: torch.fx.GraphModule
    """Called with the lists ``program.PLACEHOLDERS``."""
    captured: Captured
    shape: Shape
    nodes: tuple[Node, ...]
    """Autograd's nodes in the order of the walk, and in ``order`` their places as eager runs them."""
    order: tuple[int, ...]
    before: tuple[Shape, ...] = ()
    """Captures that did not serve."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    compilations: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for what backends compile of it."""
    _eager: Run | None = None
    _watched: Run | None = None
    _runs: dict[Any, Run] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def runs_users_code(self) -> bool:
        """Whether hooks or Python functions of the user's are in it."""
        return any(runs_users_code(s) for c in self.captured.calls for s in c.steps)

    @property
    def unpacks(self) -> bool:
        """Whether saved tensors come out of hooks."""
        return any("unpack_hook" in kinds for kinds in self.shape.steps)

    def __call__(self, *lists: Any) -> Any:
        """Run it operator by operator on the five lists."""
        return self.eager()(*lists)

    def eager(self) -> Run:
        """Operator by operator."""
        with self._lock:
            if self._eager is None:
                leave = leaving(self.captured, self.order)
                self._eager = straight_line(self.graph, callable_of, name="captured backward", leave=leave)
            return self._eager

    def watched(self) -> Run:
        """Operator by operator, looking at what each node returns."""
        with self._lock:
            if self._watched is None:
                module = Writer(self.captured, self.order, is_watched=True).write()
                leave = leaving(self.captured, self.order, is_watched=True)
                self._watched = straight_line(module, callable_of, name="captured backward", leave=leave)
            return self._watched

    def run_for(self, backend: Any, compile: Callable[[CapturedBackward], Run]) -> Run:
        """What ``compile`` makes of it, made once for each backend."""
        run = self._runs.get(backend)
        if run is None:
            with self._lock:
                run = self._runs[backend] = self._runs.get(backend) or compile(self)
        return run
