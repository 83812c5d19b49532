"""Registers, shared memory, warps and occupancy of a compiled kernel.

The device limits are from the CUDA C++ Programming Guide ("Compute Capabilities", technical specifications per
capability), NVIDIA's occupancy calculator (allocation units), and AMD's CDNA ISA guides with the MI300 tuning guide
(VGPR and LDS sizes, waves per SIMD). RDNA targets have no entry: their occupancy is not estimated.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from engine.ir.kernels.compile_triton import OutOfTargetResources
from engine.records.kernels import KernelResources


@dataclass(frozen=True)
class DeviceLimits:
    """Limits of one multiprocessor (AMD: compute unit); 32-bit registers, memory in bytes.

    ``register_allocation_unit`` is the allocation step in registers per warp. ``shared_reserved`` is the shared memory
    that the system takes from each block.
    """

    warps: int
    blocks: int
    registers: int
    register_allocation_unit: int
    shared: int
    shared_allocation_unit: int
    shared_reserved: int
    max_shared_per_block: int
    """Most shared memory of one block (AMD: workgroup)."""
    warp_size: int = 32
    schedulers: int = 4
    """Warps are divided among this many schedulers, each with its share of the registers."""


def _nvidia(warps: int, blocks: int, shared_kb: int, reserved: int = 1024) -> DeviceLimits:
    """Return the limits of an NVIDIA target; all have 65,536 registers per multiprocessor."""
    shared = shared_kb * 1024
    return DeviceLimits(warps, blocks, 65536, 256, shared, 128 if reserved else 256, reserved, shared - reserved)


def _cdna(shared_kb: int, shared_unit: int) -> DeviceLimits:
    """Return the limits of an AMD CDNA target: 4 SIMDs of 512 registers, 8 waves each."""
    shared = shared_kb * 1024
    return DeviceLimits(32, 32, 4 * 512 * 64, 8 * 64, shared, shared_unit, 0, shared, warp_size=64)


DEVICE_LIMITS = {
    "cuda:75": _nvidia(32, 16, 64, reserved=0),
    "cuda:80": _nvidia(64, 32, 164),
    "cuda:86": _nvidia(48, 16, 100),
    "cuda:87": _nvidia(48, 16, 164),
    "cuda:89": _nvidia(48, 24, 100),
    "cuda:90": _nvidia(64, 32, 228),
    "cuda:100": _nvidia(64, 32, 228),
    "cuda:103": _nvidia(64, 32, 228),
    "cuda:110": _nvidia(48, 24, 228),
    "cuda:120": _nvidia(48, 24, 100),
    "cuda:121": _nvidia(48, 24, 100),
    "hip:gfx90a": _cdna(64, 512),
    "hip:gfx942": _cdna(64, 512),
    "hip:gfx950": _cdna(160, 1280),
}
RDNA_SHARED = 64 * 1024
"""Most shared memory of one workgroup on RDNA."""


def check_fit(target: str, kernel: Any) -> KernelResources:
    """Return the resources of a Triton ``CompiledKernel`` on a target that it fits.

    Raises:
        DoesNotFit: a block needs more shared memory than the target has for one block.
    """
    used, facts = kernel_resources(target, kernel), DEVICE_LIMITS.get(target)
    available = RDNA_SHARED if facts is None else facts.max_shared_per_block
    if used.shared_bytes is not None and used.shared_bytes > available:
        raise OutOfTargetResources("bytes of shared memory per block", used.shared_bytes, available)
    return used


def kernel_resources(target: str, kernel: Any) -> KernelResources:
    """Return the resources of a Triton ``CompiledKernel`` on a target."""
    metadata = kernel.metadata
    registers, spills = (
        _amd_registers_and_spills(kernel.asm["amdgcn"])
        if "amdgcn" in kernel.asm
        else _cuda_registers_and_spills(kernel.asm["cubin"])
    )
    shared, warps = int(metadata.shared), int(metadata.num_warps)
    return KernelResources(registers, spills, shared, warps, *occupancy(target, registers, shared, warps))


def occupancy(target: str, registers: int | None, shared: int, warps: int) -> tuple[float | None, str]:
    """Return the occupancy, and the resources that limit it (empty at full occupancy).

    The occupancy is the number of warps that fit on one multiprocessor as a fraction of its maximum. It is None for an
    unknown target or an unknown number of registers.
    """
    facts = DEVICE_LIMITS.get(target)
    if facts is None or registers is None:
        return None, ""
    per_warp = _round_up(max(registers, 1) * facts.warp_size, facts.register_allocation_unit)
    by_registers = facts.schedulers * (facts.registers // facts.schedulers // per_warp)
    per_block = _round_up(shared + facts.shared_reserved, facts.shared_allocation_unit)
    by_shared = facts.shared // per_block if per_block else facts.blocks
    room = {
        "registers": by_registers // warps,
        "shared memory": by_shared,
        "blocks": facts.blocks,
        "warps": facts.warps // warps,
    }
    blocks = min(room.values())
    limits = [name for name, count in room.items() if count == blocks]
    return blocks * warps / facts.warps, "" if blocks * warps == facts.warps else " and ".join(limits)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _cuda_registers_and_spills(cubin: bytes) -> tuple[int | None, int | None]:
    """Return registers, and spilled 32-bit words, per thread.

    Spills are the local memory, which Triton's code uses for nothing else.
    """
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [str(knobs.nvidia.cuobjdump.path), "--dump-resource-usage", str(path)]
        output = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", output)
    if not match:
        return None, None
    return int(match[1]), max(int(match[2]), int(match[3])) // 4


def _amd_registers_and_spills(text: str) -> tuple[int | None, int | None]:
    """Return vector registers per lane, and spilled registers.

    Accumulation registers are part of the same register file.
    """

    def count_of(key: str) -> int | None:
        match = re.search(rf"\.{key}:\s+(\d+)", text)
        return int(match[1]) if match else None

    vector_spills = count_of("vgpr_spill_count")
    spills = None if vector_spills is None else vector_spills + (count_of("sgpr_spill_count") or 0)
    return count_of("vgpr_count"), spills
