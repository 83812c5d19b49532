"""Wrapper subclasses, and tensors to fakeify in place of others, on the same memory."""

from __future__ import annotations

from typing import Any

import torch

from engine.torch_private.dispatch import is_traceable_wrapper_subclass
from engine.torch_private.fake_tensors import FakeTensor
from engine.torch_private.tensors import NestedTensor
from engine.torch_private.torch_function import disabled_torch_function_impl


def is_wrapper_subclass(value: Any) -> bool:
    """Return True for a wrapper subclass that can flatten itself to inner tensors."""
    return type(value) is not FakeTensor and bool(is_traceable_wrapper_subclass(value))


def is_jagged(real: Any) -> bool:
    """Return True for a jagged ``NestedTensor``: one dense tensor and offsets.

    Its methods trace like those of plain tensors.
    """
    return type(real) is NestedTensor


def inner_tensors(tensor: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the direct inner tensors of a wrapper subclass by name; empty for a plain tensor."""
    if not is_wrapper_subclass(tensor):
        return []
    attributes = ((name, getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])
    return [(name, part) for name, part in attributes if isinstance(part, torch.Tensor)]


def is_plain_wrapper_subclass(real: Any) -> bool:
    """Return True if a wrapper subclass computes only through its inner tensors.

    It then has no ``__torch_function__`` of its own.
    """
    if not is_wrapper_subclass(real):
        return False
    if is_jagged(real):
        return True
    own = type(real).__torch_function__
    plain: Any = torch.Tensor.__torch_function__
    return own is disabled_torch_function_impl or getattr(own, "__func__", None) is plain.__func__


def as_fakeable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a replacement that torch can fakeify.

    The replacement has the same storage, sizes, strides and ``requires_grad``.
    """
    if tensor.is_leaf and tensor.grad is not None and not _has_same_metadata(tensor.grad, tensor):
        with torch.no_grad():
            return tensor.detach().requires_grad_(tensor.requires_grad)
    base = tensor._base
    if base is None or _shares_storage_with_base(tensor, base):
        return tensor
    if is_wrapper_subclass(tensor):
        return _rebuild_subclass(tensor)
    return on_same_memory(tensor)


def _rebuild_subclass(wrapper: Any) -> torch.Tensor:
    names, context = wrapper.__tensor_flatten__()
    parts = {name: getattr(wrapper, name) for name in names}
    with torch.no_grad():
        subclass = type(wrapper).__tensor_unflatten__(parts, context, wrapper.shape, wrapper.stride())
        again: torch.Tensor = subclass.detach().requires_grad_(wrapper.requires_grad)
    return again


def _has_same_metadata(gradient: torch.Tensor, tensor: torch.Tensor) -> bool:
    return (gradient.shape, gradient.dtype, gradient.device) == (tensor.shape, tensor.dtype, tensor.device)


def _shares_storage_with_base(view: torch.Tensor, base: torch.Tensor) -> bool:
    if base.is_nested and not is_wrapper_subclass(base):
        return False
    if view.layout is not torch.strided or is_wrapper_subclass(view) or is_wrapper_subclass(base):
        return True
    if base.layout is not torch.strided:
        return False
    return bool(view.untyped_storage()._cdata == base.untyped_storage()._cdata)


def on_same_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return another leaf on the tensor's memory, with its layout; it is no view."""
    with torch.no_grad():
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return empty.requires_grad_(tensor.requires_grad)


def as_plain_tensor(real: torch.Tensor) -> torch.Tensor:
    """Return a plain leaf tensor with the metadata and memory of this one."""
    return real.detach().as_subclass(torch.Tensor).requires_grad_(real.requires_grad)


def plain_like_functorch_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor that looks like the tensor inside a functorch transform.

    For example, it looks like one row of a ``vmap``.
    """
    with torch.no_grad():
        meta_like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return meta_like.requires_grad_(tensor.requires_grad)
