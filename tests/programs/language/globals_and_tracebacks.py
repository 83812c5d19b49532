"""Exercise globals by name, dict proxies that change, and tracebacks as in eager."""

import collections
import sys
import traceback
import types

import torch

from tests.programs import program

SEVEN = 7
shown: dict = {"a": 1}
window = types.MappingProxyType(shown)


def registered(x):
    return torch.relu(x)


@program(lambda: (torch.randn(3),))
def globals_by_name(x):
    """``globals()`` finds, sets and misses variables by their names."""
    names = globals()
    names["_made_here"] = 5
    found = "nowhere" in globals(), "SEVEN" in names, names.get("nowhere", 3), names["SEVEN"], _made_here  # noqa: F821
    try:
        globals()["nowhere"]
    except KeyError as error:
        return names["registered"](x) + SEVEN, found, error.args, globals() is names


@program(lambda: (torch.randn(3),))
def deleted_globals(x):
    """A global that came and went, one that exists and goes, and one that never was."""
    global _fleeting, SEVEN, _never
    told = []
    _fleeting = x
    del _fleeting
    SEVEN = 8
    del SEVEN
    for f in (lambda: _fleeting, lambda: SEVEN):  # noqa: F821
        try:
            told.append(f())
        except NameError as error:
            told.append(str(error))
    try:
        del _never
    except NameError as error:
        told.append(str(error))
    SEVEN = 7
    return x + SEVEN, told


@program(lambda: (torch.randn(3),), breaks=1)
def a_proxy_of_what_changes(x):
    """What is done to a dict shows through a proxy of it that came from outside."""
    shown.clear()
    before = len(window)
    shown["b"] = 2
    result = x + len(window), before, dict(window)
    shown.clear()
    shown["a"] = 1
    return result


def failing():
    raise KeyError("k")


@program(lambda: (torch.randn(3),), breaks=2)
def frames_of_a_traceback(x):
    """Code that reads a traceback sees its own frames, one of each call."""
    y = x.sin()
    try:
        failing()
    except KeyError as error:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        text = "failing" in traceback.format_exc(), traceback.format_exc().count("File")
        return y, names[-1], len(names), text, sys.exc_info()[0].__name__


class Elsewhere(Exception):
    """Calling it gives no exception."""

    def __new__(cls, *args):
        return object()


class Remembering(ValueError):
    """Keeps what it is made with."""

    def __new__(cls, a, b=2):
        made = super().__new__(cls, a)
        made.b = b
        return made

    def __init__(self, a, b=2):
        super().__init__(a, b)


@program(lambda: (torch.randn(3),))
def exceptions_with_new(x):
    """``__new__`` of an exception's class decides what calling it gives."""
    told = []
    for make in (lambda: Elsewhere, lambda: Remembering(1, b=5)):
        try:
            raise make()
        except Remembering as error:
            told.append((error.args, error.b, str(error)))
        except TypeError as error:
            told.append(str(error).replace(__name__, ""))
    return x + 1, told


class Without:
    """Says by None that it has no such methods."""

    __len__ = None
    __iter__ = None
    __getitem__ = None
    __contains__ = None


@program(lambda: (torch.randn(3),))
def methods_that_are_none(x):
    """Each operation has words of its own for a method that is None."""
    told = []
    for f in (lambda: iter(Without()), lambda: Without()[0], lambda: len(Without()), lambda: 1 in Without()):
        try:
            told.append(f())
        except TypeError as error:
            told.append(str(error))
    return x + 1, told


@program(lambda: (torch.randn(3),))
def methods_of_dict_on_ordered_dicts(x):
    """``dict`` methods called on an ``OrderedDict`` bypass its order bookkeeping."""

    def made():
        return collections.OrderedDict(a=1, b=2)

    d, told = made(), []
    told.append((dict.pop(d, "b"), d == {"a": 1}, len(d)))
    d = made()
    dict.update(d, {"b": 3, "c": 4})
    told.append((d == {"a": 1, "b": 3, "c": 4}, "c" in d, d["c"]))
    d = made()
    told.append((dict.__ior__(d, {"a": 5}) is d, type(dict.__or__(d, made())).__name__, d))
    d = made()
    told.append((list(dict.items(d)), sorted(dict.keys(d)), dict.copy(d), dict.__eq__(d, made())))
    d = made()
    dict.clear(d)
    told.append((d == {}, bool(d)))
    return x + 1, told


_sometimes = 1


@program(*[lambda: (torch.randn(3),)] * 3, steady=False)
def a_global_that_is_there_once(x):
    """Deleting a global that the first call deleted raises in the second."""
    global _sometimes
    y = x + 1
    try:
        del _sometimes
    except NameError:
        y = y + 1
    return y, "_sometimes" in globals()


class _Nothing:
    pass


@program(lambda: (torch.randn(3),))
def no_managers(x):
    """A ``with`` on a non-manager raises Python's error; ordered dict views keep their type."""

    told = []

    def enter(what):
        with what:
            pass

    for what in (_Nothing(), 5, [1]):
        try:
            enter(what)
        except TypeError as error:
            told.append(str(error))
    ordered = collections.OrderedDict(a=1)
    return x + 1, told, type(ordered.keys()).__name__, type(ordered.items()).__name__
