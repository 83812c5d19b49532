"""Lowered programs, run in Triton's interpreter, give eager's values, dtypes and strides."""

from __future__ import annotations

import pytest

from tests.engine.lowering.interpreter_results import run_in_batches
from tests.engine.lowering.op_cases import CASES
from tests.markers import needs_triton

NAMES = [f"{name}:static" for name in CASES] + [
    f"{name}:dynamic" for name, case in CASES.items() if case.can_be_dynamic
]

pytestmark = needs_triton


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_equals_eager(name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every result of the case agrees with eager; kernels know the ops of each line."""
    assert run_in_batches(request, tmp_path_factory)[name] == []
