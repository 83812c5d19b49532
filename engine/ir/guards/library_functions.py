"""Guard that builtins and library functions which traced code called were not replaced."""

from __future__ import annotations

import builtins
from typing import Any, ClassVar, NamedTuple

from engine.ir.guards.base import Cause, Guard, ValueCode
from engine.ir.introspection import describe_values
from engine.ir.sources.base import MISSING, GlobalsNamespace
from engine.ir.sources.roots import ConstantSource


class LibraryFunction(NamedTuple):
    """A function or class of a library, and the namespace through which the code reached it."""

    namespace: GlobalsNamespace
    name: str
    expected: Any

    @property
    def text(self) -> str:
        """The name as the user would write it: ``len``, ``math.sqrt``."""
        return self.name if self.namespace.values is vars(builtins) else f"{self.namespace.name}.{self.name}"

    def current(self) -> Any:
        """Return the object of that name now."""
        return self.namespace.values.get(self.name, MISSING)


def _condition(code: ValueCode, function: LibraryFunction) -> str:
    namespace = code.const(function.namespace.values, "builtins" if function.text == function.name else "module")
    if function.expected is MISSING:
        return f"{function.name!r} not in {namespace}"
    return f"{namespace}[{function.name!r}] is {code.const(function.expected, function.name)}"


_SHOWN = 4
"""Number of functions whose names the guard's text shows."""


class LibraryFunctionsMatch(Guard):
    """Guard that names of builtins and modules still refer to the traced objects.

    One guard checks all of them: it fails only after ``builtins.len = ...`` or ``mock.patch``. Dynamo has one
    ``ID_MATCH`` for each.
    """

    kind: ClassVar[str] = "library functions"
    rank: ClassVar[int] = 90
    reads_value: ClassVar[bool] = False
    message: ClassVar[str] = "A function that the traced code called was replaced: {actual}."
    advice: ClassVar[str] = "Replace library functions once, before the first call, or accept one cache entry for each."

    functions: tuple[LibraryFunction, ...]

    @classmethod
    def of(cls, functions: tuple[LibraryFunction, ...], cause: Cause) -> LibraryFunctionsMatch:
        """Return a guard that these functions were not replaced."""
        names = [f.text for f in functions[:_SHOWN]]
        more = [f"{len(functions) - _SHOWN} more"] if len(functions) > _SHOWN else []
        return cls(ConstantSource(builtins, ", ".join([*names, *more])), functions, cause=cause)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LibraryFunctionsMatch) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        return tuple((f.namespace, f.name, id(f.expected)) for f in self.functions)

    @property
    def tier(self) -> int:
        return 2  # after the arguments: it almost never fails

    def condition(self, code: ValueCode) -> str:
        return " and ".join(_condition(code, function) for function in self.functions)

    def _replaced_functions(self) -> list[LibraryFunction]:
        return [f for f in self.functions if f.current() is not f.expected]

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        return not self._replaced_functions()

    def expected_text(self) -> str:
        return "not replaced"

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        replaced = [f"{f.text} is {describe_values.describe(f.current())}" for f in self._replaced_functions()]
        return ", ".join(replaced) or "not replaced"
