"""Warnings and log messages: given after the graph in their order, or left out where nobody listens."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch

from engine.bytecode.spans import span_of
from engine.ir.global_state import GLOBAL_STATES
from engine.ir.origin import Attr, Fixed, Origin
from engine.ir.state_guard import GlobalState
from engine.ir.value_guard import Equals
from engine.trace.signals import Unsupported
from engine.trace.support import log_at, warn_at, warn_outside
from engine.trace.values.base import NONE, Const, HeldValue, Value, force
from engine.trace.values.classes import class_origin, find_in_class
from engine.trace.values.exceptions import ExceptionValue
from engine.trace.values.iteration import CallOf
from engine.trace.values.methods import BoundMethod, MethodOf
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


class _Globals(Value):
    """The globals of a traced frame, for generated code."""

    def __init__(self, namespace: Any) -> None:
        self.namespace = namespace

    def type(self) -> type:
        return dict

    def reconstruct(self, cg: Codegen) -> None:
        cg.namespace(self.namespace)


@special(warnings.warn)
def _warn(tx: Tracer, args: Args, kwargs: Words) -> Value:
    names = ("message", "category", "stacklevel", "source")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if set(given) - set(names) or "message" not in given:
        raise Unsupported("unknown-call", "warnings.warn is called in an unusual way")
    message = force(tx, given["message"])
    category = force(tx, given["category"]).python(tx) if "category" in given else None
    is_instance = isinstance(message, ExceptionValue)
    if is_instance:
        category = message.type()
    if not is_instance and not isinstance(message, Const):
        raise Unsupported("unknown-call", f"warnings.warn({message.describe()}) is called")
    level = int(force(tx, given["stacklevel"]).python(tx)) if "stacklevel" in given else 1
    _guard_quiet(tx)
    category = category or UserWarning
    words = f"a {category.__name__} is given: {message.describe()}"
    if level > len(tx.frames):
        tx.happens(CallOf(warn_outside, [message, tx.fixed(category), Const(level - len(tx.frames))]), words)
        return NONE
    frame = tx.frames[-max(level, 1)]
    line = span_of(frame.code, frame.op.offset).line
    where = [Const(frame.code.co_filename), Const(line), _Globals(frame.globals)]
    tx.happens(CallOf(warn_at, [message, tx.fixed(category), *where]), words)
    return NONE


def _guard_quiet(tx: Tracer) -> None:
    """Warnings must not raise: the code that would handle them has been traced already."""
    if tx.quiet[-1]:
        return
    if GLOBAL_STATES["warnings_raise"].read():
        raise Unsupported("unknown-call", "warnings.warn is called where warnings are errors")
    why = "a warning is given after the graph, which must not raise"
    tx.guard(GlobalState(Fixed(torch, "torch"), "warnings_raise", False, cause=tx.cause(why)))


def _filter(function: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        constants = tx.constants([*args, *kwargs.values()])
        if "error" in constants:
            raise Unsupported("unknown-call", f"warnings.{function.__name__} makes warnings errors")
        tx.happens(CallOf(function, list(args), dict(kwargs)), f"warnings.{function.__name__} is called")
        tx.quiet[-1] = tx.quiet[-1] or (function is warnings.simplefilter and len(constants) == 1)
        return NONE

    return rule


for _function in (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings):
    special(_function)(_filter(_function))


class CaughtWarnings(Value):
    """``warnings.catch_warnings()``: entered and left after the graph, around the warnings given between."""

    is_mutable = True

    def __init__(self, kwargs: Words, *, records: bool) -> None:
        self.kwargs = kwargs
        self.records = records

    def type(self) -> type:
        return warnings.catch_warnings

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("__enter__", "__exit__"):
            return MethodOf(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name not in ("__enter__", "__exit__"):
            return super().call_method(tx, name, args, kwargs)
        rest: Args = [NONE, NONE, NONE] if name == "__exit__" else []
        if rest:
            tx.quiet.pop()
        else:
            tx.quiet.append(tx.quiet[-1])
        words = f"catch_warnings is {'left' if rest else 'entered'}"
        if self.records and not rest:
            log = GivenWarnings(tx)
            tx.happens(CallOf(enter_with_log, [self, log]), words)
            return log
        tx.happens(CallOf(_bound(name), [self, *rest]), words)
        return NONE

    def children(self) -> list[Value]:
        return list(self.kwargs.values())

    def reconstruct(self, cg: Codegen) -> None:
        CallOf(warnings.catch_warnings, [], self.kwargs).reconstruct(cg)


class GivenWarnings(Value):
    """The list that ``catch_warnings(record=True)`` gives: filled after the graph, and until a warning is given empty."""

    is_mutable = True

    def __init__(self, tx: Tracer) -> None:
        self.since = len(tx.effects)

    def type(self) -> type:
        return list

    def _empty(self, tx: Tracer) -> ListValue:
        given = (call for call, _ in tx.effects[self.since :] if isinstance(call, CallOf))
        if any(call.function in (warn_at, warn_outside) for call in given):
            raise Unsupported("unknown-call", "the warnings that were given are looked at")
        return ListValue([])

    def truth(self, tx: Tracer) -> bool:
        return self._empty(tx).truth(tx)

    def length(self, tx: Tracer) -> Value:
        return self._empty(tx).length(tx)

    def iterate(self, tx: Tracer) -> Value:
        return self._empty(tx).iterate(tx)

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return self._empty(tx).get_item(tx, key)

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.emit("BUILD_LIST", 0)


def enter_with_log(catch: Any, log: list[Any]) -> None:
    """Enter ``catch_warnings(record=True)`` so that it fills a list that is there already."""
    catch.__enter__()
    catch._module._showwarnmsg_impl = log.append


def _bound(name: str) -> Any:
    return vars(warnings.catch_warnings)[name]


@special(warnings.catch_warnings)
def _catch_warnings(tx: Tracer, args: Args, kwargs: Words) -> Value:
    words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
    if args or words.get("action") == "error" or words.get("module") is not None:
        raise Unsupported("unknown-call", "warnings.catch_warnings makes warnings errors, or is of another module")
    return CaughtWarnings(dict(kwargs), records=bool(words.get("record")))


# Loggers.

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}


class LoggerValue(HeldValue):
    """A logger: whether a level is enabled is guarded, and what nobody listens to is left out."""

    held: logging.Logger

    is_mutable = True

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return self.held

    def get_attr(self, tx: Tracer, name: str) -> Value:
        assert self.origin is not None
        own = vars(self.held).get(name)
        if isinstance(own, (str, int, bool)):
            return tx.wrap(own, Attr(self.origin, name))
        added = find_in_class(type(self.held), name)
        if own is None and added is not None and type(added[1]) is functools._lru_cache_wrapper:
            return BoundMethod(self, tx.wrap(added[1], Attr(class_origin(added[0]), name)))
        return MethodOf(self, name)

    def python(self, tx: Tracer) -> Any:
        return self.held  # its identity is guarded

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name in ("isEnabledFor", "getEffectiveLevel"):
            level = self._level(tx)
            return Const(level) if name == "getEffectiveLevel" else Const(self._is_enabled(tx, args))
        if name in _LEVELS and not self._is_enabled(tx, [Const(_LEVELS[name])]):
            return NONE
        if name == "log" and not self._is_enabled(tx, args[:1]):
            return NONE
        if name in _LEVELS and name != "exception" and not kwargs and _only_writes(self.held):
            return self._log(tx, _LEVELS[name], args)
        raise Unsupported("unknown-call", f"logging.{type(self.held).__name__}.{name} is called")

    def _log(self, tx: Tracer, level: int, args: Args) -> Value:
        """What is known now is logged after the graph, as if by this line."""
        for value in args:
            if type(force(tx, value).python(tx)) not in (str, int, float, bool, type(None)):
                raise Unsupported("unknown-call", f"{force(tx, value).describe()} is logged")
        frame = tx.frame
        line = span_of(frame.code, frame.op.offset).line
        where = [Const(frame.code.co_filename), Const(line), Const(frame.code.co_name)]
        words = f"{logging.getLevelName(level).lower()} is logged: {force(tx, args[0]).describe()}"
        tx.happens(CallOf(log_at, [self, Const(level), *where, *args]), words)
        return NONE

    def _is_enabled(self, tx: Tracer, args: Args) -> bool:
        wanted = force(tx, args[0]).python(tx)
        assert self.origin is not None
        why = "a level of logging decided what was traced"
        for owner, name in ((self.origin, "disabled"), (Attr(self.origin, "manager"), "disable")):
            real = self.held if name == "disabled" else self.held.manager
            tx.guard(Equals(Attr(owner, name), getattr(real, name), cause=tx.cause(why)))
        if self.held.disabled or self.held.manager.disable >= wanted:
            return False
        return bool(wanted >= self._level(tx))

    def _level(self, tx: Tracer) -> int:
        origin, held = self.origin, self.held
        while True:
            assert origin is not None
            tx.guard(Equals(Attr(origin, "level"), held.level, cause=tx.cause("a level of logging was asked for")))
            if held.level or held.parent is None:
                return held.level
            origin, held = Attr(origin, "parent"), held.parent


def _only_writes(logger: logging.Logger) -> bool:
    """Whether what is logged goes to files and consoles alone, where traced code does not see it."""
    owner: logging.Logger | None = logger
    while owner is not None:
        if type(owner) not in (logging.Logger, logging.RootLogger) or owner.filters:
            return False
        if not all(_is_plain(handler) for handler in owner.handlers):
            return False
        owner = owner.parent if owner.propagate else None
    return True


def _is_plain(handler: logging.Handler) -> bool:
    """Whether a handler is one of logging's own, and its formatter too, that writes to a file or console."""
    formatter = type(handler.formatter)
    if handler.filters or formatter not in (logging.Formatter, type(None)):
        return False
    if type(handler) is logging.NullHandler:
        return True
    if type(handler) not in (logging.StreamHandler, logging.FileHandler):
        return False
    stream: Any = handler.stream  # type: ignore[attr-defined]
    return isinstance(stream, io.TextIOWrapper) or stream is sys.stderr or stream is sys.stdout


def _is_logger(real: Any) -> bool:
    return isinstance(real, logging.Logger)


@wraps_if(12, _is_logger)
def _logger(tx: Tracer, real: logging.Logger, origin: Origin) -> Value:
    tx.guard_object(real, origin, "it was asked to log")
    return LoggerValue(real, origin)


@special(logging.getLogger)
def _get_logger(tx: Tracer, args: Args, kwargs: Words) -> Value:
    names = tx.constants([*args, *kwargs.values()])
    with contextlib.suppress(KeyError):
        known = logging.root if not names or names[0] is None else logging.root.manager.loggerDict[names[0]]
        if isinstance(known, logging.Logger):
            return tx.fixed(known, f"logger {known.name}")
    raise Unsupported("unknown-call", "logging.getLogger is called for the first time")
