"""Errors of eager PyTorch are raised in compiled code, with each earlier effect done once.

Compares values, layouts, version counters and the grad mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import engine

Result = tuple[Any, ...]


class _Sorted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return x.sort(-1)[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return gradient


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    engine.reset()
    yield
    torch.set_grad_enabled(True)


def _told(run: Callable[..., Any], x: torch.Tensor) -> Result:
    """Return a call's result or error, the state of its argument and the modes after it."""
    try:
        given: Any = run(x)
    except Exception as error:
        given = (type(error), str(error))
    result = (given.tolist(), given.stride()) if isinstance(given, torch.Tensor) else given
    state = x.tolist(), x.shape, x.stride(), x._version
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), nesting
    torch.set_grad_enabled(True)
    return result, state, modes


def _is_eager(program: Callable[..., Any], make: Callable[[], torch.Tensor]) -> None:
    wanted = _told(program, make())
    compiled = engine.compile(program, backend="aot_eager")
    assert [_told(compiled, make()) for _ in range(2)] == [wanted, wanted]


ORDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sort": lambda z: z.sort()[1],
    "topk": lambda z: z.topk(2)[1],
    "median": lambda z: z.median(),
    "max of a dimension": lambda z: z.max(0)[0],
    "argmax": lambda z: z.argmax(),
    "heaviside": lambda z: z.heaviside(z),
    "nanmean": lambda z: z.nanmean(),
    "in a function": _Sorted.apply,
}
"""What no kernel does with complex numbers, though fake tensors do not say so."""


@pytest.mark.parametrize("name", ORDERS)
def test_complex_numbers_without_an_order(name: str) -> None:
    """Operators without a complex kernel raise, used or unused, and earlier writes remain."""
    order = ORDERS[name]

    def unread(z: torch.Tensor) -> torch.Tensor:
        z.mul_(2)
        order(z)
        return z

    def read(z: torch.Tensor) -> Any:
        z.mul_(2)
        return order(z)

    for program in (unread, read):
        _is_eager(program, lambda: torch.ones(2, 3, dtype=torch.complex64))


def test_sorting_numbers_unread_stays_functional() -> None:
    """The same function over numbers that have an order is no reason to give the graph up."""

    def program(x: torch.Tensor) -> torch.Tensor:
        _Sorted.apply(x)
        return x * 2

    with engine.record() as session:
        engine.compile(program, backend="aot_eager")(torch.ones(2, 3))
    assert [c.aot.mode for c in session.compilations if c.aot is not None] == ["inference"]


def _transposed(x: torch.Tensor) -> torch.Tensor:
    try:
        x.t_()
        return x.add_(1).as_strided((50, 50), (1, 1))
    except RuntimeError:
        return x.sum(0)


def _written_without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        print(end="")
        x.mul_(2)
    x.as_strided((50, 50), (1, 1))
    return x


def _written_under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        print(end="")
        x.mul_(2)
    x.as_strided((50, 50), (1, 1))
    return x


def _asserted(x: torch.Tensor) -> torch.Tensor:
    try:
        with torch.no_grad():
            x.mul_(2)
            x.unsqueeze_(0)
        assert x.isnan().any()
    except AssertionError:
        return x * 2
    return x


CAUGHT = (_transposed, _written_without_gradients, _written_under_autocast, _asserted)


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("program", CAUGHT)
def test_python_starts_again_where_the_graph_did(program: Callable[..., Any], *, needs_gradient: bool) -> None:
    """A graph that raises in a handler or ``with`` block leaves no state for Python's rerun."""
    make = lambda: torch.arange(6.0).view(2, 3).clone().requires_grad_(needs_gradient)  # noqa: E731
    _is_eager(program, make)


def test_views_of_an_argument_are_put_back_too() -> None:
    """So it is of an argument that sees every other element of a part of its memory."""
    _is_eager(_transposed, lambda: torch.arange(24.0).view(4, 6)[1:3, ::2])


def _cast(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.logical_not_()
    torch.add(y, 1, out=x)
    return x


def test_a_result_of_a_forbidden_type_is_given_no_sizes() -> None:
    """A too small ``out=`` of the wrong dtype keeps its sizes, and earlier writes remain."""
    _is_eager(lambda x: _cast(x, torch.ones(2, 2, 3)), lambda: torch.ones(2, 3, dtype=torch.bool))
