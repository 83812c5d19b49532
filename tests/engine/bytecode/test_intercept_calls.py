"""Routed copies of code: same behavior, same positions, every callable seen."""

from __future__ import annotations

import functools
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest

from engine.bytecode.decode import decode
from engine.bytecode.intercept_calls import intercept_calls
from engine.bytecode.resume_functions import VALUE, ResumePoint, resume_code


def helper(*args: Any, **kwargs: Any) -> Any:
    return args, tuple(kwargs.items())


def calls(x: int, *rest: int, key: int = 1, **words: Any) -> Any:
    @functools.wraps(helper)
    def inner() -> int:
        return x + key

    seen: list[Any] = []
    for item in rest:
        try:
            seen.append(helper(item, *rest, end=inner(), **words))
            seen.append(helper(item, q=2))
            int("no number")
        except ValueError as error:
            seen.append(str(error))
    return seen, [helper(j) for j in rest if str(j)], helper(1 if x else 2, helper(3)), {j: helper(j) for j in rest}


class Base:
    def value(self, n: int) -> int:
        return n + 1


class Derived(Base):
    def value(self, n: int) -> int:
        return super().value(n) * 2


def methods(d: Derived) -> int:
    with open("/dev/null", encoding="utf-8") as file:
        text = file.read()
    return d.value(len(text.upper())) + max(*[1, 2])


def fails() -> None:
    helper(1)
    helper(
        helper(2),
        1 // 0,
    )


def routed(fn: Callable[..., Any], callee: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function with routed code."""
    made = types.FunctionType(
        intercept_calls(fn.__code__, callee), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__
    )
    made.__kwdefaults__ = fn.__kwdefaults__
    return made


@pytest.mark.parametrize(("fn", "args"), [(calls, (3, 4, 5)), (methods, (Derived(),)), (Derived.value, (Derived(), 2))])
def test_behaves_as_before(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Results are those of the original."""
    assert routed(fn, lambda obj: obj)(*args) == fn(*args)


def test_every_callable_is_seen() -> None:
    """Functions, methods, classes and comprehensions all pass through callee."""
    seen: list[Any] = []

    def callee(obj: Any) -> Any:
        seen.append(obj)
        return obj

    routed(calls, callee)(3, 4, key=2)
    assert helper in seen
    assert int in seen
    assert any(isinstance(s, types.FunctionType) and s.__code__.co_name == "inner" for s in seen)
    assert any(getattr(s, "__name__", "") == "append" for s in seen)


def test_callee_decides_what_runs() -> None:
    """What callee returns is called instead."""
    assert routed(methods, lambda obj: (lambda *_: 7) if obj is max else obj)(Derived()) == 2 + 7


def test_tracebacks_keep_their_lines() -> None:
    """An exception names the same line as before."""
    lines = []
    for fn in (fails, routed(fails, lambda obj: obj)):
        with pytest.raises(ZeroDivisionError) as caught:
            fn()
        lines.append(traceback.extract_tb(caught.value.__traceback__)[-1].lineno)
    assert lines[0] == lines[1]


def drawn(source: Any, pair: Any) -> Any:
    """What an iterator gives, handed to a call that follows the handler."""
    seen: list[Any] = []
    while True:
        try:
            item = next(source)
        except StopIteration:
            break
        seen.append(item)
    return pair(seen, len(seen))


def test_handlers_of_a_function_that_starts_in_its_middle() -> None:
    """A routed resume function clears the stack to its own code's depth before a handler runs."""
    code = drawn.__code__
    index = next(op.index for op in decode(code).ops if op.opname == "STORE_FAST" and op.argval == "item")
    rest = resume_code(code, ResumePoint(index, (VALUE,), ("source", "pair", "seen")))
    routed = types.FunctionType(intercept_calls(rest, lambda fn: fn), globals())
    assert routed(0, iter([1, 2]), lambda *parts: parts, []) == ([0, 1, 2], 3)
