"""What exceptions carry and what can be asked while one is handled."""

from __future__ import annotations

import contextlib
import sys
import unittest
from typing import Any

import torch

from tests.programs import program


def ones() -> tuple[Any, ...]:
    return (torch.ones(3),)


class Telling:
    """Keeps what its exit was told."""

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.told = (kind and kind.__name__, str(value), traceback is None)
        return True


@program(ones)
def exit_arguments(x):
    """With an exception there is a traceback."""
    with Telling() as failed:
        raise ValueError("a")
    with Telling() as passed:
        pass
    return x + 1, failed.told, passed.told


@program(ones)
def being_handled(x):
    """``sys.exc_info`` and ``sys.exception`` inside and after a handler."""
    try:
        raise ValueError("a")
    except ValueError as error:
        inside = sys.exc_info()[0], sys.exc_info()[1] is error, sys.exception() is error
    return x + 1, inside, sys.exc_info(), sys.exception()


@program(ones)
def nothing_to_raise_again(x):
    """A bare ``raise`` without an exception; raising what is none."""
    told = []
    try:
        raise  # noqa: PLE0704
    except RuntimeError as error:
        told.append(str(error))
    try:
        raise 3
    except TypeError as error:
        told.append(str(error))
    return x + 1, told


def _context_of(x):
    try:
        raise KeyError("k")
    except KeyError as error:
        return x + 1, repr(error.__context__)


@program(ones)
def context_without_a_handler_outside(x):
    """Nothing is being handled."""
    return _context_of(x)


@program(ones)
def cause_and_context(x):
    """``raise ... from`` keeps both and hides the context."""
    try:
        try:
            raise KeyError("k")
        except KeyError as error:
            raise ValueError("v") from error
    except ValueError as error:
        told = repr(error.__context__), repr(error.__cause__), error.__suppress_context__, str(error.__context__)
    return x + 1, told


@program(ones)
def contexts_in_a_circle(x):
    """Two exceptions that remember each other hang nothing."""
    first, second = ValueError(1), ValueError(2)
    first.__context__ = second
    second.__context__ = first
    try:
        try:
            raise first
        except ValueError:
            raise KeyError("k")
    except KeyError as error:
        return x + 1, repr(error.__context__)


@program(ones, breaks=1)
def exception_across_a_break(x):
    """Text, arguments and notes of an exception that was made before."""
    error = ValueError("z", 2)
    error.extra = 3
    torch._dynamo.graph_break()
    return x + 1, str(error), error.args, repr(error), error.extra


@program(ones)
def values_of_builtin_exceptions(x):
    """Attributes that C code fills in."""
    told = []
    try:
        raise StopIteration(4)
    except StopIteration as error:
        told.append(error.value)
    try:
        raise SystemExit(3)
    except SystemExit as error:
        told.append(error.code)
    try:
        raise OSError(2, "gone")
    except OSError as error:
        told.append((error.errno, error.strerror))
    try:
        x.foo
    except AttributeError as error:
        told.append((error.name, str(error)))
    return x + 1, told


@program(ones)
def notes(x):
    """``add_note`` and attributes of one's own."""
    error = ValueError("a")
    error.add_note("n")
    error.add_note("m")
    error.extra = 3
    return x + 1, error.__notes__, error.extra


@program(ones)
def generator_manager_that_swallows(x):
    """The exception is thrown in where the manager waits."""
    told = []

    @contextlib.contextmanager
    def swallowing():
        try:
            yield 3
        except ValueError as error:
            told.append(str(error))

    with swallowing() as v:
        raise ValueError("in")
    return x + v, told


class Case(unittest.TestCase):
    """Only its assertions are used."""


@program(ones)
def assertions_of_unittest(x):
    """They pass or raise as they do in a test."""
    case = Case()
    with case.assertRaises(ValueError) as caught:
        raise ValueError("q")
    with case.assertRaisesRegex(ValueError, "q+"):
        raise ValueError("qqq")
    case.assertRaises(TypeError, len, 3)
    case.assertEqual([1, 2], [1, 2])
    case.assertIn(1, [1])
    case.assertIsInstance(x, torch.Tensor)
    with case.subTest("told"):
        case.assertDictEqual({"a": 1}, {"a": 1})
    try:
        case.assertEqual(1, 2, "of course")
    except AssertionError as error:
        text = str(error)
    return x + 1, str(caught.exception), text


def _until_stopped(source):
    told = []
    while 1:
        try:
            item = next(source)
        except StopIteration:
            break
        told.append(item)
    return _second(told, len(told))


def _second(told, count):
    return told, count


@program(lambda: (torch.ones(3), list(range(12))), breaks=1, steady=False)
def handler_in_code_left_to_python(x, items):
    """A loop that is compiled too often runs as Python from its middle, handlers included."""
    source = map(_marked, items)
    return x + 1, _until_stopped(source)


def _marked(item):
    torch._dynamo.graph_break()
    return item


class NoExit:
    """Half a manager."""

    def __enter__(self):
        return 1


class NoEnter:
    """The other half."""

    def __exit__(self, *parts):
        return None


@program(ones)
def half_managers(x):
    """``with`` names what is missing."""
    told = []
    for cls in (NoExit, NoEnter):
        try:
            with cls():
                pass
        except TypeError as error:
            told.append(str(error))
    return x + 1, told


@program(ones)
def contexts_through_an_exit_stack(x):
    """Each manager replaces the exception; the chain keeps all of them, once each."""

    @contextlib.contextmanager
    def replacing(error):
        try:
            yield
        finally:
            raise error

    errors = [Exception(n) for n in range(4)]
    try:
        with contextlib.ExitStack() as stack:
            for error in errors[:0:-1]:
                stack.enter_context(replacing(error))
            raise errors[0]
    except Exception as error:
        chain = []
        link = error
        while link is not None:
            chain.append(errors.index(link))
            link = link.__context__
    return x + 1, chain
