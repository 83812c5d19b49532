"""A call that generated code makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.trace.variables.base import Variable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen


class CallExpressionVariable(Variable):
    """The result of calling a constant callable, as an expression for reconstruction."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: Any, args: list[Variable], kwargs: dict[str, Variable] | None = None) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs or {}

    def python_type(self) -> type:
        return object

    def child_variables(self) -> list[Variable]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.load_const(self.function))
        cg.load_all(self.child_variables())
        cg.call_with_keywords(len(self.args), tuple(self.kwargs))
