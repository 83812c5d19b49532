"""Order of guards: cheap and selective first, a value before values read through it.

Duplicate and implied guards are dropped.
"""

from __future__ import annotations

import heapq
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator

import sympy

from engine.ir.guards.aliasing import DisjointStorage, DistinctObjects, SameObject, SharedStorage
from engine.ir.guards.base import Guard
from engine.ir.guards.computed_condition import ComputedCondition
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.guards.python_values import CodeMatch, DictKeysMatch, EqualsMatch, IdMatch, LengthMatch, TypeMatch
from engine.ir.guards.symbolic_shapes import SymbolicShapeGuard
from engine.ir.guards.tensors import TensorMatch, expand_tensor_match
from engine.ir.sources.base import Source
from engine.ir.sources.roots import LocalSource

RELATIONAL_KINDS = (SameObject, DisjointStorage, DistinctObjects, SharedStorage, SymbolicShapeGuard, ComputedCondition)
"""Guard kinds that read several values; they run after all guards on each of these values."""

FIXED_CLASS_TYPES = (type(None), bool, types.FunctionType, types.BuiltinFunctionType)
"""Types whose instances cannot change their ``__class__``."""


def order_guards(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """Return guards in executed order; expand tensor matches and drop implied guards."""
    return sort_by_tier(drop_implied(tuple(dict.fromkeys(expand_tensor_matches(guards)))))


def expand_tensor_matches(guards: Iterable[Guard]) -> Iterator[Guard]:
    """Expand each tensor match to one guard per property; yield other guards unchanged."""
    for guard in guards:
        if isinstance(guard, TensorMatch):
            yield from expand_tensor_match(guard)
        else:
            yield guard


def drop_implied(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """Return the guards that no other guard implies."""
    lengths = {(g.source, len(g.keys)) for g in guards if isinstance(g, DictKeysMatch)}
    fixed_types = {
        g.source: implied_type(g)
        for g in guards
        if isinstance(g, (EqualsMatch, IdMatch, CodeMatch)) and implied_type(g) is not None
    }
    no_modes = any(
        isinstance(g, GlobalStateMatch) and g.state_name == "torch_function_modes" and g.expected == () for g in guards
    )

    def implied(guard: Guard) -> bool:
        if isinstance(guard, TypeMatch):
            return fixed_types.get(guard.source) is guard.type
        if isinstance(guard, LengthMatch):
            return (guard.source, guard.length) in lengths
        if isinstance(guard, SymbolicShapeGuard):
            return guard.relation is sympy.true
        return (
            isinstance(guard, GlobalStateMatch)
            and guard.state_name == "default_device"
            and guard.expected is None
            and no_modes
        )

    return tuple(g for g in guards if not implied(g))


def implied_type(guard: Guard) -> type | None:
    """Return the exact type of the value if this guard implies it, else None."""
    match guard:
        case TypeMatch():
            return guard.type
        case EqualsMatch():
            return type(guard.expected)
        case IdMatch() if type(guard.expected) in FIXED_CLASS_TYPES:
            return type(guard.expected)
        case CodeMatch():
            return types.FunctionType
        case _:
            return None


def tier(guard: Guard) -> int:
    """Return a guard's tier: 0 global state, 1 argument, 2 other single value, 3 relation."""
    if isinstance(guard, GlobalStateMatch):
        return 0
    if isinstance(guard, RELATIONAL_KINDS):
        return 3
    return 1 if isinstance(guard.source, LocalSource) else 2


def sort_by_tier(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """Sort by tier and rank, after the guards on the sources that a guard reads through.

    Ties preserve the input order.
    """
    pending: defaultdict[Source, int] = defaultdict(int)
    for guard in guards:
        if not isinstance(guard, RELATIONAL_KINDS):
            pending[guard.source] += 1
    waiting: defaultdict[Source, list[int]] = defaultdict(list)
    blockers = [0] * len(guards)
    ready: list[tuple[int, int, int]] = []
    prefixes: dict[Source, tuple[Source, ...]] = {}
    for index, guard in enumerate(guards):
        for origin in _prerequisites(guard, prefixes):
            if pending.get(origin):
                waiting[origin].append(index)
                blockers[index] += 1
        if not blockers[index]:
            heapq.heappush(ready, (tier(guard), guard.rank, index))
    done: list[Guard] = []
    while ready:
        guard = guards[heapq.heappop(ready)[2]]
        done.append(guard)
        if isinstance(guard, RELATIONAL_KINDS):
            continue
        pending[guard.source] -= 1
        if pending[guard.source]:
            continue
        for index in waiting.pop(guard.source, ()):
            blockers[index] -= 1
            if not blockers[index]:
                heapq.heappush(ready, (tier(guards[index]), guards[index].rank, index))
    return tuple(done)


def _prerequisites(guard: Guard, prefixes: dict[Source, tuple[Source, ...]]) -> set[Source]:
    """Return the sources whose guards must run before this guard."""
    found: set[Source] = set()
    for origin in guard.sources:
        if origin not in prefixes:
            prefixes[origin] = origin.chain()[:-1]
        found.update(prefixes[origin])
        if isinstance(guard, RELATIONAL_KINDS):
            found.add(origin)
    return found
