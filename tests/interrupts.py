"""Forced interrupts: send SIGINT at chosen Python calls of a compilation.

``python -m tests.interrupts MODEL BACKEND COUNT SEED`` prints one line of JSON per interrupt. It runs in a process of
its own, because an interrupt at the wrong place ends the process. ``python -m tests.interrupts timed MODEL BACKEND COUNT
SEED`` sends them from a timer instead, also while compiled code and inputs are freed.
"""

from __future__ import annotations

import gc
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import engine
from tests.global_state import differences, global_state

Step = Callable[[], Any]
BACKENDS = ("eager", "aot_eager", "triton")


@dataclass(frozen=True)
class Subject:
    """One program: ``eager`` and ``compiled`` run the same step on equal state."""

    eager: Step
    compiled: Step


def _training(module: nn.Module, x: torch.Tensor, backend: str) -> Subject:
    compiled = engine.compile(module, backend=backend)

    def step(run: nn.Module) -> Any:
        module.zero_grad()
        y = run(x)
        y.sum().backward()
        return y.detach(), [p.grad.clone() for p in module.parameters()]  # type: ignore[union-attr]

    return Subject(lambda: step(module), lambda: step(compiled))


def _encoder(backend: str) -> Subject:
    module = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return _training(module, torch.randn(2, 3, 8), backend)


def _linear(backend: str) -> Subject:
    return _training(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4), backend)


def _convolution(backend: str) -> Subject:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).eval()
    return _training(module, torch.randn(2, 1, 4, 4), backend)


def _attention(backend: str) -> Subject:
    def attend(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.where(mask, (q @ q.mT).softmax(-1), 0.0).cumsum(0)

    compiled = engine.compile(attend, backend=backend, dynamic=True)
    q, mask = torch.randn(3, 4), torch.rand(3, 3) > 0.5
    return Subject(lambda: attend(q, mask), lambda: compiled(q, mask))


class _Holder:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.table: dict[str, torch.Tensor] = {}


def _containers(backend: str) -> Subject:
    def run(holder: _Holder, x: torch.Tensor) -> Any:
        for n in range(3):
            holder.seen.append(n)
            holder.table[f"k{n}"] = x * n
        engine.graph_break()
        try:
            return sum(holder.table.values()) + x[0].item(), list(holder.seen)
        finally:
            x.mul_(1.0)

    x = torch.randn(3)
    compiled = engine.compile(run, backend=backend)
    return Subject(lambda: run(_Holder(), x), lambda: compiled(_Holder(), x))


MODELS: dict[str, Callable[[str], Subject]] = {
    "encoder": _encoder,
    "linear": _linear,
    "convolution": _convolution,
    "attention": _attention,
    "containers": _containers,
}


class _CallCounter:
    """Profile function that counts Python calls, and sends SIGINT at one of them."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self.count = 0
        self.sent_at = 0.0
        self.place = ""

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        if event != "call":
            return
        self.count += 1
        if self.count == self.position:
            sys.setprofile(None)
            self.place = f"{frame.f_code.co_filename.rpartition('site-packages/')[2]}:{frame.f_code.co_qualname}"
            self.sent_at = time.thread_time()
            signal.raise_signal(signal.SIGINT)

    def run(self, step: Step) -> Any:
        """Run a step under this profile function."""
        sys.setprofile(self)
        try:
            return step()
        finally:
            sys.setprofile(None)


def _alike(a: Any, b: Any) -> bool:
    try:
        torch.testing.assert_close(a, b)
    except AssertionError:
        return False
    return True


def interrupt(model: str, backend: str, position: int) -> dict[str, Any]:
    """Interrupt one compilation at its ``position``-th Python call; return what was seen."""
    engine.reset()
    torch.manual_seed(0)
    subject = MODELS[model](backend)
    ignored: list[Any] = []
    sys.unraisablehook = lambda found: ignored.append(repr(found.exc_value))
    gc.collect()
    before, counter = global_state(), _CallCounter(position)
    outcome, delay = "lost", 0.0
    try:
        counter.run(subject.compiled)
    except KeyboardInterrupt:
        outcome, delay = "raised", time.thread_time() - counter.sent_at
    except BaseException as error:
        outcome = repr(error)
    changed = differences(before, global_state())
    after = subject.compiled()
    right = _alike(after, subject.eager())
    return {
        "position": position,
        "place": counter.place,
        "outcome": outcome if counter.sent_at else "not reached",
        "delay": delay,
        "ignored": ignored,
        "changed": {name: repr(pair)[:300] for name, pair in changed.items()},
        "right": right,
    }


def run_timed(model: str, backend: str, count: int, seed: int) -> Counter[str]:
    """Send interrupts at random times while programs are compiled and freed; count them."""
    rng, main = random.Random(seed), threading.get_ident()
    found: Counter[str] = Counter()

    def once() -> Subject:
        engine.reset()
        subject = MODELS[model](backend)
        subject.compiled()
        return subject

    once()
    start = time.perf_counter()
    once()
    seconds = time.perf_counter() - start
    sys.unraisablehook = lambda at: found.update([f"ignored in {at.object!r}"])
    for _ in range(count):
        timer = threading.Timer(rng.random() * seconds, signal.pthread_kill, (main, signal.SIGINT))
        try:
            timer.start()
            while timer.is_alive():
                subject = once()
            time.sleep(0.01)
            found["lost"] += 1
        except KeyboardInterrupt:
            found["raised"] += 1
        timer.join()
        subject = once()
        found["wrong"] += not _alike(subject.compiled(), subject.eager())
    return found


def count_calls(model: str, backend: str) -> int:
    """Return the number of Python calls of a compiling call, after everything was imported."""
    for _ in range(2):
        engine.reset()
        torch.manual_seed(0)
        subject, counter = MODELS[model](backend), _CallCounter()
        counter.run(subject.compiled)
        _alike(subject.compiled(), subject.eager())
    return counter.count


def run_child(model: str, backend: str, positions: int, seed: int, skip: int = 0) -> None:
    """Interrupt at ``positions`` places, in a fixed random order; print a line for each."""
    total = count_calls(model, backend)
    chosen = [random.Random(seed + n).randint(1, total) for n in range(positions)]
    print(json.dumps({"calls": total}), flush=True)
    for number, position in enumerate(chosen[skip:], skip):
        print(json.dumps({"number": number, "position": position}), flush=True)
        print(json.dumps({"number": number, **interrupt(model, backend, position)}), flush=True)


def measure(model: str, backend: str, positions: int, seed: int, timeout: float) -> list[dict[str, Any]]:
    """Run the interrupts in child processes; one that dies is an outcome."""
    found: dict[int, dict[str, Any]] = {}
    while len(found) < positions:
        arguments = [
            sys.executable,
            "-m",
            "tests.interrupts",
            model,
            backend,
            str(positions),
            str(seed),
            str(len(found)),
        ]
        made = subprocess.run(arguments, capture_output=True, text=True, timeout=timeout, check=False)
        lines = [json.loads(line) for line in made.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            if "outcome" in line:
                found[line["number"]] = line
        if made.returncode == 0:
            break
        started = [line for line in lines if "number" in line]
        if not started:
            raise RuntimeError(made.stderr[-2000:])
        last = started[-1]
        found[last["number"]] = {**last, "outcome": f"died with {made.returncode}", "stderr": made.stderr[-500:]}
    return list(found.values())


def is_good(seen: dict[str, Any]) -> bool:
    """Return True if the interrupt was raised, the state is equal and the next result right."""
    return (
        seen["outcome"] in ("raised", "not reached") and not seen["changed"] and not seen["ignored"] and seen["right"]
    )


def main(arguments: Sequence[str]) -> None:
    """Run as a child, or, with ``all``, as the measurement of every model and backend."""
    if arguments[0] == "all":
        for model in MODELS:
            for backend in BACKENDS:
                seen = measure(model, backend, int(arguments[1]), 0, 3600.0)
                delays = sorted(s.get("delay", 0.0) for s in seen)
                print(
                    model,
                    backend,
                    Counter(s["outcome"] for s in seen),
                    f"slowest {delays[-1] * 1000:.0f} ms of CPU",
                    flush=True,
                )
                for bad in (s for s in seen if not is_good(s)):
                    print("   ", json.dumps(bad), flush=True)
        return
    if arguments[0] == "timed":
        print(run_timed(arguments[1], arguments[2], int(arguments[3]), int(arguments[4])))
        return
    model, backend, positions, seed, *skip = arguments
    run_child(model, backend, int(positions), int(seed), int(skip[0]) if skip else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
