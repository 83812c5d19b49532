"""Reconstruct the result of a call, or attribute writes, in generated code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from engine.trace.annotations import PyCodegen
from engine.trace.variables.base import Args, Kwargs, Variable


class CallExpressionVariable(Variable):
    """The result of calling a constant callable, as an expression for reconstruction."""

    function: Any
    args: Args
    kwargs: Kwargs = field(default_factory=dict)
    cls = object

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
