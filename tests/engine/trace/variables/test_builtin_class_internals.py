"""Builtin classes bypass Python methods and metaclasses as their C code does."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

from tests.engine.trace.harness import compare_with_eager

X = torch.arange(4.0)


def test_dict_methods_see_the_order_of_the_plain_dict() -> None:
    """``OrderedDict.move_to_end`` does not change the order that ``dict.values`` returns.

    It changes the order of the ``OrderedDict`` only.
    """

    def first_value(x: Any) -> Any:
        scales = collections.OrderedDict(a=1, b=2)
        scales.move_to_end("a")
        return x * list(dict.values(scales))[0], list(scales)

    compare_with_eager(first_value, X)


class AcceptsAll(type):
    """A metaclass that calls every class a subclass."""

    def __subclasscheck__(cls, other: type) -> bool:
        """Accept every class."""
        return True


class Any_(ValueError, metaclass=AcceptsAll):
    """No exception of the test has this class."""


def test_except_star_does_not_ask_the_metaclass() -> None:
    """``except*`` compares classes by inheritance, like ``except``."""

    def catches(x: Any) -> Any:
        y = x * 2
        try:
            raise ExceptionGroup("several", [ValueError(), KeyError()])
        except* Any_:
            y = y + 1
        return y

    with pytest.raises(ExceptionGroup, match="several"):
        catches(X)
    compare_with_eager(catches, X)
