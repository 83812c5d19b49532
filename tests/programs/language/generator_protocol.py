"""Exercise generator protocols: returned values, thrown exceptions and wrong uses."""

from __future__ import annotations

from typing import Any

import torch

from tests.programs import program


def ones() -> tuple[Any, ...]:
    return (torch.ones(3),)


@program(ones)
def returned_value(x):
    """StopIteration carries it once."""

    def one():
        yield x
        return 5

    it = one()
    next(it)
    told = []
    for _ in range(2):
        try:
            next(it)
        except StopIteration as stop:
            told.append(stop.value)
    return x + 1, told


@program(ones)
def throw_reaches_the_delegate(x):
    """An exception thrown into ``yield from`` arrives in the inner generator first."""

    def inner():
        try:
            yield 1
        except ValueError as error:
            yield str(error)
        return 3

    def outer():
        result = yield from inner()
        yield result

    it = outer()
    return x + next(it), it.throw(ValueError("told")), next(it)


@program(ones)
def close_reaches_the_delegate(x):
    """Both bodies see GeneratorExit, the inner one first."""
    told = []

    def inner():
        try:
            yield 1
        finally:
            told.append("inner")

    def outer():
        try:
            yield from inner()
        except GeneratorExit:
            told.append("outer")
        return "closed"

    it = outer()
    first = next(it)
    return x + first, it.close(), it.close(), told


@program(ones)
def stop_iteration_inside_a_generator(x):
    """It becomes a RuntimeError with its cause."""

    def bad():
        yield 1
        raise StopIteration(3)

    it = bad()
    next(it)
    try:
        next(it)
    except RuntimeError as error:
        return x + 1, str(error), repr(error.__cause__), repr(error.__context__)


@program(ones)
def sent_too_early(x):
    """A generator that was just started takes None only; one that runs cannot be entered."""
    told = []

    def plain():
        yield 1

    try:
        plain().send(4)
    except TypeError as error:
        told.append(str(error))

    def selfish():
        yield next(me)

    me = selfish()
    try:
        next(me)
    except ValueError as error:
        told.append(str(error))
    return x + 1, told


class Counting:
    """Ends with a value."""

    def __init__(self):
        self.n = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.n += 1
        if self.n > 2:
            raise StopIteration(7)
        return self.n


@program(ones)
def delegating_to_an_object(x):
    """``yield from`` gives what the object's StopIteration carries."""

    def all_of():
        result = yield from Counting()
        yield result

    return x + 1, list(all_of())


def _raised(calls):
    told = []
    for call in calls:
        try:
            told.append(call())
        except Exception as error:
            told.append(repr(error))
    return told


@program(ones)
def wrong_numbers_of_arguments(x):
    """Builtins and methods of containers say what they expected."""
    calls = (
        lambda: len(),
        lambda: bool(1, 2),
        lambda: [].append(),
        lambda: {}.pop(),
        lambda: [].pop(1, 2),
        lambda: range(),
        lambda: set().add(),
        lambda: max(),
        lambda: map(1),
        lambda: list([], 1),
        lambda: isinstance(1),
        lambda: sorted(),
    )
    return x + 1, _raised(calls)


@program(ones)
def wrong_kinds_of_arguments(x):
    """Values without a protocol say which one they lack."""
    three, nothing = 3, None
    calls = (
        lambda: len(three),
        lambda: iter(three),
        lambda: three[0],
        lambda: next([]),
        lambda: three(),
        lambda: 1 in three,
        lambda: {[]: 1},
        lambda: sum(1),
        lambda: zip(1),
        lambda: nothing.foo,
    )
    return x + 1, _raised(calls)


class Delegate:
    """An iterator with methods of its own for what a generator that waits in it is told."""

    def __init__(self, log):
        self.log = log

    def __iter__(self):
        return self

    def __next__(self):
        return 1

    def throw(self, kind, value=None, traceback=None):
        self.log.append("throw")
        return 2

    def close(self):
        self.log.append("close")


@program(lambda: (torch.randn(3),))
def delegates_hear_of_the_end(x):
    """``close`` reaches a delegated iterator; a generator is exhausted after an exception."""
    log, told = [], []

    def outer():
        yield from Delegate(log)

    def numbers():
        yield from iter([1, 2, 3])

    g = outer()
    told += [next(g), g.throw(ValueError)]
    g.close()
    h = numbers()
    next(h)
    for step in (
        lambda: h.throw(ValueError),
        lambda: next(h),
        lambda: numbers().throw("abc"),
        lambda: numbers().throw(),
    ):
        try:
            step()
        except (ValueError, StopIteration, TypeError) as error:
            told.append((type(error).__name__, str(error)))
    return x + 1, told, log
