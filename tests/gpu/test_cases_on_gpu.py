"""On a GPU: every function that lowering must get right, compared with eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.gpu_targets import default_target
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.runtime.program_executor import ProgramExecutor
from tests.engine.lowering.op_cases import CASES
from tests.engine.lowering.trace_aten import trace_to_aten, with_flat_results

pytestmark = pytest.mark.gpu

TOLERANCES = {
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.float32: 1e-4,
    torch.float64: 1e-6,
    torch.complex64: 1e-4,
}


@pytest.mark.parametrize("name", list(CASES))
def test_equals_eager(name: str) -> None:
    """Every result of the case agrees with eager on the same device."""
    case = CASES[name]
    with torch.device("cuda"):
        args = case.args()
        wanted = with_flat_results(case.function)(*args)
        graph = trace_to_aten(case.function, args)
        found = ProgramExecutor(lower(graph, default_target(), print_triton))(*case.args())
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, torch.Tensor):
            limit = TOLERANCES.get(other.dtype, 0.0)
            torch.testing.assert_close(one, other, rtol=limit, atol=limit, equal_nan=True)
        else:
            assert one == other
