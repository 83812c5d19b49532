"""Parameters that the check of an entry has read anyway, handed to the code that runs next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from threading import get_ident
from typing import Any

from engine.ir.sources.attributes import ModuleMemberSource
from engine.ir.sources.base import Source

MIN_PARAMETERS = 16
"""Fewer graph inputs than this are read as quickly as they are handed over."""

InputRuns = tuple[tuple[Source, ...], ...]


class PrefetchedParams:
    """Tensors by the thread that checked them. The code reads them itself where there are none.

    ``runs`` are stretches of the graph's inputs. What is handed over for each is a tuple in the opposite order, as taking it apart pushes it on
    the stack.
    """

    def __init__(self, runs: InputRuns) -> None:
        self.runs = runs
        self._by_thread: dict[int, tuple[tuple[Any, ...], ...]] = {}

    def __call__(self) -> tuple[tuple[Any, ...], ...] | None:
        """What the last check in this thread found; once."""
        return self._by_thread.pop(get_ident(), None)

    discard = __call__

    def writer(self, order: Sequence[Source]) -> Callable[[Sequence[Any]], None] | None:
        """Takes tensors of these origins in this order, as a check reads them; None where one that is wanted is not among them."""
        places = {origin: index for index, origin in enumerate(order)}
        if not all(origin in places for run in self.runs for origin in run):
            return None
        picks = [itemgetter(*(places[o] for o in reversed(run))) for run in self.runs]
        found = self._by_thread
        if len(picks) == 1:
            (pick,) = picks

            def give_one(tensors: Sequence[Any]) -> None:
                found[get_ident()] = (pick(tensors),)

            return give_one

        def give(tensors: Sequence[Any]) -> None:
            found[get_ident()] = tuple([pick(tensors) for pick in picks])

        return give


def parameter_runs(inputs: Sequence[Source]) -> InputRuns:
    """Stretches of two and more neighbours among a graph's inputs that are parameters or buffers of one module tree; none where they are few."""
    roots: dict[Source, int] = {}
    for origin in inputs:
        if isinstance(origin, ModuleMemberSource):
            root = next(iter(origin.chain()))
            roots[root] = roots.get(root, 0) + 1
    if not roots or max(roots.values()) < MIN_PARAMETERS:
        return ()
    chosen = max(roots, key=lambda root: roots[root])
    runs: list[list[Source]] = [[]]
    for origin in inputs:
        if isinstance(origin, ModuleMemberSource) and next(iter(origin.chain())) == chosen:
            runs[-1].append(origin)
        elif runs[-1]:
            runs.append([])
    return tuple(tuple(run) for run in runs if len(run) > 1)
