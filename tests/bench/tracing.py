"""Measure cold tracing of GPT-2 with twelve layers in a process of its own.

The model is transformers' GPT-2 with a small width. ``python -m tests.bench.tracing WAY`` prints seconds as
JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from tests.bench.subjects import throw_away

WAYS = ("engine", "torch")


def gpt2() -> tuple[Any, dict[str, torch.Tensor]]:
    """GPT-2 as in ``transformers``, random weights, and token ids."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(n_embd=32, n_layer=12, n_head=4, vocab_size=100, n_positions=64)
    return transformers.GPT2Model(config).eval(), {"input_ids": torch.randint(0, 100, (2, 16))}


def compiled(way: str, target: Any) -> Any:
    """The target under backend "eager", ours or torch's."""
    if way == "torch":
        return torch.compile(target, backend="eager")
    import engine

    return engine.compile(target, backend="eager")


if __name__ == "__main__":
    with torch.no_grad():
        small, arguments = throw_away()
        compiled(sys.argv[1], small)(*arguments)
        model, words = gpt2()
        start = time.perf_counter()
        compiled(sys.argv[1], model)(**words)
        print("\n" + json.dumps({"results": time.perf_counter() - start}))
