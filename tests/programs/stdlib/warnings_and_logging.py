"""Warnings, log messages, text made of objects, writes to classes, deep calls."""

from __future__ import annotations

import collections
import functools
import logging
import tempfile
import warnings
import weakref
from typing import Any

import torch

import engine
from tests.programs import program

log = logging.getLogger("tests.programs.stdlib.warnings_and_logging")


def ones() -> tuple[Any, ...]:
    return (torch.ones(3),)


def given(function: Any) -> Any:
    """A function that also gives the warnings which the inner one gave."""

    def run(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(x)
        return result, [(str(w.message), w.category.__name__, w.lineno) for w in caught]

    return run


def _helping():
    warnings.warn("in the helper", stacklevel=2)


@program(ones, breaks=2)
@given
def warnings_in_order(x):
    """Their texts, classes and lines, also those blamed on a caller."""
    warnings.warn("short")
    y = x + 1
    warnings.warn(DeprecationWarning("old"))
    _helping()
    return y


def _blaming():
    warnings.warn("whoever called", stacklevel=3)


def _middle():
    _blaming()
    return 1


@program(ones, breaks=2)
@given
def warning_for_a_caller(x):
    """The line blamed lies outside what was compiled."""
    return x + _middle(), warnings.warn("told above", stacklevel=2)


@program(ones)
def warnings_ignored(x):
    """A filter of the function's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("nobody sees this")
        return x + 1


@program(ones)
def log_messages_not_wanted(x):
    """Below the level nothing is said, and nothing breaks."""
    log.debug("value %s", x)
    log.info("shape %s", x.shape)
    if log.isEnabledFor(logging.DEBUG):
        x = x + 5
    return x + 1


class Spoken:
    """Text of three kinds."""

    v = 3

    def __str__(self):
        return "S"

    def __repr__(self):
        return "R"

    def __format__(self, spec):
        return "F" + spec


@program(ones)
def text_of_objects(x):
    """``%``, ``str.format`` and f-strings ask the object."""
    s = Spoken()
    texts = ["%s %r %d" % (s, s, 3), "%s" % s, "{} {!r} {:>3} {k.v}".format(s, s, 3, k=s), f"{s:q}", "%(a)s" % {"a": s}]  # noqa: UP031
    return x + 1, texts


class Shared:
    """Its attributes change."""

    made = 0

    def __init__(self):
        self.number = type(self).made


@program(ones, steady=False)
def class_attributes_come_and_go(x):
    """Set, read through an instance, called as a method, deleted."""
    Shared.fresh = x + 1
    Shared.method = lambda self: 2
    result = Shared.fresh * Shared().method()
    del Shared.fresh
    return result, hasattr(Shared, "fresh"), Shared().method()


@program(ones)
def deep_calls(x):
    """A hundred and fifty calls inside one another."""

    def deep(y, n):
        return y if n == 0 else deep(y + 1, n - 1)

    return deep(x, 150)


@program(ones)
def recursion_without_end(x):
    """The error is the traced code's to catch."""

    def forever(y):
        return forever(y)

    try:
        return forever(x)
    except RecursionError as error:
        return x + 1, type(error).__name__


@program(ones)
def chained_mappings(x):
    """``ChainMap`` reads through its layers and writes to the first."""
    first = {"a": 1}
    layers = collections.ChainMap(first, {"a": 2, "b": 3})
    layers["z"] = 4
    return x + layers["a"], dict(layers), "z" in layers, len(layers), first


@program(ones)
def named_tuple_made_inside(x):
    """Defaults, replacing, fields and names."""
    made = collections.namedtuple("Pair", "u v", defaults=[3])
    pair = made(x)
    return pair.u + pair.v, pair._replace(v=5).v, made._fields, pair._asdict()["v"], made.__name__


class Guarded:
    """A property that can be deleted once."""

    def __init__(self):
        self._v = 4

    @property
    def v(self):
        return self._v

    @v.setter
    def v(self, value):
        self._v = value

    @v.deleter
    def v(self):
        del self._v


@program(ones)
def property_deleted(x):
    """The deleter runs, and reading fails afterwards."""
    g = Guarded()
    g.v = 5
    first = g.v
    del g.v
    try:
        g.v
    except AttributeError as error:
        return x + first, str(error)


FILE = tempfile.TemporaryFile("w+", encoding="utf-8")
WRITER = logging.StreamHandler(FILE)
WRITER.setFormatter(logging.Formatter("%(levelname)s %(name)s %(funcName)s %(lineno)d: %(message)s"))
NOTES = logging.Logger("notes")  # noqa: LOG001 - one for each copy of this module
NOTES.propagate = False
NOTES.handlers[:] = [WRITER]
weakref.finalize(NOTES, FILE.close)  # a file that is never closed would warn in the midst of another program


@functools.lru_cache(maxsize=None)
def said_once(logger, text):
    logger.warning(text)


logging.Logger.said_once = said_once


@engine.disable
def written():
    FILE.seek(0)
    text = FILE.read()
    FILE.seek(0)
    FILE.truncate()
    return text


def noting(x, scale):
    NOTES.info("not written")
    NOTES.warning("scaled by %d of %s", scale, "four")
    return x * scale


@program(lambda: (torch.randn(3),), breaks=2, steady=False)
def notes_in_a_file(x):
    """Log messages follow the graph run, in order, with their callers; once-only ones once."""
    y = noting(x.sin(), 3)
    NOTES.said_once(f"first {y.shape[0]}")
    NOTES.said_once(f"first {y.shape[0]}")
    NOTES.error(f"second {y.sum().item():.3f}")
    text = written()
    logging.Logger.said_once.cache_clear()
    return y + 1, text


@program(lambda: (torch.randn(3),), breaks=1, steady=False)
def note_of_a_value(x):
    """What only the tensor's value tells is Python's to write."""
    y = x.exp()
    NOTES.warning("sum %s", y.sum() > 0)
    return y * 2
