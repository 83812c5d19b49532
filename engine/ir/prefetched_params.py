"""Parameters that the guard check has read, passed to the compiled code that runs next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from threading import get_ident
from typing import Any

from engine.ir.sources.attributes import ModuleMemberSource
from engine.ir.sources.base import Source

MIN_PARAMETERS = 16
"""With fewer graph inputs, reading them again is as fast as passing them."""

InputRuns = tuple[tuple[Source, ...], ...]


class PrefetchedParams:
    """Tensors read by the guard check, stored by thread.

    If there are none, the compiled code reads them itself. ``runs`` are consecutive stretches of the graph's
    inputs. The tensors of a run are stored as a tuple in reverse order, because unpacking pushes them on the
    stack.
    """

    def __init__(self, runs: InputRuns) -> None:
        self.runs = runs
        self._by_thread: dict[int, tuple[tuple[Any, ...], ...]] = {}

    def __call__(self) -> tuple[tuple[Any, ...], ...] | None:
        """Return the tensors of the last check in this thread, once; None if there are none."""
        return self._by_thread.pop(get_ident(), None)

    discard = __call__

    def writer(self, order: Sequence[Source]) -> Callable[[Sequence[Any]], None] | None:
        """Return a function that stores tensors of these sources, in this order.

        Return None if a wanted source is missing.
        """
        indices = {origin: index for index, origin in enumerate(order)}
        if not all(origin in indices for run in self.runs for origin in run):
            return None
        picks = [itemgetter(*(indices[o] for o in reversed(run))) for run in self.runs]
        by_thread = self._by_thread
        if len(picks) == 1:
            (pick,) = picks

            def give_one(tensors: Sequence[Any]) -> None:
                by_thread[get_ident()] = (pick(tensors),)

            return give_one

        def give(tensors: Sequence[Any]) -> None:
            by_thread[get_ident()] = tuple([pick(tensors) for pick in picks])

        return give


def parameter_runs(inputs: Sequence[Source]) -> InputRuns:
    """Return runs of consecutive graph inputs that are members of one module tree.

    Members are parameters and buffers.

    A run has at least two inputs. Return no runs if the tree has fewer than ``MIN_PARAMETERS`` inputs.
    """
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
