"""Lays a schedule out as a program: buffers, steps, outputs, the record, and the program as readable Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.utils import _pytree as pytree

from engine.ir.index import Index, Size, Var, flatten, product, symbols_of, unflatten, variable
from engine.ir.kernel import Buffer, Extern, KernelSource, Launch, Program, Ref, Step
from engine.ir.loops import WRITES, Builder, Def, LoopKernel, Op, R
from engine.lowering.blocks import Cutter, told_by
from engine.lowering.cost import bytes_moved, flops
from engine.lowering.fuse import Group, Schedule, bases
from engine.lowering.reuse import reuse
from engine.lowering.share import Emit, Printed
from engine.lowering.strides import strided
from engine.lowering.table import ExternNode, Tensor
from engine.lowering.templates.attention import Attended, kernel_of
from engine.lowering.templates.choose import Tiled
from engine.lowering.templates.products import product_kernel
from engine.lowering.tile import tiled
from engine.records.lowering import ExternCall, LoweringRecord

if TYPE_CHECKING:
    from engine.lowering.driver import Walk

WIDE = 1 << 31
PLAIN_OPS = frozenset(("clone", "copy", "to", "convert", "element", "type", "full", "arange", "t", "default"))


def layout(walk: Walk, schedule: Schedule, target: str, emit: Emit, cutter: Cutter) -> Program:
    """The program of one schedule; ``cutter`` says how its loops are cut."""
    buffers = _buffers(walk, schedule)
    steps: list[Step] = []
    loops: dict[int, LoopKernel] = {}
    printed = Printed(emit, target, "b" if walk.stage == "backward" else "k")
    for step in schedule.steps:
        if isinstance(step, ExternNode):
            steps.append(_extern(step))
        elif isinstance(step, Attended):
            steps += _attention(step, walk, printed)
        else:
            kernel = loops[len(steps)] = cutter.cut(_kernel(step, printed.next_id, walk, buffers))
            steps.append(Launch(printed.source(kernel)))
    outputs = tuple(_ref(v) if isinstance(v, Tensor) else v for v in walk.outputs)
    buffers, reuses = reuse(steps, loops, buffers, outputs)
    externs = tuple(
        ExternCall(_first(e.origins), _op_name(e.target), e.reason, e.is_library)
        for e in schedule.steps
        if isinstance(e, ExternNode)
    )
    lowered = walk.lowered + sum(isinstance(step, (Tiled, Attended)) for step in schedule.steps)
    choices = (*schedule.choices, *cutter.choices)
    told = LoweringRecord(target, schedule.decisions, externs, lowered, walk.computing, choices=choices)
    program = Program(
        target,
        tuple(name for name, _ in walk.inputs),
        buffers,
        tuple(steps),
        outputs,
        walk.symbols,
        told,
        walk.module,
        told={symbol: (made.name, dim) for symbol, (made, dim) in walk.told.items()},
        assumed=walk.assumed,
        parts=_parts(walk),
    )
    _check_known(program)
    record = replace(program.record, wrapper_text=wrapper_text(program), reuses=reuses)
    return replace(program, record=record)


def _parts(walk: Walk) -> dict[str, tuple[str, int]]:
    several = (e for e in walk.low.externs if isinstance(e.node.meta.get("val"), (tuple, list)))
    return {made.name: (e.node.name, k) for e in several for k, made in enumerate(e.results) if made is not None}


def alone(walk: Walk, target: str, emit: Emit, steps: tuple[Group | ExternNode | Tiled | Attended, ...]) -> Program:
    """A program of some of a schedule's steps, which is given what they read of the others, and returns what they write."""
    buffers = {made.name: _buffer(made, "intermediate") for step in steps for made in _written(step)}
    given = {made.name: _buffer(made, "input") for step in steps for made in _read(step) if made.name not in buffers}
    buffers |= given
    printed = Printed(emit, target)
    made: list[Step] = []
    for step in steps:
        if isinstance(step, ExternNode):
            made.append(_extern(step))
        elif isinstance(step, Attended):
            made += _attention(step, walk, printed)
        else:
            made.append(Launch(printed.source(_kernel(step, printed.next_id, walk, buffers))))
    unseen = {d.name for step in steps if isinstance(step, Attended) for d in step.call.rest}
    written = tuple(Ref(name) for name, buffer in buffers.items() if buffer.kind != "input" and name not in unseen)
    return Program(target, tuple(given), buffers, tuple(made), written, told_by(given))


def _kernel(step: Group | Tiled, id: str, walk: Walk, buffers: Mapping[str, Buffer]) -> LoopKernel:
    if isinstance(step, Group):
        return loop_kernel(step, id, walk, buffers)
    prefix = f"loop:{walk.low.compilation}"
    return product_kernel(step.fused, step.tiling, id, prefix, _words(step.fused.origins), buffers)


def _attention(step: Attended, walk: Walk, printed: Printed) -> list[Step]:
    """The kernels of one call of attention; what nobody looks at is zero."""
    prefix, nodes = f"loop:{walk.low.compilation}", step.call.extern.origins
    made: list[Step] = [Launch(printed.attention(*kernel_of(step, kind), prefix, nodes)) for kind in step.kinds]
    value = step.call.extern.node.meta.get("val")
    devices = [v.device for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    for rest in step.call.rest:
        options = {"dtype": rest.dtype, "device": devices[0]}
        reason = "No generator is needed where nothing is dropped."
        made.append(
            Extern(
                _first(nodes), torch.ops.aten.zeros.default, (list(rest.shape),), options, (rest.name,), reason, True
            )
        )
    return made


def _written(step: Group | ExternNode | Tiled | Attended) -> list[Def]:
    if isinstance(step, ExternNode):
        return [r for r in step.results if r is not None and r.kind != "number"]
    return list(step.fused.stored if isinstance(step, Tiled) else step.stored)


def _read(step: Group | ExternNode | Tiled | Attended) -> list[Def]:
    if isinstance(step, ExternNode):
        return list(bases(step))
    found = step.fused.sources() if isinstance(step, Tiled) else step.sources()
    return sorted(found, key=lambda d: d.position)


def _buffer(made: Def, kind: Literal["input", "intermediate", "output"]) -> Buffer:
    return Buffer(made.name, made.dtype, made.shape, made.stride, kind, made.is_complex)


def _check_known(program: Program) -> None:
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
    given = [*program.outputs, *((s.args, dict(s.kwargs)) for s in program.steps if isinstance(s, Extern))]
    for value in pytree.tree_leaves(given):
        if isinstance(value, Ref):
            sizes += [*(value.shape or ()), *(value.stride or ()), value.offset]
        else:
            sizes.append(getattr(getattr(value, "node", None), "expr", value))
    if unknown := symbols_of(sizes) - program.symbols.keys() - program.told.keys():
        raise ValueError(f"nothing in the graph tells {', '.join(sorted(unknown))}")


def _first(values: tuple[str, ...]) -> str:
    return values[0] if values else ""


def _op_name(target: Any) -> str:
    return (
        str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", type(target).__name__)
    )


def _buffers(walk: Walk, schedule: Schedule) -> dict[str, Buffer]:
    returned = {v.base for v in walk.outputs if isinstance(v, Tensor)}
    buffers: dict[str, Buffer] = {}
    for made in walk.low.defs:
        if made.kind == "input":
            buffers[made.name] = _buffer(made, "input")
    for step in schedule.steps:
        for made in _written(step):
            buffers[made.name] = _buffer(made, "output" if made in returned else "intermediate")
    return buffers


def _ref(value: Tensor) -> Ref:
    """How a step names a tensor in memory."""
    if value.mapping is None:
        return Ref(value.base.name, is_complex=value.is_complex)
    placed = strided(value)
    assert placed is not None, f"{value.base.name} was not put into memory"
    return Ref(value.base.name, value.shape, placed[0], placed[1], value.is_complex)


def _extern(step: ExternNode) -> Extern:
    args, kwargs = pytree.tree_map(lambda v: _ref(v) if isinstance(v, Tensor) else v, (step.args, step.kwargs))
    results = tuple(None if r is None else r.name for r in step.results)
    return Extern(_first(step.origins), step.target, args, kwargs, results, step.reason, step.is_library)


def loop_kernel(group: Group, id: str, walk: Walk, buffers: Mapping[str, Buffer]) -> LoopKernel:
    """The operations of a group over one flat outer and one flat inner loop."""
    outer, inner = tiled(group) or (group.outer, group.inner)
    x = Var("x", product(v.size for v in outer))
    r = Var("r", product(v.size for v in inner)) if inner is not None else None
    values = _coordinates(outer, x) | (_coordinates(inner, r) if inner is not None and r is not None else {})
    is_wide = _is_wide(group, buffers, product(v.size for v in (x, r) if v is not None))
    builder = Builder(
        group.members,
        frozenset((r,)) if r is not None else frozenset(),
        variable(r) if r is not None else Index(),
        is_wide,
    )
    for made, index in sorted(group.stored.items(), key=lambda item: item[0].position):
        place = tuple(i.replace(values) for i in index)
        value = builder.load(made, place)
        if made.kind != "scatter":
            builder.store(made, place, value)
    ops = tuple(builder.ops)
    if not _has_rows(ops):
        r = None  # a sum of which one element is known not to be zero
    used = {op.buffer for op in ops if op.buffer}
    mine = {name: buffers[name] for name in buffers if name in used}
    nodes = tuple(dict.fromkeys(o for made in sorted(group.members, key=lambda d: d.position) for o in made.origins))
    rows = r.size if r is not None else 1
    return LoopKernel(
        id,
        f"loop:{walk.low.compilation}:{id}",
        _words(nodes),
        ops,
        x,
        r,
        mine,
        nodes,
        is_wide,
        bytes_moved(ops, mine, x.size, rows),
        flops(ops, x.size, rows),
        starts={
            m.name: m.start.name if isinstance(m.start, Def) else m.start for m in group.stored if m.start is not None
        },
    )


def _has_rows(ops: tuple[Op, ...]) -> bool:
    """Whether anything that is written depends on an inner loop."""
    seen: set[int] = set()
    stack = [op for op in ops if op.name in WRITES]
    while stack:
        op = stack.pop()
        if op.number in seen:
            continue
        if R in op.space or op.name in ("reduce", "scan"):
            return True
        seen.add(op.number)
        picks = () if op.index is None else op.index.picks()
        stack += [*op.args, *(ops[n] for n in picks), *([] if op.mask is None else [op.mask])]
    return False


def _coordinates(variables: tuple[Var, ...], flat: Var) -> dict[Var, Index]:
    return dict(zip(variables, unflatten(variable(flat), tuple(v.size for v in variables)), strict=True))


def _is_wide(group: Group, buffers: Mapping[str, Buffer], numel: Size) -> bool:
    if isinstance(numel, int) and numel >= WIDE:
        return True
    for made in (*group.sources(), *group.stored):
        buffer = buffers[made.name]
        last = flatten([Index({}, s - 1) for s in buffer.shape], buffer.stride).const
        if isinstance(last, int) and last >= WIDE:
            return True
    return False


def _words(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """What a kernel does, from the names of the nodes in it."""
    words: list[str] = []
    for node in nodes:
        word = node.rsplit(":", 1)[-1].strip("_")
        head, _, tail = word.rpartition("_")
        word = head if tail.isdigit() and head else word
        word = word.removeprefix("native_")
        if word and word not in words and word not in PLAIN_OPS and not word.startswith("getitem"):
            words.append(word)
    return tuple(words)


def wrapper_text(program: Program) -> str:
    """The whole program as Python that a person can read."""
    lines = [f"def run({', '.join(program.inputs)}):"]
    for symbol, (position, dim) in program.symbols.items():
        source = program.inputs[position]
        lines.append(f"    {symbol} = {source}" + (f".shape[{dim}]" if dim >= 0 else ""))
    last_use = _last_uses(program)
    made: set[str] = set(program.inputs)
    for number, step in enumerate(program.steps):
        if isinstance(step, Launch):
            lines += _launch_lines(step.kernel, program, made)
        else:
            lines.append("    " + _call_text(step))
            made.update(r for r in step.results if r is not None)
            told = {s: place for s, place in program.told.items() if place[0] in step.results}
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


def _last_uses(program: Program) -> dict[str, int]:
    uses: dict[str, int] = {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Launch):
            names = [a.buffer for a in step.kernel.args if a.kind == "pointer"]
            names += [a.start for a in step.kernel.args if isinstance(a.start, str)]
            names += [taken for name in names if (taken := program.buffers[name].reuses) and name not in uses]
        else:
            leaves = pytree.tree_leaves((step.args, dict(step.kwargs)))
            names = [v.buffer for v in leaves if isinstance(v, Ref)] + [r for r in step.results if r is not None]
        uses.update(dict.fromkeys(names, number))
    return uses


def _launch_lines(kernel: KernelSource, program: Program, made: set[str]) -> list[str]:
    lines: list[str] = []
    for arg in kernel.args:
        if arg.kind == "pointer" and arg.buffer not in made:
            made.add(arg.buffer)
            buffer = program.buffers[arg.buffer]
            if buffer.reuses:
                lines.append(f"    {arg.buffer} = {buffer.reuses}  # the memory is reused")
                continue
            shape, stride = _tuple_text(buffer.shape), _tuple_text(buffer.stride)
            filled = "" if arg.start is None else f".{'copy' if isinstance(arg.start, str) else 'fill'}_({arg.start})"
            lines.append(f"    {arg.buffer} = empty_strided({shape}, {stride}, {buffer.dtype}){filled}")
    grid = _tuple_text(kernel.grid)
    given = [arg.buffer if arg.kind == "pointer" else f"{arg.name}={arg.value}" for arg in kernel.args]
    lines.append(f"    {kernel.name}[{grid}]({', '.join(given)}, num_warps={kernel.num_warps})")
    return lines


def _tuple_text(values: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def _call_text(step: Extern) -> str:
    results = ", ".join(r or "_" for r in step.results)
    args = [_value_text(a) for a in step.args] + [f"{k}={_value_text(v)}" for k, v in step.kwargs.items()]
    name = _op_name(step.target)
    return f"{results} = {name}({', '.join(args)})  # {step.reason}"


def _value_text(value: Any) -> str:
    if isinstance(value, Ref):
        text = value.buffer
        if value.shape is not None:
            text = f"view({text}, {_tuple_text(value.shape)}, {_tuple_text(value.stride or ())}, {value.offset})"
        return f"view_as_complex({text})" if value.is_complex else text
    if isinstance(value, (tuple, list)):
        inside = ", ".join(_value_text(v) for v in value)
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    return str(value)
