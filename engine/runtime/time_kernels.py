"""Kernel timing and copy bandwidth on the current GPU.

A buffer larger than the L2 cache is written before each timed launch, so kernels read from memory, as in
``triton.testing.do_bench``.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.node_values import map_tensors, tensors_in
from engine.records.kernels import KernelTimingRecord
from engine.runtime.kernel_launchers import KernelBinder, Launcher, gpu_launcher
from engine.runtime.program_executor import ProgramExecutor
from engine.torch_private.cuda import gpu_sleep

REPEATS = 9
FLUSH_BYTES = 256_000_000
"""Bytes written before each launch: more than any GPU's L2 cache."""
SPIN_CYCLES = 200_000
"""Cycles that the GPU spins first, until the CPU has enqueued the timed work."""
COPY_BYTES = 1 << 30
"""Bytes read and written to measure copy bandwidth."""

DeviceTimer = Callable[[Callable[[], None]], float]
"""Measures the seconds that some work takes on the device."""


def time_kernels(program: LoweredProgram, inputs: Sequence[Any]) -> dict[str, KernelTimingRecord]:
    """Time each kernel of ``program`` on copies of these inputs; return records by kernel id.

    The program runs once, each of its launches ``REPEATS`` times.

    Raises:
        Exception: whatever Triton, the driver or the allocator raises; the caller's tensors are not changed.
    """
    device = next(x.device for x in tensors_in(inputs) if x.is_cuda)
    with torch.cuda.device(device), torch.no_grad():
        copies = map_tensors(lambda x: x.clone() if x.is_cuda else x, inputs)
        seconds = time_launches(program, copies, gpu_launcher, cold_cache_timer())
        rate, name = copy_bandwidth(device.index or 0), torch.cuda.get_device_name(device)
    return {
        kernel.id: KernelTimingRecord(name, statistics.median(kernel_seconds), rate, len(kernel_seconds))
        for kernel in program.kernels
        if (kernel_seconds := seconds.get(kernel.id))
    }


def time_launches(
    program: LoweredProgram, inputs: Sequence[Any], bind: KernelBinder, clock: DeviceTimer
) -> dict[str, list[float]]:
    """Run a program, time each launch in place, and return median seconds by kernel id."""
    times: dict[tuple[str, str], list[float]] = {}

    def timing(source: GeneratedKernel, misaligned: frozenset[str]) -> Launcher:
        launch, seconds = bind(source, misaligned), times.setdefault((source.name, source.text), [])

        def timed(*arguments: Any) -> None:
            work = functools.partial(launch, *arguments)
            work()  # triggers lazy loading
            seconds.append(statistics.median(clock(work) for _ in range(REPEATS)))

        return timed

    ProgramExecutor(program, timing)(*inputs)
    return {kernel.id: seconds for kernel in program.kernels if (seconds := times.get((kernel.name, kernel.text)))}


def cold_cache_timer() -> DeviceTimer:
    """Return a timer of work on the current stream, by CUDA events, with a cold cache."""

    def clock(work: Callable[[], None]) -> float:
        flushed = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flushed.zero_()
        gpu_sleep(SPIN_CYCLES)
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return clock


@functools.cache
def copy_bandwidth(device: int) -> float:
    """Return the copy bandwidth of a GPU in bytes per second, reads and writes together."""
    with torch.cuda.device(device):
        source = torch.empty(COPY_BYTES // 8, dtype=torch.int32, device="cuda")
        target = torch.empty_like(source)
        clock = cold_cache_timer()

        def copy() -> None:
            target.copy_(source)

        copy()
        seconds = statistics.median(clock(copy) for _ in range(REPEATS))
    return COPY_BYTES / seconds
