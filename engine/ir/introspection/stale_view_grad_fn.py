"""Inspect views without regenerating a stale ``grad_fn``.

Torch regenerates the ``grad_fn`` of a view on the first read after its base was mutated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from engine.torch_private.autograd import CreationMeta, get_creation_meta, set_creation_meta, unsafe_set_version_counter
from engine.torch_private.functorch import is_functorch_wrapped_tensor

_UNREACHABLE_VERSION = (1 << 31) - 1
"""A version number above any tensor's real version."""


def is_leaf_without_regeneration(tensor: torch.Tensor) -> bool:
    """Return ``tensor.is_leaf``; for a view, that read could regenerate its ``grad_fn``."""
    return False if has_stale_grad_fn(tensor) else tensor.is_leaf


def has_stale_grad_fn(tensor: torch.Tensor) -> bool:
    """Return True if a view's ``grad_fn`` predates the last mutation of its base.

    A read regenerates it from the view's current layout. Code that gives the view other memory can observe
    that.
    """
    base = None if is_functorch_wrapped_tensor(tensor) else tensor._base
    if base is None or not tensor.requires_grad or not base.requires_grad:
        return False
    was = get_creation_meta(tensor)
    # Under this creation meta, torch raises before it regenerates grad_fn and changes anything.
    set_creation_meta(tensor, CreationMeta.NO_GRAD_MODE)
    try:
        _ = tensor.is_leaf
    except RuntimeError:
        return True
    finally:
        set_creation_meta(tensor, was)
    return False


@contextlib.contextmanager
def preserve_stale_grad_fn(tensor: torch.Tensor) -> Iterator[None]:
    """Allow reads of ``grad_fn`` inside the block; a stale one is stale again afterwards."""
    if not has_stale_grad_fn(tensor):
        yield
        return
    try:
        yield
    finally:
        version = tensor._version
        # A grad_fn regenerated at an unreachable version is stale again, and stays stale after mutations.
        unsafe_set_version_counter((tensor,), (_UNREACHABLE_VERSION,))
        with contextlib.suppress(RuntimeError):  # A grad_fn that cannot be regenerated stays as it is.
            _ = tensor.is_leaf
        unsafe_set_version_counter((tensor,), (version,))
