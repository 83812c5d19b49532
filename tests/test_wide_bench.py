"""The cases of the wide bench run, forward and backward, on fake tensors."""

from __future__ import annotations

import pytest
import torch

from engine.torch_private.fake_tensors import FakeTensorMode
from tests.bench.wide import cases, measure
from tests.markers import slow_except_sample

SHARE = 4
"""One case in so many runs outside the slow ring: most are of a few kinds."""


def test_the_bench_is_wide():
    """It has at least 25 models and 60 kernels."""
    assert len(cases.MODELS) >= 25
    assert len(cases.KERNELS) >= 60


@pytest.mark.parametrize("name", [pytest.param(n, marks=slow_except_sample(n, SHARE)) for n in cases.CASES])
def test_case_runs(name):
    """A step of each case returns tensors; a training step returns gradients."""
    case = cases.CASES[name]
    with FakeTensorMode(allow_non_fake_inputs=True):
        result = measure.build(case, "eager", "cpu")()
    found = [t for t in (result if isinstance(result, (tuple, list)) else (result,)) if isinstance(t, torch.Tensor)]
    assert found
    assert len(found) > 1 or not case.trains
