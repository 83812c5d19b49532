"""Measure reports from logs beside tlparse, and what observing adds to a compile.

A report is measured from log to full report, in time and memory; tlparse only where it is installed. The
compile is by Inductor.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SMALL_MB = 5
LARGE_MB = 100
MODEL = """
import torch
from tests.programs.models.small_models import Gpt
torch.manual_seed(0)
compiled = torch.compile(Gpt().train())
for batch in (2, 3):
    compiled(torch.randint(0, 37, (batch, 8)))[0].sum().backward()
"""
COMPILE = """
import contextlib, json, os, sys
import torch
import torch._inductor.config
from tests.programs.models.small_models import Gpt
from engine.observe.observe_torch import observe_torch
torch.manual_seed(0)
torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()))(torch.ones(2, 4)).sum().backward()
model, x = Gpt().train(), torch.randint(0, 37, (2, 8))
with observe_torch() if sys.argv[1] == "observed" else contextlib.nullcontext():
    before = os.times()
    torch.compile(model)(x)[0].sum().backward()
    after = os.times()
print(json.dumps(sum(after[:4]) - sum(before[:4])))
"""


@dataclass(frozen=True)
class Cost:
    """Return the seconds of a program and its peak memory with its children, in megabytes."""

    seconds: float
    megabytes: float


def run(command: list[str], folder: Path) -> Cost:
    """Run a program to its end, looking at its memory a hundred times a second."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0.0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, sum(_resident(pid) for pid in _family(process.pid)))
            done.wait(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = process.wait()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    if status:
        raise RuntimeError(f"{command[0]} ended with status {status}")
    return Cost(seconds, peak)


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _resident(pid: int) -> float:
    """Return the memory that a process shares with no other, in megabytes.

    A forked child shares most of its parent's memory.
    """
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    found = re.search(r"^Pss:\s+(\d+) kB", told, re.MULTILINE)
    return int(found[1]) / 1024 if found else 0.0


def make_log(folder: Path, megabytes: int, seed: bytes) -> Path:
    """Make a log of about this size by repeating one run with other frame numbers."""
    path = folder / f"trace_{megabytes}.log"
    with path.open("wb") as file:
        copy = 0
        while file.tell() < megabytes * 1_000_000 - len(seed) // 2:
            for line in seed.split(b"\n"):
                if copy and line.startswith(b"V") and b'] {"str": [' in line:
                    continue
                file.write(_shifted(line, copy) + b"\n")
            copy += 1
    return path


def _shifted(line: bytes, copy: int) -> bytes:
    if not line.startswith(b"V"):
        return line
    return re.sub(rb'"frame_id": (\d+)', lambda m: b'"frame_id": %d' % (int(m[1]) + 1000 * copy), line)


def a_trace(folder: Path) -> bytes:
    """The trace of a small GPT trained with two batch sizes under Inductor."""
    script = folder / "model.py"
    script.write_text(MODEL)
    env = os.environ | {"TORCH_TRACE": str(folder / "trace"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    subprocess.run([sys.executable, str(script)], env=env, check=True, capture_output=True)
    return b"".join(p.read_bytes() for p in sorted((folder / "trace").iterdir()))


def reports(rounds: int) -> list[tuple[int, Cost, Cost | None]]:
    """Return the median cost of a report for each size, the engine's and tlparse's.

    The two are measured in turns. None means that tlparse is not installed.
    """
    tlparse = shutil.which(os.environ.get("TLPARSE", "tlparse"))
    found = []
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as name:
        folder = Path(name)
        seed = a_trace(folder)
        for size in (SMALL_MB, LARGE_MB):
            log = make_log(folder, size, seed)
            ours: list[Cost] = []
            theirs: list[Cost] = []
            for _ in range(rounds if size == SMALL_MB else max(1, rounds // 3)):
                ours.append(
                    run([sys.executable, "-m", "notebook_ext", str(log), "-o", str(folder / "page.html")], Path.cwd())
                )
                if tlparse:
                    command = [tlparse, str(log), "-o", str(folder / "tl_out"), "--overwrite", "--no-browser"]
                    theirs.append(run(command, folder))
            found.append((size, _middle(ours), _middle(theirs) if theirs else None))
    return found


def _middle(costs: list[Cost]) -> Cost:
    return Cost(statistics.median(c.seconds for c in costs), statistics.median(c.megabytes for c in costs))


def observing(rounds: int) -> tuple[float, float]:
    """Return median seconds of a cold Inductor training compile, observed and not.

    The two take turns, each in a process of its own.

    The seconds are processor time, including that of children: other load on the machine affects it least.
    """
    times: dict[str, list[float]] = {"observed": [], "plain": []}
    with tempfile.TemporaryDirectory(prefix="bench-observe-") as name:
        script = Path(name) / "compile.py"
        script.write_text(COMPILE)
        for index in range(rounds):
            for way, told in list(times.items())[:: 1 if index % 2 else -1]:
                env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": f"{name}/{way}{index}"}
                ran = subprocess.run(
                    [sys.executable, str(script), way], env=env, check=True, capture_output=True, text=True
                )
                told.append(json.loads(ran.stdout.strip().splitlines()[-1]))
    return statistics.median(times["observed"]), statistics.median(times["plain"])
