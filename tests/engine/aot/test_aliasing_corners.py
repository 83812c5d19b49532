"""Rare things that calls may do with memory: each is told from what eager does by one fact only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine

LEAF = "a leaf Variable that requires grad is being used in an in-place operation"


def _squeezed_in_place(x: Any) -> Any:
    x.squeeze_()
    return x * 2


def _swapped_in_place_and_detached(x: Any) -> Any:
    x.swapaxes_(1, 1)
    return x.detach()


@pytest.mark.parametrize("fn", [_squeezed_in_place, _swapped_in_place_and_detached])
def test_a_leaf_is_not_changed_in_place_by_code_compiled_for_another_tensor(fn: Callable[..., Any]) -> None:
    """Changes in place that leave data and layout as they were are still eager's error on a leaf, compiled for a leaf or not."""
    compiled = engine.compile(fn, backend="aot_eager")
    made = torch.ones(4, 4, requires_grad=True) * 1.5
    assert compiled(made).equal(fn(torch.ones(4, 4) * 1.5))
    with pytest.raises(RuntimeError, match=LEAF):
        compiled(torch.ones(4, 4, requires_grad=True))


@pytest.mark.parametrize("is_used", [True, False])
def test_as_strided_past_the_end_of_what_was_made_inside(is_used: bool) -> None:
    """Seeing memory that there is not is an error, whether the view is used or not; seeing all of it is none."""

    def fn(x: Any, offset: int) -> Any:
        made = x.new_full((2,), 3)
        seen = made.as_strided((1,), (1,), offset)
        return seen + x if is_used else x * 2

    one = torch.ones(1)
    assert engine.compile(fn, backend="aot_eager")(one, 1).equal(fn(one, 1))
    engine.reset()  # compiled for this offset at first, not for any
    with pytest.raises(RuntimeError, match="are out of bounds for storage of size 8"):
        engine.compile(fn, backend="aot_eager")(one, 2)


def test_views_without_elements_do_not_make_memory_longer() -> None:
    """A view that starts past the end of an empty storage, changed in place beside its whole, leaves the storage empty."""

    def fn(x: Any, y: Any) -> Any:
        y.unsqueeze_(0)
        return x.exp()

    x = torch.zeros(0, dtype=torch.int64).as_strided((3, 0), (1, 3))
    engine.compile(fn, backend="aot_eager")(x, y := x[1:])
    assert (x.untyped_storage().nbytes(), y.shape) == (0, (1, 2, 0))


@pytest.mark.parametrize("is_split_inside", [True, False])
def test_only_views_made_by_operators_that_make_several_are_closed_to_writes(is_split_inside: bool) -> None:
    """Whether the input of the first call came out of ``chunk`` says nothing about views of another call's input."""

    def fn(x: Any) -> Any:
        return x.chunk(2)[0] if is_split_inside else x[1:]

    several = "function that returns multiple views"
    compiled = engine.compile(fn, backend="aot_eager")
    for given, reason in (
        (torch.ones(8, requires_grad=True).mul(1).chunk(2)[0], several),
        (torch.ones(4, requires_grad=True).mul(1), several if is_split_inside else ""),
    ):
        for run in (fn, compiled):
            view = run(given)
            if reason:
                with pytest.raises(RuntimeError, match=reason):
                    view.mul_(2)
            elif run is compiled:
                assert view.mul_(2).equal(torch.full((3,), 2.0))
