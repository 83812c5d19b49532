"""``engine.bisect_accuracy``: the first operator, or gradient, that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.errors import BadArgument


class WrongGradient(torch.autograd.Function):
    """sin, whose gradient is that of a line."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        """Return the sine."""
        return x.sin()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return twice the gradient."""
        return gradient * 2


def wrong_sine(x: torch.Tensor) -> torch.Tensor:
    """Right forward, wrong backward."""
    found: torch.Tensor = WrongGradient.apply(x)
    return found


def replacing_sine(other: Callable[..., Any]) -> Callable[..., Any]:
    """A backend that computes another function instead of the sine."""

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        for node in graph.graph.nodes:
            if node.target is torch.sin:
                node.target = other
        graph.recompile()
        return graph.forward

    return backend


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product, a sine, and a sum."""
    y = x @ w
    z = torch.sin(y)
    return (z * 2).sum()


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs that require gradients."""
    torch.manual_seed(0)
    return torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)


def test_a_wrong_operator_is_found_with_its_line() -> None:
    """The first wrong result is the sine's, not that of the sum after it."""
    report = engine.bisect_accuracy(model, *inputs(), backend=replacing_sine(torch.tanh))
    assert report.first is not None
    assert (report.first.stage, report.first.name) == ("forward", "sin")
    assert report.first.place.endswith(f"test_bisect_accuracy.py:{model.__code__.co_firstlineno + 3}")
    assert report.first.eager_hash != report.first.compiled_hash
    assert "leaves tolerance" in str(report)


def test_a_wrong_gradient_is_found_in_the_backward() -> None:
    """The first wrong gradient is that of the sine's operand; the sine is named as its cause."""
    report = engine.bisect_accuracy(model, *inputs(), backend=replacing_sine(wrong_sine))
    assert report.first is not None
    assert (report.first.stage, report.first.name) == ("backward", "matmul")
    (cause,) = report.first.gradient_from
    line = model.__code__.co_firstlineno + 3
    assert cause.startswith("sin = sin(matmul)")
    assert cause.endswith(f"test_bisect_accuracy.py:{line})")
    assert f"The backward of {cause} computed it." in str(report)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
def test_right_backends_pass(backend: str) -> None:
    """Backends without faults pass forward and backward, with dropout and writes in place too."""
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    report = engine.bisect_accuracy(layers, torch.randn(3, 4), backend=backend)
    assert not report, report
    assert {n.stage for n in report.nodes} == {"forward", "backward"}
    assert not report.problems

    def writes(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        y += 1
        y[0] = 3
        return y.mul_(2).sin()

    assert not engine.bisect_accuracy(writes, torch.randn(3), backend=backend)


def test_graphs_after_a_break_are_compared() -> None:
    """A fault after a graph break is found; the arguments are not changed by the comparison."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        print(end="")
        return torch.sin(y) + y

    x = torch.ones(3)
    report = engine.bisect_accuracy(broken, x, backend=replacing_sine(torch.cos))
    assert report.first is not None
    assert report.first.name == "sin"
    assert x.tolist() == [1, 1, 1]


def test_every_graph_is_compared() -> None:
    """A fault in a graph after more graphs than ``recompile_limit`` is found."""

    def pieces(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print(end="")
        x = x * 2
        print(end="")
        return torch.sin(x)

    backend = replacing_sine(torch.cos)
    for rows in range(2, 6):
        report = engine.bisect_accuracy(pieces, torch.ones(rows), backend=backend)
        assert report.first is not None
        assert report.first.name == "sin"


def test_other_references_are_refused() -> None:
    """Only eager is a reference."""
    with pytest.raises(BadArgument, match="'eager' only"):
        engine.bisect_accuracy(model, *inputs(), against="numpy")
