"""Reconstruct the result of a call, or attribute writes, in generated code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import Any

from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.variables.base import NONE, Args, Kwargs, Variable


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


def record_call(tx: Tracer, description: str, function: Any, args: Args, kwargs: Kwargs | None = None) -> Variable:
    """Record a call that generated code makes after the graph; return None, its result."""
    tx.side_effects.record_side_effect(CallExpressionVariable(function, args, kwargs or {}), description)
    return NONE


def emit_store_attributes(cg: PyCodegen, attributes: Iterable[tuple[str, Variable]]) -> None:
    """Emit code that sets attributes of the object on the stack, which stays there."""
    for name, value in attributes:
        cg.body.emit("COPY", 1)
        cg.load(value)
        cg.body.emit("SWAP", 2)
        cg.body.emit("STORE_ATTR", name)
