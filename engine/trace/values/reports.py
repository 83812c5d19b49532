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
from engine.ir.origin import AttrSource, ConstantSource, Source
from engine.ir.state_guard import GlobalStateMatch
from engine.ir.value_guard import EqualsMatch
from engine.trace.signals import Unsupported
from engine.trace.support import log_at_line, warn_at_caller, warn_at_line
from engine.trace.values.base import NONE, ConstantVariable, RealObjectVariable, Variable, realize
from engine.trace.values.classes import class_source, find_in_class
from engine.trace.values.exceptions import ExceptionVariable
from engine.trace.values.iteration import CallExpressionVariable
from engine.trace.values.methods import BoundMethodVariable, BuiltinMethodVariable
from engine.trace.values.rules import register_rule
from engine.trace.values.sequences import ListVariable
from engine.trace.values.wrap import register_builder_if

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.state import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]


class _FrameGlobalsVariable(Variable):
    """The globals of a traced frame, for generated code."""

    def __init__(self, namespace: Any) -> None:
        self.namespace = namespace

    def python_type(self) -> type:
        return dict

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_namespace(self.namespace)


@register_rule(warnings.warn)
def _warn(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    names = ("message", "category", "stacklevel", "source")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if set(given) - set(names) or "message" not in given:
        raise Unsupported("unknown-call", "warnings.warn is called in an unusual way")
    message = realize(tx, given["message"])
    category = realize(tx, given["category"]).as_python_constant(tx) if "category" in given else None
    is_instance = isinstance(message, ExceptionVariable)
    if is_instance:
        category = message.python_type()
    if not is_instance and not isinstance(message, ConstantVariable):
        raise Unsupported("unknown-call", f"warnings.warn({message.describe()}) is called")
    level = int(realize(tx, given["stacklevel"]).as_python_constant(tx)) if "stacklevel" in given else 1
    _guard_warnings_do_not_raise(tx)
    category = category or UserWarning
    words = f"a {category.__name__} is given: {message.describe()}"
    if level > len(tx.frames):
        tx.record_side_effect(
            CallExpressionVariable(
                warn_at_caller, [message, tx.wrap_static(category), ConstantVariable(level - len(tx.frames))]
            ),
            words,
        )
        return NONE
    frame = tx.frames[-max(level, 1)]
    line = span_of(frame.code, frame.op.offset).line
    where = [ConstantVariable(frame.code.co_filename), ConstantVariable(line), _FrameGlobalsVariable(frame.globals)]
    tx.record_side_effect(CallExpressionVariable(warn_at_line, [message, tx.wrap_static(category), *where]), words)
    return NONE


def _guard_warnings_do_not_raise(tx: Tracer) -> None:
    """Warnings must not raise: the code that would handle them has been traced already."""
    if tx.silenced_warnings[-1]:
        return
    if GLOBAL_STATES["warnings_raise"].read():
        raise Unsupported("unknown-call", "warnings.warn is called where warnings are errors")
    why = "a warning is given after the graph, which must not raise"
    tx.add_guard(GlobalStateMatch(ConstantSource(torch, "torch"), "warnings_raise", False, cause=tx.guard_cause(why)))


def _warning_filter_rule(function: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        constants = tx.as_python_constants([*args, *kwargs.values()])
        if "error" in constants:
            raise Unsupported("unknown-call", f"warnings.{function.__name__} makes warnings errors")
        tx.record_side_effect(
            CallExpressionVariable(function, list(args), dict(kwargs)), f"warnings.{function.__name__} is called"
        )
        tx.silenced_warnings[-1] = tx.silenced_warnings[-1] or (
            function is warnings.simplefilter and len(constants) == 1
        )
        return NONE

    return rule


for _function in (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings):
    register_rule(_function)(_warning_filter_rule(_function))


class CatchWarningsVariable(Variable):
    """``warnings.catch_warnings()``: entered and left after the graph, around the warnings given between."""

    is_mutable = True

    def __init__(self, kwargs: Kwargs, *, records: bool) -> None:
        self.kwargs = kwargs
        self.records = records

    def python_type(self) -> type:
        return warnings.catch_warnings

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__enter__", "__exit__"):
            return BuiltinMethodVariable(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name not in ("__enter__", "__exit__"):
            return super().call_method(tx, name, args, kwargs)
        rest: Args = [NONE, NONE, NONE] if name == "__exit__" else []
        if rest:
            tx.silenced_warnings.pop()
        else:
            tx.silenced_warnings.append(tx.silenced_warnings[-1])
        words = f"catch_warnings is {'left' if rest else 'entered'}"
        if self.records and not rest:
            log = RecordedWarningsVariable(tx)
            tx.record_side_effect(CallExpressionVariable(enter_catch_warnings, [self, log]), words)
            return log
        tx.record_side_effect(CallExpressionVariable(_catch_warnings_method(name), [self, *rest]), words)
        return NONE

    def child_variables(self) -> list[Variable]:
        return list(self.kwargs.values())

    def reconstruct(self, cg: PyCodegen) -> None:
        CallExpressionVariable(warnings.catch_warnings, [], self.kwargs).reconstruct(cg)


class RecordedWarningsVariable(Variable):
    """The list that ``catch_warnings(record=True)`` gives: filled after the graph, and until a warning is given empty."""

    is_mutable = True

    def __init__(self, tx: Tracer) -> None:
        self.first_effect = len(tx.side_effect_calls)

    def python_type(self) -> type:
        return list

    def _empty_list(self, tx: Tracer) -> ListVariable:
        given = (
            call for call, _ in tx.side_effect_calls[self.first_effect :] if isinstance(call, CallExpressionVariable)
        )
        if any(call.function in (warn_at_line, warn_at_caller) for call in given):
            raise Unsupported("unknown-call", "the warnings that were given are looked at")
        return ListVariable([])

    def is_truthy(self, tx: Tracer) -> bool:
        return self._empty_list(tx).is_truthy(tx)

    def length(self, tx: Tracer) -> Variable:
        return self._empty_list(tx).length(tx)

    def get_iterator(self, tx: Tracer) -> Variable:
        return self._empty_list(tx).get_iterator(tx)

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return self._empty_list(tx).get_item(tx, key)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.emit("BUILD_LIST", 0)


def enter_catch_warnings(catch: Any, log: list[Any]) -> None:
    """Enter ``catch_warnings(record=True)`` so that it fills a list that is there already."""
    catch.__enter__()
    catch._module._showwarnmsg_impl = log.append


def _catch_warnings_method(name: str) -> Any:
    return vars(warnings.catch_warnings)[name]


@register_rule(warnings.catch_warnings)
def _catch_warnings(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    words = dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
    if args or words.get("action") == "error" or words.get("module") is not None:
        raise Unsupported("unknown-call", "warnings.catch_warnings makes warnings errors, or is of another module")
    return CatchWarningsVariable(dict(kwargs), records=bool(words.get("record")))


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


class LoggerVariable(RealObjectVariable):
    """A logger: whether a level is enabled is guarded, and what nobody listens to is left out."""

    real_object: logging.Logger

    is_mutable = True

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def hash_key(self, tx: Tracer) -> Any:
        return self.real_object

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        assert self.source is not None
        own = vars(self.real_object).get(name)
        if isinstance(own, (str, int, bool)):
            return tx.wrap(own, AttrSource(self.source, name))
        added = find_in_class(type(self.real_object), name)
        if own is None and added is not None and type(added[1]) is functools._lru_cache_wrapper:
            return BoundMethodVariable(self, tx.wrap(added[1], AttrSource(class_source(added[0]), name)))
        return BuiltinMethodVariable(self, name)

    def as_python_constant(self, tx: Tracer) -> Any:
        return self.real_object  # its identity is guarded

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name in ("isEnabledFor", "getEffectiveLevel"):
            level = self._level(tx)
            return (
                ConstantVariable(level) if name == "getEffectiveLevel" else ConstantVariable(self._is_enabled(tx, args))
            )
        if name in _LEVELS and not self._is_enabled(tx, [ConstantVariable(_LEVELS[name])]):
            return NONE
        if name == "log" and not self._is_enabled(tx, args[:1]):
            return NONE
        if name in _LEVELS and name != "exception" and not kwargs and _only_writes_to_streams(self.real_object):
            return self._log(tx, _LEVELS[name], args)
        raise Unsupported("unknown-call", f"logging.{type(self.real_object).__name__}.{name} is called")

    def _log(self, tx: Tracer, level: int, args: Args) -> Variable:
        """What is known now is logged after the graph, as if by this line."""
        for value in args:
            if type(realize(tx, value).as_python_constant(tx)) not in (str, int, float, bool, type(None)):
                raise Unsupported("unknown-call", f"{realize(tx, value).describe()} is logged")
        frame = tx.frame
        line = span_of(frame.code, frame.op.offset).line
        where = [ConstantVariable(frame.code.co_filename), ConstantVariable(line), ConstantVariable(frame.code.co_name)]
        words = f"{logging.getLevelName(level).lower()} is logged: {realize(tx, args[0]).describe()}"
        tx.record_side_effect(
            CallExpressionVariable(log_at_line, [self, ConstantVariable(level), *where, *args]), words
        )
        return NONE

    def _is_enabled(self, tx: Tracer, args: Args) -> bool:
        wanted = realize(tx, args[0]).as_python_constant(tx)
        assert self.source is not None
        why = "a level of logging decided what was traced"
        for owner, name in ((self.source, "disabled"), (AttrSource(self.source, "manager"), "disable")):
            real = self.real_object if name == "disabled" else self.real_object.manager
            tx.add_guard(EqualsMatch(AttrSource(owner, name), getattr(real, name), cause=tx.guard_cause(why)))
        if self.real_object.disabled or self.real_object.manager.disable >= wanted:
            return False
        return bool(wanted >= self._level(tx))

    def _level(self, tx: Tracer) -> int:
        origin, held = self.source, self.real_object
        while True:
            assert origin is not None
            tx.add_guard(
                EqualsMatch(
                    AttrSource(origin, "level"), held.level, cause=tx.guard_cause("a level of logging was asked for")
                )
            )
            if held.level or held.parent is None:
                return held.level
            origin, held = AttrSource(origin, "parent"), held.parent


def _only_writes_to_streams(logger: logging.Logger) -> bool:
    """Whether what is logged goes to files and consoles alone, where traced code does not see it."""
    owner: logging.Logger | None = logger
    while owner is not None:
        if type(owner) not in (logging.Logger, logging.RootLogger) or owner.filters:
            return False
        if not all(_is_plain_handler(handler) for handler in owner.handlers):
            return False
        owner = owner.parent if owner.propagate else None
    return True


def _is_plain_handler(handler: logging.Handler) -> bool:
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


@register_builder_if(12, _is_logger)
def _logger(tx: Tracer, real: logging.Logger, origin: Source) -> Variable:
    tx.guard_identity(real, origin, "it was asked to log")
    return LoggerVariable(real, origin)


@register_rule(logging.getLogger)
def _get_logger(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    names = tx.as_python_constants([*args, *kwargs.values()])
    with contextlib.suppress(KeyError):
        known = logging.root if not names or names[0] is None else logging.root.manager.loggerDict[names[0]]
        if isinstance(known, logging.Logger):
            return tx.wrap_static(known, f"logger {known.name}")
    raise Unsupported("unknown-call", "logging.getLogger is called for the first time")
