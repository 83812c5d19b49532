"""The order in which guards are checked: cheap and selective first, a value before what is read through it, nothing twice, nothing implied."""

from __future__ import annotations

import heapq
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator

import sympy

from engine.ir.guard import Guard
from engine.ir.origin import Local, Origin
from engine.ir.outcome_guard import ComesTo
from engine.ir.relation_guard import Distinct, NoOverlap, SameObject, ShapeRelation, SharesMemory
from engine.ir.state_guard import GlobalState
from engine.ir.tensor_guard import TensorMatch, facets
from engine.ir.value_guard import CodeIs, DictKeys, Equals, IsObject, LengthIs, TypeIs

RELATIONAL = (SameObject, NoOverlap, Distinct, SharesMemory, ShapeRelation, ComesTo)
"""Kinds that read several values; they come after all guards on each of those."""

UNCHANGING = (type(None), bool, types.FunctionType, types.BuiltinFunctionType)
"""Types whose instances cannot be given another ``__class__``."""


def ordered(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """Guards in executed order, tensor matches expanded into their facets."""
    return sort(without_implied(tuple(dict.fromkeys(expanded(guards)))))


def expanded(guards: Iterable[Guard]) -> Iterator[Guard]:
    """Each tensor match as one guard a facet; other guards as they are."""
    for guard in guards:
        if isinstance(guard, TensorMatch):
            yield from facets(guard)
        else:
            yield guard


def without_implied(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """The guards that no other one of them implies."""
    lengths = {(g.origin, len(g.keys)) for g in guards if isinstance(g, DictKeys)}
    fixed_types = {
        g.origin: exact_type(g)
        for g in guards
        if isinstance(g, (Equals, IsObject, CodeIs)) and exact_type(g) is not None
    }
    no_modes = any(isinstance(g, GlobalState) and g.state == "torch_function_modes" and g.value == () for g in guards)

    def implied(guard: Guard) -> bool:
        if isinstance(guard, TypeIs):
            return fixed_types.get(guard.origin) is guard.type
        if isinstance(guard, LengthIs):
            return (guard.origin, guard.length) in lengths
        if isinstance(guard, ShapeRelation):
            return guard.relation is sympy.true
        return isinstance(guard, GlobalState) and guard.state == "default_device" and guard.value is None and no_modes

    return tuple(g for g in guards if not implied(g))


def exact_type(guard: Guard) -> type | None:
    """The exact type that a value has where this guard holds."""
    match guard:
        case TypeIs():
            return guard.type
        case Equals():
            return type(guard.value)
        case IsObject() if type(guard.held) in UNCHANGING:
            return type(guard.held)
        case CodeIs():
            return types.FunctionType
        case _:
            return None


def tier(guard: Guard) -> int:
    """0: global state; 1: an argument itself; 2: what is reached through something; 3: relations."""
    if isinstance(guard, GlobalState):
        return 0
    if isinstance(guard, RELATIONAL):
        return 3
    return 1 if isinstance(guard.origin, Local) else 2


def sort(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """By tier and rank, but never before the guards of the origins that a guard reads through; else as they came."""
    pending: defaultdict[Origin, int] = defaultdict(int)
    for guard in guards:
        if not isinstance(guard, RELATIONAL):
            pending[guard.origin] += 1
    waiting: defaultdict[Origin, list[int]] = defaultdict(list)
    blockers = [0] * len(guards)
    ready: list[tuple[int, int, int]] = []
    prefixes: dict[Origin, tuple[Origin, ...]] = {}
    for index, guard in enumerate(guards):
        for origin in _before(guard, prefixes):
            if pending.get(origin):
                waiting[origin].append(index)
                blockers[index] += 1
        if not blockers[index]:
            heapq.heappush(ready, (tier(guard), guard.rank, index))
    done: list[Guard] = []
    while ready:
        guard = guards[heapq.heappop(ready)[2]]
        done.append(guard)
        if isinstance(guard, RELATIONAL):
            continue
        pending[guard.origin] -= 1
        if pending[guard.origin]:
            continue
        for index in waiting.pop(guard.origin, ()):
            blockers[index] -= 1
            if not blockers[index]:
                heapq.heappush(ready, (tier(guards[index]), guards[index].rank, index))
    return tuple(done)


def _before(guard: Guard, prefixes: dict[Origin, tuple[Origin, ...]]) -> set[Origin]:
    """Origins whose guards must come first."""
    found: set[Origin] = set()
    for origin in guard.origins:
        if origin not in prefixes:
            prefixes[origin] = origin.chain()[:-1]
        found.update(prefixes[origin])
        if isinstance(guard, RELATIONAL):
            found.add(origin)
    return found
