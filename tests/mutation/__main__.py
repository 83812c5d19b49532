"""Plant faults in the engine: ``python -m tests.mutation --seed 1 --count 40``.

Each mutant is printed with its seed: killed if a test that reaches its statement fails or hangs, survived with its
difference, or not reached by any test of its area. Tests run in a copy of the tree, so child processes have the mutant.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.mutation.mutants import ROOT, TESTS, VALUES_TEST, Mutant, mutant_of

TESTS_PASSED = 0
KILLED = (1, 2, 4)
"""Exit codes of pytest: a test fails, or an import fails, so that tests are not collected."""
MAX_SECONDS, MAX_CASES = 60.0, 6
"""Bounds of the tests of one mutant: seconds, and cases in Triton's interpreter."""

Reach = dict[str, tuple[float, list[Any]]]


def copy_tree(target: pathlib.Path) -> None:
    """Copy the files that git knows, changed or not."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    )
    for name in listed.stdout.decode().split("\0"):
        if name.startswith(("engine/", "notebook_ext/", "tests/", "pyproject")) and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def read_reach(path: pathlib.Path) -> Reach:
    """Return which tests reach which statements; measure it if there is no such file.

    Raises:
        CalledProcessError: a test fails without a mutant.
    """
    if not path.exists():
        new = path.with_suffix(".new")
        subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.mutation.reach", new, *TESTS], cwd=ROOT, check=True
        )
        new.replace(path)
    return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def tests_for(mutant: Mutant, reach: Reach) -> list[str]:
    """Return the tests that reach a mutant's statement, the fastest first, within the bounds.

    Those in Triton's interpreter come last, as it starts slowly.
    """
    place = [mutant.path, mutant.line]
    found = sorted((seconds, name) for name, (seconds, places) in reach.items() if place in places)
    interpreted = [name for _, name in found if name.startswith(VALUES_TEST)]
    chosen: list[str] = []
    total = 0.0
    for seconds, name in found:
        if name not in interpreted and (total + seconds <= MAX_SECONDS or not chosen):
            total += seconds
            chosen.append(name)
    return chosen + interpreted[:MAX_CASES]


def run_mutant(mutant: Mutant, tests: Sequence[str], tree: pathlib.Path, limit: float) -> str:
    """Return ``killed``, ``timed out``, ``survived`` or ``not reached``.

    Raises:
        RuntimeError: pytest could not run.
    """
    if not tests:
        return "not reached"
    target = tree / mutant.path
    target.write_text(mutant.source(), encoding="utf-8")
    pytest = [sys.executable, "-W", "ignore", "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command = [*pytest, "-m", "", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    child = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return "timed out"
    finally:
        shutil.copy2(ROOT / mutant.path, target)
    if child.returncode not in (TESTS_PASSED, *KILLED):
        raise RuntimeError(output.decode()[-2000:])
    return "killed" if child.returncode in KILLED else "survived"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if fewer mutants than wanted were killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the next mutants have the next seeds")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--folder", default="", help="take only mutants of files below this folder")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the tests of one mutant")
    parser.add_argument("--minutes", type=float, default=1e9, help="when to stop")
    parser.add_argument("--reach", type=pathlib.Path, help="file with the tests that reach each statement")
    parser.add_argument("--wanted", type=float, default=0.9, help="share of the mutants that must be killed")
    options = parser.parse_args(arguments)
    end, outcomes = time.monotonic() + options.minutes * 60, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder).resolve() / "tree"
        copy_tree(tree)
        reach = read_reach(options.reach or pathlib.Path(folder) / "reach.json")
        for seed in range(options.seed, options.seed + options.count):
            mutant = mutant_of(seed, options.folder)
            if time.monotonic() > end:
                break
            outcome = run_mutant(mutant, tests_for(mutant, reach), tree, options.limit)
            outcomes[outcome] += 1
            text = mutant.path if outcome in ("killed", "timed out") else mutant.difference()
            print(f"seed {seed}: {outcome}: {mutant.change}: {text}", flush=True)
    killed = outcomes["killed"] + outcomes["timed out"]
    print(f"{killed} of {outcomes.total()} mutants killed, {outcomes['not reached']} not reached")
    return int(killed < options.wanted * outcomes.total())


if __name__ == "__main__":
    sys.exit(main())
