"""A view whose base was written to since has its history made anew by torch when it is asked for; looking at it must not ask."""

from __future__ import annotations

import pytest
import torch

from engine.ir.introspection.view_grad_fn import has_stale_grad_fn, is_leaf_without_regeneration, preserve_stale_grad_fn


def _view(*, is_written: bool) -> torch.Tensor:
    base = torch.arange(6.0).view(2, 3).requires_grad_() * 1.5
    view = base.t()
    if is_written:
        base.mul_(2)
    return view


def test_a_view_is_out_of_date_once_its_base_is_written_to() -> None:
    """It stays so however often it is looked at, and is up to date once its history was asked for."""
    view = _view(is_written=True)
    version = view._version
    assert [has_stale_grad_fn(view), is_leaf_without_regeneration(view), has_stale_grad_fn(view)] == [True, False, True]
    with preserve_stale_grad_fn(view):
        assert type(view.grad_fn).__name__ == "AsStridedBackward0"
        assert not has_stale_grad_fn(view)
    assert has_stale_grad_fn(view)
    assert view._version == version
    _ = view.grad_fn
    assert not has_stale_grad_fn(view)


def test_what_is_up_to_date_stays_as_it_is() -> None:
    """Neither the history of a fresh view, nor that of a leaf, nor that of a view of what needs no gradient is touched."""
    view = _view(is_written=False)
    history = view.grad_fn
    with preserve_stale_grad_fn(view):
        assert not has_stale_grad_fn(view)
    assert view.grad_fn is history
    leaf = torch.ones(3, requires_grad=True)
    row = torch.ones(2, 3)[0]
    row.requires_grad_()
    assert [
        has_stale_grad_fn(leaf),
        is_leaf_without_regeneration(leaf),
        has_stale_grad_fn(row),
        is_leaf_without_regeneration(row),
    ] == [False, True, False, True]


def test_histories_that_may_not_be_made_anew_stay_forbidden() -> None:
    """A view that was made without gradients of what was written to since is refused by torch as before."""
    base = torch.ones(2, 3, requires_grad=True) * 1.5
    with torch.no_grad():
        view = base[0]
    base.mul_(2)
    with preserve_stale_grad_fn(view):
        pass
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no_grad mode"):
            _ = view.is_leaf


def test_a_view_looked_at_sees_the_next_write() -> None:
    """What is written after a view was looked at is part of its history."""
    base = torch.ones(4, requires_grad=True) * 1.5
    view = base[:]
    base.swapaxes_(0, -1)
    with preserve_stale_grad_fn(view):
        pass
    base[:1].mul_(2)
    assert view.grad_fn is not None
    assert type(view.grad_fn.next_functions[0][0]).__name__ == "CopySlices"
