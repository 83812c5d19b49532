"""Regular expressions: patterns and matches do not change, so all that is asked of them on known text is known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from engine.ir.origin import Origin
from engine.trace.values.base import Const, Value, force
from engine.trace.values.iterators import SequenceIterator
from engine.trace.values.methods import MethodOf
from engine.trace.values.rules import special
from engine.trace.values.wrap import makes, wraps

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


class PatternValue(Const):
    """A compiled pattern."""

    def truth(self, tx: Tracer) -> bool:
        return True

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name in ("sub", "subn", "finditer"):
            return MethodOf(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        match name:
            case "finditer":
                values = tx.constants(args)
                words = dict(zip(kwargs, tx.constants(kwargs.values()), strict=True))
                found = [tx.from_python(m) for m in self.value.finditer(*values, **words)]
                return SequenceIterator(found, type(re.finditer("", "")))
            case "sub" | "subn":
                return self._substitute(tx, name, args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def _substitute(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        words = dict(kwargs)
        replacement = force(tx, args[0] if args else words.pop("repl"))
        values = tx.constants(args[1:])
        rest = dict(zip(words, tx.constants(words.values()), strict=True))
        if isinstance(replacement, Const):
            return tx.fold(getattr(self.value, name), replacement.value, *values, **rest)

        def replace(match: re.Match[Any]) -> Any:
            return force(tx, replacement.call(tx, [tx.from_python(match)], {})).python(tx)

        # What the user's function raises passes through: it is the tracer's own signal.
        return tx.from_python(getattr(self.value, name)(replace, *values, **rest))


@wraps(re.Pattern)
def _pattern(tx: Tracer, real: re.Pattern[Any], origin: Origin) -> Value:
    tx.guard_object(real, origin, f"the pattern {real.pattern!r} was used")
    return PatternValue(real, origin)


@makes(re.Pattern)
def _make_pattern(tx: Tracer, value: re.Pattern[Any]) -> Value:
    return PatternValue(value)


@wraps(re.Match)
def _match(tx: Tracer, real: re.Match[Any], origin: Origin) -> Value:
    tx.guard_object(real, origin, "the match was used")
    return Const(real, origin)


@makes(re.Match)
def _make_match(tx: Tracer, value: re.Match[Any]) -> Value:
    return Const(value)


def _compiled(tx: Tracer, pattern: Value, flags: Value | None) -> PatternValue:
    bits = force(tx, flags).python(tx) if flags is not None else 0
    found = force(tx, tx.fold(re.compile, force(tx, pattern).python(tx), bits))
    assert isinstance(found, PatternValue)
    return found


@special(re.compile)
def _compile(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return _compiled(tx, args[0] if args else kwargs["pattern"], args[1] if len(args) > 1 else kwargs.get("flags"))


def _module_function(name: str, plain: int) -> Any:
    """``re.name(pattern, ...)``, where ``flags`` comes after ``plain`` other arguments."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        words = dict(kwargs)
        rest = list(args)
        pattern = rest.pop(0) if rest else words.pop("pattern")
        flags = rest.pop(plain) if len(rest) > plain else words.pop("flags", None)
        return force(tx, _compiled(tx, pattern, flags).get_attr(tx, name)).call(tx, rest, words)

    return rule


for _name, _plain in (
    ("match", 1),
    ("fullmatch", 1),
    ("search", 1),
    ("sub", 3),
    ("subn", 3),
    ("split", 2),
    ("findall", 1),
    ("finditer", 1),
):
    special(getattr(re, _name))(_module_function(_name, _plain))


@special(re.escape)
def _escape(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return tx.fold(re.escape, *tx.constants([*args, *kwargs.values()]))
