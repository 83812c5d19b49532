"""Looks at tensors without making the history of views whose base was written to since: torch does that when a view is first asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._C import _autograd

_UNREACHABLE_VERSION = (1 << 31) - 1
"""More writes than a tensor sees."""


def is_leaf_without_regeneration(tensor: torch.Tensor) -> bool:
    """``tensor.is_leaf``, which for a view may write its history anew."""
    return False if has_stale_grad_fn(tensor) else tensor.is_leaf


def has_stale_grad_fn(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view with a history from before its base was last written to.

    The history is made anew as the view is laid out when something asks for it, which code that gives the view other memory can tell.
    """
    base = None if torch._C._functorch.is_functorch_wrapped_tensor(tensor) else tensor._base
    if base is None or not tensor.requires_grad or not base.requires_grad:
        return False
    was = _autograd._get_creation_meta(tensor)
    # Torch refuses to write anew the history of a view that was made without gradients, before it changes anything.
    _autograd._set_creation_meta(tensor, _autograd.CreationMeta.NO_GRAD_MODE)
    try:
        _ = tensor.is_leaf
    except RuntimeError:
        return True
    finally:
        _autograd._set_creation_meta(tensor, was)
    return False


@contextlib.contextmanager
def preserve_stale_grad_fn(tensor: torch.Tensor) -> Iterator[None]:
    """A tensor whose history may be asked for inside, and is as out of date afterwards as it was before."""
    if not has_stale_grad_fn(tensor):
        yield
        return
    try:
        yield
    finally:
        version = tensor._version
        # Made anew at a version that the tensor never has, the history is out of date again, and stays so when the tensor is written to.
        _autograd._unsafe_set_version_counter((tensor,), (_UNREACHABLE_VERSION,))
        with contextlib.suppress(RuntimeError):  # a history that may not be made anew stays as it is
            _ = tensor.is_leaf
        _autograd._unsafe_set_version_counter((tensor,), (version,))
