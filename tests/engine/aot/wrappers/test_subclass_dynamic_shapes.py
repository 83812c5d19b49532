"""Sizes of tensor subclasses become symbols when they change.

Checked in the tracer and in the functional graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import engine
from engine.torch_private.pytree import tree_map_only
from tests.torch_internals import TwoTensor


def two(*shape: int) -> Any:
    return TwoTensor(torch.randn(*shape), torch.randn(*shape))


def rows(x: Any, w: Any) -> Any:
    return (x @ w).sin() * x.shape[0] + x.size(1)


def joined(x: Any, w: Any) -> Any:
    y = torch.cat([x, x + 1]).exp()
    return y, x.a.relu(), x.b.shape[0] * w.a


def written(x: Any, w: Any) -> Any:
    x.mul_(2)
    return x.sum() * w


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, TwoTensor):
        facts = one.shape, one.stride(), one.requires_grad
        return facts == (other.shape, other.stride(), other.requires_grad) and _alike(
            [one.a, one.b], [other.a, other.b]
        )
    return one.shape == other.shape and torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("fn", [rows, joined, written])
def test_few_compiles_serve_all_sizes(fn: Callable[..., Any], backend: str) -> None:
    """The second size creates a symbol, the graph stays functional and results have int sizes."""
    engine.reset()
    run = engine.compile(fn, backend=backend)
    with engine.record() as session:
        for rows_given in (2, 3, 5, 7):
            x, w = two(rows_given, 3), two(3, 2)
            expected = fn(x.clone(), w)
            found = run(x, w)
            assert _alike(found, expected)
            first = found[0] if isinstance(found, tuple) else found
            assert all(type(size) is int for size in (*first.shape, *first.stride()))
    assert len(session.compilations) == 2
    if backend != "eager":
        assert all(c.aot is not None and c.aot.mode == "inference" for c in session.compilations)


def test_gradients_of_all_sizes() -> None:
    """Gradients of inputs and parameters are put together with the sizes of their call."""
    engine.reset()
    run = engine.compile(rows, backend="aot_eager")
    w = torch.nn.Parameter(two(3, 2))
    with engine.record() as session:
        for rows_given in (2, 3, 5, 7):
            x = two(rows_given, 3).requires_grad_()
            grads = []
            for called in (run, rows):
                called(x, w).sum().backward()
                grads.append([x.grad, w.grad])
                x.grad = w.grad = None
            assert _alike(*grads)
    assert len(session.compilations) == 2
    assert [c.aot.mode for c in session.compilations if c.aot is not None] == ["training", "training"]


@dataclass(frozen=True)
class Facts:
    """What a tensor says of itself beside its parts."""

    shape: Any


class Told(torch.Tensor):
    """Keeps its own shape in its context."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, facts: Facts) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        return made

    def __init__(self, inner: torch.Tensor, facts: Facts) -> None:
        self.part, self.facts = inner, facts

    def __tensor_flatten__(self) -> Any:
        return ["part"], self.facts

    @staticmethod
    def __tensor_unflatten__(parts: Any, facts: Facts, size: Any, stride: Any) -> Any:
        return Told(parts["part"], facts)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        out = func(*tree_map_only(Told, lambda t: t.part, args), **(kwargs or {}))
        return tree_map_only(torch.Tensor, lambda t: Told(t, Facts(tuple(t.shape))), out)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_a_tensor_says_of_itself_holds_numbers(backend: str) -> None:
    """No symbol is left in what a subclass keeps beside its parts."""
    engine.reset()
    run = engine.compile(lambda x: x * 2, backend=backend)
    for rows_given in (2, 3, 5):
        found: Any = run(Told(torch.ones(rows_given, 3), Facts((rows_given, 3))))
        assert found.facts == Facts((rows_given, 3)) and all(type(s) is int for s in found.facts.shape)
        assert torch.equal(found.part, torch.full((rows_given, 3), 2.0))


class Interchangeable(Told):
    """Says that code for one of its contexts serves every other."""

    @classmethod
    def __metadata_guard__(cls, expected: Any, given: Any) -> bool:
        return True

    @staticmethod
    def __tensor_unflatten__(parts: Any, facts: Facts, size: Any, stride: Any) -> Any:
        return Interchangeable(parts["part"], facts)


def test_a_class_says_which_contexts_are_alike() -> None:
    """``__metadata_guard__`` decides in place of equality."""
    engine.reset()
    run = engine.compile(lambda x: x.part + 1, backend="eager")
    with engine.record() as session:
        for told in (1, 2, 3):
            run(Interchangeable(torch.ones(2), Facts(told)))
            run(Told(torch.ones(2), Facts(told)))
    assert len(session.compilations) == 4


def jagged(*lengths: int) -> Any:
    return torch.nested.nested_tensor([torch.randn(n, 4) for n in lengths], layout=torch.jagged)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_few_compiles_serve_nested_tensors_of_all_lengths(backend: str) -> None:
    """Rows, their number and their lengths become symbols; gradients come back."""
    engine.reset()
    layer = torch.nn.Linear(4, 3)

    def model(x: torch.Tensor) -> torch.Tensor:
        return layer(x).softmax(-1) * x.size(0)  # type: ignore[no-any-return]

    run = engine.compile(model, backend=backend)
    with engine.record() as session:
        for lengths in ((2, 3), (4, 5, 3), (5, 2), (6, 6, 2, 2), (9,) * 5):
            x = jagged(*lengths)
            found, expected = run(x), model(x)
            assert torch.allclose(found.values(), expected.values()) and torch.equal(found.offsets(), x.offsets())
            grads: list[Any] = []
            for result in (found, expected):
                result.values().pow(2).sum().backward()
                grads.append(layer.weight.grad)
                layer.weight.grad = None
            assert torch.allclose(*grads)
    assert len(session.compilations) == 2


def test_ragged_sizes_that_were_equal_are_guarded() -> None:
    """Which branch is taken follows the lengths of each call."""

    def chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[1] == y.shape[1] else y * 3

    for dynamic in (None, True):
        engine.reset()
        run = engine.compile(chosen, backend="eager", dynamic=dynamic)
        for lengths in ((2, 3), (4, 5), (3, 2, 6)):
            x = jagged(*lengths)
            for y in (x + 1, jagged(*lengths)):
                assert torch.equal(run(x, y).values(), chosen(x, y).values())
