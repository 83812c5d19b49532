"""Report mismatches of lowered programs in Triton's interpreter, in a separate process.

The process has TRITON_INTERPRET=1 from its start.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[3]


@functools.cache
def run_in_interpreter(*flags: str) -> dict[str, list[str]]:
    """Run all cases in one process and return the mismatches by case name.

    ``flags`` select other cases (``run_cases_in_interpreter``).
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.lowering.run_cases_in_interpreter", *flags],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found
