"""Slow path of the generated check: evaluate the guards one by one, then rebuild helpers.

It runs after the fast check has failed. If all guards hold after all, the fast check's helpers are rebuilt
from the current values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engine.guards.dict_versions.subtree import SubtreeVersionGuard
from engine.guards.torch_c_helpers import always_false, make_global_state_check
from engine.ir.guards.base import Guard
from engine.ir.sources.base import FrameScope, Source

MakeHelper = Callable[[list[Any]], Callable[..., bool] | None]
"""Makes a check from values that have just passed their guards; None if there is none."""

MAX_WALKS_BEFORE_CODEGEN = 2
"""Number of slow checks by ``all_hold`` before the one-by-one check is compiled."""
MAX_RELEARNS = 4
"""Maximum number of helper rebuilds.

A caller that fails the fast check again and again (another tensor twice in each call) is not worth more.
"""


def all_hold(guards: Sequence[Guard], scope: FrameScope) -> bool:
    """Return True if all guards hold; stop at the first failure.

    Agrees with the generated check: an error of a read or a test is a failure.
    """
    values: dict[Source, Any] = {}
    try:
        for guard in guards:
            value, *other_values = [_read_once(s, scope, values) for s in guard.sources]
            if not guard.test(value, tuple(other_values)):
                return False
    except Exception:
        return False
    return True


def _read_once(source: Source, scope: FrameScope, values: dict[Source, Any]) -> Any:
    """Read a source into ``values``, after its parents.

    A function of the module, not a closure: a recursive closure is a reference cycle, which would keep the
    user's objects alive until the garbage collector runs.
    """
    if source not in values:
        parent = source.parent
        values[source] = source.read(scope if parent is None else _read_once(parent, scope, values))
    return values[source]


class SlowPath:
    """The slow path of one fast check. Thread-safe: shared state is replaced atomically."""

    def __init__(
        self, guards: Sequence[Guard], parameters: tuple[str, ...], compile_exact: Callable[[], Callable[..., bool]]
    ) -> None:
        self._guards = guards
        self._parameters = parameters
        self._compile_exact = compile_exact
        self._check: Callable[..., bool] | None = None
        self._batches: dict[str, tuple[Sequence[Source], MakeHelper]] = {}
        self._structures: list[SubtreeVersionGuard] = []
        self._state = ""
        self._namespace: dict[str, Any] = {}
        self._explain_count = 0
        self._relearn_count = 0
        self._cells = {
            root.user_name: root.cell_index
            for guard in guards
            for source in guard.sources
            if (root := source.chain()[0]).cell_index is not None
        }

    def add_batch(self, name: str, sources: Sequence[Source], make_helper: MakeHelper) -> None:
        """Register the name that the helper for the values of these sources has in the fast check."""
        self._batches[name] = sources, make_helper

    def add_subtree(self, structure: SubtreeVersionGuard) -> None:
        """Register a subtree guard that covers many guards."""
        self._structures.append(structure)

    def add_global_state(self, name: str) -> None:
        """Register the name in the fast check of the global state helper."""
        self._state = name

    def install_helpers(self, space: dict[str, Any]) -> None:
        """Add placeholder helpers, which always fail, to the fast check's namespace."""
        space.update(dict.fromkeys((*self._batches, *((self._state,) if self._state else ())), always_false))
        self._namespace = space

    def __call__(self, cells: Any, *arguments: Any) -> bool:
        """Return True if all guards hold."""
        scope = self._scope(cells, arguments)
        if not self._guards_hold(cells, arguments, scope):
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

    def _guards_hold(self, cells: Any, arguments: tuple[Any, ...], scope: FrameScope) -> bool:
        if self._check is None:
            if self._explain_count < MAX_WALKS_BEFORE_CODEGEN:
                self._explain_count += 1
                return all_hold(self._guards, scope)
            self._check = self._compile_exact()
        return self._check(cells, *arguments)

    def _relearn(self, scope: FrameScope) -> None:
        if self._state:
            self._namespace[self._state] = make_global_state_check()
        for name, (sources, make_helper) in self._batches.items():
            helper = make_helper([o.resolve(scope) for o in sources])
            self._namespace[name] = always_false if helper is None else helper
