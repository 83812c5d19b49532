"""Groups of equal ranks, the first divergence of each, and the waits for the last rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from engine.group_pairs import group_pairs
from engine.observe.ranks.rank_contents import RankContents
from engine.records.ranks.groups import (
    AFTER_CACHES,
    ASPECTS,
    HARMLESS,
    AspectGroups,
    RankArrivals,
    RankDivergence,
    RankGroup,
    RankGroups,
    format_ranks,
)

MAX_ARRIVALS = 40
"""Maximum number of listed programs: those with the longest waits."""
MAX_RANK = 1 << 20


def group_ranks(contents: Sequence[RankContents], problems: Iterable[str] = ()) -> RankGroups:
    """Group ranks by their contents, of which there is one for each rank, in order."""
    ranks = tuple(c.rank for c in contents)
    by_digest = _group_equal_ranks(contents, "")
    largest, others = by_digest[0], by_digest[1:]
    divergences = [d for group in others if (d := _divergence(group, largest)) is not None]
    world = min(max(ranks[-1] + 1, largest[0].world_size()), MAX_RANK)
    return RankGroups(
        ranks,
        tuple(RankGroup(_ranks(g), g[0].file.name) for g in by_digest),
        tuple(AspectGroups(a, tuple(map(_ranks, _group_equal_ranks(contents, a)))) for a in ASPECTS),
        tuple(divergences),
        tuple(_arrivals(contents, largest[0])),
        tuple(sorted(set(range(world)) - set(ranks))),
        (*problems, *_problems(contents, largest)),
    )


def _ranks(group: Sequence[RankContents]) -> tuple[int, ...]:
    return tuple(c.rank for c in group)


def _group_equal_ranks(contents: Sequence[RankContents], aspect: str) -> list[list[RankContents]]:
    """Return groups of equals: by size, then whole logs first, then by the lowest rank."""
    ranks_by_digest = group_pairs((rank.digest(aspect), rank) for rank in contents)
    return sorted(ranks_by_digest.values(), key=lambda g: (-len(g), bool(g[0].unfinished or g[0].damage), g[0].rank))


def _divergence(group: Sequence[RankContents], largest: Sequence[RankContents]) -> RankDivergence | None:
    mine, theirs = group[0], largest[0]
    differing = tuple(a for a in ASPECTS if mine.digest(a) != theirs.digest(a))
    if "cache outcomes" in differing:
        differing = tuple(a for a in differing if a not in AFTER_CACHES)
    if _cut_at(mine, theirs) and _is_prefix(mine, theirs):
        return None  # a problem, not another program
    compilation, aspect = _first_difference(mine, theirs)
    return RankDivergence(_ranks(group), _ranks(largest), compilation, aspect, differing)


def _cut_at(mine: RankContents, theirs: RankContents) -> str:
    """Return where a log ends too early, compared with a whole one; "" if it does not."""
    if mine.unfinished:
        return f"within compile id {mine.unfinished}"
    is_shorter = 0 < len(mine.compilations) < len(theirs.compilations)
    if not (mine.damage and is_shorter and _is_prefix(mine, theirs)):
        return ""
    return f"after compile id {[*mine.compilations][-1]}"


def _is_prefix(mine: RankContents, theirs: RankContents) -> bool:
    ends = mine.unfinished
    return all(
        facts == theirs.compilations.get(c, [])[: len(facts) if c == ends else None]
        for c, facts in mine.compilations.items()
    )


def _first_difference(mine: RankContents, theirs: RankContents) -> tuple[str, str]:
    """Return the first compile id at which two ranks differ, and the aspect.

    A difference after which both can still run the same collectives is returned only if no other one follows.
    """
    harmless = ("", "order of events")
    for own, other in zip_longest(mine.compilations, theirs.compilations):
        if own != other:
            is_extra = other is None or (own is not None and own not in theirs.compilations)
            return own if is_extra or (own is None and other is None) else other or own, "compile ids"
        pairs = [[[d for a, d in c.compilations[own] if a == aspect] for c in (mine, theirs)] for aspect in ASPECTS]
        differing = [a for a, (first, second) in zip(ASPECTS, pairs, strict=True) if first != second]
        if "graph breaks" in differing and _all_collectives(mine) == _all_collectives(theirs):
            return own, "graph breaks"  # collectives are in other graphs, in the same order
        if differing and differing[0] not in HARMLESS:
            return own, differing[0]
        if mine.compilations[own] != theirs.compilations[own] and not harmless[0]:
            harmless = own, differing[0] if differing else "order of events"
    return harmless


def _all_collectives(rank: RankContents) -> list[str]:
    return [call for calls in rank.collectives.values() for call in calls]


def _arrivals(contents: Sequence[RankContents], largest: RankContents) -> list[RankArrivals]:
    """Return the arrivals at each program of the largest group for which two ranks have times.

    Times of a rank that was recorded at another time are left out.
    """
    arrivals = []
    for key in largest.ready:
        times = [c.ready.get(key) if largest.may_wait_for(c) else None for c in contents]
        times_and_ranks = [(t, c.rank) for t, c in zip(times, contents, strict=True) if t is not None]
        if len(times_and_ranks) < 2:
            continue
        first, (latest, last) = min(times_and_ranks)[0], max(times_and_ranks)
        after = tuple(None if t is None else round(t - first, 6) for t in times)
        calls = largest.collectives.get((key[0], key[1] if key[1] == "backward" else "forward"), ())
        arrivals.append(RankArrivals(*key, calls, last, round(latest - first, 6), after))
    longest = {id(a) for a in sorted(arrivals, key=lambda a: (not a.collectives, -a.waited))[:MAX_ARRIVALS]}
    return [a for a in arrivals if id(a) in longest]


def _problems(contents: Sequence[RankContents], largest: Sequence[RankContents]) -> Iterable[str]:
    versions = group_pairs((rank.version, rank) for rank in contents if rank.version)
    if len(versions) > 1:
        named = ", ".join(f"{v[:40]} ({format_ranks(_ranks(c))})" for v, c in versions.items())
        yield f"The ranks run different versions of torch: {named}"
    others = [rank for rank in contents if not largest[0].may_wait_for(rank)]
    if others:
        both = f"{format_ranks(_ranks(others))} and {format_ranks((largest[0].rank,))}"
        yield f"The recordings of {both} are hours or days apart: the times of their calls are not compared"
    ends = ((end, rank) for rank in contents if not largest[0].unfinished and (end := _cut_at(rank, largest[0])))
    for end, ranks in group_pairs(ends).items():
        yield f"The log of {format_ranks(_ranks(ranks))} ends {end}: it is cut, or the process ended there"
    for sentences, ranks in group_pairs((rank.damage, rank) for rank in contents if rank.damage).items():
        yield f"The log of {format_ranks(_ranks(ranks))} is damaged: {', '.join(sentences)}"
