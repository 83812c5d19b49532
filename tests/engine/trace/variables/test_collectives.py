"""Tests of collectives: two processes over gloo compare compiled code with eager."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh

import engine
from tests.engine.trace.variables.gloo_processes import a_group, in_two_processes

_MESHES: dict[int, Any] = {}


def reduces(x: torch.Tensor) -> torch.Tensor:
    """A functional sum over all processes."""
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def reduces_twice(x: torch.Tensor) -> torch.Tensor:
    """Two equal sums over all processes."""
    return functional.all_reduce(x, "sum", dist.group.WORLD) * functional.all_reduce(x, "sum", dist.group.WORLD)


def gathers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Functional gathering along both dimensions."""
    group = dist.group.WORLD
    return functional.all_gather_tensor(x * 2, 0, group) + 1, functional.all_gather_tensor(x.sin(), 1, group) + 1


def scatters(x: torch.Tensor) -> torch.Tensor:
    """A functional sum of which each process keeps its part."""
    return functional.reduce_scatter_tensor(x * 2, "sum", 0, dist.group.WORLD) + 1


def exchanges(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Functional all-to-all and broadcast."""
    group = dist.group.WORLD
    return functional.all_to_all_single(x * 2, None, None, group) + 1, functional.broadcast(x + 3, 1, group) * 2


def reduces_in_place(x: torch.Tensor) -> torch.Tensor:
    """An average over all processes, written into an intermediate and into an argument."""
    y = x * 2
    dist.all_reduce(y)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, group=dist.group.WORLD)
    return y / dist.get_world_size()


def writes_into_outputs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Collectives that are given where to put their results."""
    whole, part = x.new_empty(8, 2), x.new_empty(2, 2)
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter_tensor(part, x * 2)
    dist.all_gather(parts, x.cos())
    sent = x.clone()
    dist.broadcast(sent, 1)
    swapped = torch.empty_like(x)
    dist.all_to_all_single(swapped, x)
    return whole, part, torch.cat(parts), sent, swapped


def asks(x: torch.Tensor) -> torch.Tensor:
    """Questions about the group are constants."""
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo":
        return x * dist.get_rank() + dist.get_world_size() + dist.get_process_group_ranks(dist.group.WORLD)[1]
    return x


def uses_a_mesh(x: torch.Tensor) -> torch.Tensor:
    """A mesh of devices is a constant, and so are its groups."""
    mesh = _MESHES[0]
    y = functional.all_reduce(x * 2, "sum", (mesh, 0)) + functional.all_reduce(x, "max", mesh.get_group())
    return y + mesh.size() + mesh.get_local_rank() + mesh.ndim


def learns(x: torch.Tensor) -> Any:
    """The gradient of a functional collective is a collective."""
    w = x.clone().requires_grad_()
    functional.all_reduce(w * w, "sum", dist.group.WORLD).sum().backward()
    return w.grad


def waits_later(x: torch.Tensor) -> torch.Tensor:
    """A handle of work under way is left to Python."""
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x + 1


ONE_GRAPH: tuple[Callable[[torch.Tensor], Any], ...] = (
    reduces,
    gathers,
    scatters,
    exchanges,
    reduces_in_place,
    writes_into_outputs,
    asks,
    uses_a_mesh,
)
BROKEN: tuple[Callable[[torch.Tensor], Any], ...] = (learns, waits_later)


def _argument(rank: int) -> torch.Tensor:
    return torch.arange(8.0).reshape(4, 2) + rank


def _compare(function: Callable[[torch.Tensor], Any], backend: str, rank: int, breaks: int | None) -> None:
    mine, other = _argument(rank), _argument(rank)
    want = function(mine)
    with engine.expect(graphs=1 if breaks == 0 else None, breaks=breaks):
        got = engine.compile(function, backend=backend)(other)
    torch.testing.assert_close((got, other), (want, mine))


def _process(rank: int, folder: str) -> None:
    with a_group(rank, folder):
        _MESHES[0] = init_device_mesh("cpu", (2,))
        for function in ONE_GRAPH:
            _compare(function, "eager", rank, 0)
        for function in (reduces, reduces_in_place):
            _compare(function, "triton", rank, 0)
        for function in BROKEN:
            _compare(function, "eager", rank, None)
        _renewed(rank, folder)


def _merged(rank: int, folder: str) -> None:
    with a_group(rank, folder):
        with engine.record() as session:
            _compare(reduces_twice, "aot_eager", rank, 0)
        (compilation,) = session.compilations
        found = {g.stage: sum("all_reduce" in n.target for n in g.nodes) for g in compilation.graphs}
        assert found == {"fx": 2, "aten": 1}, found


def _renewed(rank: int, folder: str) -> None:
    compiled = engine.compile(asks, backend="eager")
    want = compiled(_argument(rank))
    dist.destroy_process_group()
    torch.testing.assert_close(compiled(_argument(rank)), _argument(rank))
    dist.init_process_group("gloo", init_method=f"file://{folder}/again", rank=1 - rank, world_size=2)
    torch.testing.assert_close(compiled(_argument(rank)), _argument(rank) * (1 - rank) + 3)
    torch.testing.assert_close(want, _argument(rank) * rank + 3)


@pytest.mark.thorough
def test_two_processes_agree_with_eager(tmp_path: pathlib.Path) -> None:
    """Functional and in-place collectives are captured without a graph break.

    Collectives that are not captured give eager's results too.
    """
    in_two_processes(_process, tmp_path)


@pytest.mark.thorough
def test_equal_sums_are_computed_once(tmp_path: pathlib.Path) -> None:
    """Two equal all-reduces of a graph run as one."""
    in_two_processes(_merged, tmp_path)


def _aborts(rank: int, folder: str) -> None:
    if rank:
        os.write(2, b"before the end\n")
        os.abort()
    time.sleep(30.0)


@pytest.mark.thorough
def test_a_process_that_a_signal_ends_names_its_line(tmp_path: pathlib.Path) -> None:
    """The failure has what the process printed on standard error, and its traceback."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)process 1 terminated.*line \d+ in _aborts") as failure:
        in_two_processes(_aborts, tmp_path)
    assert "before the end" in str(failure.value)
