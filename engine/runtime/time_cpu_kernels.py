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
MIN_SECONDS = 2e-3
"""Least time of one measurement: short launches are repeated in it."""
MIN_CALLS, MAX_CALLS = 5, 1000


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
        kernel.id: KernelTimingRecord(
            device, statistics.median(kernel_seconds), copy_bandwidth(threads), len(kernel_seconds)
        )
        for kernel in program.kernels
        if (kernel_seconds := seconds.get(kernel.id))
    }


def seconds_of(work: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of several calls.

    Other processes and waiting threads only add time.
    """
    fastest, spent, calls = float("inf"), 0.0, 0
    while calls < MIN_CALLS or (spent < MIN_SECONDS and calls < MAX_CALLS):
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        fastest, spent, calls = min(fastest, seconds), spent + seconds, calls + 1
    return fastest


@functools.cache
def copy_bandwidth(threads: int) -> float:
    """Return the copy bandwidth of memory in bytes per second, measured once.

    Reads and writes count together.
    """
    source = torch.ones(COPY_BYTES // 8, dtype=torch.float32)
    target = torch.empty_like(source)
    target.copy_(source)
    return COPY_BYTES / seconds_of(functools.partial(target.copy_, source))
