"""Registers, shared memory, warps and occupancy of a compiled kernel.

The device limits are from the CUDA C++ Programming Guide ("Compute Capabilities", technical specifications per
capability), NVIDIA's occupancy calculator (allocation units), and AMD's CDNA3 ISA guide with the MI300 tuning guide
(VGPR and LDS sizes, waves per SIMD).
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


DEVICE_LIMITS = {
    "cuda:80": DeviceLimits(64, 32, 65536, 256, 164 * 1024, 128, 1024, 163 * 1024),
    "cuda:89": DeviceLimits(48, 24, 65536, 256, 100 * 1024, 128, 1024, 99 * 1024),
    "cuda:90": DeviceLimits(64, 32, 65536, 256, 228 * 1024, 128, 1024, 227 * 1024),
    "cuda:100": DeviceLimits(64, 32, 65536, 256, 228 * 1024, 128, 1024, 227 * 1024),
    "hip:gfx942": DeviceLimits(32, 32, 4 * 512 * 64, 8 * 64, 64 * 1024, 512, 0, 64 * 1024, warp_size=64),
}


def check_fit(target: str, kernel: Any) -> KernelResources:
    """Return the resources of a Triton ``CompiledKernel`` on a target that it fits.

    Raises:
        DoesNotFit: a block needs more shared memory than the target has for one block.
    """
    used, facts = kernel_resources(target, kernel), DEVICE_LIMITS[target]
    if used.shared_bytes is not None and used.shared_bytes > facts.max_shared_per_block:
        raise OutOfTargetResources("bytes of shared memory per block", used.shared_bytes, facts.max_shared_per_block)
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
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", output)
    if not found:
        return None, None
    return int(found[1]), max(int(found[2]), int(found[3])) // 4


def _amd_registers_and_spills(text: str) -> tuple[int | None, int | None]:
    """Return vector registers per lane, and spilled registers.

    Accumulation registers are part of the same register file.
    """

    def count_of(key: str) -> int | None:
        found = re.search(rf"\.{key}:\s+(\d+)", text)
        return int(found[1]) if found else None

    vector, vector_spills, scalar_spills = (
        count_of("vgpr_count"),
        count_of("vgpr_spill_count"),
        count_of("sgpr_spill_count"),
    )
    spills = None if vector_spills is None else vector_spills + (scalar_spills or 0)
    return vector, spills
