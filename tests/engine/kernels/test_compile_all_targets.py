"""Kernels in lowering's form compile through every stage of every target.

They cover pointwise kernels, rows, columns, tiles, scans, atomics and checked look-ups.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.gpu_targets import TARGETS
from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from tests.engine.lowering.trace_aten import trace_to_aten
from tests.markers import needs_triton

pytestmark = needs_triton
F = torch.nn.functional
X, HALF, AT = torch.randn(600, 40), torch.randn(64, 96, dtype=torch.bfloat16), torch.randint(0, 600, (33,))

SAMPLE: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "gelu of bfloat16": (lambda x: F.gelu(x) * 2, (HALF,)),
    "softmax": (lambda x: torch.softmax(x, -1), (X,)),
    "long rows": (lambda x: torch.logsumexp(x, -1), (torch.randn(300, 40_000),)),
    "columns": (lambda x: x.var(0), (X,)),
    "largest place": (lambda x: x.argmax(-1), (HALF,)),
    "tile": (lambda x: x.t().contiguous() + 1, (torch.randn(200, 130),)),
    "scan": (lambda x: x.cumsum(-1), (X,)),
    "scan of largest": (lambda x: x.cummax(-1)[0], (X,)),
    "look-up, checked": (lambda x, at: x[at] + 1, (X, AT)),
    "atomic": (lambda x, at: x.index_add(0, at, x[:33]), (X, AT)),
    "64-bit whole numbers": (lambda x: x * 3 // 7, (AT,)),
    "doubles": (lambda x: 10.0 ** x.sin(), (X.double(),)),
    "truth values": (lambda x: (x > 0).any(-1), (X,)),
    "complex": (lambda x: x * x.conj(), (torch.randn(600, 20, dtype=torch.complex64),)),
}


@pytest.fixture(scope="module")
def kernels() -> dict[str, tuple[GeneratedKernel, ...]]:
    """The kernels of every program of the sample: the text is the same for all targets."""
    return {name: lower(trace_to_aten(*given), "cuda:90", print_triton).kernels for name, given in SAMPLE.items()}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_lowered_kernels_reach_machine_code(target: str, kernels: dict[str, tuple[GeneratedKernel, ...]]) -> None:
    """Every listing exists and has instructions, and each kernel fits the target's limits."""
    last = ("amdgcn",) if target.startswith("hip") else ("ptx", "sass")
    for name, made in kernels.items():
        assert made, name
        for kernel in made:
            record = compile_kernel(kernel, target)
            assert not record.error, f"{name}: {record.error}"
            assert not record.smaller_blocks_note, name
            assert tuple(x.stage for x in record.listings) == ("ttir", "ttgir", "llir", *last), name
            assert all(listing.instructions for listing in record.listings), name
            assert record.resources is not None
            assert record.resources.registers, name


def test_the_sample_covers_every_kernel_kind(kernels: dict[str, tuple[GeneratedKernel, ...]]) -> None:
    """Atomics, scans, checks, loops and tiles are among the kernels."""
    texts = {name: "".join(k.text for k in made) for name, made in kernels.items()}
    assert "tl.atomic_add" in texts["atomic"]
    assert "tl.cumsum" in texts["scan"]
    assert "tl.device_assert" in texts["look-up, checked"]
    assert "for start in range" in texts["long rows"]
    assert "tl.program_id(1)" in texts["tile"]
    assert "libdevice.pow(tl.full((), 10.0, tl.float64)" in texts["doubles"]
