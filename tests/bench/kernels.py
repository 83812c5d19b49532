"""Compare memory-bound kernels on the local GPU with torch.compile and a plain copy.

``python -m tests.bench.kernels`` runs it. The speed of the copy is measured.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

F = torch.nn.functional
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Subject:
    """A function, a maker of its GPU arguments, and the least bytes it must read and write."""

    function: Callable[..., Any]
    makes: tuple[Callable[[], torch.Tensor], ...]
    moved: int


def normal(*shape: int, dtype: torch.dtype = BF16) -> Callable[[], torch.Tensor]:
    """Normally distributed numbers on the GPU."""
    return lambda: torch.randn(shape, device="cuda").to(dtype)


def tokens(count: int, below: int) -> Callable[[], torch.Tensor]:
    """Random class numbers on the GPU."""
    return lambda: torch.randint(0, below, (count,), device="cuda")


def _rms(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    added = x + residual
    return F.rms_norm(added, (added.shape[-1],), weight), added  # type: ignore[return-value]


MB = 1 << 20
SUBJECTS: dict[str, Subject] = {
    "gelu, sin, sigmoid": Subject(
        lambda x: torch.sigmoid(torch.sin(F.gelu(x))), (normal(16384, 8192),), 2 * 2 * 128 * MB
    ),
    "softmax 16384x8192": Subject(lambda x: torch.softmax(x, -1), (normal(16384, 8192),), 2 * 2 * 128 * MB),
    "log_softmax 4096x32000": Subject(lambda x: torch.log_softmax(x, -1), (normal(4096, 32000),), 4 * 4096 * 32000),
    "layer norm 16384x4096": Subject(
        lambda x, w, b: F.layer_norm(x, (4096,), w, b), (normal(16384, 4096), normal(4096), normal(4096)), 4 * 64 * MB
    ),
    "rms norm and residual": Subject(_rms, (normal(16384, 4096), normal(16384, 4096), normal(4096)), 4 * 2 * 64 * MB),
    "cross-entropy 8192x32000": Subject(F.cross_entropy, (normal(8192, 32000), tokens(8192, 32000)), 2 * 8192 * 32000),
    "sum over rows": Subject(lambda x: x.sum(0), (normal(16384, 8192),), 2 * 128 * MB),
    "sum of everything": Subject(lambda x: x.sum(), (normal(16384, 8192),), 2 * 128 * MB),
    "transpose and add": Subject(lambda x, y: x.T + y, (normal(8192, 16384), normal(16384, 8192)), 3 * 2 * 128 * MB),
    "heads apart": Subject(
        lambda x: x.view(16, 1024, 32, 128).transpose(1, 2).contiguous() * 2, (normal(16, 1024, 4096),), 4 * 64 * MB
    ),
    "images to channels last": Subject(
        lambda x: F.relu(x).contiguous(memory_format=torch.channels_last),
        (normal(64, 256, 56, 56),),
        4 * 64 * 256 * 56 * 56,
    ),
    "bias, gelu": Subject(lambda x, b: F.gelu(x + b), (normal(16384, 4096), normal(4096)), 4 * 64 * MB),
    "embedding": Subject(lambda t, w: F.embedding(t, w) * 2, (tokens(65536, 50257), normal(50257, 1024)), 4 * 64 * MB),
    "cumulative sum": Subject(lambda x: x.cumsum(-1), (normal(16384, 4096, dtype=torch.float32),), 8 * 64 * MB),
    "batch norm, training": Subject(
        lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, training=True)),
        (normal(64, 256, 56, 56), normal(256, dtype=torch.float32), normal(256, dtype=torch.float32)),
        6 * 64 * 256 * 56 * 56,
    ),
}


def _mlp(x: torch.Tensor, up: torch.Tensor, bias: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return F.gelu(torch.addmm(bias, x, up)) @ down


MLP = Subject(_mlp, (normal(8192, 4096), normal(4096, 16384), normal(16384), normal(16384, 4096)), 0)
"""Bound by arithmetic, not by memory: of two products, with an activation between them."""
MLP_WORK = 2 * 2 * 8192 * 4096 * 16384


LEAD = 300_000
"""Cycles that the card waits before each call, so that launches are not timed."""


def seconds(*calls: Callable[[], Any], rounds: int = 25) -> list[float]:
    """Return the median GPU time of each call, with the L2 cache flushed before it.

    The calls take turns, since a warm GPU is slower.
    """
    flush = torch.empty(256 * MB, dtype=torch.int8, device="cuda")
    for call in calls * 3:
        call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, took in zip(calls, times, strict=True):
            flush.zero_()
            torch.cuda._sleep(LEAD)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            took.append(float(start.elapsed_time(end)) / 1e3)
    return [statistics.median(took) for took in times]


def copy_speed() -> float:
    """Bytes per second of a device copy, reading and writing counted."""
    source = torch.empty(512 * MB, dtype=torch.int8, device="cuda")
    into = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: into.copy_(source))[0]


def main() -> None:
    """Measure each subject; print its share of the copy's speed and ratio to torch.compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="subjects whose name holds one of these words; all without")
    parser.add_argument(
        "--tune", action="store_true", help="measure other blocks, too, and print the share of the copy with them"
    )
    options = parser.parse_args()
    import engine

    peak = copy_speed()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; a copy moves {peak / 1e9:.0f} GB/s")
    print(f"{'':<28}{'GB/s':>7}{'of copy':>9}{'torch':>8}{'ratio':>7}{'tuned':>9}")
    ratios = []
    for name, subject in SUBJECTS.items():
        if options.names and not any(word in name for word in options.names):
            continue
        args = [make() for make in subject.makes]
        with torch.no_grad():
            ours, theirs = engine.compile(subject.function), torch.compile(subject.function)
            torch.testing.assert_close(ours(*args), subject.function(*args), rtol=4e-2, atol=4e-2)
            theirs(*args)
            ways = [ours, theirs, *([_tuned(subject, args)] if options.tune else [])]
            mine, other, *best = seconds(*(functools.partial(way, *args) for way in ways))
            tuned = f"{subject.moved / best[0] / peak:.2f}" if best else ""
        speed = subject.moved / mine
        ratios.append(other / mine)
        print(
            f"{name:<28}{speed / 1e9:>7.0f}{speed / peak:>9.2f}{subject.moved / other / 1e9:>8.0f}{other / mine:>7.2f}{tuned:>9}",
            flush=True,
        )
    if ratios:
        print(f"geometric mean over torch.compile: {math.exp(statistics.fmean(map(math.log, ratios))):.2f}")
    if not options.names or "mlp" in options.names:
        mlp()


def _tuned(subject: Subject, args: list[torch.Tensor]) -> Callable[..., Any]:
    """A subject whose kernels' blocks were measured; prints what was."""
    import engine

    fast = engine.compile(subject.function, options={"mode": "max-autotune-no-cudagraphs"})
    with engine.record() as session:
        torch.testing.assert_close(fast(*args), subject.function(*args), rtol=4e-2, atol=4e-2)
    for compiled in session.compilations:
        for choice in compiled.lowering.autotune_choices if compiled.lowering else ():
            times = ", ".join(f"{way.removeprefix('blocks of ')}: {s * 1e6:.1f}" for way, s in choice.candidates if s)
            print(f"    {choice.chosen} of {times} us")
    return fast


def mlp() -> None:
    """Measure two matmuls with an activation between them, beside torch.compile.

    Measured with and without autotuned templates.
    """
    import engine

    args = [make() * 0.1 for make in MLP.makes]
    tuned = engine.compile(MLP.function, options={"mode": "max-autotune-no-cudagraphs"})
    ways = {"engine": engine.compile(MLP.function), "engine, tuned": tuned, "torch": torch.compile(MLP.function)}
    with torch.no_grad():
        wanted = MLP.function(*args)
        for way in ways.values():
            torch.testing.assert_close(way(*args), wanted, rtol=4e-2, atol=wanted.abs().max().item() * 1e-2)
        found = dict(zip(ways, seconds(*(functools.partial(way, *args) for way in ways.values())), strict=True))
    print(f"{'mlp with gelu':<28}{'ms':>7}{'TFLOP/s':>9}{'ratio':>8}")
    for name, took in found.items():
        print(f"{name:<28}{took * 1e3:>7.3f}{MLP_WORK / took / 1e12:>9.0f}{found['torch'] / took:>8.2f}")


if __name__ == "__main__":
    main()
