"""Runs a test in two processes that talk over gloo."""

from __future__ import annotations

import contextlib
import pathlib
import traceback
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import ProcessException


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

    A failure of either process fails the test.
    """
    try:
        mp.spawn(process, args=(str(folder),), nprocs=2)
    except ProcessException as error:
        failures = [path.read_text() for path in sorted(folder.glob("failure_*"))]
        pytest.fail("\n".join(failures) or str(error))
