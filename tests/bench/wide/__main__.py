"""Print ours beside torch.compile; above 1 ours is faster.

``python -m tests.bench.wide --models --part 1/3 --minutes 9``: a part of the models, within a time box. Processes
compile side by side (the cold times of all ways suffer alike) and are timed one after the other.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import queue
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from tests.bench.wide.cases import CASES, KERNELS, LATE, MODELS, OLDER, RECENT, STEPS, UNSEEN


@dataclass
class Worker:
    """A process that measures one case: its lines arrive in a queue."""

    case: str
    process: subprocess.Popen[str]
    lines: queue.Queue[str] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def wait_for(self, start: str, until: float) -> str:
        """The next line with this start; empty if the process ends or the time is over."""
        while True:
            try:
                line = self.lines.get(timeout=max(until - time.perf_counter(), 0.01))
            except queue.Empty:
                return ""
            if not line or line.startswith(start):
                return line


def measure_batch(cases: list[str], extra: list[str], until: float, seconds: float) -> list[dict[str, Any]]:
    """Compile a batch side by side, then time its cases one after the other.

    Each case is measured in so many ``seconds``.
    """
    workers = []
    for case in cases:
        command = [sys.executable, "-m", "tests.bench.wide.measure", case, *extra]
        workers.append(
            Worker(case, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        )
    latest = until - seconds * len(cases)  # leave time to measure those that are ready
    ready = [worker for worker in workers if worker.wait_for("ready", latest)]
    for worker in workers:
        if worker not in ready:
            worker.process.kill()
    found = []
    for worker in ready:
        assert worker.process.stdin is not None
        worker.process.stdin.write("go\n")
        worker.process.stdin.flush()
        line = worker.wait_for("{", until)
        found.append(json.loads(line) if line else {"case": worker.case, "ways": {}})
    for worker in workers:
        worker.process.kill()
    known = {one["case"] for one in found}
    return found + [{"case": case, "ways": {}} for case in cases if case not in known]


def best(ways: dict[str, Any], who: str, key: str) -> float:
    """The least figure of one compiler over its modes; NaN without one.

    Memory is that of the default mode, if measured: a replayed graph's memory is not allocated during the step.
    """
    if key in ("peak", "reserved") and key in ways.get(who, {}):
        return float(ways[who][key])
    found = [w[key] for name, w in ways.items() if name.split()[0] == who and key in w]
    return min(found, default=math.nan)


def row(one: dict[str, Any]) -> str:
    """One line: ratios of best to best in time, memory and cold time, then each way."""
    ways = one["ways"]
    quotients = []
    for key in ("ms", "peak", "reserved", "cold"):
        ours, other = best(ways, "ours", key), best(ways, "torch", key)
        quotients.append(f"{other / ours:>7.2f}" if key == "ms" else f"{ours / max(other, 0.1):>7.2f}")
    shown = []
    for name, w in ways.items():
        shown.append(
            f"{name} {w['failed'][:120]}"
            if "failed" in w
            else f"{name} {w.get('ms', math.nan):.3f} ms {w['peak']:.0f}/{w['reserved']:.0f} MB {w['cold']:.0f} s"
            + (f" OFF {w['off']:.1e}" if not w["off"] < 0.02 else "")
        )
    return f"{one['case']:<44}{''.join(quotients)}   " + "; ".join(shown)


def selected(options: argparse.Namespace) -> list[str]:
    """The names of the cases to measure."""
    if options.only:
        return [name for name in CASES if any(part.strip() == name for part in options.only.split(","))]
    groups = [
        g
        for g, wanted in (
            (MODELS, options.models),
            (UNSEEN, options.unseen),
            (OLDER, options.older),
            (RECENT, options.recent),
            (LATE, options.late),
            (STEPS, options.steps),
            (KERNELS, options.kernels),
        )
        if wanted
    ]
    names = [name for group in (groups or [CASES]) for name in group]
    number, count = (int(n) for n in options.part.split("/"))
    return names[number - 1 :: count]


def main() -> None:
    """Measure the cases in batches until the time box is full."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--unseen", action="store_true", help="models that nothing was tuned for")
    parser.add_argument("--older", action="store_true", help="well-known older models")
    parser.add_argument("--recent", action="store_true", help="models of vision, sound, graphs and language")
    parser.add_argument("--late", action="store_true", help="models added after all tuning")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--part", default="1/1", help="the first of three parts: 1/3")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--batch", type=int, default=8, help="processes that compile side by side")
    parser.add_argument("--ways", default="eager;ours;ours recorded;torch;torch recorded")
    parser.add_argument("--profile", default="", help="ways whose kernels are listed")
    parser.add_argument("--seconds", type=float, default=1.5, help="seconds of timing for each case")
    parser.add_argument("--out", default="", help="file for all figures")
    options = parser.parse_args()
    until = time.perf_counter() + 60 * options.minutes
    names = selected(options)
    print(f"{'best of ours against best of torch:':<44}{'speed':>7}{'peak':>7}{'held':>7}{'cold':>7}", flush=True)
    extra = ["--ways", options.ways, "--seconds", str(options.seconds), "--profile", options.profile]
    seconds = 3 + options.seconds + (4 * (1 + options.profile.count(";")) if options.profile else 0)
    found: list[dict[str, Any]] = []
    for start in range(0, len(names), options.batch):
        if time.perf_counter() > until - 30:
            print("not measured, for want of time:", ", ".join(names[start:]))
            break
        for one in measure_batch(names[start : start + options.batch], extra, until, seconds):
            found.append(one)
            print(row(one), flush=True)
            for way, w in one["ways"].items():
                for took, count, name in w.get("kernels", ()):
                    print(f"        {way:<16}{took:9.3f} ms {count:5d} x {name}", flush=True)
            if options.out:
                pathlib.Path(options.out).write_text(json.dumps(found))
    speeds = [best(o["ways"], "torch", "ms") / best(o["ways"], "ours", "ms") for o in found]
    known = [s for s in speeds if s == s]
    if known:
        print(
            f"geometric mean of {len(known)}: {math.exp(sum(map(math.log, known)) / len(known)):.2f}, least {min(known):.2f}"
        )


if __name__ == "__main__":
    main()
