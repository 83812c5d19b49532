"""Reasons of graph breaks name values by what the user wrote."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import engine


class Setting:
    """A class that torch operations do not take."""


SETTING = Setting()


def of_a_variable(x: torch.Tensor) -> Any:
    count = np.argmax(x.numpy())
    return x + sum(range(count))


def of_an_expression(x: torch.Tensor) -> Any:
    return x + len([1, 2, 3, 4][: x.argmax()])


def of_a_condition(x: torch.Tensor) -> Any:
    return x + 1 if (x * 2).sum() > 0 else x


def of_arithmetic(x: torch.Tensor) -> Any:
    half = x + 1
    if half.sum().item() + random.random() > 3:  # noqa: S311 - the number is no secret
        return half
    return x


def of_a_result(x: torch.Tensor) -> Any:
    count = int(x.sum().item() / 2 + np.random.rand())  # noqa: NPY002 - the legacy generator is traced
    return x + np.full(max(2, count), 2).sum()


def of_an_array_item(x: torch.Tensor) -> Any:
    above = x.numpy() > 1
    return x + sum(n for n in range(3) if above[n])


def of_a_slice_bound(x: torch.Tensor) -> Any:
    small = x.numpy().astype(np.int16).max()
    return x[:small]


def of_a_mask(x: torch.Tensor) -> Any:
    values = x.numpy()
    return torch.from_numpy(values[values > 1])


def of_a_random_number(x: torch.Tensor) -> Any:
    return x + 1 if random.random() < 2 else x  # noqa: S311 - the number is no secret


def of_an_argument(x: torch.Tensor) -> Any:
    try:
        return torch.add(x, SETTING)  # type: ignore[call-overload]
    except TypeError:
        return x


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (of_a_variable, "Python needs the value of count (numpy.int64), and it is known only when the graph runs"),
        (
            of_an_expression,
            "Python needs the value of x.argmax() (tensor i64[]), and it is known only when the graph runs",
        ),
        (of_a_condition, "bool() of (x * 2).sum() > 0 (tensor b8[])"),
        (of_arithmetic, "bool() of half.sum().item() + random.random() > 3.0"),
        (of_a_result, "Python needs the value of max(2, count) (int)"),
        (of_an_array_item, "bool() of above[n] (numpy.bool)"),
        (of_a_slice_bound, "small (numpy.int16) as an argument of a torch operation"),
        (of_a_mask, "the size of values[values > 1] depends on the elements of an array"),
        (of_a_random_number, "Python needs the value of random.random() < 2.0, which is random"),
        (of_an_argument, "SETTING (type Setting) as an argument of a torch operation"),
    ],
)
def test_a_break_names_the_users_value(function: Callable[[torch.Tensor], Any], named: str) -> None:
    """The value is the user's variable or expression, with its type."""
    with engine.record() as session:
        engine.compile(function, backend="eager")(torch.tensor([1.0, 2.0, 3.0]))
    contexts = [b.context for c in session.compilations if c.trace for b in c.trace.breaks]
    assert contexts[0] == named
