"""Runs a test in two processes that talk over gloo."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pathlib
import traceback
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import ProcessException

PRELOADED = (
    *("engine", "engine.backends.triton", "pytest", "torch.distributed.tensor.parallel", "torch.distributed.fsdp"),
    *("torch.distributed.checkpoint", "torch.multiprocessing"),
)
"""What most of these tests import.

A process of its own imports it once and forks into the processes of all tests.
"""
HANG_SECONDS = 600.0
"""Time limit of a process."""


@contextlib.contextmanager
def a_group(rank: int, folder: str) -> Iterator[None]:
    """Set up the default process group of both processes.

    Each process writes its failure to a file, so that the other's disconnect does not hide it.
    """
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        yield
    except BaseException:
        pathlib.Path(folder, f"failure_{rank}").write_text(traceback.format_exc())
        raise
    finally:
        dist.destroy_process_group()


def in_two_processes(process: Callable[[int, str], None], folder: pathlib.Path) -> None:
    """Run ``process(rank, folder)`` in two processes; raise the traceback of a failure.

    A failure of either process fails the test. Of a process that a signal ends, the failure shows what every thread ran.
    """
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    try:
        mp.start_processes(_run, args=(process, str(folder)), nprocs=2, start_method="forkserver")
    except ProcessException as error:
        failures = [path.read_text() for path in sorted(folder.glob("failure_*"))]
        crashes = [
            f"{path.name}:\n{path.read_text()}" for path in sorted(folder.glob("crash_*")) if path.stat().st_size
        ]
        pytest.fail("\n".join([*(failures or [str(error)]), *crashes]))


def _run(rank: int, process: Callable[[int, str], None], folder: str) -> None:
    """Run the process; a fatal signal writes the tracebacks of all threads to a file.

    What it prints on standard error goes there too, and the tracebacks of a process that hangs, which then ends.
    """
    crash_file = pathlib.Path(folder, f"crash_{rank}").open("w")  # open until the process has ended
    os.dup2(crash_file.fileno(), 2)  # the forking process has the standard error of another test
    faulthandler.enable(crash_file, all_threads=True)
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=crash_file)
    process(rank, folder)
