"""A captured backward and its runs: operator by operator, or compiled by a backend."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from engine.autograd.build_captured_graph import CapturedGraphBuilder, captured_node_callable, runs_users_code
from engine.autograd.cache_miss import CaptureKey
from engine.autograd.capture import BackwardCapture
from engine.autograd.eager_fallback import make_exit_hook
from engine.autograd.execution_order import AutogradNode
from engine.graph.codegen import generate_function
from engine.interrupts.deferred_interrupts import defer_interrupts
from engine.ir.graph_callable import Run
from engine.ir.graph_sources import limit_graph_sources
from engine.process_state import make_rlock


@dataclass(eq=False)
class CapturedBackward:
    """One capture in torch's cache: its graph, and a run per backend, created on demand."""

    id: str
    graph: torch.fx.GraphModule
    """Graph whose arguments are the lists named in ``build_captured_graph.PLACEHOLDERS``."""
    capture: BackwardCapture
    key: CaptureKey
    nodes: tuple[AutogradNode, ...]
    """Autograd nodes in walk order; ``execution_order`` has their indexes in eager order."""
    execution_order: tuple[int, ...]
    earlier_keys: tuple[CaptureKey, ...] = ()
    """Keys of earlier captures, which did not match."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    compilation_numbers: Iterator[int] = field(default_factory=itertools.count)
    """Numbers the compilations of the capture by backends."""
    _eager_run: Run | None = None
    _anomaly_run: Run | None = None
    _runs: dict[Any, Run] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=make_rlock)

    @property
    def runs_users_code(self) -> bool:
        """True if hooks or user-defined Python functions run in it."""
        return any(runs_users_code(s) for c in self.capture.calls for s in c.steps)

    @property
    def has_unpack_hooks(self) -> bool:
        """True if hooks unpack saved tensors."""
        return any("unpack_hook" in kinds for kinds in self.key.step_kinds)

    def __call__(self, *lists: Any) -> Any:
        """Run the graph operator by operator on the five lists."""
        return self.eager_run()(*lists)

    def eager_run(self) -> Run:
        """Return the run that executes operator by operator."""
        with self._lock, defer_interrupts():
            if self._eager_run is None:
                leave = make_exit_hook(self.capture, self.execution_order)
                self._eager_run = generate_function(
                    self.graph, captured_node_callable, name="captured backward", early_exit=leave
                )
            return self._eager_run

    def anomaly_run(self) -> Run:
        """Return the run under anomaly mode: operator by operator, with checks of node outputs."""
        with self._lock, defer_interrupts():
            if self._anomaly_run is None:
                module = CapturedGraphBuilder(self.capture, self.execution_order, checks_anomalies=True).build()
                leave = make_exit_hook(self.capture, self.execution_order, checks_anomalies=True)
                self._anomaly_run = generate_function(
                    module, captured_node_callable, name="captured backward", early_exit=leave
                )
            return self._anomaly_run

    def compiled_run(self, backend: Any, compile: Callable[[CapturedBackward], Run]) -> Run:
        """Return the result of ``compile``, called once per backend."""
        run = self._runs.get(backend)
        if run is None:
            with self._lock, defer_interrupts(), limit_graph_sources():
                run = self._runs[backend] = self._runs.get(backend) or compile(self)
        return run
