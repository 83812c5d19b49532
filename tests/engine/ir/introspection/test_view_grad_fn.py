"""Reading a stale view's grad_fn regenerates it in torch; introspection must not do so.

A view is stale when its base was mutated after the view was made.
"""

from __future__ import annotations

import pytest
import torch

from engine.ir.introspection.stale_view_grad_fn import (
    has_stale_grad_fn,
    is_leaf_without_regeneration,
    preserve_stale_grad_fn,
)


def _view(*, is_written: bool) -> torch.Tensor:
    base = torch.arange(6.0).view(2, 3).requires_grad_() * 1.5
    view = base.t()
    if is_written:
        base.mul_(2)
    return view


def test_a_view_is_out_of_date_once_its_base_is_written_to() -> None:
    """A view stays stale however often it is inspected, until its grad_fn is read."""
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
    """Inspection does not change the grad_fn of a view that is up to date, or of a leaf.

    A view of a tensor that requires no gradient is not changed either.
    """
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
    """Torch still rejects a view made under no_grad whose base was mutated afterwards."""
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
