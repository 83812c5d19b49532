"""The bench of distributed training runs in two gloo processes, and its ways train alike."""

from __future__ import annotations

import pathlib
import re

import pytest
import torch
import torch.distributed as dist

from tests.bench.distributed import measure
from tests.engine.trace.variables.gloo_processes import a_group, in_two_processes

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")]


def _process(rank: int, folder: str) -> None:
    with a_group(rank, folder):
        for kind in ("ddp", "fsdp", "tp"):
            lines = measure(kind, 3, ("eager", "engine + step", "engine by block"), torch.device("cpu"))
            assert len(lines) == 3
            assert all(float(re.search(r"differs (\S+)", line)[1]) < 1e-3 for line in lines)


def test_ways_train_alike(tmp_path: pathlib.Path) -> None:
    """Losses of three steps are those of eager, under DDP, FSDP2 and tensor parallelism."""
    in_two_processes(_process, tmp_path)
