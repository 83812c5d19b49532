"""Slowdown of a compiled call over eager, measured by calling both in turns."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.graph_callable import Run
from engine.records.format_amounts import format_seconds
from engine.torch_private.pytree import tree_leaves

MIN_RATIO = 1.2
"""Least time of a slow call, relative to eager."""
KEPT_EXCESS = 0.5
"""Least share of a slow call's excess over eager in a part that is slow in the same way."""
CLEAR_MARGIN = 2 / 3
"""Factor of a limit below which one measurement decides."""
MAX_SPREAD = 2.0
"""Factor between a graph's two least excesses up to which its parts can be compared."""
REPEATS = 3
"""Measurements whose fastest times decide. Each is a process of its own."""
MAX_REPEATS = 8
"""Measurements of a graph whose excesses vary too much to compare its parts."""
TIMED_SECONDS = 0.3
"""Seconds that one measurement may take after its first calls."""
MIN_CALLS, MAX_CALLS = 5, 100


@dataclass(frozen=True)
class Slowdown:
    """Seconds of a call in eager and compiled."""

    eager: float = 0.0
    compiled: float = 0.0

    @property
    def ratio(self) -> float:
        """Compiled time over eager time."""
        return self.compiled / self.eager if self.eager else 0.0

    @property
    def excess(self) -> float:
        """Seconds that the compiled call takes longer."""
        return self.compiled - self.eager

    def fastest(self, other: Slowdown) -> Slowdown:
        """Return the shorter times of two measurements: other processes only add time."""
        return Slowdown(min(self.eager, other.eager), min(self.compiled, other.compiled))

    @property
    def sentence(self) -> str:
        """Both times as a sentence."""
        return (
            f"The call takes {format_seconds(self.compiled, 3)}, which is {self.ratio:.3g} times the {format_seconds(self.eager, 3)} "
            "of eager (the fastest of interleaved calls)."
        )


def measure_slowdown(eager: Run, compiled: Run, make_inputs: Callable[[], Sequence[Any]]) -> Slowdown:
    """Time two functions in turns on new inputs.

    The backward is included if a result requires a gradient. The fastest call of each counts: other processes only add time. The first calls compile and are not timed.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for run in (eager, compiled) * 2:
        _time_run(run, make_inputs())
    end = time.perf_counter() + TIMED_SECONDS
    while len(times[0]) < MIN_CALLS or (len(times[0]) < MAX_CALLS and time.perf_counter() < end):
        for run, seconds in zip((eager, compiled), times, strict=True):
            seconds.append(_time_run(run, make_inputs()))
    return Slowdown(min(times[0]), min(times[1]))


def _time_run(run: Run, inputs: Sequence[Any]) -> float:
    start = time.perf_counter()
    results = tree_leaves(run(*inputs))
    trained = [r for r in results if torch.is_tensor(r) and r.requires_grad]
    leaves = [t for t in inputs if torch.is_tensor(t) and t.requires_grad]
    if trained and leaves:
        torch.autograd.grad(trained, leaves, [torch.ones_like(r) for r in trained], allow_unused=True)
    return time.perf_counter() - start


def repeated_slowdown(measure: Callable[[], Slowdown]) -> tuple[Slowdown, float]:
    """Measure ``REPEATS`` times; return the fastest times and the factor to the next excess.

    More measurements follow while that factor is over ``MAX_SPREAD``: on a busy machine, few are undisturbed.
    """
    measurements = [measure() for _ in range(REPEATS)]
    while (spread := _relative_spread(measurements)) > MAX_SPREAD and len(measurements) < MAX_REPEATS:
        measurements.append(measure())
    return functools.reduce(Slowdown.fastest, measurements), spread


def _relative_spread(measurements: Sequence[Slowdown]) -> float:
    """Return the second least excess as a multiple of the least one."""
    eager = min(s.eager for s in measurements)
    least, second = sorted(s.compiled - eager for s in measurements)[:2]
    return second / least if least > 0 else float("inf")


def is_similarly_slow(measure: Callable[[], Slowdown], original: Slowdown) -> bool:
    """Return True if a part is slower than eager by enough of the original's excess.

    One measurement far below the limits decides. Else it is repeated, and the fastest times decide.
    """
    fastest = measure()
    for _ in range(REPEATS - 1):
        if _margin(fastest, original) < CLEAR_MARGIN:
            return False
        fastest = fastest.fastest(measure())
    return _margin(fastest, original) >= 1


def _margin(slowdown: Slowdown, original: Slowdown) -> float:
    """Return a part's distance to the nearer limit as a factor; at least 1 if similarly slow."""
    share = slowdown.excess / (KEPT_EXCESS * original.excess)
    return min(share, (slowdown.ratio - 1) / (MIN_RATIO - 1))
