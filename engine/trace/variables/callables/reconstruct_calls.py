"""Reconstruct the result of a call, or attribute writes, in generated code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine.trace.annotations import PyCodegen
from engine.trace.variables.base import Args, Kwargs, Variable


class CallExpressionVariable(Variable):
    """The result of calling a constant callable, as an expression for reconstruction."""

    __slots__ = ("args", "function", "kwargs")
    cls = object

    def __init__(self, function: Any, args: Args, kwargs: Kwargs | None = None) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs or {}

    def child_variables(self) -> list[Variable]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(self.function, *self.args, **self.kwargs)


def emit_store_attributes(cg: PyCodegen, attributes: Iterable[tuple[str, Variable]]) -> None:
    """Emit code that sets attributes of the object on the stack, which stays there."""
    for name, value in attributes:
        cg.body.emit("COPY", 1)
        cg.load(value)
        cg.body.emit("SWAP", 2)
        cg.body.emit("STORE_ATTR", name)
