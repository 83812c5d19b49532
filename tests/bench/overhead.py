"""Warm calls: what a compiled call costs above the plain one, all ways interleaved in one process."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tests.bench.subjects import add, compilers, small_gpt, two_tensors


def per_call(call: Callable[[], Any], repeats: int) -> float:
    """Microseconds for one call, averaged over ``repeats``."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats * 1e6


def interleaved(ways: dict[str, Callable[[], Any]], *, rounds: int, repeats: int) -> dict[str, list[float]]:
    """Microseconds per call of each way, one figure a round; the order turns round by round, so that no way always comes first."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    names = list(ways)
    gc.disable()
    try:
        for index in range(rounds):
            turn = index % len(names)
            for name in names[turn:] + names[:turn]:
                times[name].append(per_call(ways[name], repeats))
    finally:
        gc.enable()
    return times


def above_plain(times: dict[str, list[float]]) -> dict[str, float]:
    """Median over the rounds of (way - plain) in microseconds."""
    plain = times["plain"]
    return {
        name: statistics.median(t - p for t, p in zip(row, plain, strict=True))
        for name, row in times.items()
        if name != "plain"
    }


def measure(*, rounds: int = 41) -> dict[str, dict[str, float]]:
    """Overheads in microseconds by subject and way."""
    found: dict[str, dict[str, float]] = {}
    with torch.no_grad():
        a, b = two_tensors()
        found["two tensors"] = _measure(add, (a, b), rounds=rounds, repeats=2000)
        model, args = small_gpt()
        found["small GPT"] = _measure(model, args, rounds=rounds, repeats=30)
    return found


def _measure(target: Any, args: tuple[Any, ...], *, rounds: int, repeats: int) -> dict[str, float]:
    ways: dict[str, Callable[[], Any]] = {"plain": lambda: target(*args)}
    for name, compile in compilers().items():
        compiled = compile(target)
        ways[name] = lambda compiled=compiled: compiled(*args)
    for way in ways.values():
        for _ in range(5):
            way()
    times = interleaved(ways, rounds=rounds, repeats=repeats)
    return above_plain(times) | {"plain": statistics.median(times["plain"])}
