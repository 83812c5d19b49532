"""Turn a schedule into a program: buffers, kernel launches, ATen calls, outputs, record.

The program also has a readable Python text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils import _pytree as pytree

from engine.ir.kernels.lowered_program import AtenCall, Buffer, BufferRef, Launch, LoweredProgram, ProgramStep
from engine.ir.loop_ir.index_expr import symbols_of
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.lowering.buffer_reuse import plan_buffer_reuse
from engine.lowering.build_loop_kernel import _op_words, build_loop_kernel
from engine.lowering.choose_blocks import BlockTuner, symbols_from_inputs
from engine.lowering.context import ExternNode, LoweredTensor
from engine.lowering.dedup_kernels import KernelDeduplicator, PrintKernel
from engine.lowering.scheduler import FusionGroup, Schedule, extern_read_defs
from engine.lowering.strided_views import strided_view_of
from engine.lowering.templates.attention import AttentionTemplate, attention_kernel
from engine.lowering.templates.choose_templates import MatmulTemplate
from engine.lowering.templates.matmul import matmul_kernel
from engine.lowering.wrapper_text import _op_name, wrapper_text
from engine.records.lowering import ExternCall, LoweringRecord

if TYPE_CHECKING:
    from engine.lowering.graph_lowering import GraphLowering


def schedule_to_program(
    walk: GraphLowering, schedule: Schedule, target: str, emit: PrintKernel, cutter: BlockTuner
) -> LoweredProgram:
    """Build the program of a schedule; ``cutter`` chooses the block sizes of its kernels."""
    buffers = _make_buffers(walk, schedule)
    steps: list[ProgramStep] = []
    loops: dict[int, LoopKernel] = {}
    printed = KernelDeduplicator(emit, target, "b" if walk.stage == "backward" else "k")
    for step in schedule.steps:
        if isinstance(step, ExternNode):
            steps.append(_make_extern(step))
        elif isinstance(step, AttentionTemplate):
            steps += _attention_steps(step, walk, printed)
        else:
            kernel = loops[len(steps)] = cutter.with_chosen_blocking(
                _build_kernel(step, printed.next_id, walk, buffers)
            )
            steps.append(Launch(printed.kernel_source(kernel)))
    outputs = tuple(_make_ref(v) if isinstance(v, LoweredTensor) else v for v in walk.outputs)
    buffers, reuses = plan_buffer_reuse(steps, loops, buffers, outputs)
    externs = tuple(
        ExternCall(_first_or_empty(e.origins), _op_name(e.target), e.reason, e.is_library)
        for e in schedule.steps
        if isinstance(e, ExternNode)
    )
    lowered = walk.lowered_node_count + sum(
        isinstance(step, (MatmulTemplate, AttentionTemplate)) for step in schedule.steps
    )
    choices = (*schedule.choices, *cutter.choices)
    told = LoweringRecord(
        target, schedule.decisions, externs, lowered, walk.compute_node_count, autotune_choices=choices
    )
    program = LoweredProgram(
        target,
        tuple(name for name, _ in walk.inputs),
        buffers,
        tuple(steps),
        outputs,
        walk.symbols,
        told,
        walk.module,
        unbacked_symbols={symbol: (made.name, dim) for symbol, (made, dim) in walk.unbacked_definitions.items()},
        assumed_numbers=walk.assumed_values,
        multi_output_buffers=_multi_result_positions(walk),
    )
    _check_symbols_known(program)
    record = replace(program.record, wrapper_text=wrapper_text(program), reuses=reuses)
    return replace(program, record=record)


def _multi_result_positions(walk: GraphLowering) -> dict[str, tuple[str, int]]:
    several = (e for e in walk.context.externs if isinstance(e.node.meta.get("val"), (tuple, list)))
    return {made.name: (e.node.name, k) for e in several for k, made in enumerate(e.results) if made is not None}


def subprogram(
    walk: GraphLowering,
    target: str,
    emit: PrintKernel,
    steps: tuple[FusionGroup | ExternNode | MatmulTemplate | AttentionTemplate, ...],
) -> LoweredProgram:
    """Build a program of some steps of a schedule, for benchmarks.

    Its inputs are the tensors that these steps read from other steps. Its outputs are all tensors that they write.
    """
    buffers = {made.name: _make_buffer(made, "intermediate") for step in steps for made in _step_outputs(step)}
    given = {
        made.name: _make_buffer(made, "input")
        for step in steps
        for made in _step_inputs(step)
        if made.name not in buffers
    }
    buffers |= given
    printed = KernelDeduplicator(emit, target)
    made: list[ProgramStep] = []
    for step in steps:
        if isinstance(step, ExternNode):
            made.append(_make_extern(step))
        elif isinstance(step, AttentionTemplate):
            made += _attention_steps(step, walk, printed)
        else:
            made.append(Launch(printed.kernel_source(_build_kernel(step, printed.next_id, walk, buffers))))
    unseen = {d.name for step in steps if isinstance(step, AttentionTemplate) for d in step.call.unused_results}
    written = tuple(
        BufferRef(name) for name, buffer in buffers.items() if buffer.kind != "input" and name not in unseen
    )
    return LoweredProgram(target, tuple(given), buffers, tuple(made), written, symbols_from_inputs(given))


def _build_kernel(
    step: FusionGroup | MatmulTemplate, id: str, walk: GraphLowering, buffers: Mapping[str, Buffer]
) -> LoopKernel:
    if isinstance(step, FusionGroup):
        return build_loop_kernel(step, id, walk, buffers)
    prefix = f"loop:{walk.context.compilation}"
    return matmul_kernel(step.fused_matmul, step.tiling, id, prefix, _op_words(step.fused_matmul.origins), buffers)


def _attention_steps(step: AttentionTemplate, walk: GraphLowering, printed: KernelDeduplicator) -> list[ProgramStep]:
    """Build the kernels of one attention call; its unused results become zeros."""
    prefix, nodes = f"loop:{walk.context.compilation}", step.call.extern.origins
    made: list[ProgramStep] = [
        Launch(printed.attention_source(*attention_kernel(step, kind), prefix, nodes)) for kind in step.kernel_kinds
    ]
    value = step.call.extern.node.meta.get("val")
    devices = [v.device for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    for rest in step.call.unused_results:
        options = {"dtype": rest.dtype, "device": devices[0]}
        reason = "Without dropout, no random number state is needed."
        made.append(
            AtenCall(
                _first_or_empty(nodes),
                torch.ops.aten.zeros.default,
                (list(rest.shape),),
                options,
                (rest.name,),
                reason,
                True,
            )
        )
    return made


def _step_outputs(step: FusionGroup | ExternNode | MatmulTemplate | AttentionTemplate) -> list[TensorDef]:
    if isinstance(step, ExternNode):
        return [r for r in step.results if r is not None and r.kind != "number"]
    if isinstance(step, MatmulTemplate):
        return list(step.fused_matmul.output_defs)
    return list(step.output_defs if isinstance(step, AttentionTemplate) else step.stores)


def _step_inputs(step: FusionGroup | ExternNode | MatmulTemplate | AttentionTemplate) -> list[TensorDef]:
    if isinstance(step, ExternNode):
        return list(extern_read_defs(step))
    found = step.fused_matmul.input_defs() if isinstance(step, MatmulTemplate) else step.input_defs()
    return sorted(found, key=lambda d: d.program_order)


def _make_buffer(made: TensorDef, kind: Literal["input", "intermediate", "output"]) -> Buffer:
    return Buffer(made.name, made.dtype, made.shape, made.stride, kind, made.is_complex)


def _check_symbols_known(program: LoweredProgram) -> None:
    """Check that the program defines every symbol that it needs.

    Raises:
        ValueError: a symbol has no definition.
    """
    # The strides of an input are needed only if a kernel reads it.
    made = [b for b in program.buffers.values() if b.kind != "input"]
    sizes: list[Any] = [s for b in made for s in (*b.shape, *b.stride)]
    for step in program.steps:
        if isinstance(step, Launch):
            sizes += [*step.kernel.grid, *(a.value for a in step.kernel.args if a.kind == "size")]
    given = [*program.outputs, *((s.args, dict(s.kwargs)) for s in program.steps if isinstance(s, AtenCall))]
    for value in pytree.tree_leaves(given):
        if isinstance(value, BufferRef):
            sizes += [*(value.shape or ()), *(value.stride or ()), value.offset]
        else:
            sizes.append(getattr(getattr(value, "node", None), "expr", value))
    if unknown := symbols_of(sizes) - program.symbol_sources.keys() - program.unbacked_symbols.keys():
        raise ValueError(f"the graph does not define {', '.join(sorted(unknown))}")


def _first_or_empty(values: tuple[str, ...]) -> str:
    return values[0] if values else ""


def _make_buffers(walk: GraphLowering, schedule: Schedule) -> dict[str, Buffer]:
    returned = {v.definition for v in walk.outputs if isinstance(v, LoweredTensor)}
    buffers: dict[str, Buffer] = {}
    for made in walk.context.defs:
        if made.kind == "input":
            buffers[made.name] = _make_buffer(made, "input")
    for step in schedule.steps:
        for made in _step_outputs(step):
            buffers[made.name] = _make_buffer(made, "output" if made in returned else "intermediate")
    return buffers


def _make_ref(value: LoweredTensor) -> BufferRef:
    """Return the reference of a step to a tensor in memory."""
    if value.index_map is None:
        return BufferRef(value.definition.name, is_complex=value.is_complex)
    placed = strided_view_of(value)
    assert placed is not None, f"{value.definition.name} was not stored in memory"
    return BufferRef(value.definition.name, value.shape, placed[0], placed[1], value.is_complex)


def _make_extern(step: ExternNode) -> AtenCall:
    args, kwargs = pytree.tree_map(
        lambda v: _make_ref(v) if isinstance(v, LoweredTensor) else v, (step.args, step.kwargs)
    )
    results = tuple(None if r is None else r.name for r in step.results)
    return AtenCall(_first_or_empty(step.origins), step.target, args, kwargs, results, step.reason, step.is_library)
