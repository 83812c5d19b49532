"""Captured backwards under anomaly mode match eager.

Errors, warnings with the line of the forward, and accumulated gradients are those of eager.
"""

from __future__ import annotations

import pathlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import engine
from engine.records.session import Session

CASES: dict[str, Callable[[torch.Tensor], Any]] = {}
"""By name; each is given [0, 1]."""


def case(run: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """Add a case."""
    CASES[run.__name__] = run
    return run


@case
def of_an_operator(x: torch.Tensor) -> Any:
    ((x / x) * 0).sqrt().sum().backward()


@case
def after_other_leaves(x: torch.Tensor) -> Any:
    w = torch.ones(2, requires_grad=True)
    try:
        ((x.sqrt() * x).sum() + (w * 3).sum()).backward()
    finally:
        assert w.grad is not None
        assert w.grad.equal(torch.full((2,), 3.0))


@case
def made_by_a_tensors_hook(x: torch.Tensor) -> Any:
    y = x.sin()
    y.register_hook(lambda g: g * float("nan"))
    y.sum().backward()


@case
def made_by_a_leafs_hook(x: torch.Tensor) -> Any:
    x.register_hook(lambda g: g * float("nan"))
    x.sin().sum().backward()


@case
def made_by_a_nodes_hook(x: torch.Tensor) -> Any:
    y = x.sin()
    y.grad_fn.register_hook(lambda gi, go: (gi[0] * float("nan"),))  # type: ignore[union-attr]
    y.sum().backward()


@case
def mended_by_a_nodes_hook(x: torch.Tensor) -> Any:
    y = x.sqrt()
    y.grad_fn.register_hook(lambda gi, go: (torch.zeros(2),))  # type: ignore[union-attr]
    (y * 0).sum().backward()


@case
def a_hook_raises(x: torch.Tensor) -> Any:
    def hook(_: Any) -> Any:
        raise KeyError("hm")

    y = x.sin()
    y.register_hook(hook)
    y.sum().backward()


@case
def a_python_function(x: torch.Tensor) -> Any:
    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g, g / 0 * 0

    Second.apply(x, x.cos()).sum().backward()


@case
def a_python_function_returns_too_few(x: torch.Tensor) -> Any:
    class Few(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    Few.apply(x, x.cos()).sum().backward()


@case
def given_to_one_root(x: torch.Tensor) -> Any:
    x.sin().backward(torch.tensor([1, float("nan")]))


@case
def given_to_two_roots(x: torch.Tensor) -> Any:
    y = x.sin()
    torch.autograd.backward([y, y * 2], [torch.ones(2), torch.tensor([1, float("nan")])])


@case
def gradients_returned(x: torch.Tensor) -> Any:
    return torch.autograd.grad((x * 2 + x.sqrt() * 0).sum(), x)


@case
def nothing_found(x: torch.Tensor) -> Any:
    (x * 2 + (x + 1).sqrt() * 0).sum().backward()


@case
def of_a_gradients_gradient(x: torch.Tensor) -> Any:
    (g,) = torch.autograd.grad((x**1.5).sum(), x, create_graph=True)
    (g * g / g).sum().backward()


@case
def inside_of_a_gradients_gradient(x: torch.Tensor) -> Any:
    torch.autograd.grad((x.sqrt() * 0).sum(), x, create_graph=True)


@case
def through_a_view_that_was_written_to(x: torch.Tensor) -> Any:
    b = x * 1
    b[:1].mul_(b[1:])
    b[0:1].sqrt_()
    (b * 0).sum().backward()


@case
def what_was_saved_was_written_to(x: torch.Tensor) -> Any:
    y = x.exp()
    z = y * 2
    y.register_hook(lambda g: g)
    with torch.no_grad():
        y.add_(1)
    z.sum().backward()


@case
def of_a_compiled_call(x: torch.Tensor) -> Any:
    compiled = engine.compile(lambda t: (t.sqrt() * 0).sum(), backend="aot_eager")
    compiled(x * 1).backward()


@case
def a_forward_without_the_mode(x: torch.Tensor) -> Any:
    with torch.autograd.set_detect_anomaly(False):
        y = (x.sqrt() * 0).sum()
    y.backward()


@pytest.fixture(autouse=True)
def _nothing_captured() -> Iterator[None]:
    """Each test begins with nothing captured."""
    engine.reset()
    yield
    engine.reset()


def outcome(name: str, backend: str | None, *, check: bool) -> tuple[list[str], Any, Session]:
    """Return the error and all warnings, the gradient, and the session.

    Stack lines of the engine itself are removed from the warnings.
    """
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    found: list[str] = []
    with (
        warnings.catch_warnings(record=True) as heard,
        engine.record() as session,
        engine.compiled_autograd(backend or "eager", enabled=backend is not None),
    ):
        warnings.simplefilter("always")
        with torch.autograd.set_detect_anomaly(True, check):
            try:
                found.append(str(CASES[name](x)))
            except (RuntimeError, KeyError) as error:
                found.append(repr(error))
    return [*found, *(GENERATED.sub("", str(w.message)) for w in heard)], x.grad, session


GENERATED = re.compile(
    rf'  File "{re.escape(str(pathlib.Path(engine.__file__).parent))}[^"]*", line .*\n.*\n|<eval_with_key>\.\d+'
)
"""Our own lines of a stack, and the numbers of graphs that ran as traced."""


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_told_as_in_eager(name: str, check: bool) -> None:
    """Captured backwards report the same function and forward line as eager in anomaly mode.

    This holds for the capture, for a cache hit, and under a compiling backend: the error names the function,
    the warning names the line of the forward.
    """
    outcomes = [outcome(name, backend, check=check) for backend in (None, "eager", "eager", "aot_eager")]
    told, gradient, _ = outcomes[0]
    for found, captured, _ in outcomes[1:]:
        assert found == told
        torch.testing.assert_close(captured, gradient, rtol=0, atol=0, equal_nan=True)


def test_it_is_captured_and_says_how_it_runs() -> None:
    """Both the capture and the hit report that each node's results are checked for NaN.

    The backward is captured in both calls.
    """
    for expected in ("captured", "hit"):
        told, _, session = outcome("of_an_operator", "aot_eager", check=True)
        (call,) = session.backward_calls
        assert call.outcome == expected
        assert "each node's results are checked for NaN" in call.reason
        assert told[0] == "RuntimeError(\"Function 'SqrtBackward0' returned nan values in its 0th output.\")"
        assert ".sqrt()" in told[1]


def test_compiled_calls_come_back_once_the_mode_is_off() -> None:
    """Anomaly mode keeps each operator's own grad_fn; without it the backward is compiled.

    The next call after the mode is off is compiled with its backward.
    """
    compiled = engine.compile(lambda t: (t.sqrt() * 2).sum(), backend="aot_eager")
    x = torch.ones(2, requires_grad=True)
    names = []
    for mode in (True, False):
        with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(mode):
            warnings.simplefilter("ignore")
            names.append(type(compiled(x).grad_fn).__name__)
    assert names == ["SumBackward0", "CompiledFunctionBackward"]
