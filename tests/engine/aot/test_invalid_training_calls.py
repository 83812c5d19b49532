"""Invalid training calls raise eager's error, or run as traced with a recorded reason."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from tests.engine.aot.assert_matches_eager import message


def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Writes to its argument."""
    x.mul_(2)
    return x * y


def write_through_view(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Writes to a view of its argument."""
    x.view(-1)[:2].add_(1)
    return x * y


def save(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Saves its argument for the backward."""
    return x * y


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3, 4)


ARGUMENTS: dict[str, tuple[Callable[..., Any], Callable[[], torch.Tensor]]] = {
    "a leaf is written to": (write, lambda: torch.ones(3, 4, requires_grad=True)),
    "a view of a leaf is written to": (write_through_view, lambda: torch.ones(3, 4, requires_grad=True)),
    "a parameter is written to": (write, lambda: torch.nn.Parameter(torch.ones(3, 4))),
    "an expanded tensor is written to": (write, lambda: torch.ones(1, 4).expand(3, 4)),
    "an inference tensor is written to": (write, _inference),
    "an inference tensor is saved": (save, _inference),
}


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_may_not_be_used_so(name: str, backend: str) -> None:
    """Invalid arguments raise eager's exact error in both calls, and earlier writes remain."""
    fn, make = ARGUMENTS[name]
    engine.reset()
    run = engine.compile(fn, backend=backend)
    y = torch.ones(3, 4, requires_grad=True)
    for _ in range(2):
        plain, given = make(), make()
        expected = message(fn, plain, y)
        assert expected
        assert message(run, given, y) == expected
        assert torch.equal(plain, given)


def test_one_shape_after_another_is_told_apart() -> None:
    """Code compiled for a writable input raises for a non-writable one, and vice versa."""
    engine.reset()
    run = engine.compile(write, backend="aot_eager")
    y = torch.ones(3, 4, requires_grad=True)
    for make in (lambda: torch.ones(3, 4), ARGUMENTS["a leaf is written to"][1], lambda: torch.ones(3, 4)):
        assert message(run, make(), y) == message(write, make(), y)


def test_sparse_arguments_run_with_a_reason() -> None:
    """Results and gradients are eager's."""

    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(a, b).sin()

    engine.reset()
    a, b = torch.eye(3).to_sparse(), torch.randn(3, 3, requires_grad=True)
    with engine.record() as session:
        found = engine.compile(fn, backend="aot_eager")(a, b)
    notes = [c.aot.note for c in session.compilations if c.aot is not None]
    failures = [f.sentence for c in session.compilations for f in c.failures]
    breaks = [x for c in session.compilations if c.trace is not None for x in c.trace.breaks]
    assert any(notes) or failures or breaks
    torch.testing.assert_close(found, fn(a, b))
    torch.testing.assert_close(torch.autograd.grad(found.sum(), b), torch.autograd.grad(fn(a, b).sum(), b))


TANGENTS: dict[str, torch.Tensor] = {
    "of another shape": torch.ones(4),
    "of another number of dimensions": torch.ones(1, 3, 4),
    "of another type": torch.ones(3, 4, dtype=torch.float64),
    "complex": torch.ones(3, 4, dtype=torch.complex64),
}


@pytest.mark.parametrize("name", TANGENTS)
def test_tangents_that_do_not_fit(name: str) -> None:
    """They raise, or are cast, as in eager."""
    x = torch.randn(3, 4, requires_grad=True)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    engine.reset()
    run = engine.compile(fn, backend="aot_eager")

    def back(out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out, x, TANGENTS[name])

    expected = message(back, fn(x))
    assert message(back, run(x)) == expected
    if not expected:
        (one,), (other,) = back(fn(x)), back(run(x))
        torch.testing.assert_close(one, other)


def test_a_backward_of_something_that_needs_no_gradient() -> None:
    """The message is eager's."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.detach() * 2

    engine.reset()
    x = torch.randn(3, requires_grad=True)
    found = [message(run(x)[1].sum().backward) for run in (fn, engine.compile(fn, backend="aot_eager"))]
    assert found[0] == found[1] != ""


@pytest.mark.parametrize("saved", [True, False], ids=["saved", "not saved"])
def test_inputs_changed_before_a_backward_on_another_thread(saved: bool) -> None:
    """Mutating an input that eager saved raises in the backward, on any thread.

    An input that eager did not save may be mutated.
    """

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y if saved else x.sin() + y

    engine.reset()
    texts = []
    for run in (fn, engine.compile(fn, backend="aot_eager")):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3)
        out = run(x, y).sum()
        y.add_(1)
        told: list[str] = []
        thread = threading.Thread(target=lambda out=out, told=told: told.append(message(out.backward)))
        thread.start()
        thread.join()
        texts.append(told[0].partition(": [")[0])
    assert texts[0] == texts[1]
    assert bool(texts[0]) is saved


CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "nothing": lambda x: x,
    "detached": lambda x: x.detach_(),
    "detached and required again": lambda x: x.detach_().requires_grad_(),
}


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("of", ["leaf", "result", "result read through a view", "result not saved"])
@pytest.mark.parametrize("change", CHANGES)
def test_inputs_detached_in_place_before_the_backward(change: str, of: str, backend: str) -> None:
    """Detaching a saved tensor in place before the backward raises as in eager.

    Leaves, views of the tensor and tensors that eager did not save may be detached.
    """

    def fn(x: torch.Tensor) -> torch.Tensor:
        if of == "result not saved":
            return (x * 2).exp()
        return x.t() @ x.t() if of == "result read through a view" else x.sin()

    engine.reset()
    found = []
    for run in (fn, engine.compile(fn, backend=backend)):
        leaf = torch.full((3, 3), 0.5, requires_grad=True)
        x = leaf if of == "leaf" else leaf * 2
        out = run(x).sum()
        CHANGES[change](x)
        found.append((message(out.backward), leaf.grad))
    (wanted, gradient), (told, other) = found
    assert told == wanted
    assert bool(wanted) is (of == "result" and change != "nothing")
    torch.testing.assert_close(other, gradient)


def test_a_second_backward_is_refused_as_in_eager() -> None:
    """The graph's values are gone; nothing else is disturbed."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.sin().exp()

    engine.reset()
    texts = []
    for run in (fn, engine.compile(fn, backend="aot_eager")):
        out = run(torch.ones(3, requires_grad=True)).sum()
        out.backward()
        texts.append(message(out.backward))
    assert texts[0] == texts[1] != ""
