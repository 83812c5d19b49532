"""Base class of functions that traced code makes from other functions."""

from __future__ import annotations

from engine.trace.annotations import Tracer
from engine.trace.variables.base import Args, Kwargs, Variable


class FunctionWrapperVariable(Variable):
    """A function that calls ``function``, for instance compiled, transformed or in a context."""

    function: Variable

    def python_type(self) -> type:
        return self.function.python_type()

    def child_variables(self) -> list[Variable]:
        return [self.function]

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return self.function.call(tx, args, kwargs)
