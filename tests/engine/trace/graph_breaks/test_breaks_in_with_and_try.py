"""Tests of graph breaks inside with, try, except and finally.

Execution resumes inside the block, and the block exits once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.engine.trace.harness import compare_with_eager

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


class Announced:
    """A context manager of the user's; swallows what is raised if told to."""

    def __init__(self, name: str, swallows: bool = False) -> None:
        self.name = name
        self.swallows = swallows

    def __enter__(self) -> str:
        print("enter", self.name)
        return self.name

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        print("exit", self.name, kind, error, traceback is None)
        return self.swallows


@contextlib.contextmanager
def generated(name: str) -> Iterator[str]:
    print("enter", name)
    try:
        yield name
    finally:
        print("leave", name)


def no_grad(x: Any) -> Any:
    with torch.no_grad():
        with torch.enable_grad():
            y = x * 2
            print("inner", torch.is_grad_enabled())
            z = y + 1
        print("outer", torch.is_grad_enabled())
        z = z + 1
        inside = torch.is_grad_enabled()
    return z, inside, torch.is_grad_enabled()


def set_grad_then_raises(x: Any) -> Any:
    with torch.set_grad_enabled(False):
        y = x * 2
        print("in", torch.is_grad_enabled())
        raise ValueError(str(y.shape))


def autocast(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.T
        print("in", y.dtype, torch.is_autocast_enabled("cpu"))
        z = y @ y
    return z, (x @ x.T).dtype, torch.is_autocast_enabled("cpu")


def own_managers(x: Any) -> Any:
    with Announced("first") as name:
        y = x * 2
        print("in", name)
        y = y + 1
    with Announced("second", swallows=True):
        y = y + 3
        raise ValueError("swallowed")
    return y


def generator_manager(x: Any) -> Any:
    y = x + 1
    with generated("block") as name:
        y = y * 2
        print("in", name)
        y = y + 1
    return y * 2


def try_finally(x: Any) -> Any:
    y = x * 2
    try:
        print("in try")
        raise ValueError("caught")
    except ValueError as error:
        print("caught", error)
        return y + len(str(error))
    finally:
        print("finally")


def _bad() -> None:
    print("bad")
    raise KeyError("k")


def loop_with_try(x: Any) -> Any:
    seen: list[Any] = []
    for n in range(3):
        try:
            y = x * n
            print("round", n)
            if n == 1:
                _bad()
            seen.append(y)
        except KeyError as error:
            print("caught", n, repr(error), sys.exc_info()[0])
            continue
        finally:
            print("finally", n)
    return seen, sys.exc_info()


def nested_handlers(x: Any) -> Any:
    y = x * 2
    try:
        int("first")
    except ValueError:
        print("handling", sys.exc_info()[1])
        try:
            print("inner")
            int("second")
        except ValueError as inner:
            print("context", repr(inner.__context__))
            y = y * 3
            print("after", sys.exc_info()[1])
        print("again", sys.exc_info()[1])
        y = y + 1
    print("end", sys.exc_info()[1])
    return y


@pytest.mark.parametrize(
    "program",
    [no_grad, autocast, own_managers, generator_manager, try_finally, loop_with_try, nested_handlers],
    ids=lambda p: p.__name__,
)
def test_goes_on_inside(program: Callable[..., Any]) -> None:
    """The rest of a block is traced after a break, no frame is skipped, results match."""
    traced = compare_with_eager(program, X)
    assert traced.graphs > 1
    assert not any(b.skips_frame for f in traced.frames for b in f.record.breaks)


def test_an_exception_leaves_the_context() -> None:
    """What is raised after a break inside a context leaves it once, as in Python."""
    assert compare_with_eager(set_grad_then_raises, X).breaks == ["print", "raises"]


def test_an_operator_that_raises_on_values_is_caught() -> None:
    """An exception that only real values bring about reaches the handler that the user wrote."""

    def looks_up(x: Any, where: Any) -> Any:
        y = x * 2
        try:
            return torch.nn.functional.embedding(where, y)
        except IndexError as error:
            return y + len(str(error)) * 0
        finally:
            y = y + 1

    assert compare_with_eager(looks_up, X, torch.tensor([1])).breaks == []
    assert compare_with_eager(looks_up, X, torch.tensor([7])).breaks == []


def test_an_operator_that_raises_after_a_break_leaves_the_context() -> None:
    """A graph of the rest of a with block raises: the block's context is left."""

    def looks_up(x: Any, where: Any) -> Any:
        with torch.no_grad():
            y = x * 2
            print("in")
            return torch.nn.functional.embedding(where, y)

    compare_with_eager(looks_up, X, torch.tensor([7]))
    assert torch.is_grad_enabled()


def test_an_operator_refused_while_tracing_is_caught() -> None:
    """Shapes that do not fit inside a try: the handler runs, and what follows is traced."""

    def falls_back(x: Any) -> Any:
        y = x + 1
        try:
            y = y @ y
        except RuntimeError:
            y = y * 2
        return y + 1

    traced = compare_with_eager(falls_back, X)
    assert traced.breaks == ["raises"]
    assert traced.graphs == 2


class TooWide(ValueError):
    """Its arguments are not its message."""

    def __init__(self, width: int) -> None:
        super().__init__(f"{width} is too wide")
        self.width = width


def test_exceptions_made_while_tracing_are_pythons() -> None:
    """A propagated exception has the cause, context, attributes and text of plain Python."""

    def keeps(x: Any) -> Any:
        try:
            try:
                raise TooWide(3)
            except TooWide as wide:
                raise KeyError("outer") from wide
        except KeyError as error:
            kept = error
        return x + 1, kept

    from tests.engine.trace.harness import Traced

    expected, actual = keeps(X)[1], Traced(keeps)(X)[1]  # type: ignore[arg-type]
    for error in (expected, actual):
        assert isinstance(error.__cause__, TooWide)
        assert error.__context__ is error.__cause__
        assert str(error.__cause__) == "3 is too wide"
        assert error.__cause__.width == 3
        assert error.__suppress_context__
        assert error.__traceback__ is not None
