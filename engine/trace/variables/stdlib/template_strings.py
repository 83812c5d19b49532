"""Variables for template strings, ``t"..."``, which Python 3.14 brings."""

from __future__ import annotations

import importlib
from typing import Any

from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.variables.base import ConstantVariable, Variable, realize
from engine.trace.variables.containers.sequences import TupleVariable

INTERPOLATION_FIELDS = ("value", "expression", "conversion", "format_spec")


class InterpolationVariable(Variable):
    """A replacement field of a template string, with the arguments of its class."""

    __slots__ = ("fields",)

    def __init__(self, fields: list[Variable]) -> None:
        self.fields = fields

    def python_type(self) -> Any:
        return importlib.import_module("string.templatelib").Interpolation

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in INTERPOLATION_FIELDS:
            return self.fields[INTERPOLATION_FIELDS.index(name)]
        return super().get_attr(tx, name)

    def child_variables(self) -> list[Variable]:
        return self.fields

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(self.python_type(), *self.fields)


class TemplateVariable(Variable):
    """A template string: a text before, between and after its interpolations."""

    __slots__ = ("interpolations", "strings")

    def __init__(self, strings: tuple[str, ...], interpolations: TupleVariable) -> None:
        self.strings = strings
        self.interpolations = interpolations

    def python_type(self) -> Any:
        return importlib.import_module("string.templatelib").Template

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        match name:
            case "strings":
                return ConstantVariable(self.strings)
            case "interpolations":
                return self.interpolations
            case "values":
                return TupleVariable([realize(tx, i).get_attr(tx, "value") for i in self.interpolations.items])
        return super().get_attr(tx, name)

    def get_iterator(self, tx: Tracer) -> Variable:
        return TupleVariable(self._parts()).get_iterator(tx)

    def _parts(self) -> list[Variable]:
        """Return the texts that are not empty, and the interpolations, in order."""
        parts: list[Variable] = []
        for text, interpolation in zip(self.strings, [*self.interpolations.items, None], strict=True):
            parts += [ConstantVariable(text)] if text else []
            parts += [] if interpolation is None else [interpolation]
        return parts

    def child_variables(self) -> list[Variable]:
        return [self.interpolations]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(self.python_type(), *self._parts())
