"""Lays a schedule out as a program: buffers, steps, outputs, the record, and the program as readable Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils import _pytree as pytree

from engine.ir.index import IndexExpr, LoopVar, Size, flatten, product, symbols_of, unflatten, variable
from engine.ir.kernel import AtenCall, Buffer, BufferRef, GeneratedKernel, Launch, LoweredProgram, ProgramStep
from engine.ir.loops import WRITE_OPS, LoopBuilder, LoopIROp, LoopKernel, R, TensorDef
from engine.lowering.blocks import BlockTuner, symbols_from_inputs
from engine.lowering.cost import bytes_moved, flops
from engine.lowering.fuse import FusionGroup, Schedule, extern_read_defs
from engine.lowering.reuse import plan_buffer_reuse
from engine.lowering.share import KernelDeduplicator, PrintKernel
from engine.lowering.strides import strided_view_of
from engine.lowering.table import ExternNode, LoweredTensor
from engine.lowering.templates.attention import AttentionTemplate, attention_kernel
from engine.lowering.templates.choose import MatmulTemplate
from engine.lowering.templates.products import matmul_kernel
from engine.lowering.tile import choose_transpose_tile
from engine.records.lowering import ExternCall, LoweringRecord

if TYPE_CHECKING:
    from engine.lowering.driver import GraphLowering

INT32_LIMIT = 1 << 31
UNNAMED_OPS = frozenset(("clone", "copy", "to", "convert", "element", "type", "full", "arange", "t", "default"))


def schedule_to_program(
    walk: GraphLowering, schedule: Schedule, target: str, emit: PrintKernel, cutter: BlockTuner
) -> LoweredProgram:
    """The program of one schedule; ``cutter`` says how its loops are cut."""
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
    """A program of some of a schedule's steps, which is given what they read of the others, and returns what they write."""
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
    """The kernels of one call of attention; what nobody looks at is zero."""
    prefix, nodes = f"loop:{walk.context.compilation}", step.call.extern.origins
    made: list[ProgramStep] = [
        Launch(printed.attention_source(*attention_kernel(step, kind), prefix, nodes)) for kind in step.kernel_kinds
    ]
    value = step.call.extern.node.meta.get("val")
    devices = [v.device for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    for rest in step.call.unused_results:
        options = {"dtype": rest.dtype, "device": devices[0]}
        reason = "No generator is needed where nothing is dropped."
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
    """Refuse a program that needs a symbol which nothing in it tells.

    Raises:
        ValueError: there is one.
    """
    # Inputs are there already: where no kernel reads one, nothing asks for its strides.
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
        raise ValueError(f"nothing in the graph tells {', '.join(sorted(unknown))}")


def _first_or_empty(values: tuple[str, ...]) -> str:
    return values[0] if values else ""


def _op_name(target: Any) -> str:
    return (
        str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", type(target).__name__)
    )


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
    """How a step names a tensor in memory."""
    if value.index_map is None:
        return BufferRef(value.definition.name, is_complex=value.is_complex)
    placed = strided_view_of(value)
    assert placed is not None, f"{value.definition.name} was not put into memory"
    return BufferRef(value.definition.name, value.shape, placed[0], placed[1], value.is_complex)


def _make_extern(step: ExternNode) -> AtenCall:
    args, kwargs = pytree.tree_map(
        lambda v: _make_ref(v) if isinstance(v, LoweredTensor) else v, (step.args, step.kwargs)
    )
    results = tuple(None if r is None else r.name for r in step.results)
    return AtenCall(_first_or_empty(step.origins), step.target, args, kwargs, results, step.reason, step.is_library)


def build_loop_kernel(group: FusionGroup, id: str, walk: GraphLowering, buffers: Mapping[str, Buffer]) -> LoopKernel:
    """The operations of a group over one flat outer and one flat inner loop."""
    outer, inner = choose_transpose_tile(group) or (group.outer_vars, group.reduction_vars)
    x = LoopVar("x", product(v.size for v in outer))
    r = LoopVar("r", product(v.size for v in inner)) if inner is not None else None
    values = _unflatten_vars(outer, x) | (_unflatten_vars(inner, r) if inner is not None and r is not None else {})
    is_wide = _needs_int64_index(group, buffers, product(v.size for v in (x, r) if v is not None))
    builder = LoopBuilder(
        group.members,
        frozenset((r,)) if r is not None else frozenset(),
        variable(r) if r is not None else IndexExpr(),
        is_wide,
    )
    for made, index in sorted(group.stores.items(), key=lambda item: item[0].program_order):
        place = tuple(i.replace(values) for i in index)
        value = builder.load(made, place)
        if made.kind != "scatter":
            builder.store(made, place, value)
    ops = tuple(builder.ops)
    if not _depends_on_inner_loop(ops):
        r = None  # a sum of which one element is known not to be zero
    used = {op.buffer for op in ops if op.buffer}
    mine = {name: buffers[name] for name in buffers if name in used}
    nodes = tuple(
        dict.fromkeys(o for made in sorted(group.members, key=lambda d: d.program_order) for o in made.node_ids)
    )
    rows = r.size if r is not None else 1
    return LoopKernel(
        id,
        f"loop:{walk.context.compilation}:{id}",
        _op_words(nodes),
        ops,
        x,
        r,
        mine,
        nodes,
        is_wide,
        bytes_moved(ops, mine, x.size, rows),
        flops(ops, x.size, rows),
        initial_values={
            m.name: m.initial_value.name if isinstance(m.initial_value, TensorDef) else m.initial_value
            for m in group.stores
            if m.initial_value is not None
        },
    )


def _depends_on_inner_loop(ops: tuple[LoopIROp, ...]) -> bool:
    """Whether anything that is written depends on an inner loop."""
    seen: set[int] = set()
    stack = [op for op in ops if op.name in WRITE_OPS]
    while stack:
        op = stack.pop()
        if op.number in seen:
            continue
        if R in op.loops or op.name in ("reduce", "scan"):
            return True
        seen.add(op.number)
        picks = () if op.index is None else op.index.indirect_ops()
        stack += [*op.args, *(ops[n] for n in picks), *([] if op.mask is None else [op.mask])]
    return False


def _unflatten_vars(variables: tuple[LoopVar, ...], flat: LoopVar) -> dict[LoopVar, IndexExpr]:
    return dict(zip(variables, unflatten(variable(flat), tuple(v.size for v in variables)), strict=True))


def _needs_int64_index(group: FusionGroup, buffers: Mapping[str, Buffer], numel: Size) -> bool:
    if isinstance(numel, int) and numel >= INT32_LIMIT:
        return True
    for made in (*group.input_defs(), *group.stores):
        buffer = buffers[made.name]
        last = flatten([IndexExpr({}, s - 1) for s in buffer.shape], buffer.stride).const
        if isinstance(last, int) and last >= INT32_LIMIT:
            return True
    return False


def _op_words(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """What a kernel does, from the names of the nodes in it."""
    words: list[str] = []
    for node in nodes:
        word = node.rsplit(":", 1)[-1].strip("_")
        head, _, tail = word.rpartition("_")
        word = head if tail.isdigit() and head else word
        word = word.removeprefix("native_")
        if word and word not in words and word not in UNNAMED_OPS and not word.startswith("getitem"):
            words.append(word)
    return tuple(words)


def wrapper_text(program: LoweredProgram) -> str:
    """The whole program as Python that a person can read."""
    lines = [f"def run({', '.join(program.inputs)}):"]
    for symbol, (position, dim) in program.symbol_sources.items():
        source = program.inputs[position]
        lines.append(f"    {symbol} = {source}" + (f".shape[{dim}]" if dim >= 0 else ""))
    last_use = _last_uses(program)
    made: set[str] = set(program.inputs)
    for number, step in enumerate(program.steps):
        if isinstance(step, Launch):
            lines += _launch_lines(step.kernel, program, made)
        else:
            lines.append("    " + _call_text(step))
            made.update(r for r in step.result_buffers if r is not None)
            told = {s: place for s, place in program.unbacked_symbols.items() if place[0] in step.result_buffers}
            lines += [f"    {s} = {name}" + (f".shape[{dim}]" if dim >= 0 else "") for s, (name, dim) in told.items()]
        dead = [
            name
            for name, at in last_use.items()
            if at == number and name in program.buffers and program.buffers[name].kind == "intermediate"
        ]
        if dead:
            lines.append(f"    del {', '.join(dead)}")
    lines.append(f"    return ({''.join(_value_text(o) + ', ' for o in program.outputs).rstrip()})")
    return "\n".join(lines) + "\n"


def _last_uses(program: LoweredProgram) -> dict[str, int]:
    uses: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Launch):
            names = [a.buffer for a in step.kernel.args if a.kind == "pointer"]
            names += [a.initial_value for a in step.kernel.args if isinstance(a.initial_value, str)]
            names += [taken for name in names if (taken := program.buffers[name].reuses) and name not in uses]
        else:
            leaves = pytree.tree_leaves((step.args, dict(step.kwargs)))
            names = [v.buffer for v in leaves if isinstance(v, BufferRef)] + [
                r for r in step.result_buffers if r is not None
            ]
        uses.update(dict.fromkeys(names, number))
    return uses


def _launch_lines(kernel: GeneratedKernel, program: LoweredProgram, made: set[str]) -> list[str]:
    lines: list[str] = []
    for arg in kernel.args:
        if arg.kind == "pointer" and arg.buffer not in made:
            made.add(arg.buffer)
            buffer = program.buffers[arg.buffer]
            if buffer.reuses:
                lines.append(f"    {arg.buffer} = {buffer.reuses}  # the memory is reused")
                continue
            shape, stride = _tuple_text(buffer.shape), _tuple_text(buffer.stride)
            filled = (
                ""
                if arg.initial_value is None
                else f".{'copy' if isinstance(arg.initial_value, str) else 'fill'}_({arg.initial_value})"
            )
            lines.append(f"    {arg.buffer} = empty_strided({shape}, {stride}, {buffer.dtype}){filled}")
    grid = _tuple_text(kernel.grid)
    given = [arg.buffer if arg.kind == "pointer" else f"{arg.name}={arg.value}" for arg in kernel.args]
    lines.append(f"    {kernel.name}[{grid}]({', '.join(given)}, num_warps={kernel.num_warps})")
    return lines


def _tuple_text(values: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def _call_text(step: AtenCall) -> str:
    results = ", ".join(r or "_" for r in step.result_buffers)
    args = [_value_text(a) for a in step.args] + [f"{k}={_value_text(v)}" for k, v in step.kwargs.items()]
    name = _op_name(step.target)
    return f"{results} = {name}({', '.join(args)})  # {step.reason}"


def _value_text(value: Any) -> str:
    if isinstance(value, BufferRef):
        text = value.buffer
        if value.shape is not None:
            text = f"view({text}, {_tuple_text(value.shape)}, {_tuple_text(value.stride or ())}, {value.offset})"
        return f"view_as_complex({text})" if value.is_complex else text
    if isinstance(value, (tuple, list)):
        inside = ", ".join(_value_text(v) for v in value)
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    return str(value)
