"""Random graphs: kernels compute what eager computes.

The graphs combine views, arithmetic, reductions, scans, indexing and concatenation.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.markers import needs_triton

pytestmark = needs_triton


@pytest.mark.thorough
@pytest.mark.parametrize("count", [24, pytest.param(120, marks=pytest.mark.slow)])
def test_random_graphs_compute_what_eager_computes(count: int) -> None:
    """Whatever hypothesis puts together, for static and symbolic sizes, gives eager's values."""
    command = [sys.executable, "-m", "tests.engine.lowering.fuzz_graphs", str(count)]
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=interpreted, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
