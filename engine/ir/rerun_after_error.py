"""State after a graph raised: inputs are restored, or the error is marked as final.

Where a frame has side effects, its original code then runs from the start, in Python, and applies them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from engine.ir.graph_callable import Run
from engine.ir.introspection.fakeable_tensors import is_wrapper_subclass
from engine.ir.node_values import tensors_in
from engine.torch_private.autograd import unsafe_set_version_counter
from engine.torch_private.operators import debug_has_internal_overlap
from engine.torch_private.torch_function import DisableTorchFunctionSubclass

WRITTEN_MARK = "engine_inputs_written"
MAX_SAVED_BYTES = 16 * 2**20
"""Mutated inputs above this size are not copied before each call.

Side effects are then lost after an error.
"""


def mark_inputs_written(error: BaseException, inputs: tuple[torch.Tensor, ...] = ()) -> None:
    """Mark an error after which nothing may run again, since inputs already have new values.

    The version counters of ``inputs`` rise, as eager's would.
    """
    error.__dict__[WRITTEN_MARK] = True
    torch.autograd.graph.increment_version(inputs)


def can_rerun(error: BaseException) -> bool:
    """Return True unless an error is marked by ``mark_inputs_written``; remove the mark."""
    return error.__dict__.pop(WRITTEN_MARK, None) is None


def save_tensor(tensor: torch.Tensor) -> Callable[[], None]:
    """Return a function that restores the data, layout, version and history of a tensor.

    An inference tensor has no version, and only inference mode may write it. New history of a view stays.
    """
    memory, versions = tensor.detach(), () if tensor.is_inference() else (tensor._version,)
    elements = _spanned_memory(memory) if debug_has_internal_overlap(memory) else memory
    layout = tensor.shape, tensor.stride(), tensor.storage_offset()
    grad_fn = None if tensor._is_view() else tensor.grad_fn
    linked = None if grad_fn is None else _linked_copy(tensor)
    saved = elements.clone() if linked is None or elements is not memory else linked.detach()

    def restore() -> None:
        with torch.no_grad() if versions else torch.inference_mode():
            if tensor.untyped_storage()._cdata != memory.untyped_storage()._cdata or tensor.dtype != memory.dtype:
                tensor.data = memory
            if (tensor.shape, tensor.stride(), tensor.storage_offset()) != layout:
                tensor.as_strided_(*layout)
            elements.copy_(saved)
        if not tensor._is_view() and tensor.grad_fn is not grad_fn:
            tensor.detach_()
            if linked is not None:
                with torch.inference_mode(False), torch.enable_grad():
                    tensor.copy_(linked)
        if versions:
            unsafe_set_version_counter((tensor,), versions)

    return restore


def _linked_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy through which gradients reach the present history of a tensor."""
    with torch.inference_mode(False), torch.enable_grad():
        return tensor.clone()


def save_random_state() -> Callable[[], None]:
    """Return a function that restores the present state of torch's random numbers on the CPU."""
    return partial(torch.set_rng_state, torch.get_rng_state())


def _spanned_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory from a tensor's first to its last element, as one dimension."""
    size = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((size,), (1,))


def _mutation_state(inputs: tuple[Any, ...]) -> list[tuple[Any, ...]] | None:
    """Return what mutations of the inputs change; None if some input may not show one."""
    tensors = tensors_in(inputs)
    with DisableTorchFunctionSubclass():
        if any(is_wrapper_subclass(t) or t.layout is not torch.strided or t.is_inference() for t in tensors):
            return None
        return [(t._version, t.untyped_storage()._cdata, t.requires_grad) for t in tensors]


def _can_save(tensors: list[torch.Tensor]) -> bool:
    """Return True if the tensors are small enough, and none is a view that requires grad."""
    has_view = any(t.requires_grad and t._is_view() for t in tensors)
    return not has_view and sum(t.nbytes for t in tensors) <= MAX_SAVED_BYTES


def restore_inputs_on_error(
    run: Run, positions: tuple[int, ...] | None, *, draws_random: bool, counts_writes: bool
) -> Run:
    """Return a run that restores mutated inputs and the random state before it raises.

    ``run`` mutates its inputs in place. ``positions`` are the mutated inputs; None if they cannot be restored. An
    error is then marked, unless it was raised before the first mutation. ``counts_writes``: each mutation raises the
    version of its input, as one through ``x.data`` does not.
    """
    if positions == () and not draws_random:
        return run

    def call(*inputs: Any) -> Any:
        written = None if positions is None else [inputs[n] for n in positions]
        is_saved = written is not None and _can_save(written)
        state = () if is_saved else _mutation_state(inputs) if counts_writes else None
        restorers = [save_tensor(t) for t in written or ()] if is_saved else []
        if draws_random:
            restorers.append(save_random_state())
        try:
            return run(*inputs)
        except Exception as error:
            if state is None or (not is_saved and state != _mutation_state(inputs)):
                mark_inputs_written(error)
                raise
            for restore in restorers:
                restore()
            raise

    return call
