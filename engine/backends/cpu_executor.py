"""Run a functional graph on the CPU: LLVM kernels, and ATen for operators without one."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator

import torch

from engine import errors
from engine.backends.program_runner import with_recorded_fallback
from engine.backends.record_program import record_cpu_program, record_no_cpu_program
from engine.backends.stored_tunings import stored_tunings
from engine.cache.disk_store import DiskStore
from engine.compilation import Compilation
from engine.ir.aot.aot_graph import KERNEL_GAIN_ATTR, AotGraph
from engine.ir.graph_callable import Run
from engine.ir.kernels.kernel_edits import with_edited_kernels
from engine.ir.kernels.llvm_machine import why_llvm_is_missing
from engine.ir.kernels.lowered_program import CPU_TARGET, LoweredProgram
from engine.ir.node_values import tensors_in
from engine.kernels.print_kernel import outline_kernel, print_kernel
from engine.lowering.choose_blocks import FindTuning
from engine.lowering.cpu.single_operators import estimate_kernel_gain, nodes_as_fast_in_aten
from engine.lowering.driver import RewrittenGraph, lower, run_passes
from engine.lowering.missing_kernels import nodes_without_kernel
from engine.lowering.passes.decompose import KnownDecompositions
from engine.options import config, user_cache_dir
from engine.runtime.aten_executor import aten_executor
from engine.runtime.cpu_launcher import cpu_launcher
from engine.runtime.program_executor import ProgramExecutor
from engine.torch_private.entries import Feature, why_off

_log = logging.getLogger("engine")


NO_GAIN = "No operator of the graph is faster in a kernel: none is fused with another, and ATen moves the same bytes."


def cpu_executor(graph: AotGraph, work: Compilation) -> Run:
    """Return the executor of a graph on the CPU; ATen runs it if no kernel can be built.

    The record says why.
    """
    if missing := why_llvm_is_missing():
        _log_once(missing)
    reason = missing or _why_no_kernels(graph)
    try:
        run = None if reason else _kernels(graph, work)
    except Exception as error:
        run, reason = None, work.record_failure("CPU kernels", error, "ATen runs the graph").sentence
    if run is not None:
        return run
    record_no_cpu_program(reason or NO_GAIN, graph, work)
    return aten_executor(graph) if reason else _mark_kernel_gain(aten_executor(graph), 0.0)


def _mark_kernel_gain(run: Run, seconds: float) -> Run:
    """Store the kernels' estimated gain on an executor."""
    setattr(run, KERNEL_GAIN_ATTR, seconds)
    return run


def _why_no_kernels(graph: AotGraph) -> str:
    """Return one sentence why ATen runs a graph as a whole; empty if kernels may."""
    is_on_cpu = all(value.device.type == "cpu" for value in _tensors(graph))
    return "" if is_on_cpu else "The graph has tensors that are not on the CPU."


def _tensors(graph: AotGraph) -> Iterator[torch.Tensor]:
    """Yield the fake values of all nodes."""
    for node in graph.module.graph.nodes:
        yield from tensors_in(node.meta.get("val"))


class CpuLowering:
    """Lowers one graph for this CPU until each operator is where it is fastest."""

    def __init__(self, graph: AotGraph, find_tuning: FindTuning | None) -> None:
        self._graph, self._find_tuning = graph, find_tuning
        self._without_kernel = nodes_without_kernel(graph)
        self._aten_nodes = dict(self._without_kernel)
        """Why ATen runs a node, by node."""
        self._has_gain = False
        """True if a kernel is faster than ATen."""
        self._parts = KnownDecompositions()
        self._rewritten: dict[frozenset[str], RewrittenGraph] = {}
        """The rewritten graph, by the nodes that were not decomposed."""

    def run_nodes_in_aten(self, error: errors.KernelBuildError) -> None:
        """Run the nodes of a kernel that cannot be built in ATen.

        Raises:
            KernelBuildError: ATen runs all of them already.
        """
        if self._aten_nodes.keys() >= set(error.nodes):
            raise error
        self._aten_nodes |= dict.fromkeys(error.nodes, str(error))

    def program(self) -> LoweredProgram | None:
        """Return the program of the graph, or None if no operator gains by a kernel."""
        while True:
            count = len(self._aten_nodes)
            try:
                program = self._lower()
            except errors.KernelBuildError as error:
                self.run_nodes_in_aten(error)
                continue
            if not self._has_gain:
                return None
            if len(self._aten_nodes) == count:
                return program

    def _accept(self, outlined: LoweredProgram) -> bool:
        """Choose the nodes that ATen runs; return True if the program's kernels are to be printed."""
        aten_nodes = nodes_as_fast_in_aten(outlined, self._graph.module)
        self._has_gain = not aten_nodes.keys() >= {node for kernel in outlined.kernels for node in kernel.nodes}
        is_chosen = aten_nodes.keys() <= self._aten_nodes.keys()
        self._aten_nodes |= aten_nodes
        return self._has_gain and is_chosen

    def _lower(self) -> LoweredProgram:
        return lower(
            self._graph,
            CPU_TARGET,
            print_kernel,
            forced_fallbacks=self._aten_nodes,
            rewritten=self._rewrite(),
            find_tuning=self._find_tuning,
            outline=outline_kernel,
            is_accepted=self._accept,
        )

    def _rewrite(self) -> RewrittenGraph:
        """Run the graph passes; an operator that ATen runs is not decomposed."""
        decomposed = {node.name for node, parts in self._parts.of_nodes.items() if parts is not None}
        decomposed_nodes = frozenset(
            node for node in self._aten_nodes if node in self._without_kernel or node.rpartition(":")[2] in decomposed
        )
        if decomposed_nodes not in self._rewritten:
            self._rewritten[decomposed_nodes] = run_passes(
                self._graph,
                fused_random=False,  # a CPU kernel draws no numbers
                is_cpu=True,
                left_whole=decomposed_nodes,
                known_parts=self._parts,
            )
        return self._rewritten[decomposed_nodes]


def _kernels(graph: AotGraph, work: Compilation) -> Run | None:
    """Return the executor of a graph's kernels; None if all its nodes are ATen's."""
    bind = functools.partial(cpu_launcher, store=_object_store())
    lowering = CpuLowering(graph, stored_tunings(CPU_TARGET))
    while True:
        with work.stage("CPU lowering"):
            program = lowering.program()
        if program is None:
            return None
        program = with_edited_kernels(program, graph.passes.kernel_edits)
        try:
            with work.stage("LLVM"):
                executor = ProgramExecutor(program, bind, is_boxed=graph.is_boxed, compilation=work.id)
        except errors.KernelBuildError as error:
            lowering.run_nodes_in_aten(error)
            work.record_failure("CPU kernels", error, "ATen computes the result of this kernel")
            continue
        run = _mark_kernel_gain(with_recorded_fallback(executor, graph), estimate_kernel_gain(program, graph.module))
        return record_cpu_program(run, program, graph, work)


def _object_store() -> DiskStore | None:
    """Return the disk cache of compiled kernels, or None."""
    return DiskStore(user_cache_dir() / "objects") if config.disk_cache and not why_off(Feature.DISK_CACHE) else None


@functools.cache
def _log_once(sentence: str) -> None:
    """Log once a process why no kernels run."""
    _log.info("%s ATen runs the graphs.", sentence)
