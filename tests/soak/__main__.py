"""Soak the engine: ``python -m tests.soak --minutes 60 --seed 1``.

Cells with fresh code are compiled, run again and dropped, as in a notebook that is used for hours. Beside them other
threads call compiled functions, Ctrl-C arrives, children are forked and sessions are recorded and dropped. The report
says how memory grows with each compilation after the warm-up, and how the time of a call changes.
"""

from __future__ import annotations

import argparse
import gc
import os
import pathlib
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import engine

CELL = """
def helper(x):
    return x * {number} + x.sum()

@engine.compile(backend={backend!r})
def cell(x, log):
    y = helper(x).{call}()
    log.append({number})
    {pause}
    return (y - {number}).cumsum(0)
"""
BACKENDS = ("eager", "aot_eager", "triton")
CALLS = ("sin", "exp", "relu", "tanh", "abs")
PAUSES = ("pass", "engine.graph_break()")
MAX_SLOPE = 100.0
"""Bytes by which memory may grow with each compilation after the warm-up."""
WARM_UP_SHARE = 0.4
CALLS_A_SAMPLE = 200
CALLS_AT_ONCE, SECONDS_BETWEEN_CALLS = 50, 0.15
"""What each of the other threads does: with eight of them, ten million calls an hour."""
MIN_STEPS = 15
"""Steps of the shortest run: each kind once."""


@dataclass
class Soak:
    """State of one run: what was done, and the samples of memory and call time."""

    seed: int
    backends: Sequence[str] = BACKENDS
    compiles: int = 0
    calls: int = 0
    interrupts: int = 0
    forks: int = 0
    errors: list[str] = field(default_factory=list)
    memory: list[tuple[int, int, int]] = field(default_factory=list)
    """Compilations so far, bytes in memory, objects of the garbage collector."""
    call_seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.is_over = threading.Event()
        self.shared = engine.compile(lambda x: (x.sin() + 1).sum(), backend="aot_eager")

    def run_cell(self) -> None:
        """Compile and run one cell twice: the second time with another shape."""
        number, backend = self.random.randint(1, 10**9), self.random.choice(self.backends)
        text = CELL.format(
            number=number, backend=backend, call=self.random.choice(CALLS), pause=self.random.choice(PAUSES)
        )
        namespace: dict[str, Any] = {"engine": engine}
        exec(text, namespace)
        for size in (3, 3, 5):
            x, log, expected = torch.randn(size), [], []
            plain = namespace["cell"].__wrapped__
            result = namespace["cell"](x, log)
            if not torch.allclose(result, plain(x, expected), equal_nan=True) or log != expected:
                self.errors.append(f"wrong result or side effect of a cell, {backend}:{text}")
        self.compiles += 2

    def run_recorded_cell(self) -> None:
        """Run a cell while a session records; drop the session."""
        with engine.record() as session:
            self.run_cell()
        if not session.compilations:
            self.errors.append("a session recorded no compilation")

    def interrupt_cell(self) -> None:
        """Run a cell and press Ctrl-C a moment later; it must arrive, and only once."""
        timer = threading.Timer(self.random.random() * 0.05, signal.raise_signal, (signal.SIGINT,))
        self.interrupts += 1
        try:
            timer.start()
            self.run_cell()
            timer.join()
            time.sleep(1.0)
            self.errors.append("an interrupt was lost")
        except KeyboardInterrupt:
            timer.join()

    def fork(self) -> None:
        """Fork a child that compiles."""
        self.forks += 1
        child = os.fork()
        if not child:
            signal.alarm(120)  # ends a child that hangs
            status = 1
            try:
                self.errors.clear()
                self.run_cell()
                status = len(self.errors)
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            self.errors.append("a forked child could not compile")

    def call_often(self) -> None:
        """Call one compiled function until the end: the work of the other threads."""
        x = torch.randn(8)
        expected = (x.sin() + 1).sum()
        while not self.is_over.wait(SECONDS_BETWEEN_CALLS):
            for _ in range(CALLS_AT_ONCE):
                if not torch.allclose(self.shared(x), expected):
                    self.errors.append("wrong result in a thread")
            self.calls += CALLS_AT_ONCE

    def sample(self) -> None:
        """Note memory and the time of a call."""
        x = torch.randn(8)
        times = []
        for _ in range(CALLS_A_SAMPLE):
            start = time.thread_time()
            self.shared(x)
            times.append(time.thread_time() - start)
        self.call_seconds.append(min(times))
        gc.collect()
        gc.collect()
        self.memory.append((self.compiles, resident_bytes(), len(gc.get_objects())))

    def step(self, number: int) -> None:
        """Do one of the things that go on in a long session."""
        if number % 20 == 14 and hasattr(os, "fork"):
            self.fork()
        elif number % 10 == 3:
            self.interrupt_cell()
        elif number % 5 == 1:
            self.run_recorded_cell()
        else:
            self.run_cell()
        if number % 200 == 199:
            engine.reset()

    def run(self, seconds: float, threads: int) -> None:
        """Run until the time is over."""
        workers = [threading.Thread(target=self.call_often, daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        end, number = time.monotonic() + seconds, 0
        try:
            while time.monotonic() < end or number < MIN_STEPS:
                self.step(number)
                number += 1
                if number % 5 == 0:
                    self.sample()
        finally:
            self.is_over.set()
            for worker in workers:
                worker.join()

    def slope(self, column: int) -> float:
        """Return the growth for each compilation after the warm-up: bytes (1) or objects (2)."""
        rest = self.memory[int(len(self.memory) * WARM_UP_SHARE) :]
        if len(rest) < 2:
            return 0.0
        return statistics.linear_regression([m[0] for m in rest], [m[column] for m in rest]).slope

    def drift(self) -> float:
        """Return the time of a call in the last third of the run, over that in the second."""
        third = max(1, len(self.call_seconds) // 3)
        return statistics.median(self.call_seconds[-third:]) / statistics.median(self.call_seconds[third : 2 * third])

    def report(self) -> str:
        """Return what was done and measured, in lines."""
        return "\n".join(
            [
                f"{self.compiles} compilations, {self.calls} calls, {self.interrupts} interrupts, {self.forks} forks",
                f"memory: {self.slope(1):.0f} bytes and {self.slope(2):.2f} objects for each compilation",
                f"time of a call: {self.drift():.2f} times that of the middle of the run",
                *self.errors,
            ]
        )


def resident_bytes() -> int:
    """Return the process's memory, without pages that are shared with files."""
    fields = pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if something was wrong or memory grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--backend", action="append", help="a backend; more than once for several (default: all)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
    signal.signal(signal.SIGINT, signal.default_int_handler)
    soak = Soak(options.seed, options.backend or BACKENDS)
    soak.run(options.minutes * 60, options.threads)
    print(soak.report())
    return int(bool(soak.errors) or soak.slope(1) > MAX_SLOPE)


if __name__ == "__main__":
    sys.exit(main())
