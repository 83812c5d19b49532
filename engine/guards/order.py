"""Order of guards: cheap and selective first, a value before values read through it.

Duplicate and implied guards are dropped.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable

from engine.ir.guards.base import Guard, ImpliedFacts
from engine.ir.sources.base import Source


def order_guards(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """Return guards in executed order; expand tensor matches and drop implied guards."""
    expanded = itertools.chain.from_iterable([guard.expand() for guard in guards])
    return sort_by_tier(drop_implied(tuple(dict.fromkeys(expanded))))


def drop_implied(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """Return the guards that no other guard implies."""
    types: dict[Source, type | None] = {}
    lengths: set[tuple[Source, int | None]] = set()
    no_modes = False
    for guard in guards:
        no_modes = no_modes or guard.forbids_modes
        if not guard.is_type_test and (implied_type := guard.implied_type) is not None:
            types[guard.source] = implied_type
        if (length := guard.implied_length) is not None:
            lengths.add((guard.source, length))
    facts = ImpliedFacts(types, frozenset(lengths), no_modes)
    return tuple([g for g in guards if not g.is_redundant(facts)])


def sort_by_tier(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """Sort by tier and rank, after the guards on the sources that a guard reads through.

    Ties preserve the input order.
    """
    pending: defaultdict[Source, int] = defaultdict(int)
    for guard in guards:
        if guard.reads_value and not guard.is_relational:
            pending[guard.source] += 1
    waiting: defaultdict[Source, list[int]] = defaultdict(list)
    blockers = [0] * len(guards)
    ready: list[tuple[int, int, int]] = []
    by_source: dict[Source, list[Source]] = {}
    for index, guard in enumerate(guards):
        for origin in _prerequisites(guard, pending, by_source) if guard.reads_value else ():
            waiting[origin].append(index)
            blockers[index] += 1
        if not blockers[index]:
            heapq.heappush(ready, (guard.tier, guard.rank, index))
    ordered: list[Guard] = []
    while ready:
        guard = guards[heapq.heappop(ready)[2]]
        ordered.append(guard)
        if guard.is_relational or not guard.reads_value:
            continue
        pending[guard.source] -= 1
        if pending[guard.source]:
            continue
        for index in waiting.pop(guard.source, ()):
            blockers[index] -= 1
            if not blockers[index]:
                heapq.heappush(ready, (guards[index].tier, guards[index].rank, index))
    return tuple(ordered)


def _prerequisites(
    guard: Guard, guarded: Collection[Source], by_source: dict[Source, list[Source]]
) -> Iterable[Source]:
    """Return the sources among the guarded ones whose guards must run before this guard."""
    for origin in guard.sources:
        if origin not in by_source:
            by_source[origin] = list(filter(guarded.__contains__, origin.ancestors))
    if guard.sources == (guard.source,) and not guard.is_relational:
        return by_source[guard.source]
    own = (o for o in guard.sources if guard.is_relational and o in guarded)
    return {*own, *itertools.chain.from_iterable(by_source[o] for o in guard.sources)}
