"""Regular expressions: immutable patterns and matches, evaluated while tracing."""

from __future__ import annotations

import re
from typing import Any

from engine.trace.annotations import Tracer
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.builder import guarded_builder, register_builder, register_sourceless_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import VariableWithMethods
from engine.trace.variables.containers.iterators import SequenceIteratorVariable


class RegexPatternVariable(VariableWithMethods, ConstantVariable):
    """A compiled regular expression."""

    methods = ("sub", "subn", "finditer")

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        match name:
            case "finditer":
                values = tx.as_python_constants(args)
                keywords = tx.as_python_keywords(kwargs)
                matches = [tx.from_python(m) for m in self.value.finditer(*values, **keywords)]
                return SequenceIteratorVariable(matches, type(re.finditer("", "")))
            case "sub" | "subn":
                return self._substitute(tx, name, args, kwargs)
        return super().call_method(tx, name, args, kwargs)

    def _substitute(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        remaining_kwargs = dict(kwargs)
        replacement = realize(tx, args[0] if args else remaining_kwargs.pop("repl"))
        values = tx.as_python_constants(args[1:])
        keywords = tx.as_python_keywords(remaining_kwargs)
        if replacement.is_constant:
            return tx.fold_constant(getattr(self.value, name), replacement.constant, *values, **keywords)

        def replace(match: re.Match[Any]) -> Any:
            return realize(tx, replacement.call(tx, [tx.from_python(match)], {})).as_python_constant(tx)

        # Exceptions of the replacement function are tracer exceptions and pass through.
        return tx.from_python(getattr(self.value, name)(replace, *values, **keywords))


register_builder(re.Pattern)(guarded_builder(RegexPatternVariable, "the pattern {0.pattern!r} was used"))
register_sourceless_builder(re.Pattern)(lambda tx, value: RegexPatternVariable(value))
register_builder(re.Match)(guarded_builder(ConstantVariable, "the match was used"))
register_sourceless_builder(re.Match)(lambda tx, value: ConstantVariable(value))


@register_rule(vars(re)["_compile"])
def _compile(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Compile a pattern, as every function of ``re`` does first."""
    return tx.fold_constant(re.compile, *tx.as_python_constants(args))
