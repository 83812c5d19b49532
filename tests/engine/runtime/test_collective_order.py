"""Ranks whose compiled graphs run different collectives are named while they run."""

from __future__ import annotations

import io
import json
import os
import pathlib
import sys
import threading
import time
from collections import deque
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import engine
from engine.runtime import collective_order
from engine.runtime.collective_order import collectives_by_group
from engine.torch_private.lazily_loaded import FakeStore
from tests.engine.trace.variables.gloo_processes import a_group, in_two_processes

SECONDS = 30.0
SAID = io.StringIO()
pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")


def reduces(x: torch.Tensor, way: str) -> torch.Tensor:
    """Two sums; the second one may be another reduction, which gloo does not notice."""
    y = x * len(way)
    dist.all_reduce(y)
    dist.all_reduce(y, op=dist.ReduceOp.SUM if "sum" in way else dist.ReduceOp.MAX)
    return y


def averages(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """A mean over the ranks of a group, of any number of elements."""
    y = x / group.size()
    dist.all_reduce(y, group=group)
    return y


def said(words: str) -> str:
    """Return what was said on standard error, as soon as it holds these words."""
    end = time.monotonic() + SECONDS
    while words not in SAID.getvalue() and time.monotonic() < end:
        time.sleep(0.01)
    return SAID.getvalue()


def _process(rank: int, folder: str) -> None:
    collective_order.INTERVAL_SECONDS, collective_order.WAITING_SECONDS = 0.02, 0.3
    sys.stderr = SAID
    with a_group(rank, folder):
        compiled = engine.compile(reduces, backend="eager")
        x, other = torch.ones(4), dist.new_group([0, 1])
        engine.compile(averages, backend="eager", dynamic=bool(rank))(x, other)
        for way in ("sum", "sum two" if rank else "sum", "sum"):
            compiled(x, way)
        if rank:
            time.sleep(1.0)
            assert "run different" not in said("")
        compiled(x, "sum")
        if not rank:
            assert "Rank 0 reached all_reduce(float32[4], sum) at test_" in said("ago; rank 1 has not")
        compiled(x, "max" if rank else "sum")
        text = said("run different")
        assert f"Ranks {rank} and {1 - rank} run different collectives" in text
        line = reduces.__code__.co_firstlineno + 4
        assert f"rank 0 runs all_reduce(float32[4], sum) at test_collective_order.py:{line}" in text
        assert f"rank 1 runs all_reduce(float32[4], max) at test_collective_order.py:{line}" in text
        assert "after 9 that agree" in text
        assert "Rank 1: all_reduce(float32[4], sum) -> all_reduce" in text
        assert text.count("run different") == 1
        dist.barrier()
        if not rank:
            with pytest.raises(RuntimeError, match="peer"):
                engine.compile(averages, backend="eager")(x, other)
            line = averages.__code__.co_firstlineno + 3
            text = f"all_reduce(float32[4], sum) at test_collective_order.py:{line} failed on rank 0, and rank 1 has not posted it."
            assert text in said("")


@pytest.mark.thorough
def test_ranks_that_differ_are_named(tmp_path: pathlib.Path) -> None:
    """A rank that waits, that differs or has ended is named.

    A recompile or a dynamic size of one rank is not. Ranks, lines and both sequences are named, and no rank waits for the comparison.
    """
    in_two_processes(_process, tmp_path)


def test_a_graph_without_collectives_is_run_as_it_is() -> None:
    """Only graphs with collectives are watched."""
    graph = torch.fx.symbolic_trace(torch.nn.ReLU()).graph
    assert collectives_by_group(graph) == {}
    assert collective_order.watch_collectives(graph, torch.sin) is torch.sin


def test_collectives_of_a_backward_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectives of DTensor in forward and backward are noted as they run, with lines."""
    noted: list[dict[str, list[tuple[str, str]]]] = []
    watcher = SimpleNamespace(record=noted.append)
    monkeypatch.setattr(collective_order, "_watcher_of_default_group", lambda: watcher)

    def product(weight: DTensor) -> torch.Tensor:
        return (weight @ weight.t()).to_local().sum()

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        weight = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]).requires_grad_()
        result = engine.compile(product, backend="aot_eager")(weight)
        forward = len(noted)
        result.backward()
    finally:
        dist.destroy_process_group()
    texts = [[text for calls in found.values() for text, _ in calls] for found in noted]
    assert forward == 1
    assert [text.partition("(")[0] for text in texts[0]] == ["all_gather_into_tensor"]
    assert [text.partition("(")[0] for text in texts[1]] == ["all_gather_into_tensor", "reduce_scatter_tensor"]
    assert next(iter(noted[0].values()))[0][1] == f"test_collective_order.py:{product.__code__.co_firstlineno + 1}"


def test_a_failure_names_the_rank_that_ended_not_one_that_is_late(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next rank posts what it ran a moment later; the one that ended never does."""
    ran = [("all_reduce(float32[4], sum)", f"train.py:{line}") for line in range(5)]
    store = dist.HashStore()
    for rank, count in ((1, 2), (2, 3)):
        store.set(f"group/{rank}", json.dumps([count, ran[:count]]))
    stream = object.__new__(collective_order._Stream)
    stream.ranks, stream.next_rank, stream.key, stream.waiting_seconds = [0, 1, 2], 1, "group", 60.0
    stream.count, stream.posted, stream.latest = 5, 0, deque(ran)
    stream.ahead_since, stream.first_ahead, stream.is_reported = None, None, False
    watcher = object.__new__(collective_order.CollectiveWatcher)
    watcher._store, watcher._rank, watcher._process = store, 0, os.getpid()
    watcher._streams, watcher._lock = {"group": stream}, threading.Lock()

    def posts_while_others_wait(seconds: float) -> None:
        store.set("group/1", json.dumps([5, ran]))

    monkeypatch.setattr(collective_order.time, "sleep", posts_while_others_wait)
    watcher.explain_failure({"group": ran})
    assert "train.py:3 failed on rank 0, and rank 2 has not posted it. Rank 2 has ended," in capsys.readouterr().err
