"""Compare captured backwards of GPT-2 with torch's compiled autograd.

Measures the first backward, which is captured and compiled, and those that follow.

``python -m tests.bench.backward WAY`` prints the seconds of the first and of a warm backward as JSON. The
engine and torch's compiled autograd share one cache in torch, so each runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from typing import Any

import torch

from tests.bench.subjects import gpt2, throw_away

WAYS = ("engine", "torch", "plain")
WARM = 30
"""Warm backwards timed, of which the median counts."""


def capturing(way: str) -> contextlib.AbstractContextManager[Any]:
    """Return the context that captures backwards and runs them operator by operator.

    The engine's or torch's, by ``way``; a null context for any other.
    """
    if way == "torch":
        from torch._dynamo import compiled_autograd

        return compiled_autograd._enable(torch.compile(backend="eager"))
    if way == "engine":
        import engine

        return engine.compiled_autograd("eager")
    return contextlib.nullcontext()


def seconds(loss: torch.Tensor, way: str) -> float:
    """Seconds of one backward."""
    with capturing(way):
        start = time.perf_counter()
        loss.backward()
        return time.perf_counter() - start


def measure(way: str) -> dict[str, float]:
    """Seconds of the first backward and of a warm one."""
    small, given = throw_away()
    seconds(small.train()(*given).sum(), way)
    model, words = gpt2()
    times = []
    for _ in range(WARM + 2):
        model.zero_grad(set_to_none=True)
        times.append(seconds(model(*words, use_cache=False).last_hidden_state.square().sum(), way))
    return {"results": times[0], "warm": statistics.median(times[2:])}


if __name__ == "__main__":
    print("\n" + json.dumps(measure(sys.argv[1])))
