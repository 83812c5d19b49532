"""Kernel timing and copy bandwidth on this CPU."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.node_values import map_tensors
from engine.records.kernels import KernelTimingRecord
from engine.runtime.cpu_launcher import cpu_launcher
from engine.runtime.time_kernels import time_launches

COPY_BYTES = 1 << 27
"""Bytes read and written to measure copy bandwidth: more than most caches hold."""
MIN_SECONDS = 2e-4
"""Least time of one measurement: shorter launches are repeated in it."""
AVERAGES = 3


def time_cpu_kernels(program: LoweredProgram, inputs: Sequence[Any]) -> dict[str, KernelTimingRecord]:
    """Time each kernel of ``program`` on copies of these inputs; return records by kernel id.

    Raises:
        Exception: whatever a launch or the allocator raises; the caller's tensors are not changed.
    """
    with torch.no_grad():
        seconds = time_launches(program, map_tensors(torch.clone, inputs), cpu_launcher, seconds_of)
    threads = torch.get_num_threads()
    device = f"this CPU, {threads} threads" if threads > 1 else "this CPU, 1 thread"
    return {
        kernel.id: KernelTimingRecord(device, statistics.median(found), copy_bandwidth(threads), len(found))
        for kernel in program.kernels
        if (found := seconds.get(kernel.id))
    }


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the seconds of one call: the shortest of several averages.

    Other processes only add time.
    """
    return min(_average(work) for _ in range(AVERAGES))


def _average(work: Callable[[], Any]) -> float:
    """Return the seconds of one call, averaged over as many as a clock needs."""
    count = 1
    while True:
        start = time.perf_counter()
        for _ in range(count):
            work()
        spent = time.perf_counter() - start
        if spent >= MIN_SECONDS:
            return spent / count
        count *= 4


@functools.cache
def copy_bandwidth(threads: int) -> float:
    """Return the copy bandwidth of memory in bytes per second, measured once.

    Reads and writes count together.
    """
    source = torch.ones(COPY_BYTES // 8, dtype=torch.float32)
    target = torch.empty_like(source)
    target.copy_(source)
    return COPY_BYTES / seconds_of(functools.partial(target.copy_, source))
