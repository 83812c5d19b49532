"""``engine.config.verify_correctness`` compares compiled graphs with eager at first call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

import engine
from engine.errors import WrongResult


@pytest.fixture(autouse=True)
def _asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    engine.reset()
    monkeypatch.setattr(engine.config, "verify_correctness", True)


def off_by_one(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """A backend that is wrong."""
    return lambda *given: tuple(r + 1 for r in graph(*given))


def trained(run: Callable[..., torch.Tensor], on_wrong_result: Literal["error", "ignore"]) -> tuple[torch.Tensor, ...]:
    """Return the written input, the result and the gradient of one training step."""
    torch.manual_seed(0)
    x, w = torch.zeros(3), torch.ones(3, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter(on_wrong_result, WrongResult)
        y = run(x, w)
    y.sum().backward()
    assert w.grad is not None
    return x, y.detach(), w.grad


def test_wrong_backend_is_told_and_left() -> None:
    """A wrong result gives a warning and a recorded failure; later calls run as traced."""
    compiled = engine.compile(lambda x: x * 2, backend=off_by_one)
    x = torch.arange(3.0)
    with engine.record() as session, pytest.warns(WrongResult, match="result 0 differs from eager by up to 1"):
        first = compiled(x)
    assert torch.equal(first, x * 2)
    assert [f.stage for c in session.compilations for f in c.failures] == ["verification"]
    assert torch.equal(compiled(x), x * 2)


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_right_graphs_pass(backend: str) -> None:
    """Random numbers, mutated inputs and gradients verify; an input is mutated only once."""

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.nn.functional.dropout(x * w, 0.5) + torch.rand(3)

    expected, found = (trained(run, "error") for run in (step, engine.compile(step, backend=backend)))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_inputs_whose_elements_share_memory_verify() -> None:
    """An expanded input is copied with its strides, so a wrong result is reported."""
    compiled = engine.compile(lambda x: x * 2, backend=off_by_one)
    x = torch.arange(3.0)[:, None].expand(3, 4)
    with pytest.warns(WrongResult, match="result 0 differs from eager by up to 1"):
        assert torch.equal(compiled(x), x * 2)


def test_wrong_changes_of_inputs_are_told() -> None:
    """Inputs are compared as they are afterwards."""

    def forgets(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return lambda *given: graph(*(t.clone() for t in given))

    def step(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    with pytest.warns(WrongResult, match="x after the call differs"):
        engine.compile(step, backend=forgets)(torch.zeros(3))


def test_what_cannot_run_twice_is_said() -> None:
    """A graph that registers hooks is not run a second time; the record says why."""

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 3)
        return y

    x = torch.ones(3, requires_grad=True)
    with engine.record() as session:
        engine.compile(step, backend="aot_eager")(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 6.0))
    assert "not verifiable" in "".join(f.sentence for c in session.compilations for f in c.failures)


class Wrong(torch.autograd.Function):
    """The identity, whose derivative is taken to be two."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        """What it is given."""
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        """Wrong."""
        return grad * 2


def test_wrong_gradients_are_told() -> None:
    """Wrong gradients give a warning even if results agree; later calls run as traced."""

    def doubled(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        return lambda *given: tuple(Wrong.apply(r) for r in graph(*given))

    compiled = engine.compile(lambda x: x * 3, backend=doubled)
    with pytest.warns(WrongResult, match="the gradient of x differs from eager's by up to 3"):
        compiled(torch.ones(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True)
    compiled(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0))  # type: ignore[arg-type]


def wrong_in_place(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """A backend that also writes wrongly to its inputs."""

    def run(*given: Any) -> Any:
        given[0].fill_(7)
        return graph(*given)

    return run


def test_the_first_call_is_eagers() -> None:
    """After a difference, the call's own results, writes and gradients are eager's."""

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * w + torch.rand(3)

    expected, found = (trained(run, "ignore") for run in (step, engine.compile(step, backend=wrong_in_place)))
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def test_a_wrong_result_can_be_an_error() -> None:
    """With the warning as an error, the call raises it; the next one is right."""
    compiled = engine.compile(lambda x: x * 2, backend=off_by_one)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WrongResult)
        with pytest.raises(WrongResult):
            compiled(torch.ones(2))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
