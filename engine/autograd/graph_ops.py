"""What the nodes of a captured graph call, beside torch's own formulas: gradients fitted, added, accumulated, and writes through views."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from engine.autograd import cpp_engine_adapter

_DTYPES: dict[int, torch.dtype] = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32, 7: torch.float64,
    8: torch.complex32, 9: torch.complex64, 10: torch.complex128, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
"""By the numbers that C++ knows types by (c10/core/ScalarType.h)."""

_set_version: Any = torch._C._autograd._unsafe_set_version_counter
_use_count = torch._C._storage_Use_Count


class ValidateOutputs:
    """Makes the gradients that a node returned fit the nodes that they go to, as the engine does: summed to size, cast, checked.

    Called with the gradients and, for each, its sizes (None: it goes nowhere).
    """

    def __init__(self, node: str, metadata: Sequence[Any]) -> None:
        self._node = node
        self._metadata = metadata
        self._accepted_metadata: list[Any] = [None] * len(metadata)
        """For each gradient a dtype and a device that were found to fit."""

    def __call__(self, grads: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        """The gradients that fit.

        Raises:
            RuntimeError: one has a shape, device or type that cannot be made to fit; torch's own words.
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
        options, _, *rest = self._metadata[n]
        metadata: list[Any] = [None] * len(self._metadata)
        metadata[n] = (options, list(size), *rest)
        given = [grad if k == n else None for k in range(len(metadata))]
        try:
            fitted: torch.Tensor = cpp_engine_adapter.formula("validate_outputs")(given, metadata)[n]
        except RuntimeError as error:
            raise type(error)(
                str(error).replace("[Compiled Autograd Tracing:]", f"Function {self._node} returned an ")
            ) from None
        return fitted

    def _fit_subclass(self, n: int, grad: torch.Tensor, size: Any) -> torch.Tensor:
        """Of a tensor subclass: fake tensors while it is traced, wrappers of the user's when it runs."""
        if not torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) and not _is_tracing_tensor(grad):
            return self._validate_in_torch(n, grad, size)
        wanted = _DTYPES[self._metadata[n][0][3]]
        if grad.dim() != len(size) or any(a is not b and a != b for a, b in zip(grad.shape, size, strict=True)):
            grad = grad.sum_to_size(size)
        return grad if grad.dtype is wanted else grad.to(wanted)


def _is_tracing_tensor(grad: torch.Tensor) -> bool:
    return type(grad).__module__.startswith("torch._subclasses")


def _cannot_sum_to(grad: torch.Tensor, size: Sequence[int]) -> bool:
    """Whether it cannot be summed to that size."""
    given = grad.shape[grad.dim() - len(size) :]
    return grad.dim() < len(size) or any(b not in (1, a) for a, b in zip(given, size, strict=True))


def add(old: Any, new: Any) -> Any:
    """Two gradients that meet; either may be undefined."""
    if old is None:
        return new
    if new is None:
        return old
    if old.layout is not torch.strided and new.layout is torch.strided:
        return new + old
    return old + new


def accumulate_grad(variable: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Add to a leaf's ``.grad``: in place, unless gradients are to be differentiated themselves."""
    if grad is None:
        return
    old = variable.grad
    if old is None:
        # Two references: this function's and the caller's last.
        fresh = grad.detach() if _can_steal_gradient(grad, variable) else _clone_obeying_contract(grad, variable)
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
    """Set a gradient of other sizes than the leaf has by now, which Python refuses and the engine does not ask."""
    given: Any = torch.empty_like(variable)
    variable.grad = given
    given.set_(grad)
    _set_version((given,), (0,))


def _can_steal_gradient(grad: torch.Tensor, variable: torch.Tensor) -> bool:
    """Whether nobody else can see this tensor's memory, and it is laid out as the leaf: then it need not be copied."""
    if torch.is_grad_enabled() or type(grad) is not torch.Tensor or grad.layout is not torch.strided:
        return False
    if sys.getrefcount(grad) > 4 or not (grad.stride() == variable.stride() or _obeys_layout_contract(grad, variable)):
        return False
    storage = grad.untyped_storage()
    return _use_count(storage._cdata) <= 2 and grad.numel() * grad.element_size() == storage.nbytes()


def _obeys_layout_contract(grad: torch.Tensor, variable: torch.Tensor) -> bool:
    """Whether a gradient lies as the leaf does, as torch sees it: the strides of dimensions of one element do not count.

    Nor do sizes: a leaf may have been given others in place since autograd asked for them.
    """
    if grad.dim() > variable.dim() or not torch.ops.aten.is_non_overlapping_and_dense.default(variable):
        return False
    theirs = zip(grad.shape, grad.stride(), variable.stride(), strict=False)
    return all(size == 1 or mine == its for size, mine, its in theirs)


def _clone_obeying_contract(grad: torch.Tensor, variable: torch.Tensor) -> torch.Tensor:
    """A copy in the leaf's layout, where that has no gaps."""
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
    """Of a write to a view of a base: a copy of the base's gradient, the written part of it, and a copy of that part."""
    whole = grad.new_empty_strided(base_sizes, base_strides)
    whole.copy_(grad)
    part = whole.as_strided(view_sizes, view_strides, view_offset - base_offset)
    return whole, part, part.clone(memory_format=torch.contiguous_format)


def copy_slices_epilogue(
    needed: Sequence[bool],
    whole: torch.Tensor,
    grads: Sequence[torch.Tensor | None],
    base_offset: int,
    view_sizes: Sequence[int],
    view_strides: Sequence[int],
    view_offset: int,
) -> tuple[torch.Tensor | None, ...]:
    """The base's gradient with the written part replaced by what the write makes of it, and the gradients of what else was read."""
    results: list[torch.Tensor | None] = [None] * len(needed)
    for n, grad in enumerate(grads):
        if not needed[n] or grad is None:
            continue
        if n == 0:
            whole.as_strided(view_sizes, view_strides, view_offset - base_offset).copy_(grad)
            results[n] = whole
        else:
            results[n] = grad
    return tuple(results)


def zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The gradient of a result that nothing used, where a Python function wants it."""
    return torch.zeros(size, dtype=dtype, device=device)


def read_versions(inputs: Sequence[Any]) -> list[int]:
    """How often each tensor has been written to in place."""
    return [-1 if t is None or t.is_inference() else t._version for t in inputs]


def check_saved_versions(versions: Sequence[int], places: Sequence[int], tensors: Sequence[torch.Tensor]) -> None:
    """See that tensors which the forward saved have not been written to since the backward began.

    Raises:
        RuntimeError: one has been, by a hook or a Python function; torch's own words.
    """
    for place, tensor in zip(places, tensors, strict=True):
        expected = versions[place]
        if expected >= 0 and tensor._version != expected:
            found = tensor._version
            _set_version((tensor,), (expected,))
            with torch.enable_grad():
                product: Any = torch.ones((), device=tensor.device, requires_grad=True) * tensor
            _set_version((tensor,), (found,))
            _ = product.grad_fn._saved_other  # where torch itself looks, and complains


def release_inputs(inputs: list[Any]) -> None:
    """Empty the list of inputs, so that each can go after its last use."""
    inputs.clear()
