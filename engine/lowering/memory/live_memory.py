"""Live memory of a lowered program: what each step allocates and what lives until when."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from engine.ir.kernels.lowered_program import AtenCall, Buffer, LoweredProgram, ProgramStep, buffer_refs
from engine.ir.kernels.symbol_locations import read_symbol
from engine.ir.loop_ir.index_expr import concrete_size, product
from engine.ir.node_values import called_overload
from engine.records.lowering import MemoryBlock, MemoryRecord, MemoryStep


def live_memory(program: LoweredProgram, stage: str = "call", saved: Collection[str] = ()) -> MemoryRecord:
    """Return the live bytes of each step, at the size hints of the program's symbols.

    ``saved`` names the inputs of a backward that its forward allocated; each dies after its last use. Other inputs
    whose name starts with "tangent" come from autograd.
    """
    hints = size_hints(program)
    reads, definitions = _last_uses(program), _definitions(program)
    returned = {ref.buffer for ref in buffer_refs(list(program.outputs))}
    end = len(program.steps) - 1
    last_uses = {
        b.reuses: definitions[b.name][0] - 1 for b in program.buffers.values() if b.reuses and b.name in definitions
    }
    blocks = []
    for name, buffer in program.buffers.items():
        if name not in program.inputs and (name not in definitions or buffer.reuses in program.inputs):
            continue
        first, node = definitions.get(name, (0, ""))
        kind = _kind(name, buffer, saved, returned)
        last = end if kind in ("input", "output") else min(reads.get(name, first), last_uses.get(name, end))
        size, unknown = bytes_of(buffer, hints)
        blocks.append(MemoryBlock(name, size, kind, first, last, node, unknown))
    live = list(_live_bytes(blocks, len(program.steps)))
    steps = [MemoryStep(*_describe(step), size) for step, size in zip(program.steps, live, strict=True)]
    return MemoryRecord(stage, tuple(steps), tuple(blocks))


def _kind(name: str, buffer: Buffer, saved: Collection[str], returned: Collection[str]) -> str:
    if buffer.kind == "input":
        return "saved" if name in saved else "tangent" if name.startswith("tangent") else "input"
    return "output" if name in returned else "intermediate"


def _live_bytes(blocks: list[MemoryBlock], count: int) -> Iterator[int]:
    """Yield the bytes that count at each step."""
    change = [0] * (count + 1)
    for block in blocks:
        if block.kind != "input":
            change[block.first] += block.bytes
            change[max(block.last, block.first) + 1 if count else 0] -= block.bytes
    total = 0
    for step in range(count):
        total += change[step]
        yield total


def _definitions(program: LoweredProgram) -> dict[str, tuple[int, str]]:
    """Return the step that allocates each buffer, and the id of the node that computes it.

    A result that shares memory with an argument of its call allocates nothing.
    """
    definitions: dict[str, tuple[int, str]] = {}
    for number, step in enumerate(program.steps):
        for call in step.calls:
            for name in call.result_buffers:
                if name is not None and _allocates(call):
                    definitions.setdefault(name, (number, call.node))
        for launch in step.launches:
            nodes = {node.rpartition(":")[2]: node for node in launch.kernel.nodes}
            some = next(reversed(nodes.values()), "")
            for arg in launch.kernel.args:
                if arg.kind == "pointer" and arg.is_written and arg.buffer not in program.inputs:
                    definitions.setdefault(arg.buffer, (number, nodes.get(arg.buffer, some)))
    return definitions


def _allocates(call: AtenCall) -> bool:
    called = called_overload(call.target)
    return called is None or all(value.alias_info is None for value in called._schema.returns)


def _last_uses(program: LoweredProgram) -> dict[str, int]:
    return {name: number for number, step in enumerate(program.steps) for name in step.touched_buffers()}


def _describe(step: ProgramStep) -> tuple[str, tuple[str, ...]]:
    """Return the name of a step and the ids of its nodes."""
    for launch in step.launches:
        return f"{launch.kernel.id} {launch.kernel.name}", launch.kernel.nodes
    (call,) = step.calls
    called = called_overload(call.target)
    name = str(called).removesuffix(".default") if called is not None else getattr(call.target, "__name__", "constant")
    return name, (call.node,) if call.node else ()


def size_hints(program: LoweredProgram) -> Mapping[str, int]:
    """Return the size hint of each symbol, from the placeholders of the lowered graph."""
    if program.reference_graph is None:
        return {}
    values = [node.meta.get("val") for node in program.reference_graph.graph.find_nodes(op="placeholder")]
    hints = {}
    for symbol, (position, location) in program.symbol_sources.items():
        size = read_symbol(values[position], location)
        if size.node.is_int() and size.node.has_hint():
            hints[symbol] = int(size.node.hint)
    return hints


def bytes_of(buffer: Buffer, hints: Mapping[str, int]) -> tuple[int, str]:
    """Return the bytes of a buffer at its size hints; if one is missing, 0 and an expression."""
    size = product((*buffer.shape, buffer.dtype.itemsize))
    try:
        return concrete_size(size, hints.__getitem__), ""
    except KeyError:
        return 0, str(size)
