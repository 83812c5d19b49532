"""Plant faults in the engine: ``python -m tests.mutation --seed 1 --count 40``.

Each mutant is printed with its seed: killed if a test of its area fails or hangs, survived with its difference.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tests.mutation.mutants import ROOT, mutant_of

TESTS_PASSED, NO_TESTS = 0, 5
"""Exit codes of pytest."""


def run_mutant(seed: int, limit: float) -> str:
    """Return ``killed``, ``timed out`` or ``survived``.

    Raises:
        RuntimeError: pytest could not run.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tests.mutation", "--child", "--seed", str(seed)]
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return "timed out"
    if child.returncode == NO_TESTS:
        raise RuntimeError(output.decode()[-2000:])
    return "survived" if child.returncode == TESTS_PASSED else "killed"


def run_tests(seed: int) -> int:
    """Run the tests of a mutant's area in this process, which imports the mutant."""
    mutant = mutant_of(seed)
    mutant.install()
    return int(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", *mutant.tests]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a mutant survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the next mutants have the next seeds")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the tests of one mutant")
    parser.add_argument("--minutes", type=float, default=1e9, help="when to stop")
    parser.add_argument("--child", action="store_true", help="run the tests of one mutant in this process")
    options = parser.parse_args(arguments)
    if options.child:
        return run_tests(options.seed)
    end, outcomes = time.monotonic() + options.minutes * 60, []
    for seed in range(options.seed, options.seed + options.count):
        if time.monotonic() > end:
            break
        outcome = run_mutant(seed, options.limit)
        outcomes.append(outcome)
        mutant = mutant_of(seed)
        text = f"{mutant.change}\n{mutant.difference()}" if outcome == "survived" else f"{mutant.change}, {mutant.path}"
        print(f"seed {seed}: {outcome}: {text}", flush=True)
    print(f"{len(outcomes) - outcomes.count('survived')} of {len(outcomes)} mutants killed")
    return int("survived" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
