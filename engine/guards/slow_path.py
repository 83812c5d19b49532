"""What happens when the quick check says no: the guards one by one, and, when they hold after all, the quick check learns from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.guards.dict_versions.subtree import SubtreeVersionGuard
from engine.guards.explain import all_hold
from engine.guards.torch_c_helpers import always_false, batchable_tensors, make_global_state_check, make_tensor_check
from engine.ir.guards.base import Guard
from engine.ir.sources.base import FrameScope, Source
from engine.ir.sources.roots import ClosureSource, OptionalClosureSource

MAX_WALKS_BEFORE_CODEGEN = 2
"""Checks done by walking before the one-by-one check is worth compiling."""
MAX_RELEARNS = 4
"""How often the quick check may learn anew; a caller that keeps upsetting it (another tensor twice in each call) is not worth more."""


class SlowPath:
    """The slow path of one quick check. Safe to share between threads: what it replaces is replaced whole."""

    def __init__(
        self, guards: Sequence[Guard], parameters: tuple[str, ...], compile_exact: Callable[[], Callable[..., bool]]
    ) -> None:
        self._guards = guards
        self._parameters = parameters
        self._compile_exact = compile_exact
        self._check: Callable[..., bool] | None = None
        self._batches: dict[str, tuple[Source, ...]] = {}
        self._structures: list[SubtreeVersionGuard] = []
        self._state = ""
        self._namespace: dict[str, Any] = {}
        self._explain_count = 0
        self._relearn_count = 0
        self._cells = {
            o.variable_name: o.index
            for g in guards
            for o in (x.chain()[0] for x in g.sources)
            if isinstance(o, (ClosureSource, OptionalClosureSource))
        }

    def add_tensor_batch(self, name: str, members: tuple[Source, ...]) -> None:
        """Declare a name of the quick check that stands for the tensor helper on these origins."""
        self._batches[name] = members

    def add_subtree(self, structure: SubtreeVersionGuard) -> None:
        """Declare what stands for many guards."""
        self._structures.append(structure)

    def add_global_state(self, name: str) -> None:
        """Declare the name of the quick check that stands for the state helper."""
        self._state = name

    def install_helpers(self, space: dict[str, Any]) -> None:
        """Put helpers that have learned nothing yet into the quick check's namespace."""
        space.update(dict.fromkeys((*self._batches, *((self._state,) if self._state else ())), always_false))
        self._namespace = space

    def __call__(self, cells: Any, *arguments: Any) -> bool:
        """Whether all guards hold."""
        scope = self._scope(cells, arguments)
        if not self._holds(cells, arguments, scope):
            return False
        for structure in self._structures:
            module = None if structure.root is None else structure.root.resolve(scope)
            if not structure(module):
                structure.record_versions(module)
        if self._relearn_count < MAX_RELEARNS:
            self._relearn_count += 1
            self._relearn(scope)
        return True

    def _scope(self, cells: Any, arguments: tuple[Any, ...]) -> FrameScope:
        return FrameScope(
            dict(zip(self._parameters, arguments, strict=True)), {n: cells[i] for n, i in self._cells.items()}
        )

    def _holds(self, cells: Any, arguments: tuple[Any, ...], scope: FrameScope) -> bool:
        if self._check is None:
            if self._explain_count < MAX_WALKS_BEFORE_CODEGEN:
                self._explain_count += 1
                return all_hold(self._guards, scope)
            self._check = self._compile_exact()
        return self._check(cells, *arguments)

    def _relearn(self, scope: FrameScope) -> None:
        if self._state:
            self._namespace[self._state] = make_global_state_check()
        facets = batchable_tensors(self._guards)
        for name, members in self._batches.items():
            helper = make_tensor_check([o.resolve(scope) for o in members], [facets[o] for o in members])
            self._namespace[name] = always_false if helper is None else helper
