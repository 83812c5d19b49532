"""Figures measured on the learner's machine: races, times, and operators of a call."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from torch.profiler import profile

from engine.records.format_amounts import format_seconds
from notebook_ext.display import DETERMINISTIC_ENV

__all__ = ["count_operators", "race", "show_times"]

BAR_WIDTH = 40
NOT_SAVED = "as measured on your machine"
"""Text instead of a time when a notebook runs to produce its saved outputs."""


def race(
    plain: Callable[..., Any],
    compiled: Callable[..., Any],
    *args: Any,
    rounds: int = 9,
    names: tuple[str, str] = ("plain", "compiled"),
) -> float:
    """Time two functions in turn, show a bar for the best time of each, and return the ratio.

    Above 1 the second one is faster. Its first call, which compiles it, is not timed.
    """
    compiled(*args)
    pairs = [(_seconds(plain, *args), _seconds(compiled, *args)) for _ in range(rounds)]
    first, second = (min(taken) for taken in zip(*pairs, strict=True))
    show_times({names[0]: first, names[1]: second})
    ratio: float = first / second
    return ratio


def show_times(seconds: dict[str, float]) -> None:
    """Print a bar per time, and how many times as fast as the first one each is."""
    width, longest = max(map(len, seconds)), max(seconds.values())
    first = next(iter(seconds.values()))
    for name, taken in seconds.items():
        if os.environ.get(DETERMINISTIC_ENV):
            print(f"{name:{width}}  time: {NOT_SAVED}")
            continue
        bar = "█" * max(1, round(BAR_WIDTH * taken / longest))
        speed = f"{first / taken:.1f} times as fast" if taken < 10 * first else f"{taken / first:,.0f} times as long"
        ratio = "" if taken is first else f"   {speed}"
        print(f"{name:{width}}  {bar} {format_seconds(taken, 3)}{ratio}")


def count_operators(function: Callable[..., Any], *args: Any) -> Counter[str]:
    """Return how often each operator runs in one call, by ``torch.profiler``."""
    with _without_stderr(), profile() as seen:
        function(*args)
    return Counter({event.key.removeprefix("aten::"): event.count for event in seen.key_averages()})


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what native code writes to stderr: the profiler writes process ids there."""
    kept = os.dup(2)
    try:
        with pathlib.Path(os.devnull).open("w", encoding="utf-8") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _seconds(function: Callable[..., Any], *args: Any) -> float:
    start = time.perf_counter()
    function(*args)
    return time.perf_counter() - start
