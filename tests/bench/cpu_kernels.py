"""CPU kernels beside eager, and with ``--inductor`` beside torch.compile, in CPU time.

Usage: ``python -m tests.bench.cpu_kernels [NAMES...] [--inductor] [--threads N] [--json FILE]``. Each way is measured in
turn; with more than one thread, in wall time. Printed are ratios: above 1 ours is faster. "large" kernels move 64 MB or
more, and their line has the share of this machine's copy speed.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import engine
from tests.bench.subjects import small_gpt

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


def _recurrence(x: Any) -> Any:
    steps = [x[0]]
    for row in range(1, x.shape[0]):
        steps.append(steps[-1] * 0.99 + x[row])
    return torch.stack(steps)


def _alpha_weights(s: Any) -> Any:
    a = 1 - torch.exp(-s * 0.1)
    t = torch.cumprod(1 - a + 1e-10, -1)
    return a * torch.cat([torch.ones_like(t[:, :1]), t[:, :-1]], -1)


def _focal(x: Any, t: Any) -> Any:
    p = torch.sigmoid(x)
    right = p * t + (1 - p) * (1 - t)
    loss = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    return (loss * (1 - right) ** 2 * (0.25 * t + 0.75 * (1 - t))).mean()


def _decode_boxes(x: Any) -> Any:
    x = x.permute(0, 2, 3, 1)
    return torch.cat([x[..., :2].sigmoid() * 2 - 0.5, (x[..., 2:4].sigmoid() * 2) ** 2, x[..., 4:].sigmoid()], -1)


def _join(x: Any, low: Any) -> Any:
    return torch.cat([F.interpolate(F.silu(low), scale_factor=2), F.silu(F.group_norm(x, 4))], 1)


def _rotary_pairs(x: Any, c: Any, s: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


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
    "layer norm over channels": (
        lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (96,), w, b).permute(0, 3, 1, 2).contiguous(),
        lambda: (r(8, 96, 28, 28), r(96), r(96)),
    ),
    "power": (lambda x: x.abs() ** 2.3, lambda: (r(1024, 1024),)),
    "embedding": (lambda w, i: w[i] * 2.0, lambda: (r(5000, 256), torch.randint(0, 5000, (4096,)))),
    "addition": (lambda a, b: a + b, lambda: (r(1024, 1024), r(1024, 1024))),
    "running sum": (lambda x: (x * 2).cumsum(-1), lambda: (r(1024, 1024),)),
    "root mean square norm": (lambda x: F.rms_norm(x, (1024,)), lambda: (r(1024, 1024),)),
    "group norm": (lambda x: F.group_norm(x, 8).relu(), lambda: (r(16, 64, 32, 32),)),
    "softmax with mask": (
        lambda x, m: torch.softmax(x.masked_fill(m, -1e9) * 0.125, -1),
        lambda: (r(8, 128, 1024), r(128, 1024) > 0),
    ),
    "softmax over rows": (lambda x: torch.softmax(x * 2, 0), lambda: (r(1024, 1024),)),
    "swish and norm": (lambda x, y: F.layer_norm(F.silu(x) * y, (1024,)), lambda: (r(1024, 1024), r(1024, 1024))),
    "double tanh": (lambda x: x.double().tanh() * 2, lambda: (r(512, 1024),)),
    "float16 gelu": (lambda x: F.gelu(x) + x, lambda: (r(1024, 1024).half(),)),
    "integer arithmetic": (lambda x: (x * 3 + 1) // 7, lambda: (torch.randint(0, 99, (1024, 1024)),)),
    "comparison and choice": (lambda x, y: torch.where(x > y, x * 2, y), lambda: (r(1024, 1024), r(1024, 1024))),
    "huber loss": (F.smooth_l1_loss, lambda: (r(1024, 1024), r(1024, 1024))),
    "binary cross entropy": (
        F.binary_cross_entropy_with_logits,
        lambda: (r(1024, 1024), r(1024, 1024)),
    ),
    "batch norm, inference": (
        lambda x, m, v: F.batch_norm(x, m, v).relu(),
        lambda: (r(16, 64, 32, 32), r(64), r(64).abs()),
    ),
    "total variation": (
        lambda x: (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean(),
        lambda: (r(8, 3, 128, 128),),
    ),
    "stack of a recurrence": (_recurrence, lambda: (r(16, 1024),)),
    "log of a running sum": (lambda x: x.abs().cumsum(-1).log1p(), lambda: (r(64, 1024),)),
    "running product weights": (_alpha_weights, lambda: (torch.rand(4096, 64),)),
    "focal loss": (_focal, lambda: (r(4096, 80), (torch.rand(4096, 80) > 0.9).float())),
    "channel statistics": (lambda x: (x.mean((0, 2, 3)), x.var((0, 2, 3))), lambda: (r(8, 64, 56, 56),)),
    "heat equation": (
        lambda u: u + 0.1 * (u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u),
        lambda: (r(512, 512),),
    ),
    "box decoding": (_decode_boxes, lambda: (r(8, 85, 40, 40),)),
    "rotary pairs": (_rotary_pairs, lambda: (r(2, 8, 128, 64), r(128, 32), r(128, 32))),
    "complex product and sum": (
        lambda a, b: a * b + a.conj(),
        lambda: (torch.complex(r(300, 300), r(300, 300)), torch.complex(r(300, 300), r(300, 300))),
    ),
    "stack of three": (lambda a, b: torch.stack([a + b, a - b, a * b], -1), lambda: (r(256, 256), r(256, 256))),
    "average of uneven windows": (lambda x: F.adaptive_avg_pool2d(x * 2, (5, 9)) + 1, lambda: (r(2, 16, 56, 56),)),
    "softmax over the middle": (lambda x: torch.softmax(x, 1), lambda: (r(64, 64, 64),)),
    "log softmax of short rows": (lambda x: F.log_softmax(x, -1), lambda: (r(16384, 16),)),
    "maximum over rows": (lambda x: x.amax(-1), lambda: (r(3400, 77),)),
    "norm beside a skip connection": (_join, lambda: (r(2, 16, 64, 64), r(2, 16, 32, 32))),
    "large in place": (lambda x, b: x.mul_(0.5).add_(b), lambda: (r(4096, 4096), r(4096))),
    "large chain": (lambda x, y: torch.relu(x * 2 + y), lambda: (r(1 << 24), r(1 << 24))),
    "large double": (lambda x: x * 2, lambda: (r(1 << 24),)),
    "large thin product": (lambda a, b: torch.relu(a @ b), lambda: (r(1 << 14, 64), r(64, 1 << 10))),
    "large sum": (lambda x: (x * x).sum(), lambda: (r(1 << 24),)),
    "small sum": (lambda x: x.sum(1), lambda: (r(8, 16, 8),)),
    "small maximum pooling": (lambda x: F.max_pool2d(x, 2), lambda: (r(2, 4, 11, 11),)),
    "small chain": (lambda x: torch.sigmoid(torch.sin(F.gelu(x))), lambda: (r(64),)),
}


class _SmallUNet(nn.Module):
    """One level down and up, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm, self.up = nn.GroupNorm(4, 16), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        """Return an image of the input's size."""
        kept = F.silu(self.norm(self.down(x)))
        low = F.silu(self.middle(F.avg_pool2d(kept, 2)))
        return self.up(torch.cat([F.interpolate(low, scale_factor=2), kept], 1))


def _step(model: Any, *shape: int) -> tuple[Any, Callable[[], tuple[torch.Tensor, ...]]]:
    """Return a training step of a model, compiled as a whole by each way, and its input."""

    def step(run: Any, x: torch.Tensor) -> None:
        model.zero_grad()
        run(x).square().mean().backward()

    return (model, step), lambda: (r(*shape),)


def models() -> dict[str, tuple[Any, Callable[[], tuple[torch.Tensor, ...]]]]:
    """Return the measured models, each with a function that makes a step of it."""
    mlp = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))
    cnn = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3600, 10)
    )
    unet = _SmallUNet()
    gpt, tokens = small_gpt()

    def call(run: Any, x: torch.Tensor) -> None:
        with torch.no_grad():
            run(x)

    def train(run: Any, x: torch.Tensor) -> None:
        gpt.zero_grad()
        found = run(x)
        (found[0] if isinstance(found, tuple) else found).square().mean().backward()

    return {
        "MLP, training step": _step(mlp, 32, 64),
        "CNN, training step": _step(cnn, 8, 3, 32, 32),
        "U-Net, training step": _step(unet, 2, 3, 64, 64),
        "GPT, training step": ((gpt, train), lambda: tokens),
        "GPT, warm call": ((gpt, call), lambda: tokens),
    }


def seconds(
    ways: dict[str, Callable[..., Any]], args: tuple[torch.Tensor, ...], clock: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Return the least time of a call of each way, measured in turn."""
    start = time.perf_counter()
    for way in ways.values():
        way(*args)
    count = max(3, int(0.01 * len(ways) / max(time.perf_counter() - start, 1e-6)))
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, way in ways.items():
            start = clock()
            for _ in range(count):
                way(*args)
            best[name] = min(best[name], (clock() - start) / count)
    return best


def copy_speed(clock: Callable[[], float]) -> float:
    """Return the bytes per second that a copy of 64 MB moves, read and written."""
    given, taken = torch.empty(1 << 24), torch.empty(1 << 24)
    return 2 * given.nbytes / seconds({"copy": lambda: taken.copy_(given)}, (), clock)["copy"]


def bytes_of(args: tuple[torch.Tensor, ...], result: Any) -> int:
    """Return the bytes of arguments and results."""
    return sum(t.nbytes for t in (*args, *(result if isinstance(result, tuple) else (result,))))


def main() -> None:
    """Print the ratios of each kernel and model, and their geometric means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="file to write the ratios to, by way and subject")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    engine.config.cpu_kernels = True
    clock = time.thread_time if given.threads == 1 else time.perf_counter
    speed, found = copy_speed(clock), dict[str, dict[str, float]]()
    compilers: dict[str, Callable[[Any], Any]] = {"eager": lambda f: f, "ours": engine.compile}
    if given.inductor:
        compilers["torch.compile"] = torch.compile
    subjects: dict[str, Any] = {**KERNELS, **models()}
    for name, (function, make) in subjects.items():
        if given.names and not any(n in name for n in given.names):
            continue
        args = make()
        if isinstance(function, tuple):
            model, step = function
            ways = {way: functools.partial(step, compile(model)) for way, compile in compilers.items()}
            _measure(name, ways, args, clock, found)
            continue
        ways = {way: compile(function) for way, compile in compilers.items()}
        with torch.no_grad():
            taken = _measure(name, ways, args, clock, found)
            if name.startswith("large"):
                share = bytes_of(args, function(*args)) / taken["ours"] / speed
                print(f"{'':24s} {share:.2f} of the speed of a copy", flush=True)
    for way, by_name in found.items():
        ratios = list(by_name.values())
        print(f"geometric mean against {way}: {geometric_mean(ratios):.2f}, least {min(ratios):.2f}, of {len(ratios)}")
    if given.json is not None:
        given.json.write_text(json.dumps(found), encoding="utf-8")


def geometric_mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def _measure(
    name: str,
    ways: dict[str, Callable[..., Any]],
    args: tuple[torch.Tensor, ...],
    clock: Callable[[], float],
    found: dict[str, dict[str, float]],
) -> dict[str, float]:
    """Measure one subject, print its ratios, and add them to ``found``."""
    for way in ways.values():
        way(*args)
    taken = seconds(ways, args, clock)
    ratios = {way: taken[way] / taken["ours"] for way in ways if way != "ours"}
    for way, ratio in ratios.items():
        found.setdefault(way, {})[name] = ratio
    print(f"{name:24s} {'  '.join(f'{way} {ratio:6.2f}' for way, ratio in ratios.items())}", flush=True)
    return taken


if __name__ == "__main__":
    main()
