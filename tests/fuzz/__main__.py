"""Fuzz the engine: ``python -m tests.fuzz programs --seed 1 --minutes 10``."""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.forked import Worker, run_forked
from tests.fuzz.shrink import shrink
from tests.fuzz.targets import Aliasing, Kernels, Programs, Target, warm_up
from tests.programs import PROGRAMS_FOLDER

SHRINK_SECONDS = 60.0


@dataclass
class Report:
    """What a run has seen."""

    runs: int = 0
    found: list[str] = field(default_factory=list)


def kind_of(line: str) -> str:
    """Return what differs, without places, numbers and names.

    Two programs with the same kind likely share a cause.
    """
    where, _, what = line.partition(": ")
    where = re.split(r"[\[.]", re.sub(r"call \d+", "call", where))[0]
    return re.sub(r"'[^']*'|\b[\w.]*\d[\w.]*|\(.*\)|\[.*\]", "_", f"{where}: {what}")[:90]


def fuzz(
    target: Target,
    seeds: Sequence[int],
    backends: Sequence[str],
    folder: pathlib.Path,
    *,
    minutes: float = 1e9,
    shrink_seconds: float = SHRINK_SECONDS,
) -> Report:
    """Run cases until the time is spent; shrink and write those that differ."""
    end = time.monotonic() + minutes * 60
    report = Report()
    worker = Worker(lambda seed, backend: target.differences(target.text_of(seed), backend))
    try:
        for seed in seeds:
            for backend in backends:
                if time.monotonic() > end:
                    return report
                report.runs += 1
                found = worker.run(seed, backend)
                if found:
                    _judge(report, target, (seed, backend, found[0]), worker, folder, shrink_seconds)
                    break  # the next backends would most likely show the same
    finally:
        worker.close()
    return report


def _judge(
    report: Report,
    target: Target,
    found: tuple[int, str, str],
    worker: Worker,
    folder: pathlib.Path,
    shrink_seconds: float,
) -> None:
    """Report a difference that a worker has seen, and whether the program differs alone too."""
    seed, backend, first = found
    seeds = sorted({other for other, _ in worker.done})
    worker.close()
    text = target.text_of(seed)
    alone = run_forked(lambda: target.differences(text, backend))
    if alone:
        _report(report, target, text, (seed, backend, alone[0]), folder, shrink_seconds)
        return
    report.found.append(f"seed {seed} [{backend}], only after the programs {seeds[0]} to {seeds[-1]}: {first[:300]}")
    print(report.found[-1], flush=True)


def _report(
    report: Report, target: Target, text: str, found: tuple[int, str, str], folder: pathlib.Path, seconds: float
) -> None:
    seed, backend, first = found

    def still_differs(smaller: str) -> bool:
        lines = run_forked(lambda: target.differences(smaller, backend, is_shrinking=True))
        return any(kind_of(line) == kind_of(first) for line in lines)

    smallest = shrink(text, still_differs, seconds) if seconds else text
    path = folder / f"seed_{seed}_{backend}.py"
    path.write_text(smallest, encoding="utf-8")
    report.found.append(f"seed {seed} [{backend}]: {first[:300]} ({path})")
    print(report.found[-1], flush=True)


def keep(path: pathlib.Path) -> None:
    """Copy a smallest program into ``tests/programs``, where every backend runs it."""
    name = path.stem.rpartition("_")[0]
    folder = PROGRAMS_FOLDER / "found_by_fuzzing"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=("programs", "kernels", "aliasing"))
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1_000_000_000, help="how many seeds")
    parser.add_argument("--minutes", type=float, default=10.0, help="when to stop")
    parser.add_argument("--backend", action="append", help="a backend; more than once for several (default: all)")
    parser.add_argument(
        "--shrink-seconds", type=float, default=SHRINK_SECONDS, help="time to make one program smaller; 0 for none"
    )
    parser.add_argument("--output", type=pathlib.Path, help="folder for the smallest programs")
    parser.add_argument("--keep", action="store_true", help="add the smallest programs to tests/programs")
    options = parser.parse_args(arguments)
    folder = options.output or pathlib.Path(tempfile.mkdtemp(prefix="fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    target = (
        Aliasing()
        if options.target == "aliasing"
        else {"programs": Programs, "kernels": Kernels}[options.target](folder)
    )
    warm_up()
    seeds = range(options.seed, options.seed + options.count)
    report = fuzz(
        target,
        seeds,
        options.backend or target.backends,
        folder,
        minutes=options.minutes,
        shrink_seconds=options.shrink_seconds,
    )
    print(f"{report.runs} runs from seed {options.seed}, {len(report.found)} programs differ; see {folder}")
    if options.keep and options.target != "aliasing":
        for path in sorted(folder.glob("seed_*.py")):
            keep(path)
    return 1 if report.found else 0


if __name__ == "__main__":
    sys.exit(main())
