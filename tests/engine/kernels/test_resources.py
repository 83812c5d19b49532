"""What a kernel takes of its target."""

from __future__ import annotations

import pytest

from engine.kernels.compile_kernel import compile_kernel
from engine.kernels.resources import occupancy
from tests.engine.kernels import handwritten_kernels
from tests.markers import each_kind_of_target, needs_triton


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "expected", "limit"),
    [
        ("cuda:90", 32, 0, 4, 1.0, ""),  # 64 warps x 32 x 32 registers fill the file exactly
        ("cuda:90", 33, 0, 4, 48 / 64, "registers"),  # 40 registers a thread after rounding: 12 warps a scheduler
        ("cuda:90", 255, 0, 8, 8 / 64, "registers"),  # two warps a scheduler: one block of 8
        ("cuda:90", 16, 100 * 1024, 4, 8 / 64, "shared memory"),  # two blocks' shared memory
        ("cuda:90", 16, 0, 1, 32 / 64, "blocks"),  # 32 blocks at most
        ("cuda:89", 32, 0, 4, 1.0, ""),
        ("cuda:89", 16, 0, 1, 24 / 48, "blocks"),
        ("hip:gfx942", 64, 0, 4, 1.0, ""),
        ("hip:gfx942", 128, 0, 4, 0.5, "registers"),
    ],
)
def test_occupancy_is_bound_by_the_scarcest_resource(
    target: str, registers: int, shared: int, warps: int, expected: float, limit: str
) -> None:
    """Occupancy names its limit: registers, shared memory, blocks or warps."""
    assert occupancy(target, registers, shared, warps) == (pytest.approx(expected), limit)


def test_occupancy_of_an_unknown_target_is_unknown() -> None:
    """No guess where there are no facts."""
    assert occupancy("hip:gfx1100", 32, 0, 4) == (None, "")
    assert occupancy("cuda:90", None, 0, 4) == (None, "")


@needs_triton
@each_kind_of_target
def test_a_compiled_kernel_reports_its_resources(target: str) -> None:
    """A compiled kernel reports its registers, spills, shared memory and warps.

    Softmax has no spills, uses shared memory for the reduction across warps, and has the warps it was
    compiled for. The occupancy of RDNA targets is not estimated.
    """
    told = compile_kernel(handwritten_kernels.softmax(cols=1000), target).resources
    assert told is not None
    assert told.registers is not None
    assert 4 <= told.registers <= 64
    assert told.spills == 0
    assert told.shared_bytes
    assert told.warps == 4
    assert (told.occupancy is None) == target.startswith("hip:gfx1")
    assert told.occupancy is None or 0.5 <= told.occupancy <= 1.0
