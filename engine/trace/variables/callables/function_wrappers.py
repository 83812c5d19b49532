"""Base class of variables of functions that wrap another one, such as ``vmap(f)``."""

from __future__ import annotations

from typing import ClassVar

from engine.trace.annotations import Tracer
from engine.trace.variables.base import Args, Kwargs, Variable


class FunctionWrapperVariable(Variable):
    """A function that calls ``function``, for instance compiled, transformed or in a context."""

    function: Variable

    def python_type(self) -> type:
        return self.function.python_type()

    child_fields: ClassVar[tuple[str, ...]] = ("function",)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return self.function.call(tx, args, kwargs)
