"""Splits a captured graph into segments that a backend compiles.

Hooks, Python functions and the accumulation into ``.grad`` run between segments.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.fx

from engine.autograd.build_captured_graph import CAPTURED_VALUES, NODE_CALL, STEP_KIND, captured_node_callable
from engine.autograd.segment_inputs import (
    SegmentKey,
    SymbolicInputs,
    differ_only_in_sizes,
    input_spec,
    make_symbolic_inputs,
)
from engine.graph.codegen import EarlyExit, generate_function
from engine.interrupts.deferred_interrupts import defer_interrupts
from engine.ir.graph_callable import Run
from engine.ir.graph_sources import limit_graph_sources
from engine.ir.node_metadata import NodeProvenance, node_id, set_provenance
from engine.ir.node_values import map_tensors, tensors_by_position
from engine.process_state import make_rlock
from engine.torch_private.autograd import DisableAutocast
from engine.torch_private.dispatch import enable_python_dispatcher
from engine.torch_private.fx import make_fx

CompileSegment = Callable[["TracedSegment"], Run]
"""Compiles a traced segment to a runnable function."""

OnSegmentFailure = Callable[[str, Exception], None]
"""Called if a segment cannot be traced or compiled; it then runs operator by operator."""

PURE_KINDS = frozenset({"function", "validate", "add", "zeros", "copy_slices_prologue", "copy_slices_epilogue", "size"})
"""Kinds without side effects."""

MAX_COMPILES_PER_SEGMENT = 8
"""Maximum number of compilations per segment."""

MAX_CACHED_LAYOUTS = 256
"""Maximum number of input keys per segment whose run is cached."""


@dataclass(frozen=True)
class TracedSegment:
    """A segment as ATen operators, for one input key or with symbols for changing sizes.

    ``example_inputs`` are this call's, in placeholder order. ``reason`` says why it is compiled.
    """

    name: str
    module: torch.fx.GraphModule
    example_inputs: tuple[Any, ...]
    reason: str


@dataclass(eq=False)
class Segment:
    """Nodes that the backend compiles together.

    The call takes the values that the nodes read and returns the values that other nodes read.
    A segment is compiled for the key of its inputs. If sizes change, it is compiled again with symbols for those sizes.
    Other inputs cause further compilations, up to ``MAX_COMPILES_PER_SEGMENT`` in all.
    After that, and for tensor subclasses, it runs operator by operator.
    """

    name: str
    module: torch.fx.GraphModule
    compile: CompileSegment
    on_failure: OnSegmentFailure
    _eager_run: Run | None = None
    _runs: dict[SegmentKey, Run] = field(default_factory=dict)
    _compiled_keys: list[SegmentKey] = field(default_factory=list)
    """Keys that were compiled."""
    _symbolic_runs: list[tuple[SegmentKey, SymbolicInputs, Run]] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=make_rlock)

    def __post_init__(self) -> None:
        self.__name__ = self.name

    def __call__(self, *values: Any) -> Any:
        """Run the segment and return its results."""
        key = tuple(map(input_spec, values))
        run = self._runs.get(key)
        if run is None:
            run = self._get_or_compile(key, values)
        return run(*values)

    def eager_run(self) -> Run:
        """Return the run that executes operator by operator."""
        if self._eager_run is None:
            self._eager_run = generate_function(self.module, captured_node_callable, name=self.name)
        return self._eager_run

    def _get_or_compile(self, key: SegmentKey, values: Sequence[Any]) -> Run:
        with self._lock, defer_interrupts(), limit_graph_sources():
            if key in self._runs:
                return self._runs[key]
            if None in key:
                return self.eager_run()
            if len(self._runs) >= MAX_CACHED_LAYOUTS:
                self._runs.clear()
            self._runs[key] = run = self._matching_symbolic_run(key, values) or self._compile_for(key, values)
            return run

    def _matching_symbolic_run(self, key: SegmentKey, values: Sequence[Any]) -> Run | None:
        return next(
            (run for k, s, run in self._symbolic_runs if differ_only_in_sizes(k, key) and s.accepts(values)), None
        )

    def _compile_for(self, key: SegmentKey, values: Sequence[Any]) -> Run:
        if len(self._compiled_keys) >= MAX_COMPILES_PER_SEGMENT:
            return self.eager_run()
        before = [k for k in self._compiled_keys if differ_only_in_sizes(k, key)]
        self._compiled_keys.append(key)
        try:
            if before:
                symbols = make_symbolic_inputs(values, key, before)
                run = self._trace_and_compile(
                    symbols.fakes,
                    values,
                    symbols,
                    f"compiled again, with {symbols.symbol_count} changed sizes as symbols",
                )
                self._symbolic_runs.append((key, symbols, run))
                return run
            fakes = map_tensors(_detach_keeping_requires_grad, values)
            return self._trace_and_compile(
                fakes,
                values,
                None,
                "compiled for the sizes of the first backward"
                if len(self._compiled_keys) == 1
                else "compiled again for other inputs",
            )
        except Exception as error:  # user code must run even if tracing to ATen fails
            self.on_failure(self.name, error)
            return self.eager_run()

    def _trace_and_compile(
        self, inputs: Sequence[Any], values: Sequence[Any], symbols: SymbolicInputs | None, reason: str
    ) -> Run:
        """Trace and compile the segment; return a function of all its values.

        ``inputs``: what to trace with: fakes, symbols and constants. ``values``: those of this call, for the compiler.
        """
        positions = tuple(n for n, g in enumerate(inputs) if isinstance(g, (torch.Tensor, torch.SymInt)))
        module, keep, count = _trace_to_aten(self.module, inputs, positions, symbols)
        reals = map_tensors(lambda t: t.detach(), [values[p] for p in positions])
        return _adapt_calling_convention(
            self.compile(TracedSegment(self.name, module, reals, reason)), positions, keep, count
        )


def _detach_keeping_requires_grad(value: torch.Tensor) -> torch.Tensor:
    """Detach a value but preserve ``requires_grad``, which formulas read on saved tensors."""
    return value.detach().requires_grad_(value.requires_grad)


def _adapt_calling_convention(run: Run, positions: tuple[int, ...], keep: tuple[int, ...], count: int) -> Run:
    """Pass only tensors and symbols to ``run``; return None for results that are no tensors."""

    def call(*values: Any) -> Any:
        returned = run(*[values[p] for p in positions])
        results: list[Any] = [None] * count
        for position, value in zip(keep, returned, strict=True):
            results[position] = value
        return results

    return call


def _trace_to_aten(
    module: torch.fx.GraphModule, inputs: Sequence[Any], positions: Sequence[int], symbols: SymbolicInputs | None
) -> tuple[torch.fx.GraphModule, tuple[int, ...], int]:
    """Trace a segment to ATen operators.

    Return the graph, the indexes of results that are tensors, and the number of results.
    """
    interpreter = torch.fx.Interpreter(module)
    shape: list[Any] = []

    def run(*traced: Any) -> list[torch.Tensor]:
        values = list(inputs)
        for position, value in zip(positions, traced, strict=True):
            values[position] = value
        results = interpreter.run(*values)
        tensors = tensors_by_position(results)
        shape[:] = [n in tensors for n in range(len(results))]
        return list(tensors.values())

    tracing_mode: Literal["fake", "real"] = "fake" if symbols is None else "real"
    with contextlib.ExitStack() as stack:
        if symbols is not None:  # C++ composites read sizes as integers; torch's Python decompositions do not
            stack.enter_context(symbols.fake_mode)
            stack.enter_context(enable_python_dispatcher())
        stack.enter_context(torch.no_grad())
        stack.enter_context(DisableAutocast())
        stack.enter_context(torch.fx.traceback.preserve_node_meta())
        traced_module = make_fx(run, tracing_mode=tracing_mode, _error_on_data_dependent_ops=True)(
            *[inputs[p] for p in positions]
        )
    for node in traced_module.graph.nodes:
        if "val" in node.meta:
            node.meta["example_value"] = node.meta["val"]
    return traced_module, tuple(n for n, is_defined in enumerate(shape) if is_defined), len(shape)


def split_into_segments(
    module: torch.fx.GraphModule,
    id: str,
    compile: CompileSegment,
    fail: OnSegmentFailure,
    early_exit: EarlyExit | None = None,
) -> tuple[Run, tuple[Segment, ...]]:
    """Split a captured graph; return a function of the five lists, and the compiled segments.

    ``early_exit``: as for ``generate_function``. Accumulation into ``.grad`` moves down to the next user code: nothing
    else can observe it.
    """
    divider = _SegmentSplitter(module, id, compile, fail)
    return divider.split(early_exit), tuple(divider.segments)


class _SegmentSplitter:
    """Splits a captured backward at user code into compiled segments."""

    def __init__(self, module: torch.fx.GraphModule, id: str, compile: CompileSegment, fail: OnSegmentFailure) -> None:
        self._module = module
        self._id = id
        self._compile = compile
        self._fail = fail
        self._graph = torch.fx.Graph()
        self._map: dict[torch.fx.Node, torch.fx.Node] = {}
        self._pure_nodes: list[torch.fx.Node] = []
        self._pending_accumulations: list[torch.fx.Node] = []
        self.segments: list[Segment] = []

    def split(self, leave: EarlyExit | None) -> Run:
        """Return the run of the whole graph as straight-line Python."""
        for node in self._module.graph.nodes:
            kind = node.meta.get(STEP_KIND)
            if kind in PURE_KINDS or (kind == "item" and node.args[0] in self._pure_nodes):
                self._pure_nodes.append(node)
            elif kind == "accumulate":
                self._pending_accumulations.append(node)
            elif kind in ("item", "open") or (kind == "check" and not self._pending_accumulations):
                self._copy(node)
            else:
                self._flush()
                self._copy(node)
        module = torch.fx.GraphModule(torch.nn.Module(), self._graph, "DividedBackward")
        return generate_function(module, captured_node_callable, name="compiled backward", early_exit=leave)

    def _copy(self, node: torch.fx.Node) -> None:
        self._map[node] = self._graph.node_copy(node, lambda n: self._map[n])

    def _flush(self) -> None:
        if any(n.meta[STEP_KIND] == "function" for n in self._pure_nodes):
            self._add_segment()
        else:
            for node in self._pure_nodes:
                self._copy(node)
        for node in self._pending_accumulations:
            self._copy(node)
        self._pure_nodes.clear()
        self._pending_accumulations.clear()

    def _add_segment(self) -> None:
        inside = set(self._pure_nodes)
        segment_inputs = list(dict.fromkeys(n for p in self._pure_nodes for n in p.all_input_nodes if n not in inside))
        results = [p for p in self._pure_nodes if any(u not in inside for u in p.users)]
        graph = torch.fx.Graph()
        copies = {n: graph.placeholder(n.name) for n in segment_inputs}
        for node in self._pure_nodes:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            set_provenance(copies[node], NodeProvenance(nodes=(node_id("captured", self._id, node),)))
        graph.output(tuple(copies[n] for n in results))
        name = f"segment_{len(self.segments)}"
        segment = Segment(name, torch.fx.GraphModule(torch.nn.Module(), graph, name), self._compile, self._fail)
        self.segments.append(segment)
        segment_node = self._graph.create_node(
            "call_function", segment, tuple(self._map[n] for n in segment_inputs), {}, name=name
        )
        for n, node in enumerate(results):
            item = self._graph.create_node("call_function", operator.getitem, (segment_node, n), {}, name=node.name)
            item.meta[STEP_KIND] = "item"
            item.meta.update({key: node.meta[key] for key in (NODE_CALL, CAPTURED_VALUES) if key in node.meta})
            set_provenance(item, NodeProvenance(nodes=(node_id("captured", self._id, node),)))
            self._map[node] = item
