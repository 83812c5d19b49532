"""Reports of compilations for torch: Dynamo's counters, artifacts of ``TORCH_LOGS``."""

from __future__ import annotations

import dis
import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

import torch.fx

from engine.ir.compiler_protocol import CacheEntry, CompileRequest
from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.traced_frame import TracedFrame
from engine.records.trace import BreakRecord
from engine.torch_private.global_state import get_artifact_logger, loaded_dynamo_module

LOGGER = "torch._dynamo.compile_explorer"
"""Name of the engine's logger: below a logger of torch, whose handlers print it."""
_CALLS = ("call_function", "call_method", "call_module")


def report_trace(request: CompileRequest, traced: TracedFrame) -> None:
    """Count and log a traced frame: the cause of a recompile, its graph breaks and its graph."""
    _count_frame(traced)
    location = _describe_location(request)
    if request.entry_index:
        for name in ("recompiles", "recompiles_verbose"):
            log_artifact(name, lambda: f"Recompiling {location}. {request.miss_reason}")
    for graph_break in traced.record.breaks:
        log_artifact("graph_breaks", functools.partial(_describe_break, graph_break, location))
    if traced.graph is not None:
        log_graph(("graph", "graph_code"), f"Graph of {location}", traced.graph.graph)


def report_entry(request: CompileRequest, entry: CacheEntry) -> None:
    """Log the guards and the bytecode of a compiled frame."""
    location = _describe_location(request)
    log_artifact("guards", lambda: f"Guards of {location}\n{_describe_guards(entry)}")
    log_artifact("bytecode", lambda: f"Bytecode of {location}\n{dis.Bytecode(entry.code).dis()}")


def log_graph(artifacts: Iterable[str], title: str, graph: torch.fx.GraphModule) -> None:
    """Log a graph as these artifacts: as a list of nodes for ``graph``, else as Python code."""
    for name in artifacts:
        log_artifact(name, functools.partial(_describe_graph, name, title, graph))


def log_kernels(title: str, kernels: Iterable[GeneratedKernel]) -> None:
    """Log kernel texts, one per name, to ``TORCH_LOGS``."""
    texts = {k.name: k.text for k in kernels}
    for artifact in ("output_code", "kernel_code") if texts else ():
        log_artifact(artifact, lambda: "\n".join((title, *(f"{name}\n{text}" for name, text in texts.items()))))


def log_artifact(name: str, text: Callable[[], str]) -> None:
    """Log one artifact if ``TORCH_LOGS`` or ``torch._logging.set_logs`` names it."""
    logger: logging.Logger = get_artifact_logger(LOGGER, name)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s", text())


def _describe_location(request: CompileRequest) -> str:
    code = request.function.__code__
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def _count_frame(traced: TracedFrame) -> None:
    """Add to the counters of Dynamo, if the program loaded them, what Dynamo adds for a frame."""
    counters: Any = getattr(loaded_dynamo_module("utils"), "counters", None)
    if counters is None:
        return
    counters["frames"]["total"] += 1
    counters["frames"]["ok"] += traced.code is not None
    for graph_break in traced.record.breaks:
        counters["graph_break"][f"{graph_break.title}: {graph_break.context}"] += 1
    if traced.graph is not None:
        operations = Counter(map(attrgetter("op"), traced.graph.graph.graph.nodes))
        counters["stats"]["calls_captured"] += sum(map(operations.__getitem__, _CALLS))
        counters["stats"]["unique_graphs"] += 1


def _describe_break(graph_break: BreakRecord, location: str) -> str:
    where = f"{graph_break.span.file}:{graph_break.span.line}" if graph_break.span is not None else location
    stack = (f"  called from {s.file}:{s.line}" for s in reversed(graph_break.stack[:-1]))
    hints = (f"Hint: {hint}" for hint in graph_break.hints)
    parts = (
        f"Graph break at {where}: {graph_break.title}: {graph_break.context}",
        *stack,
        graph_break.explanation,
        *hints,
    )
    return "\n".join(filter(None, parts))


def _describe_graph(artifact: str, title: str, graph: torch.fx.GraphModule) -> str:
    return f"{title}\n{graph.graph if artifact == 'graph' else graph.code.strip()}"


def _describe_guards(entry: CacheEntry) -> str:
    return "\n".join(f"{g.kind} {g.source.expr}: {g.cause.reason}" for g in entry.guards)
