"""Plan what is written in place: new values of inputs, and operands of all-reduces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from engine.ir.introspection.operator_facts import may_raise
from engine.ir.kernels.lowered_program import AtenCall, Buffer, BufferRef, ProgramStep, buffer_refs
from engine.ir.loop_ir.index_expr import contiguous_strides, product
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.loop_ir.ops import R
from engine.ir.node_values import called_overload
from engine.ir.reachable import reachable
from engine.lowering.memory.buffer_reuse import (
    bytes_of,
    can_run_in_place,
    can_update_in_place,
    has_same_layout,
    returns_fresh_memory,
)
from engine.lowering.result_strides import is_non_overlapping
from engine.records.lowering import BufferReuse

MUTATION_REASON = (
    "In place: the kernel writes the input's new value into the input, and no later step reads the old one."
)


def plan_mutations(
    steps: Sequence[ProgramStep],
    loops: Mapping[int, LoopKernel],
    buffers: Mapping[str, Buffer],
    outputs: Sequence[Any],
    mutated: Sequence[tuple[int, str]],
    may_raise: Callable[[LoopKernel], bool],
) -> tuple[dict[str, Buffer], tuple[BufferReuse, ...]]:
    """Return the buffers, with outputs that take the memory of inputs, and the reasons.

    ``mutated`` holds the position of each output that is a new value, and the name of its input. ``may_raise`` says
    if a kernel may raise an error about values: none may after an input is written.
    """
    planned, planned_mutations = dict(buffers), []
    refs = [ref.buffer for ref in buffer_refs(list(outputs))]
    for position, target in mutated:
        out = outputs[position]
        if not buffer_refs(out) or out != BufferRef(out.buffer) or refs.count(out.buffer) != 1:
            continue
        if target in refs or not _is_replaceable(buffers.get(target), buffers.get(out.buffer)):
            continue
        number = next((n for n, s in enumerate(steps) if out.buffer in s.touched_buffers()), None)
        if number is None or number not in loops or not _can_store(steps, number, loops[number], target, out.buffer):
            continue
        if any(may_raise(kernel) for later, kernel in loops.items() if later >= number):
            continue
        if any(_call_may_raise(call, buffers) for step in steps[number + 1 :] for call in step.calls):
            continue
        planned[out.buffer] = replace(buffers[out.buffer], reuses=target)
        planned_mutations.append(BufferReuse(out.buffer, target, bytes_of(buffers[out.buffer]) or 0, MUTATION_REASON))
    return planned, tuple(planned_mutations)


def reduce_in_place(
    steps: Sequence[ProgramStep], buffers: Mapping[str, Buffer], outputs: Sequence[Any]
) -> list[ProgramStep]:
    """Return the steps; an all-reduce overwrites its operand where nothing reads that later."""
    last = {name: number for number, step in enumerate(steps) for name in step.touched_buffers()}
    pinned = {ref.buffer for ref in buffer_refs(list(outputs))} | {n for n, b in buffers.items() if b.kind == "input"}
    fresh: set[str] = set()
    changed: list[ProgramStep] = []
    for number, step in enumerate(steps):
        operand = _overwritten_operand(step, buffers)
        is_overwritten = operand in fresh - pinned and last[operand] == number
        changed += map(_in_place, step.calls) if is_overwritten else [step]
        fresh.update(a.buffer for x in step.launches for a in x.kernel.args if a.kind == "pointer" and a.is_written)
        fresh.update(r for c in step.calls if returns_fresh_memory(c) for r in c.result_buffers if r is not None)
        if not all(map(returns_fresh_memory, step.calls)):  # a result may share memory with an operand
            fresh.difference_update(step.touched_buffers())
    return changed


def _in_place(call: AtenCall) -> AtenCall:
    return replace(call, target=torch.ops._c10d_functional.all_reduce_.default)


def _overwritten_operand(step: ProgramStep, buffers: Mapping[str, Buffer]) -> str:
    """Return the buffer that an all-reduce could overwrite; empty for other steps."""
    for call in step.calls:
        called = called_overload(call.target)
        if called is None or called._schema.name != "_c10d_functional::all_reduce":
            continue
        (ref,) = buffer_refs(call.args)
        operand = buffers.get(ref.buffer)
        if operand is not None and not operand.is_complex and _covers_contiguous(ref, operand):
            return ref.buffer
    return ""


def _covers_contiguous(ref: BufferRef, buffer: Buffer) -> bool:
    """Return True if a reference is a contiguous view of all elements of a contiguous buffer."""
    shape, stride = ref.shape or buffer.shape, ref.stride or buffer.stride
    is_contiguous = contiguous_strides(shape) == stride and contiguous_strides(buffer.shape) == buffer.stride
    return is_contiguous and product(shape) == product(buffer.shape) and ref.offset == 0


def _call_may_raise(call: AtenCall, buffers: Mapping[str, Buffer]) -> bool:
    """Return True if an ATen call may raise as it runs, about values or dtypes."""
    called = called_overload(call.target)
    if called is None:
        return True
    operands = [buffers[ref.buffer] for ref in buffer_refs((call.args, call.kwargs)) if ref.buffer in buffers]
    if called.namespace == "aten" and not operands:
        return False  # it creates a tensor: there are no values to read
    if len({b.dtype for b in operands if b.dtype.is_floating_point}) > 1:
        return True  # tracing accepts a product of float32 and float64, the operator does not
    results = [buffers[name] for name in call.result_buffers if name is not None and name in buffers]
    # What the host computes with a number may raise.
    return not results or may_raise(called, [b.dtype for b in results])


def _is_replaceable(target: Buffer | None, result: Buffer | None) -> bool:
    """Return True if an input has the layout of its new value, without overlapping elements."""
    if target is None or result is None or target.kind != "input" or result.kind == "input" or target.is_complex:
        return False
    return has_same_layout(target, result) and is_non_overlapping(target.shape, target.stride)


def _can_store(steps: Sequence[ProgramStep], number: int, kernel: LoopKernel, target: str, result: str) -> bool:
    """Return True if step ``number`` can write ``result`` into ``target``.

    No other step may see a wrong value.
    """
    if any(target in step.touched_buffers() for step in steps[number + 1 :]):
        return False
    if any(target in s.touched_buffers() and not all(map(returns_fresh_memory, s.calls)) for s in steps):
        return False
    if can_update_in_place(kernel, result, target):
        return True
    if kernel.r is None:
        return can_run_in_place(kernel, result, target)
    stores = [op for op in kernel.ops if op.name != "load" and op.buffer == result]
    loads = [op for op in kernel.ops if op.name == "load" and op.buffer == target]
    if len(stores) != 1 or stores[0].name != "store" or kernel.initial_values or kernel.matmul is not None:
        return False
    # What the stored value does not need may be loaded after the store.
    needed = set(reachable(stores[0].args, lambda op: op.args))
    return all(R not in op.loops and op.mask is None for op in (*stores, *loads)) and all(
        op.index == stores[0].index and op in needed for op in loads
    )
