"""Compile an ATen graph that no frame was traced for, such as a captured backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from engine.aot.node_properties import may_mutate
from engine.autograd.intercept import without_capture
from engine.backends.call_backend import call_backend
from engine.backends.registry import backend_name, eager_run
from engine.compilation import record_compilation
from engine.guards.codegen import compile_check
from engine.ir.graph_callable import Run
from engine.ir.node_values import tensors_in
from engine.ir.sources.roots import LocalSource
from engine.ir.traced_frame import ConstSlot, GraphInput, TracedGraph
from engine.options import Options
from engine.records.session import CompilationRecord
from engine.torch_private.autograd import DisableAutocast


def compile_standalone_graph(
    module: torch.fx.GraphModule, reals: Sequence[Any], options: Options, record: CompilationRecord
) -> Run:
    """Compile an ATen graph; return ``run(*inputs) -> tuple``.

    Inputs are tensors and symbols. The graph runs eagerly if it cannot be compiled, if a call's inputs do not
    pass the guards, or if the graph mutates a tensor and two inputs share storage. ``record`` is completed
    and added to the session.
    """
    fakes = [n for n in module.graph.nodes if n.op == "placeholder"]
    inputs = [
        GraphInput(n.name, LocalSource(n.name), n.meta["val"], r, getattr(n.meta["val"], "_version", 0))
        for n, r in zip(fakes, reals, strict=True)
    ]
    graph = TracedGraph(ConstSlot(record.id), module, tuple(inputs))
    with (
        without_capture(),
        torch.no_grad(),
        DisableAutocast(),
        record_compilation(record, backend_name(options.backend)) as work,
    ):
        run = call_backend(graph, options, work)
    if work.guards:
        run = _run_if(compile_check(work.guards, tuple(n.name for n in fakes)).check, run, eager_run(module))
    return _run_if(_share_no_storage, run, eager_run(module)) if any(map(may_mutate, module.graph.nodes)) else run


def _share_no_storage(_: tuple[()], *inputs: Any) -> bool:
    """Return True if no two tensors share storage."""
    storages = [i.untyped_storage()._cdata for i in tensors_in(inputs)]
    return len(storages) == len(set(storages))


def _run_if(holds: Callable[..., bool], run: Run, otherwise: Run) -> Run:
    """Return ``run``, or ``otherwise`` for inputs that fail a check (called without cells)."""

    def call(*inputs: Any) -> Any:
        return run(*inputs) if holds((), *inputs) else otherwise(*inputs)

    return call
