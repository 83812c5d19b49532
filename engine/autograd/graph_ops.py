"""Call targets of captured graphs besides torch's formulas.

They validate, add and accumulate gradients, and copy slices for in-place writes to views.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from engine.autograd import cpp_engine_adapter
from engine.torch_private.autograd import unsafe_set_version_counter
from engine.torch_private.dispatch import TorchDispatchModeKey, get_dispatch_mode
from engine.torch_private.tensors import storage_Use_Count

_DTYPES: dict[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32, 7: torch.float64,
    8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
"""dtypes by their numbers in ``c10/core/ScalarType.h``."""

_set_version: Any = unsafe_set_version_counter
_use_count = storage_Use_Count


class ValidateOutputs:
    """Fits the gradients that a node returned to the next nodes, as torch's engine does.

    It sums to size, casts and checks. The call takes the gradients and a size for each (None: gradient not used).
    """

    def __init__(self, node: str, metadata: Sequence[Any]) -> None:
        self._node = node
        self._metadata = metadata
        self._accepted_metadata: list[Any] = [None] * len(metadata)
        """For each gradient, the dtype and device that torch accepted."""

    def __call__(self, grads: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        """Return the fitted gradients.

        Raises:
            RuntimeError: A shape, device or type cannot be fitted; torch's own message.
        """
        result = list(grads)
        for n, size in enumerate(sizes):
            grad = result[n]
            if grad is None or size is None:
                continue
            if type(grad) is not torch.Tensor:
                result[n] = self._fit_subclass(n, grad, size)
                continue
            fits = self._accepted_metadata[n]
            if fits is None or grad.dtype is not fits[0] or grad.device != fits[1]:
                result[n] = self._fit_unknown(n, grad, size)
            elif grad.shape != size:
                result[n] = self._fit_unknown(n, grad, size) if _cannot_sum_to(grad, size) else grad.sum_to_size(size)
        return result

    def _fit_unknown(self, n: int, grad: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        fitted = self._validate_in_torch(n, grad, size)
        if fitted.dtype is grad.dtype and fitted.device == grad.device and grad.layout is torch.strided:
            self._accepted_metadata[n] = (grad.dtype, grad.device)
        return fitted

    def _validate_in_torch(self, n: int, grad: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        options, _, *other_metadata = self._metadata[n]
        metadata: list[Any] = [None] * len(self._metadata)
        metadata[n] = (options, list(size), *other_metadata)
        gradients = [grad if k == n else None for k in range(len(metadata))]
        try:
            fitted: torch.Tensor = cpp_engine_adapter.formula("validate_outputs")(gradients, metadata)[n]
        except RuntimeError as error:
            raise type(error)(
                str(error).replace("[Compiled Autograd Tracing:]", f"Function {self._node} returned an ")
            ) from None
        return fitted

    def _fit_subclass(self, n: int, grad: torch.Tensor, size: Any) -> torch.Tensor:
        """Fit a tensor subclass: a tensor used for tracing, or a user-defined wrapper at run time."""
        if not get_dispatch_mode(TorchDispatchModeKey.FAKE) and not _is_tracing_tensor(grad):
            return self._validate_in_torch(n, grad, size)
        dtype = _DTYPES[self._metadata[n][0][3]]
        if grad.dim() != len(size) or any(a is not b and a != b for a, b in zip(grad.shape, size, strict=True)):
            grad = grad.sum_to_size(size)
        return grad if grad.dtype is dtype else grad.to(dtype)


def _is_tracing_tensor(grad: torch.Tensor) -> bool:
    return type(grad).__module__.startswith("torch._subclasses")


def _cannot_sum_to(grad: torch.Tensor, size: Sequence[int]) -> bool:
    """Return True if the gradient cannot be summed to the size."""
    trailing_sizes = grad.shape[grad.dim() - len(size) :]
    return grad.dim() < len(size) or any(b not in (1, a) for a, b in zip(trailing_sizes, size, strict=True))


def add(old: Any, new: Any) -> Any:
    """Add two gradients; either may be undefined."""
    if old is None:
        return new
    if new is None:
        return old
    if old.layout is not torch.strided and new.layout is torch.strided:
        return new + old
    return old + new


def accumulate_grad(variable: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Accumulate into a leaf's ``.grad``, in place unless the backward is differentiable."""
    if grad is None:
        return
    old = variable.grad
    if old is None:
        marker = object()
        is_last_use = sys.getrefcount(grad) <= _count_references_in_callee(marker)
        can_steal = is_last_use and _can_steal_gradient(grad, variable)
        fresh = grad.detach() if can_steal else _clone_obeying_contract(grad, variable)
        if fresh.shape == variable.shape:
            variable.grad = fresh
        else:
            _set_grad_of_other_size(variable, fresh)
    elif old.layout is not torch.strided and grad.layout is torch.strided:
        variable.grad = grad + old
    elif torch.is_grad_enabled() or type(old) is not torch.Tensor or type(grad) is not torch.Tensor:
        variable.grad = old + grad
    else:
        old += grad


def _set_grad_of_other_size(variable: torch.Tensor, grad: torch.Tensor) -> None:
    """Set a gradient whose size differs from the leaf's current size.

    Python's setter rejects it. torch's engine does not check it.
    """
    placeholder: Any = torch.empty_like(variable)
    variable.grad = placeholder
    placeholder.set_(grad)
    _set_version((placeholder,), (0,))


def _count_references_in_callee(value: object) -> int:
    """Return the reference count of an argument that only the caller holds.

    It depends on the interpreter: a custom frame evaluator (torch's or this engine's) adds a reference to every call.
    """
    return sys.getrefcount(value)


def _can_steal_gradient(grad: torch.Tensor, variable: torch.Tensor) -> bool:
    """Return True if ``.grad`` can take a tensor that only its caller holds, without a copy.

    Nothing else may use its memory, and it must have the layout of the leaf.
    """
    if torch.is_grad_enabled() or type(grad) is not torch.Tensor or grad.layout is not torch.strided:
        return False
    if not (grad.stride() == variable.stride() or _obeys_layout_contract(grad, variable)):
        return False
    storage = grad.untyped_storage()
    return _use_count(storage._cdata) <= 2 and grad.numel() * grad.element_size() == storage.nbytes()


def _obeys_layout_contract(grad: torch.Tensor, variable: torch.Tensor) -> bool:
    """Return True if a gradient obeys the layout contract of its leaf, as torch defines it.

    Strides of dimensions of size 1 do not count. Sizes do not count: the leaf may have been resized in place since
    autograd read them.
    """
    if grad.dim() > variable.dim() or not torch.ops.aten.is_non_overlapping_and_dense.default(variable):
        return False
    theirs = zip(grad.shape, grad.stride(), variable.stride(), strict=False)
    return all(size == 1 or mine == its for size, mine, its in theirs)


def _clone_obeying_contract(grad: torch.Tensor, variable: torch.Tensor) -> torch.Tensor:
    """Clone a gradient into the leaf's layout if that has no gaps."""
    if grad.layout is not torch.strided or variable.layout is not torch.strided:
        return grad.clone()
    if not torch.ops.aten.is_non_overlapping_and_dense.default(variable):
        return grad.clone(memory_format=torch.contiguous_format)
    return grad.new_empty_strided(variable.shape, variable.stride()).copy_(grad)


def copy_slices_prologue(
    grad: torch.Tensor,
    base_sizes: Sequence[int],
    base_strides: Sequence[int],
    base_offset: int,
    view_sizes: Sequence[int],
    view_strides: Sequence[int],
    view_offset: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a copy of the base's gradient, its written part, and a copy of that part.

    First half of CopySlices, the backward of an in-place write to a view of a base.
    """
    base_grad = grad.new_empty_strided(base_sizes, base_strides)
    base_grad.copy_(grad)
    part = base_grad.as_strided(view_sizes, view_strides, view_offset - base_offset)
    return base_grad, part, part.clone(memory_format=torch.contiguous_format)


def copy_slices_epilogue(
    needed: Sequence[bool],
    base_grad: torch.Tensor,
    grads: Sequence[torch.Tensor | None],
    base_offset: int,
    view_sizes: Sequence[int],
    view_strides: Sequence[int],
    view_offset: int,
) -> tuple[torch.Tensor | None, ...]:
    """Put the gradient of the written part into the base's gradient; return all gradients.

    Second half of CopySlices.
    """
    results: list[torch.Tensor | None] = [None] * len(needed)
    for n, grad in enumerate(grads):
        if not needed[n] or grad is None:
            continue
        if n == 0:
            base_grad.as_strided(view_sizes, view_strides, view_offset - base_offset).copy_(grad)
            results[n] = base_grad
        else:
            results[n] = grad
    return tuple(results)


def zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros for an undefined gradient that an autograd.Function materializes."""
    return torch.zeros(size, dtype=dtype, device=device)


def read_versions(inputs: Sequence[Any]) -> list[int]:
    """Return the version of each input; -1 for None and inference tensors."""
    return [-1 if t is None or t.is_inference() else t._version for t in inputs]


def check_saved_versions(versions: Sequence[int], positions: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
    """Check that saved tensors were not changed in place since the backward began.

    Raises:
        RuntimeError: A hook or a Python function changed one; torch's own message.
    """
    for position, tensor in zip(positions, tensors, strict=True):
        expected = versions[position]
        if expected >= 0 and tensor._version != expected:
            version = tensor._version
            _set_version((tensor,), (expected,))
            with torch.enable_grad():
                product: Any = torch.ones((), device=tensor.device, requires_grad=True) * tensor
            _set_version((tensor,), (version,))
            _ = product.grad_fn._saved_other  # torch checks the version on this read, and raises


def release_inputs(inputs: list[Any]) -> None:
    """Empty the list of inputs, so that each input is freed after its last use."""
    inputs.clear()
