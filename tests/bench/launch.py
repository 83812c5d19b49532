"""Measure the CPU cost of a call that launches one small kernel, beside torch.compile.

``python -m tests.bench.launch`` runs it on the local GPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

CALLS = 300


def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The smallest useful work."""
    return a + b


def microseconds(call: Callable[[], Any], rounds: int = 30) -> float:
    """Return the median over rounds of the mean time until a call returns.

    The GPU is never far behind.
    """
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        times.append((time.perf_counter() - start) / CALLS)
    return statistics.median(times) * 1e6


def main() -> None:
    """Measure each way, and print microseconds and ratios."""
    import engine

    a, b = torch.randn(2, 64, device="cuda")
    fast = {"mode": "reduce-overhead"}
    ways: dict[str, Callable[..., Any]] = {
        "eager": add,
        "engine": engine.compile(add),
        "engine, recorded": engine.compile(add, options=fast),
        "torch": torch.compile(add),
        "torch, recorded": torch.compile(add, mode="reduce-overhead"),
    }
    found = {}
    for way, call in ways.items():
        for _ in range(20):
            call(a, b)
        found[way] = microseconds(lambda: call(a, b))  # noqa: B023
        print(f"{way:<20}{found[way]:>8.2f} us a call")
    print(f"engine / torch: {found['engine'] / found['torch']:.2f}")
    print(f"recorded, engine / torch: {found['engine, recorded'] / found['torch, recorded']:.2f}")


if __name__ == "__main__":
    main()
