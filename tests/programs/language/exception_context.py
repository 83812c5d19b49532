"""What exceptions carry and what can be asked while one is handled."""

from __future__ import annotations

import contextlib
import enum
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


class Bare:
    """Has nothing."""


class Slotted:
    """Has a slot that nothing fills."""

    __slots__ = ("empty",)


class Kept(AttributeError):
    """Keeps its name by the class in C."""

    def __init__(self, text, name):
        super().__init__(text, name=name, obj=7)


@program(lambda: (torch.randn(3),))
def attribute_errors_know_their_objects(x):
    """Whatever way an attribute is read or deleted, and whoever says that it is missing."""
    bare, found = Bare(), []
    reads = (
        lambda: bare.missing,
        lambda: torch.missing,
        lambda: (1).missing,
        lambda: Slotted().empty,
        lambda: getattr(bare, "missing"),  # noqa: B009
        lambda: delattr(bare, "missing"),
        lambda: object.__getattribute__(bare, "missing"),
        lambda: x.missing,
    )
    for read in reads:
        try:
            read()
        except AttributeError as error:
            found.append((error.name, error.obj is bare, type(error.obj).__name__, str(error)))
    try:
        del bare.missing
    except AttributeError as error:
        found.append((error.name, error.obj is bare))
    return x + 1, found


@program(lambda: (torch.randn(3),))
def names_of_name_errors(x):
    """Of a global, and of a closure's variable that is not there yet."""
    found = []

    def inner():
        if x is None:
            late = 1
        return (lambda: late)()

    for call in (lambda: not_there_at_all, inner):  # noqa: F821
        try:
            call()
        except NameError as error:
            found.append((type(error).__name__, error.name, str(error)))
    return x * 2, found


@program(lambda: (torch.randn(3),))
def exceptions_made_with_keywords(x):
    """Those that the class knows are kept; others are refused in its words."""
    found = []
    for make in (
        lambda: AttributeError("text", name="n", obj=3),
        lambda: NameError("text", name="n"),
        lambda: ImportError("text", name="n", path="p"),
        lambda: Kept("text", "own"),
        lambda: ValueError("text", key=1),
    ):
        try:
            raise make()
        except Exception as error:
            kept = [getattr(error, name, None) for name in ("name", "obj", "path")]
            found.append((type(error).__name__, str(error), kept, error.args))
    return x - 1, found


@program(lambda: (torch.randn(3),))
def errors_of_the_system_by_number(x):
    """``OSError`` picks its subclass by number and keeps file names out of its arguments."""
    found = []
    for args in ((2, "none", "file"), (17, "there"), ("plain",), (1, "two", "three", None, "five")):
        try:
            raise OSError(*args)
        except FileNotFoundError as error:
            found.append(("missing", error.args, error.filename, str(error)))
        except OSError as error:
            found.append((type(error).__name__, error.args, error.errno, str(error)))
    return x + 3, found


@program(lambda: (torch.randn(3),), breaks=1)
def keywords_leave_with_the_exception(x):
    """An exception that the caller gets still has what it was made with."""
    doubled = x * 2
    raise ImportError(f"text of {tuple(doubled.shape)}", name="n", path="p")


class Color(enum.Enum):
    """Has one member."""

    RED = 1


@program(lambda: (torch.randn(3),))
def attribute_errors_of_writes(x):
    """What cannot be set, and members that an enumeration lacks."""
    found, slotted = [], Slotted()
    writes = (
        lambda: setattr(slotted, "missing", 1),
        lambda: setattr(1, "missing", 1),
        lambda: Color.BLUE,
    )
    for write in writes:
        try:
            write()
        except AttributeError as error:
            found.append((error.name, error.obj is slotted, str(error)))
    try:
        slotted.missing = 2
    except AttributeError as error:
        found.append((error.name, error.obj is slotted))
    return x + 1, found


@program(lambda: (torch.randn(3),), breaks=1)
def what_was_added_to_an_exception(x):
    """Notes and attributes stand in its dictionary."""
    error = ValueError("text")
    error.add_note("a note")
    error.own = 3
    return x + 1, vars(error)
