"""Reconstruct the result of a call, or attribute writes, in generated code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.trace.annotations import PyCodegen
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable


def emit_call(
    cg: PyCodegen, function: Any, args: Iterable[Variable], kwargs: dict[str, Variable] | None = None
) -> None:
    """Emit code that calls a constant callable."""
    positional, words = list(args), kwargs or {}
    cg.body.callable(lambda: cg.load_const(function))
    cg.load_all([*positional, *words.values()])
    cg.call_with_keywords(len(positional), tuple(words))


def constants(*values: Any) -> Args:
    """Return the variables of constants, as arguments of a call."""
    return [ConstantVariable(value) for value in values]


class CallExpressionVariable(Variable):
    """The result of calling a constant callable, as an expression for reconstruction."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: Any, args: Args, kwargs: Kwargs | None = None) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs or {}

    def python_type(self) -> type:
        return object

    def child_variables(self) -> list[Variable]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: PyCodegen) -> None:
        emit_call(cg, self.function, self.args, self.kwargs)


def emit_store_attributes(cg: PyCodegen, attributes: Iterable[tuple[str, Variable]]) -> None:
    """Emit code that sets attributes of the object on the stack, which stays there."""
    for name, value in attributes:
        cg.body.emit("COPY", 1)
        cg.load(value)
        cg.body.emit("SWAP", 2)
        cg.body.emit("STORE_ATTR", name)
