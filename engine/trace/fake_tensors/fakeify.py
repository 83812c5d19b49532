"""Fake tensors of inputs, also of those that torch cannot fakeify after a data swap.

Such a tensor has a gradient or a base that does not match its new data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.ir.introspection.stale_view_grad_fn import preserve_stale_grad_fn
from engine.ir.sources.base import Source
from engine.torch_private.functorch import is_functorch_wrapped_tensor
from engine.trace.annotations import Tracer
from engine.trace.variables.tensors.automatic_dynamic import (
    follow_specializations,
    symbolic_context,
    unify_inner_shapes,
)
from engine.trace.variables.tensors.wrapper_subclasses import is_wrapper_subclass


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
    with torch.no_grad():
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    return empty.requires_grad_(tensor.requires_grad)


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


def fakeify(tx: Tracer, tensor: torch.Tensor, source: Source) -> torch.Tensor:
    """Return the fake tensor of an input.

    It is an inference tensor only if the input is one, whatever mode the tracer is in.
    """
    if torch.is_inference_mode_enabled() and not tensor.is_inference():
        with torch.inference_mode(False):
            return fakeify(tx, tensor, source)
    with preserve_stale_grad_fn(tensor):
        plain = _plain_like_functorch_tensor(tensor) if is_functorch_wrapped_tensor(tensor) else as_fakeable(tensor)
        context = symbolic_context(tx, plain, source)
        if context is None:
            return tx.symbols.fake_mode.from_tensor(plain, static_shapes=True, source=source)
        fake = tx.symbols.fake_mode.from_tensor(plain, source=source, symbolic_context=context)
        unify_inner_shapes(fake, plain)
        follow_specializations(tensor, fake)
        return fake


def symbolic_layout(fake: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Return sizes, strides and storage offset, with symbols."""
    return tuple(fake.shape), tuple(fake.stride()), fake.storage_offset() if fake.layout is torch.strided else 0


def _plain_like_functorch_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor that looks like the tensor inside a functorch transform.

    For example, it looks like one row of a ``vmap``.
    """
    with torch.no_grad():
        meta_like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return meta_like.requires_grad_(tensor.requires_grad)
