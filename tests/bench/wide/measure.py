"""Measure one case in every way, in a process of its own; print the figures as JSON lines.

``python -m tests.bench.wide.measure "bert" --ways "eager;ours"`` compiles, prints, waits for a line on its input
(so that only one process times at once), and times. With ``--now`` it does not wait.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from tests.bench.wide.cases import CASES, Case

Step = Callable[[], Any]
MODES = {"": "default", " recorded": "reduce-overhead", " tuned": "max-autotune"}
WAYS = ("eager", *(f"{who}{how}" for how in MODES for who in ("ours", "torch")))
WARM_STEPS = 9


def compiled(way: str, target: Any) -> Any:
    """The target, compiled as the way says."""
    if way == "eager":
        return target
    who, _, how = way.partition(" ")
    mode = MODES[f" {how}" if how else ""]
    if who == "torch":
        return torch.compile(target, mode=None if mode == "default" else mode)
    import engine

    return engine.compile(target, options={"mode": mode})


def on_device(value: Any, case: Case, device: str) -> Any:
    """An argument on the device, in the case's type and layout."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.to(device)
    value = value.to(case.dtype) if value.is_floating_point() else value
    return value.contiguous(memory_format=torch.channels_last) if case.channels_last and value.dim() == 4 else value


def steps_of(case: Case, target: Any, call: Any, device: str) -> Step:
    """One step: a call, and with gradients a loss and the backward; arguments take turns."""
    torch.manual_seed(1)
    turns = [tuple(on_device(v, case, device) for v in given) for given in case.arguments()]
    is_module = isinstance(target, torch.nn.Module)
    if case.trains and not is_module:
        turns = [
            tuple(v.requires_grad_() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in t)
            for t in turns
        ]
    state = {"turn": 0}

    def autocast() -> Any:
        return torch.autocast(device, torch.bfloat16) if case.autocast else nullcontext()

    def step() -> Any:
        given = turns[state["turn"] % len(turns)]
        state["turn"] += 1
        if not case.trains:
            with torch.no_grad() if is_module else nullcontext(), autocast():
                return call(*given)
        leaves = list(target.parameters()) if is_module else [v for v in given if isinstance(v, torch.Tensor)]
        for leaf in leaves:
            leaf.grad = None
        with autocast():
            out = call(*given)
            loss = out.float().pow(2).mean()
        loss.backward()
        return (loss.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None))

    return step


def build(case: Case, way: str, device: str) -> Step:
    """The step of a case in one way; equal parameters in all ways."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if case.autocast else case.dtype)
    try:
        with torch.device(device):
            target = case.make()
    finally:
        torch.set_default_dtype(torch.float32)
    if isinstance(target, torch.nn.Module):
        target.train(case.trains)
        for p in target.parameters() if case.channels_last else ():
            p.data = p.data.contiguous(memory_format=torch.channels_last) if p.dim() == 4 else p.data
    return steps_of(case, target, compiled(way, target), device)


def numbers(result: Any) -> list[torch.Tensor]:
    """Copies of the first few tensors of a result, to compare."""
    found: list[torch.Tensor] = []
    for value in result if isinstance(result, (tuple, list)) else (result,):
        found += [value.detach().double().cpu()] if isinstance(value, torch.Tensor) else []
    return found[:8]


def error(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest relative difference of results."""
    return max((float((a - b).norm() / (b.norm() + 1e-9)) for a, b in zip(found, wanted, strict=False)), default=0.0)


def warm(step: Step) -> tuple[float, float, float, list[torch.Tensor]]:
    """Warm a step up; return cold seconds, peak and reserved megabytes, and its first result."""
    gc.collect()
    torch.cuda.empty_cache()
    before, held = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    start = time.perf_counter()
    first = numbers(step())
    torch.cuda.synchronize()
    cold = time.perf_counter() - start
    for _ in range(WARM_STEPS):
        step()
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return cold, peak / 1e6, (torch.cuda.max_memory_reserved() - held) / 1e6, first


def milliseconds(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """Median wall time of each step; the ways take turns, so other load meets all."""
    times: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(WARM_STEPS):  # the ways' memory moves when they take turns: let that settle
        for step in steps.values():
            step()
    begin = time.perf_counter()
    while min(map(len, times.values())) < 5 or (
        time.perf_counter() - begin < seconds
        and len(times["eager"] if "eager" in times else next(iter(times.values()))) < 200
    ):
        for way, step in steps.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times[way].append(time.perf_counter() - start)
    return {way: statistics.median(took) * 1e3 for way, took in times.items()}


def profiled(step: Step, count: int = 14) -> list[tuple[float, int, str]]:
    """Milliseconds, launches and names of the kernels of one step, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        step()
        torch.cuda.synchronize()
    rows = [
        (e.self_device_time_total / 1e3, e.count, e.key[:90])
        for e in seen.key_averages()
        if e.self_device_time_total > 0 and e.device_type == torch.autograd.DeviceType.CUDA
    ]
    return [(sum(r[0] for r in rows), sum(r[1] for r in rows), "all kernels"), *sorted(rows, reverse=True)[:count]]


def wait_for_turn() -> None:
    """Wait until the parent writes a line."""
    sys.stdin.readline()


def main() -> None:
    """Measure one case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--ways", default=";".join(WAYS))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--now", action="store_true")
    parser.add_argument("--profile", default="", help="ways to profile, separated by semicolons")
    options = parser.parse_args()
    case, told = CASES[options.case], {}
    torch.zeros(8, device="cuda").sum().item()
    if "ours" in options.ways:
        import engine  # the import is no part of the cold time

        engine.compile(lambda x: x.sin() + 1)(torch.randn(64, device="cuda"))
    if "torch" in options.ways:
        torch.compile(lambda x: x.sin() + 1)(torch.randn(64, device="cuda"))
    steps: dict[str, Step] = {}
    wanted: list[torch.Tensor] | None = None
    for way in options.ways.split(";"):
        try:
            torch._dynamo.reset()
            step = build(case, way, "cuda")
            cold, peak, reserved, first = warm(step)
        except Exception as problem:
            told[way] = {"failed": f"{type(problem).__name__}: {problem}".split("\n")[0][:300]}
            if os.environ.get("WIDE_TRACE"):
                import traceback

                traceback.print_exc()
            continue
        wanted = first if wanted is None else wanted
        steps[way] = step
        told[way] = {"cold": cold, "peak": peak, "reserved": reserved, "off": error(first, wanted)}
    print("ready", flush=True)
    if not options.now:
        wait_for_turn()
    for way, took in milliseconds(steps, options.seconds).items() if steps else ():
        told[way]["ms"] = took
    for way in options.profile.split(";") if options.profile else ():
        if way in steps:
            told[way]["kernels"] = profiled(steps[way])
    print(json.dumps({"case": options.case, "ways": told}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    _ = copy
    main()
