"""Run ``make bench``: compare overheads and compile times with stock torch.compile.

Overheads and cold compile times are ratios to torch.compile in the same run, checked against the floors.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import torch

from tests.bench import backward, explorer, overhead, traces, tracing, training
from tests.bench.cpu_kernels import geometric_mean

COLD_WAYS = ("engine", "%%compile", "torch eager", "torch inductor")


@dataclass(frozen=True)
class Row:
    """One line of the table: the engine's figure, the other's, and the largest allowed ratio.

    A ratio of None means that the line is for information only.
    """

    what: str
    ours: float
    other: float
    unit: str
    against: str
    floor: float | None = None

    def __str__(self) -> str:
        known = self.ours > 0 and self.other > 0
        ratio = self.ours / self.other if known else float("nan")
        met = ratio <= (self.floor or 0) if known else self.ours <= self.other
        verdict = "" if self.floor is None else ("met" if met else "MISSED")
        shown = f"{ratio:.2f}" if known else "-"
        floor = "" if self.floor is None else f"{self.floor:.2f}"
        return f"{self.what:<52}{self.ours:>9.2f}{self.other:>10.2f} {self.unit:<3}{shown:>7}{floor:>7} {verdict:<7} {self.against}"


HEADER = f"{'':<52}{'ours':>9}{'torch':>10} {'':<3}{'ratio':>7}{'floor':>7}"


def cold(way: str, module: str = "tests.bench.cold") -> dict[str, float]:
    """Seconds of one cold compile in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="bench-cold-") as folder:
        env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        ran = subprocess.run([sys.executable, "-m", module, way], env=env, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"{way} failed:\n{ran.stderr}")
    return dict(json.loads(ran.stdout.strip().splitlines()[-1]))


def cold_rows(rounds: int) -> list[Row]:
    """Measure the cold compile of the small GPT.

    Each figure is the median over rounds in which every variant runs once.
    """
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in COLD_WAYS}
    for _ in range(rounds):
        for way in COLD_WAYS:
            runs[way].append(cold(way))

    def middle(way: str, key: str = "results") -> float:
        return statistics.median(run[key] for run in runs[way])

    last = runs["engine"][-1]
    print(
        f"small GPT: {last['kernels']:.0f} kernels, {last['compiled']:.0f} compiled for cuda:90, {last['breaks']:.0f} breaks"
    )
    inductor, eager = middle("torch inductor"), middle("torch eager")
    return [
        Row("cold compile, small GPT, to results and Triton text", middle("engine"), inductor, "s", "inductor", 0.5),
        Row("  the same, with all cubins for cuda:90", middle("engine", "cubins"), inductor, "s", "inductor", 1.0),
        Row("  the same cell under %%compile, to its summary", middle("%%compile"), inductor, "s", "inductor"),
        Row("  to results and Triton text", middle("engine"), eager, "s", 'backend="eager"'),
    ]


def tracing_rows(rounds: int) -> list[Row]:
    """Cold tracing of GPT-2, backend "eager"; medians over rounds in which both ran once."""
    runs: dict[str, list[float]] = {way: [] for way in tracing.WAYS}
    for _ in range(rounds):
        for way, found in runs.items():
            found.append(cold(way, "tests.bench.tracing")["results"])
    ours, theirs = (statistics.median(runs[way]) for way in tracing.WAYS)
    return [Row("cold tracing, GPT-2 of 12 layers, backend eager", ours, theirs, "s", 'backend="eager"', 1.0)]


def training_rows(rounds: int, cold_rounds: int) -> list[Row]:
    """Compare training through joint graphs with torch's.

    Measures a warm step, a cold compile, and what is saved for backward.
    """
    runs: dict[str, list[float]] = {way: [] for way in training.WAYS}
    for _ in range(cold_rounds):
        for way, found in runs.items():
            found.append(cold(way, "tests.bench.training")["results"])
    ours, theirs = (statistics.median(runs[way]) for way in training.WAYS)
    step, saved = training.step_microseconds(rounds=rounds), training.saved_bytes()
    against = "torch aot_eager"
    return [
        Row("training step of an MLP above its two graphs", step["engine"], step["torch"], "us", against, 0.5),
        Row("cold training compile, GPT-2 of 12 layers", ours, theirs, "s", against, 1.0),
        Row("saved for its backward", saved["engine"] / 1e3, saved["torch"] / 1e3, "kB", "torch min-cut", 1.0),
    ]


def backward_rows(cold_rounds: int) -> list[Row]:
    """Measure the captured backward of GPT-2, run operator by operator: first and warm.

    Figures are medians over rounds in which each variant runs once.
    """
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in backward.WAYS}
    for _ in range(cold_rounds):
        for way, found in runs.items():
            found.append(cold(way, "tests.bench.backward"))

    def middle(way: str, key: str) -> float:
        return statistics.median(run[key] for run in runs[way])

    ours, theirs = ([middle(way, key) for key in ("results", "warm")] for way in ("engine", "torch"))
    return [
        Row("first backward of GPT-2, captured and compiled", ours[0], theirs[0], "s", "compiled autograd", 1.0),
        Row("  a warm one", ours[1] * 1e3, theirs[1] * 1e3, "ms", "compiled autograd", 1.0),
        Row(
            "  a warm one, by autograd's own engine", ours[1] * 1e3, middle("plain", "warm") * 1e3, "ms", "not captured"
        ),
    ]


def overhead_rows(rounds: int) -> list[Row]:
    """Warm overheads above the plain call."""
    rows = []
    for subject, found in overhead.measure(rounds=rounds).items():
        floor = 0.2 if subject == "two tensors" else None
        plain = found["plain"]
        print(f"{subject}: the plain call takes {plain:.1f} us")
        for backend, other in (("eager", "eager"), ("triton", "inductor")):
            ours, theirs = found[f"engine {backend}"], found[f"torch {other}"]
            wanted = floor if backend == "eager" else None
            rows += [
                Row(f"warm overhead, {subject}, backend {backend}", ours, theirs, "us", f"torch {other}", wanted),
                Row("  the whole call", plain + ours, plain + theirs, "us", f"torch {other}"),
            ]
    idle = overhead.idle_calls(rounds=rounds)
    what = "GPT-2, 12 layers: dispatch, guards, generated code"
    rows.append(Row(what, idle["engine"], idle["torch"], "us", "torch, idle graph", 0.5))
    rows.append(
        Row("explaining an entry of 10,000 guards", overhead.explain_milliseconds(), 100.0, "ms", "100 ms", 1.0)
    )
    return rows


def cpu_rows() -> list[Row]:
    """Compare CPU kernels with eager and with Inductor's C++, on one thread and on all.

    Figures are times in units of the other's: below 1 ours is faster. Without a C++ compiler, eager is all there is.
    """
    has_compiler = any(map(shutil.which, filter(None, (os.environ.get("CXX"), "g++", "c++", "clang++"))))
    if not has_compiler:
        print("No C++ compiler is installed, so Inductor's C++ is not measured.")
    floors = {"eager": (1.0, 1.1), "torch.compile": (1 / 1.3, 1 / 0.85)}
    rows = []
    for threads in sorted({1, os.cpu_count() or 1}):
        found = _cpu_ratios(threads, with_inductor=has_compiler)
        for way, by_name in found.items():
            slowest = min(by_name, key=by_name.__getitem__)
            what = (
                f"{len(by_name)} CPU kernels and models, {threads} thread{'s' if threads > 1 else ''}, geometric mean"
            )
            mean = 1 / geometric_mean(by_name.values())
            rows += [
                Row(what, mean, 1.0, "x", way, floors[way][0]),
                Row(f"  the slowest: {slowest}", 1 / by_name[slowest], 1.0, "x", way, floors[way][1]),
            ]
    return rows


def _cpu_ratios(threads: int, *, with_inductor: bool) -> dict[str, dict[str, float]]:
    """Return the others' times over ours, by way and subject, measured in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="bench-cpu-") as folder:
        path = pathlib.Path(folder, "ratios.json")
        command = [sys.executable, "-m", "tests.bench.cpu_kernels", "--threads", str(threads), "--json", str(path)]
        env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        subprocess.run([*command, *(["--inductor"] if with_inductor else [])], env=env, check=True)
        return dict(json.loads(path.read_text(encoding="utf-8")))


def trace_rows(rounds: int) -> list[Row]:
    """A log to a full report, and what observing costs."""
    rows = []
    for size, ours, theirs in traces.reports(rounds):
        if theirs is None:
            print(
                f"tlparse is not installed (or named by TLPARSE): {size} MB to a report in {ours.seconds:.2f} s, {ours.megabytes:.0f} MB of memory"
            )
            continue
        floor = 2.0 if size == traces.SMALL_MB else 1.0
        rows.append(Row(f"trace of {size} MB to a full report", ours.seconds, theirs.seconds, "s", "tlparse", floor))
        wanted = 0.5 if size == traces.LARGE_MB else None
        rows.append(Row("  its peak memory", ours.megabytes, theirs.megabytes, "MB", "tlparse", wanted))
    observed, plain = traces.observing(rounds)
    rows.append(Row("cold training compile by inductor, observed", observed, plain, "s", "not observed", 1.05))
    return rows


def explorer_rows() -> list[Row]:
    """The explorer in a browser, each figure beside the most that it may be."""
    return [Row(what, ours, bar, unit, "the most it may take", 1.0) for what, ours, bar, unit in explorer.measure()]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41, help="rounds of warm calls")
    parser.add_argument("--cold-rounds", type=int, default=3, help="rounds of cold compiles")
    parser.add_argument("--trace-rounds", type=int, default=5, help="rounds of reports and of observed compiles")
    parser.add_argument(
        "--only", choices=("overhead", "cold", "tracing", "traces", "training", "backward", "cpu", "explorer")
    )
    options = parser.parse_args()
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    )
    rows: list[Row] = []
    if options.only in (None, "overhead"):
        rows += overhead_rows(options.rounds)
    if options.only in (None, "cold"):
        rows += cold_rows(options.cold_rounds)
    if options.only in (None, "tracing"):
        rows += tracing_rows(options.cold_rounds)
    if options.only in (None, "training"):
        rows += training_rows(options.rounds, options.cold_rounds)
    if options.only in (None, "backward"):
        rows += backward_rows(options.cold_rounds)
    if options.only in (None, "cpu"):
        rows += cpu_rows()
    if options.only in (None, "traces"):
        rows += trace_rows(options.trace_rounds)
    if options.only in (None, "explorer"):
        rows += explorer_rows()
    print(f"\n{HEADER}")
    for row in rows:
        print(row)
    print(
        "\nOverheads are medians of (compiled - plain) within a round, below zero where compiled code is faster than the plain call."
    )


if __name__ == "__main__":
    main()
