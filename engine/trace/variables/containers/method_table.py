"""Methods of builtin containers as tables: a function per method, found by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.trace.annotations import Tracer
from engine.trace.operators.arithmetic import call_special_by_name
from engine.trace.variables.base import NONE, Args, Kwargs, Variable, realize

Run = TypeVar("Run", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class _Method:
    """A method of a container, called as ``run(variable, tx, *args, **kwargs)``."""

    run: Callable[..., Variable | None]
    signature: inspect.Signature
    mutates: bool
    condition: Callable[[Any], bool] | None


class MethodTable:
    """The methods of a builtin class by name; those of ``base`` follow."""

    def __init__(self, base: MethodTable | None = None) -> None:
        self._methods: dict[str, list[_Method]] = {}
        self._base = base

    def method(
        self, *names: str, mutates: bool = False, condition: Callable[[Any], bool] | None = None
    ) -> Callable[[Run], Run]:
        """Register a method that exists if ``condition`` holds for the variable.

        A mutating method is recorded as a mutation before it runs. A result of None is Python's None.
        """

        def register(run: Run) -> Run:
            method = _Method(run, inspect.signature(run), mutates, condition)
            for name in names:
                self._methods.setdefault(name, []).append(method)
            return run

        return register

    def _find(self, of: Variable, tx: Tracer, name: str, args: Args, kwargs: Any) -> _Method | None:
        for method in self._methods.get(name, ()):
            if method.condition is None or method.condition(of):
                try:
                    method.signature.bind(of, tx, *args, **kwargs)
                except TypeError:
                    continue
                return method
        return None if self._base is None else self._base._find(of, tx, name, args, kwargs)

    def call(self, of: Variable, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        """Call a method by name; a special method without an entry runs as an operator."""
        args = [realize_stored(tx, a) for a in args]
        result = self.call_own(of, tx, name, args, kwargs)
        return call_special_by_name(tx, of, name, args, kwargs) if result is None else result

    def call_own(self, of: Variable, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable | None:
        """Call a method of the table; None if it has none that takes these arguments."""
        method = self._find(of, tx, name, args, kwargs)
        if method is None:
            return None
        if method.mutates:
            tx.side_effects.record_mutation(of)
        result = method.run(of, tx, *args, **kwargs)
        return NONE if result is None else result


def realize_stored(tx: Tracer, lazy: Variable) -> Variable:
    """Realize a key or an element; a compiled module remains lazy, as it is stored."""
    value = realize(tx, lazy)
    return lazy if lazy is not value and tx.objects.is_compiled_module(lazy) else value
