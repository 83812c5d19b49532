"""Lowered programs, run in Triton's interpreter, give eager's values, dtypes and strides."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.engine.lowering.cases import CASES

ROOT = pathlib.Path(__file__).parents[3]
NAMES = [f"{name}:static" for name in CASES] + [
    f"{name}:dynamic" for name, case in CASES.items() if case.can_be_dynamic
]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


@functools.cache
def outcomes() -> dict[str, list[str]]:
    """What the interpreter's process found, for all cases at once."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.lowering.in_interpreter"],
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


@pytest.mark.parametrize("name", NAMES)
def test_equals_eager(name: str) -> None:
    """Every result of the case agrees with eager."""
    assert outcomes()[name] == []
