"""How long each kernel of a program takes on the GPU at hand, and how fast the same card copies.

Before each timed launch a buffer larger than the card's cache is written, so that a kernel reads what memory gives, as in ``triton.testing.do_bench``.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.kernels.generated_kernel import GeneratedKernel
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.records.kernels import KernelTimingRecord
from engine.runtime.kernel_launchers import KernelBinder, Launcher, gpu_launcher
from engine.runtime.program_executor import program_executor

REPEATS = 9
FLUSH_BYTES = 256_000_000
"""Written before each launch: more than any card's cache holds."""
SPIN_CYCLES = 200_000
"""Cycles that the card waits before it starts: until then the CPU has launched what is timed."""
COPY_BYTES = 1 << 30
"""Read and written to learn what a card copies."""

DeviceTimer = Callable[[Callable[[], None]], float]
"""Seconds that some work on the device takes."""


def time_kernels(program: LoweredProgram, inputs: Sequence[Any]) -> dict[str, KernelTimingRecord]:
    """What each kernel of ``program`` takes on these inputs, by id. The program runs once on copies of them, each kernel ``REPEATS`` times.

    Raises:
        Exception: whatever Triton, the driver or the allocator raises; nothing of the caller's is changed.
    """
    device = next(x.device for x in inputs if isinstance(x, torch.Tensor) and x.is_cuda)
    with torch.cuda.device(device), torch.no_grad():
        copies = [x.clone() if isinstance(x, torch.Tensor) and x.is_cuda else x for x in inputs]
        seconds = time_launches(program, copies, gpu_launcher, cold_cache_timer())
        rate, name = copy_bandwidth(device.index or 0), torch.cuda.get_device_name(device)
    return {
        kernel.id: KernelTimingRecord(name, statistics.median(found), rate, len(found))
        for kernel in program.kernels
        if (found := seconds.get(kernel.id))
    }


def time_launches(
    program: LoweredProgram, inputs: Sequence[Any], bind: KernelBinder, clock: DeviceTimer
) -> dict[str, list[float]]:
    """Run a program and time each of its launches where it stands: median seconds of each, by kernel."""
    found: dict[tuple[str, str], list[float]] = {}

    def timing(source: GeneratedKernel, misaligned: frozenset[str]) -> Launcher:
        launch, told = bind(source, misaligned), found.setdefault((source.name, source.text), [])

        def timed(*arguments: Any) -> None:
            work = functools.partial(launch, *arguments)
            work()  # loads what is loaded lazily
            told.append(statistics.median(clock(work) for _ in range(REPEATS)))

        return timed

    program_executor(program, timing)(*inputs)
    return {kernel.id: told for kernel in program.kernels if (told := found.get((kernel.name, kernel.text)))}


def cold_cache_timer() -> DeviceTimer:
    """Times work on the current stream by events, its cache emptied first by writing memory that nobody keeps."""

    def clock(work: Callable[[], None]) -> float:
        flushed = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flushed.zero_()
        torch.cuda._sleep(SPIN_CYCLES)
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return clock


@functools.cache
def copy_bandwidth(device: int) -> float:
    """Bytes a second that a card reads and writes when it copies."""
    with torch.cuda.device(device):
        source = torch.empty(COPY_BYTES // 8, dtype=torch.int32, device="cuda")
        target = torch.empty_like(source)
        clock = cold_cache_timer()

        def copy() -> None:
            target.copy_(source)

        copy()
        seconds = statistics.median(clock(copy) for _ in range(REPEATS))
    return COPY_BYTES / seconds
