"""Random graphs of views, arithmetic, reductions, running results, indices and joins: what kernels compute is what eager computes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton here")


def test_random_graphs_compute_what_eager_computes() -> None:
    """Whatever hypothesis puts together, for static and symbolic sizes, gives eager's values."""
    command = [sys.executable, "-m", "tests.engine.lowering.fuzz_graphs"]
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=interpreted, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
