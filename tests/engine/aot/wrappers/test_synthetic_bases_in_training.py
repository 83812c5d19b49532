"""Mutated views of one tensor train in one functional graph over a synthetic base.

The views are inputs of the graph, and at least one of them is mutated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine

Make = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def write_first(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One is written, both are read."""
    a.mul_(2)
    return a.sin().sum() + b.cos().sum(), b * 3


def write_both(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Writes to both, in turn."""
    a.mul_(2)
    b.add_(a.sum())
    a.sin_()
    return (a.exp(), b)


def return_views(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of the one that was not written, taken before and after."""
    early = b[..., :1]
    a.mul_(3)
    return early, b[..., :1], a, a.view(-1), early * 2


def write_unseen(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A write that autograd does not see, and one that it does."""
    c = a * 2
    with torch.no_grad():
        a.add_(1)
    b.mul_(2)
    return (c, b)


PROGRAMS: list[Callable[..., Any]] = [write_first, write_both, return_views, write_unseen]
VIEWS: dict[str, Make] = {
    "base and row": lambda t: (t, t.view(-1)),
    "row and base": lambda t: (t.view(-1), t),
    "transposed": lambda t: (t.t(), t.view(-1)),
    "apart": lambda t: (t[0], t[1]),
    "overlapping": lambda t: (t[:2], t[1:]),
    "twice": lambda t: (t.view(-1), t.view(-1)),
    "unsqueezed": lambda t: (t.unsqueeze(0), t.permute(1, 0)),
    "columns": lambda t: (t[:, 0], t[:, 1:]),
    "every other column": lambda t: (t[:, ::2], t),
    "a diagonal": lambda t: (t.diagonal(), t.t()),
    "corners": lambda t: (t[::2, 1::2], t[1:, :2].unsqueeze(1)),
    "one element": lambda t: (t[1:2, 2:3], t.view(-1)),
}


def _run(fn: Callable[..., Any], make: Make, *, leaf_needs: bool = True) -> dict[str, Any]:
    torch.manual_seed(0)
    leaf = torch.randn(3, 4).requires_grad_(leaf_needs)
    whole = leaf * 1.5
    a, b = make(whole)
    found: dict[str, Any] = {}
    try:
        outs = fn(a, b)
    except RuntimeError as error:
        return {"error": str(error)}
    tensors = {"whole": whole, "a": a, "b": b, **{f"out {n}": o for n, o in enumerate(outs)}}
    for name, t in tensors.items():
        found[name] = t.detach().clone()
        found[f"{name}'s facts"] = (t.requires_grad, t._version, t.stride(), t._is_view(), t.grad_fn is None)
        found[f"{name}'s memory"] = [t.untyped_storage()._cdata == o.untyped_storage()._cdata for o in tensors.values()]
        found[f"{name} is"] = [t is o for o in tensors.values()]
    total = sum((t * (n + 1)).sin().sum() for n, t in enumerate(tensors.values()) if t.requires_grad)
    if isinstance(total, torch.Tensor):
        try:
            total.backward()
        except RuntimeError as error:
            return found | {"error": str(error).partition(":")[0]}
    return found | {"gradient": leaf.grad}


def _check(fn: Callable[..., Any], run: Callable[..., Any], make: Make, **options: Any) -> None:
    expected, found = _run(fn, make, **options), _run(run, make, **options)
    assert expected.keys() == found.keys(), (expected.get("error"), found.get("error"))
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(found[name], value, msg=name)
        else:
            assert found[name] == value, name


@pytest.mark.combinations
@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS.keys())
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda f: f.__name__)
def test_views_of_one_tensor_train(fn: Callable[..., Any], make: Make) -> None:
    """Views of one tensor match eager in two calls, with and without gradients.

    Compares results, memory, version counters, ``requires_grad`` and gradients.
    """
    engine.reset()
    run = engine.compile(fn, backend="aot_eager")
    _check(fn, run, make)
    _check(fn, run, make)
    _check(fn, run, make, leaf_needs=False)


@pytest.mark.thorough
@pytest.mark.parametrize("views", sorted(set(VIEWS) - {"a diagonal"}))
def test_the_graph_is_functional(views: str) -> None:
    """Views of a contiguous tensor, with or without gaps, become views of one synthetic base.

    The record says so.
    """
    engine.reset()
    with engine.record() as session:
        _run(engine.compile(write_both, backend="aot_eager"), VIEWS[views])
    (aot,) = [c.aot for c in session.compilations if c.aot is not None]
    assert (aot.mode, aot.note) == ("training", "")
    (told,) = (w for w in aot.wrappers if w.name == "synthetic bases")
    assert [a.argument for a in told.actions] == ["a and b"]


@pytest.mark.thorough
@pytest.mark.parametrize("other", ["leaf", "unseen views", "another whole"])
def test_other_views_in_a_later_call(other: str) -> None:
    """Code compiled for views that autograd tracks matches eager for other views.

    Errors match, too.
    """

    def make(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        match other:
            case "leaf":
                whole = t.detach().clone().requires_grad_()
                return whole.view(-1), whole.t()
            case "unseen views":
                with torch.no_grad():
                    return t.view(-1), t.t()
            case _:
                whole = torch.cat([t, t]) * 1
                return whole[:3].view(-1), whole[:3].t()

    engine.reset()
    run = engine.compile(write_both, backend="aot_eager")
    _check(write_both, run, VIEWS["transposed"])
    run_of_row = engine.compile(write_both, backend="aot_eager")
    _check(write_both, run_of_row, lambda t: (t.view(-1), t.t()))
    _check(write_both, run_of_row, make)
    _check(write_both, run_of_row, lambda t: (t.view(-1), t.t()))
