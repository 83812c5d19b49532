"""Variables of ``logging.Logger``: messages are replayed after the graph, or dropped."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
from typing import Any

from engine.frame_code.codegen_runtime.warnings_logging import log_at_line
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.trace.annotations import Tracer
from engine.trace.exc import BreakGraph, Unsupported
from engine.trace.variables.base import (
    NONE,
    Args,
    ConstantVariable,
    FixedObjectVariable,
    Kwargs,
    NotPythonConstant,
    StringFormatVariable,
    Variable,
    realize,
)
from engine.trace.variables.builder import guarded_builder, is_literal, register_subclass_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BoundMethodVariable, BuiltinMethodVariable
from engine.trace.variables.callables.reconstruct_calls import record_call
from engine.trace.variables.objects.class_lookup import find_in_class, wrap_entry

_LEVELS = {
    **{name: getattr(logging, name.upper()) for name in "debug info warning warn error critical fatal".split()},
    "exception": logging.ERROR,
}


class LoggerVariable(FixedObjectVariable):
    """A logger. Its levels are guarded; messages below the level are omitted."""

    real_object: logging.Logger
    source: Source

    is_mutable = True

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        attribute = vars(self.real_object).get(name)
        if attribute is not None and is_literal(attribute):
            return tx.wrap(attribute, AttrSource(self.source, name))
        added = find_in_class(type(self.real_object), name)
        if attribute is None and added is not None and type(added.raw) is functools._lru_cache_wrapper:
            return BoundMethodVariable(self, wrap_entry(tx, added, name))
        return super().get_attr(tx, name) if added is None else BuiltinMethodVariable(self, name)

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
        raise Unsupported("logging", f"logging.{type(self.real_object).__name__}.{name} is called")

    def _log(self, tx: Tracer, level: int, args: Args) -> Variable:
        """Log numbers and texts after the graph, with the location of the traced line."""
        for value in args:
            if value.__class__ is StringFormatVariable or realize(tx, value).is_symbolic:
                continue
            what = f"{realize(tx, value).describe()} is logged"
            with BreakGraph("logging", what, NotPythonConstant):
                if type(realize(tx, value).as_python_constant(tx)) not in (str, int, float, bool, type(None)):
                    raise Unsupported("logging", what)
        frame = tx.frame
        location = map(ConstantVariable, (frame.code.co_filename, frame.line, frame.code.co_name))
        description = f"{logging.getLevelName(level).lower()} is logged: {args[0].describe()}"
        return record_call(tx, description, log_at_line, [self, ConstantVariable(level), *location, *args])

    def _is_enabled(self, tx: Tracer, args: Args) -> bool:
        level = realize(tx, args[0]).as_python_constant(tx)
        why = "a level of logging decided what was traced"
        for owner, name in ((self.source, "disabled"), (AttrSource(self.source, "manager"), "disable")):
            real = self.real_object if name == "disabled" else self.real_object.manager
            tx.guard(EqualsMatch, AttrSource(owner, name), getattr(real, name), why=why)
        if self.real_object.disabled or self.real_object.manager.disable >= level:
            return False
        return bool(level >= self._level(tx))

    def _level(self, tx: Tracer) -> int:
        source, real = self.source, self.real_object
        while True:
            tx.guard(EqualsMatch, AttrSource(source, "level"), real.level, why="a logging level was read")
            if real.level or real.parent is None:
                return real.level
            source, real = AttrSource(source, "parent"), real.parent


def _only_writes_to_streams(logger: logging.Logger) -> bool:
    """Return True if messages go only to files and consoles, which traced code does not read."""
    owner: logging.Logger | None = logger
    while owner is not None:
        if type(owner) not in (logging.Logger, logging.RootLogger) or owner.filters:
            return False
        if not all(_is_plain_handler(handler) for handler in owner.handlers):
            return False
        owner = owner.parent if owner.propagate else None
    return True


def _is_plain_handler(handler: logging.Handler) -> bool:
    """Return True for a standard handler and formatter that write to a file or console."""
    formatter = type(handler.formatter)
    if handler.filters or formatter not in (logging.Formatter, type(None)):
        return False
    if type(handler) is logging.NullHandler:
        return True
    if type(handler) not in (logging.StreamHandler, logging.FileHandler):
        return False
    stream: Any = handler.stream  # type: ignore[attr-defined]
    return isinstance(stream, io.TextIOWrapper) or stream is sys.stderr or stream is sys.stdout


register_subclass_builder(12, logging.Logger)(guarded_builder(LoggerVariable, "a message was logged"))


@register_rule(logging.getLogger)
def _get_logger(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    names = tx.as_python_constants([*args, *kwargs.values()])
    with contextlib.suppress(KeyError):
        existing = logging.root if not names or names[0] is None else logging.root.manager.loggerDict[names[0]]
        if isinstance(existing, logging.Logger):
            return tx.wrap_static(existing, f"logger {existing.name}")
    raise Unsupported("logging", "logging.getLogger is called for the first time")
