"""Regular expressions: immutable patterns and matches, evaluated while tracing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from engine.ir.sources.base import Source
from engine.trace.variables.base import ConstantVariable, Variable, realize
from engine.trace.variables.builder import register_builder, register_sourceless_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import BuiltinMethodVariable
from engine.trace.variables.containers.iterators import SequenceIteratorVariable

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]


class RegexPatternVariable(ConstantVariable):
    """A compiled regular expression."""

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("sub", "subn", "finditer"):
            return BuiltinMethodVariable(self, name)
        return super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        match name:
            case "finditer":
                values = tx.as_python_constants(args)
                words = dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True))
                found = [tx.from_python(m) for m in self.value.finditer(*values, **words)]
                return SequenceIteratorVariable(found, type(re.finditer("", "")))
            case "sub" | "subn":
                return self._substitute(tx, name, args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def _substitute(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        words = dict(kwargs)
        replacement = realize(tx, args[0] if args else words.pop("repl"))
        values = tx.as_python_constants(args[1:])
        rest = dict(zip(words, tx.as_python_constants(words.values()), strict=True))
        if isinstance(replacement, ConstantVariable):
            return tx.fold_constant(getattr(self.value, name), replacement.value, *values, **rest)

        def replace(match: re.Match[Any]) -> Any:
            return realize(tx, replacement.call(tx, [tx.from_python(match)], {})).as_python_constant(tx)

        # Exceptions of the replacement function are tracer exceptions and pass through.
        return tx.from_python(getattr(self.value, name)(replace, *values, **rest))


@register_builder(re.Pattern)
def _pattern(tx: Tracer, real: re.Pattern[Any], origin: Source) -> Variable:
    tx.guard_identity(real, origin, f"the pattern {real.pattern!r} was used")
    return RegexPatternVariable(real, origin)


@register_sourceless_builder(re.Pattern)
def _make_pattern(tx: Tracer, value: re.Pattern[Any]) -> Variable:
    return RegexPatternVariable(value)


@register_builder(re.Match)
def _match(tx: Tracer, real: re.Match[Any], origin: Source) -> Variable:
    tx.guard_identity(real, origin, "the match was used")
    return ConstantVariable(real, origin)


@register_sourceless_builder(re.Match)
def _make_match(tx: Tracer, value: re.Match[Any]) -> Variable:
    return ConstantVariable(value)


def _compile_pattern(tx: Tracer, pattern: Variable, flags: Variable | None) -> RegexPatternVariable:
    bits = realize(tx, flags).as_python_constant(tx) if flags is not None else 0
    found = realize(tx, tx.fold_constant(re.compile, realize(tx, pattern).as_python_constant(tx), bits))
    assert isinstance(found, RegexPatternVariable)
    return found


@register_rule(re.compile)
def _compile(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return _compile_pattern(
        tx, args[0] if args else kwargs["pattern"], args[1] if len(args) > 1 else kwargs.get("flags")
    )


def _module_function(name: str, plain: int) -> Any:
    """Return the rule of ``re.name(pattern, ...)``; ``flags`` follows ``plain`` arguments."""

    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        words = dict(kwargs)
        rest = list(args)
        pattern = rest.pop(0) if rest else words.pop("pattern")
        flags = rest.pop(plain) if len(rest) > plain else words.pop("flags", None)
        return realize(tx, _compile_pattern(tx, pattern, flags).get_attr(tx, name)).call(tx, rest, words)

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
    register_rule(getattr(re, _name))(_module_function(_name, _plain))


@register_rule(re.escape)
def _escape(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return tx.fold_constant(re.escape, *tx.as_python_constants([*args, *kwargs.values()]))
