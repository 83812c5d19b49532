"""What happens when the quick check says no: the guards one by one, and, when they hold after all, the quick check learns from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.guards.explain import holds
from engine.guards.structure import Structure
from engine.guards.tensors import batchable, never, state_helper, tensor_helper
from engine.ir.guard import Guard
from engine.ir.origin import Closure, MaybeClosure, Origin, Scope

WALKED = 2
"""Checks done by walking before the one-by-one check is worth compiling."""
LESSONS = 4
"""How often the quick check may learn anew; a caller that keeps upsetting it (another tensor twice in each call) is not worth more."""


class Admission:
    """The slow path of one quick check. Safe to share between threads: what it replaces is replaced whole."""

    def __init__(
        self, guards: Sequence[Guard], parameters: tuple[str, ...], compile_exact: Callable[[], Callable[..., bool]]
    ) -> None:
        self._guards = guards
        self._parameters = parameters
        self._compile_exact = compile_exact
        self._exact: Callable[..., bool] | None = None
        self._batches: dict[str, tuple[Origin, ...]] = {}
        self._structures: list[Structure] = []
        self._state = ""
        self._space: dict[str, Any] = {}
        self._walked = 0
        self._learned = 0
        self._cells = {
            o.variable: o.index
            for g in guards
            for o in (x.chain()[0] for x in g.origins)
            if isinstance(o, (Closure, MaybeClosure))
        }

    def add_batch(self, name: str, members: tuple[Origin, ...]) -> None:
        """Declare a name of the quick check that stands for the tensor helper on these origins."""
        self._batches[name] = members

    def add_structure(self, structure: Structure) -> None:
        """Declare what stands for many guards."""
        self._structures.append(structure)

    def add_state(self, name: str) -> None:
        """Declare the name of the quick check that stands for the state helper."""
        self._state = name

    def attach(self, space: dict[str, Any]) -> None:
        """Put helpers that have learned nothing yet into the quick check's namespace."""
        space.update(dict.fromkeys((*self._batches, *((self._state,) if self._state else ())), never))
        self._space = space

    def __call__(self, cells: Any, *arguments: Any) -> bool:
        """Whether all guards hold."""
        scope = self._scope(cells, arguments)
        if not self._holds(cells, arguments, scope):
            return False
        for structure in self._structures:
            module = None if structure.root is None else structure.root.resolve(scope)
            if not structure(module):
                structure.learn(module)
        if self._learned < LESSONS:
            self._learned += 1
            self._learn(scope)
        return True

    def _scope(self, cells: Any, arguments: tuple[Any, ...]) -> Scope:
        return Scope(dict(zip(self._parameters, arguments, strict=True)), {n: cells[i] for n, i in self._cells.items()})

    def _holds(self, cells: Any, arguments: tuple[Any, ...], scope: Scope) -> bool:
        if self._exact is None:
            if self._walked < WALKED:
                self._walked += 1
                return holds(self._guards, scope)
            self._exact = self._compile_exact()
        return self._exact(cells, *arguments)

    def _learn(self, scope: Scope) -> None:
        if self._state:
            self._space[self._state] = state_helper()
        facets = batchable(self._guards)
        for name, members in self._batches.items():
            helper = tensor_helper([o.resolve(scope) for o in members], [facets[o] for o in members])
            self._space[name] = never if helper is None else helper
