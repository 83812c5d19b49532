"""Lowered programs, run in Triton's interpreter, give eager's values, dtypes and strides."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.lowering.interpreter_results import run_in_batches
from tests.engine.lowering.op_cases import CASES
from tests.markers import needs_triton

SHARE = 2
"""One case in so many is interpreted outside the slow ring, with sizes of one kind.

CPU kernels run every case with fixed sizes: lowering is the same.
"""


def cases() -> Iterator[Any]:
    """List each case with fixed and with symbolic sizes."""
    for name, case in CASES.items():
        kinds = ("static", "dynamic") if case.can_be_dynamic else ("static",)
        number = zlib.crc32(name.encode())
        chosen = kinds[number // SHARE % len(kinds)] if number % SHARE == 0 else None
        for kind in kinds:
            yield pytest.param(f"{name}:{kind}", marks=() if kind == chosen else pytest.mark.slow)


pytestmark = needs_triton


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(cases()))
def test_equals_eager(name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every result of the case agrees with eager; kernels know the ops of each line."""
    assert run_in_batches(request, tmp_path_factory)[name] == []
