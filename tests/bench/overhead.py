"""Measure how much a warm compiled call costs above the plain one.

All variants are interleaved in one process.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from engine.guards.codegen import compile_check
from engine.guards.explain import explain
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.sources.base import FrameScope
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import LocalSource
from tests.bench.subjects import add, compilers, gpt2, idle, small_gpt, two_tensors


def per_call(call: Callable[[], Any], repeats: int) -> float:
    """Microseconds for one call, averaged over ``repeats``."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats * 1e6


def interleaved(ways: dict[str, Callable[[], Any]], *, rounds: int, repeats: int) -> dict[str, list[float]]:
    """Return microseconds per call of each variant, one figure per round.

    The order rotates every round, so that no variant always runs first.
    """
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


def idle_calls(*, rounds: int = 41) -> dict[str, float]:
    """Return microseconds per call of the twelve-layer GPT-2 with an idle graph, by variant.

    This leaves dispatch, guards and generated code.
    """
    import engine

    model, args = gpt2()
    with torch.no_grad():
        compiled = {"engine": engine.compile(model, backend=idle), "torch": torch.compile(model, backend=idle)}
        ways: dict[str, Callable[[], Any]] = {
            name: (lambda way=way: way(*args, use_cache=False)) for name, way in compiled.items()
        }
        for way in ways.values():
            for _ in range(5):
                way()
        times = interleaved(ways, rounds=rounds, repeats=50)
    return {name: min(row) for name, row in times.items()}


def explain_milliseconds(count: int = 10_000) -> float:
    """Milliseconds to explain one call against an entry with this many guards."""
    guards = tuple(
        EqualsMatch(GetItemSource(GetItemSource(LocalSource("x"), i // 100), i % 100), i) for i in range(count)
    )
    in_order = compile_check(guards, ("x",)).guards
    scope = FrameScope({"x": [[100 * i + j for j in range(100)] for i in range(count // 100)]})
    taken = []
    for _ in range(5):
        start = time.thread_time()
        explain(in_order, scope)
        taken.append(time.thread_time() - start)
    return min(taken) * 1e3
