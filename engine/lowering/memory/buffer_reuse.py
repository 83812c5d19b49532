"""Buffer reuse planning: a buffer takes another's memory, in place or after its last use.

Both must have the same dtype, sizes and strides, and only kernels and library calls may touch them. No memory may
be allocated in between, so peak memory never grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine.ir.kernels.lowered_program import AtenCall, Buffer, Launch, ProgramStep, buffer_refs
from engine.ir.loop_ir.index_expr import static_product
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.node_values import called_overload
from engine.ir.reachable import reachable
from engine.records.lowering import BufferReuse

MIN_REUSE_BYTES = 1 << 16
"""Buffers of fewer bytes are not reused."""
IN_PLACE_REASON = "In place: the kernel reads each element before it overwrites it, and no later step reads it."
LAST_USE_REASON = "Its memory is free: no later step reads it."
UPDATE_REASON = "In place: the kernel updates some of its elements, and no later step reads the old ones."


def plan_buffer_reuse(
    steps: Sequence[ProgramStep], loops: Mapping[int, LoopKernel], buffers: Mapping[str, Buffer], outputs: Sequence[Any]
) -> tuple[dict[str, Buffer], tuple[BufferReuse, ...]]:
    """Plan which buffer reuses the memory of another; return the buffers and the reasons.

    ``loops`` maps the number of a step to its loop kernel, for steps that launch one.
    """
    last = {name: number for number, step in enumerate(steps) for name in step.touched_buffers()}
    pinned = {
        name for step in steps if not all(map(returns_fresh_memory, step.calls)) for name in step.touched_buffers()
    }
    pinned |= {r.buffer for r in buffer_refs(list(outputs))}
    pinned |= {name for name, buffer in buffers.items() if buffer.kind == "input"}
    free: set[str] = set()
    allocated: set[str] = set()
    reuses: dict[str, BufferReuse] = {}
    for number, step in enumerate(steps):
        for call in step.calls:
            allocated.update(r for r in call.result_buffers if r is not None)
            free.clear()
        dying = {
            n
            for launch in step.launches
            for n in launch.touched_buffers()
            if last[n] == number and n in allocated and n not in pinned
        }
        for launch, name in _allocated_buffers(step, allocated, buffers):
            if buffers[name].reuses:  # it is an input's new value
                continue
            reused = _find_reusable_buffer(name, launch, loops.get(number), buffers, free, dying)
            size = bytes_of(buffers[name])
            if reused is None or size is None:
                if size is None or size >= MIN_REUSE_BYTES:
                    free.clear()
                continue
            free.discard(reused)
            dying.discard(reused)
            is_update = any(a.buffer == name and a.copied_buffer == reused for a in launch.kernel.args)
            in_place = UPDATE_REASON if is_update else IN_PLACE_REASON
            reason = in_place if last[reused] == number else LAST_USE_REASON
            reuses[name] = BufferReuse(name, reused, size, reason)
        free |= dying
    planned = {n: replace(b, reuses=reuses[n].reused) if n in reuses else b for n, b in buffers.items()}
    return planned, tuple(reuses.values())


def returns_fresh_memory(step: AtenCall) -> bool:
    """Return True if a call returns one new tensor that shares no memory with its arguments."""
    called = called_overload(step.target)
    if called is None or len(step.result_buffers) != 1:
        return False
    if not step.is_library_call and called._schema.name != "aten::clone":
        return False
    return called.namespace == "aten" and all(value.alias_info is None for value in called._schema.returns)


def _allocated_buffers(
    step: ProgramStep, allocated: set[str], buffers: Mapping[str, Buffer]
) -> Iterator[tuple[Launch, str]]:
    """Yield the launches of a step, each with a buffer that it needs memory for."""
    for launch, argument in ((x, a) for x in step.launches for a in x.kernel.args):
        name = argument.buffer
        if (
            argument.kind == "pointer"
            and argument.is_written
            and name not in allocated
            and buffers[name].kind != "input"
        ):
            allocated.add(name)
            yield launch, name


def _find_reusable_buffer(
    name: str, step: Launch, kernel: LoopKernel | None, buffers: Mapping[str, Buffer], free: set[str], dying: set[str]
) -> str | None:
    """Return the buffer whose memory a new buffer reuses, None without one."""
    size = bytes_of(buffers[name])
    if size is None or size < MIN_REUSE_BYTES:
        return None
    for start in (a.initial_value for a in step.kernel.args if a.buffer == name and a.initial_value is not None):
        if start in dying and kernel is not None and can_update_in_place(kernel, name, str(start)):
            return str(start) if has_same_layout(buffers[name], buffers[str(start)]) else None
        return None
    for other in sorted(dying):
        if (
            kernel is not None
            and has_same_layout(buffers[name], buffers[other])
            and can_run_in_place(kernel, name, other)
        ):
            return other
    return next((other for other in sorted(free) if has_same_layout(buffers[name], buffers[other])), None)


def has_same_layout(first: Buffer, second: Buffer) -> bool:
    """Return True if both buffers have the same dtype, sizes and strides."""
    return (first.dtype, first.shape, first.stride) == (second.dtype, second.shape, second.stride)


def bytes_of(buffer: Buffer) -> int | None:
    """Return the bytes of a buffer's elements; None if symbolic."""
    return static_product((*buffer.shape, buffer.dtype.itemsize))


def can_run_in_place(kernel: LoopKernel, written: str, read: str) -> bool:
    """Return True if an elementwise kernel can write one buffer over another.

    It must read each element of ``read`` only to compute the same element of ``written``.
    """
    if kernel.r is not None or read in kernel.initial_values.values():
        return False
    stores = [op for op in kernel.ops if op.name != "load" and op.buffer == written]
    if len(stores) != 1 or stores[0].name != "store" or stores[0].mask is not None:
        return False
    (store,) = stores
    loads = [op for op in kernel.ops if op.name == "load" and op.buffer == read]
    needed = set(reachable(store.args, lambda op: op.args))
    return all(op.index == store.index and op.mask is None and op in needed for op in loads)


def can_update_in_place(kernel: LoopKernel, written: str, start: str) -> bool:
    """Return True if a kernel changes a copy of ``start`` and reads it nowhere else."""
    is_read = any(op.name == "load" and op.buffer == start for op in kernel.ops)
    starts = list(kernel.initial_values.values())
    return kernel.initial_values.get(written) == start and starts.count(start) == 1 and not is_read
