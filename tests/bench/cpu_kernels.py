"""CPU kernels beside eager, and with ``--inductor`` beside torch.compile, in CPU time.

Usage: ``python -m tests.bench.cpu_kernels [NAMES...] [--inductor]``. One thread, each way measured in turn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

import engine

ROUNDS = 7
r = torch.randn


def _adamw(p: Any, g: Any, m: Any, v: Any) -> Any:
    m, v = m * 0.9 + g * 0.1, v * 0.999 + g * g * 0.001
    return p - 1e-3 * (m / (1 - 0.9**3)) / ((v / (1 - 0.999**3)).sqrt() + 1e-8) - 1e-5 * p, m, v


def _rms_residual(x: Any, residual: Any, w: Any) -> Any:
    h = x + residual
    return h, h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def _rope(q: Any, c: Any, s: Any) -> Any:
    a, b = q.chunk(2, -1)
    return torch.cat([a * c - b * s, b * c + a * s], -1)


KERNELS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "gelu chain": (lambda x: torch.sigmoid(torch.sin(F.gelu(x))), lambda: (r(1024, 1024),)),
    "rms norm with residual": (_rms_residual, lambda: (r(1024, 1024), r(1024, 1024), r(1024))),
    "cross entropy": (F.cross_entropy, lambda: (r(512, 8192), torch.randint(0, 8192, (512,)))),
    "AdamW step": (_adamw, lambda: (r(1 << 20), r(1 << 20), r(1 << 20), r(1 << 20).abs())),
    "transpose and add": (lambda a, b: a.t() + b, lambda: (r(1024, 1024), r(1024, 1024))),
    "rope": (_rope, lambda: (r(8, 16, 256, 64), r(256, 32), r(256, 32))),
    "sum over rows": (lambda x: x.sum(0), lambda: (r(4096, 1024),)),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (r(1024, 1024),)),
    "log softmax": (lambda x: F.log_softmax(x, -1), lambda: (r(512, 4096),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (1024,), w, b), lambda: (r(1024, 1024), r(1024), r(1024))),
    "bias and gelu": (lambda x, b: F.gelu(x + b, approximate="tanh"), lambda: (r(1024, 1024), r(1024))),
    "silu and product": (lambda a, b: F.silu(a) * b, lambda: (r(1024, 1024), r(1024, 1024))),
    "mean squared error": (lambda a, b: ((a - b) ** 2).mean(), lambda: (r(1024, 1024), r(1024, 1024))),
    "bfloat16 relu": (lambda x, y: torch.relu(x * 2 + y), lambda: (r(1024, 1024).bfloat16(), r(1024, 1024).bfloat16())),
    "concatenation": (lambda a, b: torch.cat([a.relu(), b], 1), lambda: (r(1024, 512), r(1024, 512))),
    "variance": (lambda x: x.var(-1), lambda: (r(1024, 1024),)),
    "argmax": (lambda x: x.argmax(-1), lambda: (r(1024, 1024),)),
    "embedding": (lambda w, i: w[i] * 2.0, lambda: (r(5000, 256), torch.randint(0, 5000, (4096,)))),
    "addition": (lambda a, b: a + b, lambda: (r(1024, 1024), r(1024, 1024))),
    "running sum": (lambda x: (x * 2).cumsum(-1), lambda: (r(1024, 1024),)),
    "small chain": (lambda x: torch.sigmoid(torch.sin(F.gelu(x))), lambda: (r(64),)),
}


def seconds(ways: dict[str, Callable[..., Any]], args: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """Return the least CPU time of a call of each way, measured in turn."""
    start = time.perf_counter()
    for way in ways.values():
        way(*args)
    count = max(3, int(0.01 * len(ways) / max(time.perf_counter() - start, 1e-6)))
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = time.thread_time()
            for _ in range(count):
                way(*args)
            best[name] = min(best[name], (time.thread_time() - start) / count)
    return best


def main(names: list[str], *, with_inductor: bool) -> None:
    """Print the ratios of each kernel."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    engine.config.cpu_kernels = True
    for name, (function, make) in KERNELS.items():
        if names and not any(n in name for n in names):
            continue
        args = make()
        ways = {"ours": engine.compile(function), "eager": function}
        if with_inductor:
            ways["torch.compile"] = torch.compile(function)
        with torch.no_grad():
            for way in ways.values():
                way(*args)
            found = seconds(ways, args)
        ratios = "  ".join(f"{way} {found[way] / found['ours']:6.2f}" for way in ways if way != "ours")
        print(f"{name:24s} {ratios}", flush=True)


if __name__ == "__main__":
    main([a for a in sys.argv[1:] if not a.startswith("-")], with_inductor="--inductor" in sys.argv)
