"""How much of what people write becomes kernels."""

from __future__ import annotations

import pytest

from tests.engine.lowering.op_coverage import SUBJECTS, Coverage
from tests.markers import needs_triton

pytestmark = needs_triton
FLOOR = 0.95


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_nearly_all_nodes_are_lowered(subject: str) -> None:
    """At least 95 % of the nodes that no library does better are lowered.

    Counted over torch's operators, the test programs and small transformers.
    """
    found = Coverage()
    SUBJECTS[subject](found)
    assert found.counted > 5000
    assert found.share >= FLOOR, str(found)


@pytest.mark.thorough
def test_sampled_operators_are_verified() -> None:
    """Kernels of some operators, on torch's own samples, write what ATen does."""
    found = Coverage()
    only = (
        "addcdiv",
        "amax",
        "polar",
        "index_reduce",
        "nn.functional.adaptive_max_pool2d",
        "masked_scatter",
        "polygamma",
    )
    SUBJECTS["operators"](found, only=only, samples=2, is_verified=True)
    assert found.outcomes["equal"] + found.outcomes["close"] >= len(only)
    assert not found.wrong_kernels
