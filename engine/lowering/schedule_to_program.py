"""Turn a schedule into a program: buffers, kernel launches, ATen calls, outputs, record.

The program also has a readable Python text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from engine.interrupts.deferred_interrupts import deliver_interrupts
from engine.ir.kernels.lowered_program import (
    CPU_TARGET,
    AtenCall,
    Buffer,
    BufferRef,
    Launch,
    LoweredProgram,
    ProgramStep,
    sizes_in,
)
from engine.ir.loop_ir.index_expr import symbols_of
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.ir.node_values import tensors_in, unwrap_functionalized
from engine.lowering.build_loop_kernel import build_loop_kernel, kernel_name_words
from engine.lowering.choose_blocks import BlockTuner, symbols_from_inputs
from engine.lowering.combine_launches import combine_launches
from engine.lowering.context import ExternNode, LoweredTensor, definitions_in, strided_view_of
from engine.lowering.cpu.build_loop_nest import build_loop_nest
from engine.lowering.dedup_kernels import KernelDeduplicator, PrintKernel
from engine.lowering.fallbacks.kinds import lowering_hint
from engine.lowering.fusion.fusion_group import FusionGroup
from engine.lowering.fusion.scheduler import Schedule
from engine.lowering.fusion.value_checks import checks_values
from engine.lowering.memory.buffer_reuse import plan_buffer_reuse
from engine.lowering.memory.mutate_in_place import plan_mutations, reduce_in_place
from engine.lowering.skipped_triton_kernels import skipped_triton_text
from engine.lowering.templates.attention import AttentionTemplate, attention_kernel
from engine.lowering.templates.choose_templates import MatmulTemplate, ScheduleStep
from engine.lowering.templates.matmul import matmul_kernel
from engine.lowering.wrapper_text import _op_name, wrapper_text
from engine.records.lowering import ExternCall, LoweringRecord
from engine.torch_private.pytree import tree_map_only

if TYPE_CHECKING:
    from engine.lowering.graph_lowering import GraphLowering


GPU_TARGETS = ("cuda", "hip")
"""Prefixes of targets whose kernels raise no errors about values."""


def _kernel_letters(stage: str, target: str) -> str:
    """Return what a kernel's id starts with: a graph has kernels for a GPU and for the CPU."""
    letter = "c" if target == CPU_TARGET else ""
    return f"b{letter}" if stage == "backward" else letter or "k"


def schedule_to_program(
    walk: GraphLowering,
    schedule: Schedule,
    target: str,
    emit: PrintKernel,
    tuner: BlockTuner,
    mutated: Sequence[tuple[int, int]],
    built: dict[int, LoopKernel],
) -> LoweredProgram:
    """Build the program of a schedule.

    ``emit`` prints a kernel, ``tuner`` chooses the block sizes of a kernel. ``mutated``: see
    ``AotGraph.mutated_inputs``. ``built``: loop kernels of an earlier call, by the number of the step; new ones are
    added.
    """
    buffers = _make_buffers(walk, schedule)
    printed = KernelDeduplicator(emit, target, _kernel_letters(walk.stage, target))
    builder = _StepBuilder(walk, buffers, printed, tuner.with_chosen_blocking, built)
    for step in schedule.steps:
        deliver_interrupts()
        builder.add(step)
    outputs = tree_map_only(LoweredTensor, _make_ref, walk.outputs)
    assumes_sizes = _assumes_sizes(walk)
    written = [(position, walk.inputs[mutated_input][0]) for position, mutated_input in mutated if not assumes_sizes]

    def may_raise(kernel: LoopKernel) -> bool:
        return not target.startswith(GPU_TARGETS) and checks_values(kernel.ops)

    buffers, stored = plan_mutations(builder.steps, builder.loops, buffers, outputs, written, may_raise)
    buffers, reuses = plan_buffer_reuse(builder.steps, builder.loops, buffers, outputs)
    steps, combined = (
        (builder.steps, ())
        if target == CPU_TARGET
        else combine_launches(builder.steps, builder.loops, buffers, printed, walk.stage)
    )
    steps = reduce_in_place(steps, buffers, outputs)
    externs = tuple(map(_extern_record, builder.externs))
    lowered = walk.lowered_node_count + builder.template_count
    choices = (*schedule.choices, *tuner.choices)
    lowering_record = LoweringRecord(
        target, (*schedule.decisions, *combined), externs, lowered, walk.compute_node_count, autotune_choices=choices
    )
    program = LoweredProgram(
        target,
        tuple(name for name, _ in walk.inputs),
        buffers,
        tuple(steps),
        outputs,
        walk.symbols.inputs,
        lowering_record,
        walk.module,
        unbacked_symbols={symbol: (defining.name, dim) for symbol, (defining, dim) in walk.symbols.unbacked.items()},
        **walk.symbols.assumptions,
        multi_output_buffers=_multi_result_positions(walk),
    )
    _check_symbols_known(program)
    record = replace(program.record, wrapper_text=wrapper_text(program), reuses=(*stored, *reuses))
    return replace(program, record=record)


def _extern_record(extern: ExternNode) -> ExternCall:
    """Return the record of an ATen call, with the reason for it."""
    return ExternCall(
        next(iter(extern.origins), ""),
        _op_name(unwrap_functionalized(extern.target, extern.args)),
        extern.reason,
        extern.is_library,
        extern.kind,
        "" if extern.is_library else lowering_hint(extern.kind),
        skipped_triton_text(extern.target),
    )


def _multi_result_positions(walk: GraphLowering) -> dict[str, tuple[str, int]]:
    several = (e for e in walk.context.externs if isinstance(e.node.meta.get("val"), (tuple, list)))
    return {result.name: (e.node.name, k) for e in several for k, result in enumerate(e.results) if result is not None}


def subprogram(walk: GraphLowering, target: str, emit: PrintKernel, steps: tuple[ScheduleStep, ...]) -> LoweredProgram:
    """Build a program of some steps of a schedule, for benchmarks.

    Its inputs are the tensors that these steps read from other steps. Its outputs are all tensors that they write.
    """
    buffers = {
        tensor_def.name: _make_buffer(tensor_def, "intermediate") for step in steps for tensor_def in step.output_defs
    }
    inputs = {
        tensor_def.name: _make_buffer(tensor_def, "input")
        for step in steps
        for tensor_def in sorted(step.input_defs(), key=lambda d: d.program_order)
        if tensor_def.name not in buffers
    }
    buffers |= inputs
    builder = _StepBuilder(walk, buffers, KernelDeduplicator(emit, target))
    for step in steps:
        builder.add(step)
    unseen = {d.name for d in builder.unused_results}
    written = tuple(
        BufferRef(name) for name, buffer in buffers.items() if buffer.kind != "input" and name not in unseen
    )
    return LoweredProgram(target, tuple(inputs), buffers, tuple(builder.steps), written, symbols_from_inputs(inputs))


class _StepBuilder:
    """Builds the program's steps from a schedule's; ``tune`` chooses a kernel's block sizes.

    ``built``: loop kernels by the number of their step, which are not built again.
    """

    def __init__(
        self,
        walk: GraphLowering,
        buffers: Mapping[str, Buffer],
        printed: KernelDeduplicator,
        tune: Callable[[LoopKernel], LoopKernel] | None = None,
        built: dict[int, LoopKernel] | None = None,
    ) -> None:
        self.walk, self.buffers, self.printed, self.tune = walk, buffers, printed, tune
        self.is_cpu = printed.target == CPU_TARGET
        self.steps: list[ProgramStep] = []
        self.loops: dict[int, LoopKernel] = {} if built is None else built
        """Loop kernel by number of its step."""
        self.externs: list[ExternNode] = []
        self.template_count = 0
        self.unused_results: list[TensorDef] = []

    def add(self, step: Any) -> None:
        """Add the program steps of one step of a schedule."""
        _ADD_BY_TYPE[type(step)](self, step)

    def _add_extern(self, step: ExternNode) -> None:
        """Add an ATen call."""
        self.externs.append(step)
        self.steps.append(_make_extern(step))

    def _add_attention(self, step: AttentionTemplate) -> None:
        """Add the kernels of one attention call."""
        self.template_count += 1
        self.unused_results += step.call.unused_results
        self.steps += _attention_steps(step, self.walk, self.printed)

    def _add_group(self, step: FusionGroup) -> None:
        """Add a loop kernel."""
        if (kernel := self.loops.get(len(self.steps))) is not None:
            self.steps.append(Launch(self.printed.kernel_source(kernel)))
            return
        build = build_loop_nest if self.is_cpu else build_loop_kernel
        self._add_launch(build(step, self.printed.next_id, self.walk, self.buffers))

    def _add_matmul(self, step: MatmulTemplate) -> None:
        """Add a matmul template."""
        self.template_count += 1
        prefix, name_words = f"loop:{self.walk.context.compilation}", kernel_name_words(step.fused_matmul.origins)
        id = self.printed.next_id
        self._add_launch(matmul_kernel(step.fused_matmul, step.tiling, id, prefix, name_words, self.buffers))

    def _add_launch(self, kernel: LoopKernel) -> None:
        kernel = kernel if self.tune is None else self.tune(kernel)
        self.loops[len(self.steps)] = kernel
        self.steps.append(Launch(self.printed.kernel_source(kernel)))


_ADD_BY_TYPE: dict[type, Callable[[_StepBuilder, Any], None]] = {
    ExternNode: _StepBuilder._add_extern,
    AttentionTemplate: _StepBuilder._add_attention,
    FusionGroup: _StepBuilder._add_group,
    MatmulTemplate: _StepBuilder._add_matmul,
}


def _attention_steps(step: AttentionTemplate, walk: GraphLowering, printed: KernelDeduplicator) -> list[ProgramStep]:
    """Build the kernels of one attention call; its unused results become zeros."""
    prefix, nodes = f"loop:{walk.context.compilation}", step.call.extern.origins
    steps: list[ProgramStep] = [
        Launch(printed.attention_source(*attention_kernel(step, kind), prefix, nodes)) for kind in step.kernel_kinds
    ]
    devices = [v.device for v in tensors_in(step.call.extern.node.meta.get("val"))]
    for unused in step.call.unused_results:
        options = {"dtype": unused.dtype, "device": devices[0]}
        reason = "Without dropout, no random number state is needed."
        steps.append(
            AtenCall(
                next(iter(nodes), ""),
                torch.ops.aten.zeros.default,
                (list(unused.shape),),
                options,
                (unused.name,),
                reason,
                True,
            )
        )
    return steps


def _make_buffer(tensor_def: TensorDef, kind: Literal["input", "intermediate", "output"]) -> Buffer:
    return Buffer(tensor_def.name, tensor_def.dtype, tensor_def.shape, tensor_def.stride, kind, tensor_def.is_complex)


def _assumes_sizes(walk: GraphLowering) -> bool:
    """Return True if data may yield a size or relation other than the graph assumes.

    ATen then runs the call again, for which the inputs must be unwritten.
    """
    has_sizes = any(dimension >= 0 for _, dimension in walk.symbols.unbacked.values())
    return has_sizes or any(walk.symbols.assumptions.values())


def _check_symbols_known(program: LoweredProgram) -> None:
    """Check that the program defines every symbol that it needs.

    Raises:
        ValueError: a symbol has no definition.
    """
    # The strides of an input are needed only if a kernel reads it.
    computed = [b for b in program.buffers.values() if b.kind != "input"]
    sizes: list[Any] = [s for b in computed for s in (*b.shape, *b.stride)]
    sizes += [size for step in program.steps for size in step.sizes()] + sizes_in(program.outputs)
    if unknown := symbols_of(sizes) - program.symbol_sources.keys() - program.unbacked_symbols.keys():
        raise ValueError(f"the graph does not define {', '.join(sorted(unknown))}")


def _make_buffers(walk: GraphLowering, schedule: Schedule) -> dict[str, Buffer]:
    returned = definitions_in(walk.outputs)
    buffers: dict[str, Buffer] = {}
    for tensor_def in walk.context.defs:
        if tensor_def.kind == "input":
            buffers[tensor_def.name] = _make_buffer(tensor_def, "input")
    for step in schedule.steps:
        for tensor_def in step.output_defs:
            buffers[tensor_def.name] = _make_buffer(tensor_def, "output" if tensor_def in returned else "intermediate")
    return buffers


def _make_ref(value: LoweredTensor) -> BufferRef:
    """Return the reference of a step to a tensor in memory."""
    if value.index_map is None:
        return BufferRef(value.definition.name, is_complex=value.is_complex)
    placed = strided_view_of(value)
    assert placed is not None, f"{value.definition.name} was not stored in memory"
    return BufferRef(value.definition.name, value.shape, placed[0], placed[1], value.is_complex)


def _make_extern(step: ExternNode) -> AtenCall:
    args, kwargs = tree_map_only(LoweredTensor, _make_ref, (step.args, step.kwargs))
    results = tuple(None if r is None else r.name for r in step.results)
    return AtenCall(next(iter(step.origins), ""), step.target, args, kwargs, results, step.reason, step.is_library)
