"""Tests of ``DTensor`` and its modules: two processes compare compiled with eager.

The processes communicate over gloo.
"""

from __future__ import annotations

import copy
import functools
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import local_map
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import engine
from tests.engine.trace.variables.gloo_processes import a_group, in_two_processes

_MESHES: dict[int, Any] = {}
_BACKENDS = ("eager", "triton")
"""Backend "triton" runs the AOT stage of "aot_eager" and more."""


def wraps_and_moves(x: torch.Tensor) -> torch.Tensor:
    """A local tensor is wrapped, computed with, moved and unwrapped."""
    sharded = DTensor.from_local(x, _MESHES[0], [Shard(0)], run_check=False)
    return (sharded * 2).redistribute(_MESHES[0], [Replicate()]).to_local() + 1


def takes_and_gives(x: Any) -> Any:
    """A distributed argument, a distributed result, and what is inside of one."""
    y = x @ x.t()
    return y.relu() + 1, y.full_tensor()


def asks(x: Any) -> Any:
    """Layouts are constants."""
    if isinstance(x, DTensor) and x.placements[0].is_shard() and x.placements == (Shard(0),):
        return x * x.device_mesh.size() + x.shape[0]
    return x - 1


def maps_parts(x: torch.Tensor) -> torch.Tensor:
    """A function of plain tensors runs on each process's part."""
    sharded = DTensor.from_local(x, _MESHES[0], [Shard(0)], run_check=False)
    doubled = local_map(lambda part: part * 2, out_placements=[Shard(0)], in_placements=([Shard(0)],))
    return doubled(sharded).full_tensor()  # type: ignore[no-any-return]


def sums_parts(x: torch.Tensor) -> torch.Tensor:
    """Each process holds a summand."""
    part = DTensor.from_local(x, _MESHES[0], (Partial(),), run_check=False)
    return part.redistribute(placements=[Shard(1)]).to_local()


class Perceptron(nn.Module):
    """Two layers, cut along the hidden dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.down = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x).relu())  # type: ignore[no-any-return]


class Block(nn.Module):
    """A norm along the sequence, which is what is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.inner = Perceptron()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))  # type: ignore[no-any-return]


def _tensor_parallel() -> nn.Module:
    torch.manual_seed(0)
    return parallelize_module(Perceptron(), _MESHES[0], {"up": ColwiseParallel(), "down": RowwiseParallel()})


def _sequence_parallel() -> nn.Module:
    torch.manual_seed(0)
    plan = {
        "norm": SequenceParallel(),
        "inner": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "inner.up": ColwiseParallel(),
        "inner.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    return parallelize_module(Block(), _MESHES[0], plan)


def _plain(value: Any) -> Any:
    """A value that can be compared: a distributed tensor as its part and its layout."""
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, AsyncCollectiveTensor):  # eager may return one that is still under way
        return value.trigger_wait()
    return [str(value.placements), _plain(value.to_local())] if isinstance(value, DTensor) else value


def _same(got: Any, want: Any) -> None:
    got, want = _plain(got), _plain(want)
    assert type(got) is type(want)
    if isinstance(want, list):
        assert len(got) == len(want)
        for mine, its in zip(got, want, strict=True):
            _same(mine, its)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert got == want


def _trained(module: nn.Module, call: Callable[[torch.Tensor], Any], batches: list[torch.Tensor]) -> list[Any]:
    found = []
    for batch in batches:
        module.zero_grad(set_to_none=True)
        result = call(batch)
        local = result.to_local() if isinstance(result, DTensor) else result
        local.square().sum().backward()
        found.append([result.detach(), *(copy.copy(p.grad) for p in module.parameters())])
    return found


def _compare(function: Callable[..., Any], x: torch.Tensor, backend: str) -> None:
    with engine.expect(graphs=1, breaks=0):
        got = engine.compile(function, backend=backend)(x)
    _same(got, function(x))


def _compare_training(make: Callable[[], nn.Module], batches: list[torch.Tensor], backend: str) -> None:
    plain, other = make(), make()
    want = _trained(plain, plain, batches)
    with engine.record() as session:
        got = _trained(other, engine.compile(other, backend=backend), batches)
    _same(got, want)
    for compilation in session.compilations:
        assert compilation.trace is not None
        assert not compilation.trace.breaks
        assert compilation.aot is None or not compilation.aot.note, compilation.aot.note


def _captures(rank: int, folder: str) -> None:
    with a_group(rank, folder):
        _MESHES[0] = init_device_mesh("cpu", (2,))
        local = torch.arange(8.0).reshape(4, 2) + rank
        whole = distribute_tensor(torch.arange(8.0).reshape(4, 2), _MESHES[0], [Shard(0)])
        for backend in _BACKENDS:
            for function in (wraps_and_moves, sums_parts, maps_parts):
                _compare(function, local, backend)
            for on_whole in (takes_and_gives, asks):
                _compare(on_whole, whole, backend)
        columns = distribute_tensor(torch.arange(8.0).reshape(4, 2), _MESHES[0], [Shard(1)])
        compiled = engine.compile(asks, backend="eager")
        with engine.expect(recompiles=1):
            for x in (whole, columns, whole, columns):
                _same(compiled(x), asks(x))


def _trains(rank: int, folder: str) -> None:
    with a_group(rank, folder):
        _MESHES[0] = init_device_mesh("cpu", (2,))
        torch.manual_seed(rank)
        parts = [torch.randn(2, 3, 4), torch.randn(2, 3, 4)]
        torch.manual_seed(7)
        same = [torch.randn(4, 4), torch.randn(6, 4), torch.randn(8, 4)]
        for backend in _BACKENDS:
            _compare_training(_tensor_parallel, same, backend)
            _compare_training(_sequence_parallel, parts, backend)


class _Widened(Perceptron):
    """The second layer has one row, so that one process holds an empty part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(8, 1)


def _fully_sharded() -> nn.Module:
    torch.manual_seed(0)
    return fully_shard(_Widened(), mesh=_MESHES[0])


_OPTIMIZERS: tuple[Callable[[Any], torch.optim.Optimizer], ...] = (
    functools.partial(torch.optim.AdamW, lr=0.01),
    functools.partial(torch.optim.Adam, lr=0.01, foreach=True, amsgrad=True, weight_decay=0.1),
    functools.partial(torch.optim.AdamW, lr=0.01),
    functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
)


def _gradient_of(parameter: Any) -> torch.Tensor:
    """Random numbers of each rank; of a replicated parameter, summands of the gradient."""
    local = torch.empty_like(parameter)
    part = (local.to_local() if isinstance(local, DTensor) else local).normal_()
    if isinstance(local, DTensor) and all(p.is_replicate() for p in local.placements):
        return DTensor.from_local(part, local.device_mesh, [Partial()], run_check=False)
    return local


def _stepped(make: Callable[[], nn.Module], optimizer_of: Callable[[Any], Any], *, compiles: bool) -> list[Any]:
    """Clip gradients and step; return norms, parameters, state and their versions."""
    module = make()
    optimizer = optimizer_of(module.parameters())

    def clip_and_step() -> torch.Tensor:
        norm = nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
        return norm

    step = engine.compile(clip_and_step) if compiles else clip_and_step
    torch.manual_seed(dist.get_rank())
    found: list[Any] = []
    for _ in range(4):
        for parameter in module.parameters():
            parameter.grad = _gradient_of(parameter)
        norm = step()
        state = [v for values in optimizer.state.values() for v in values.values() if torch.is_tensor(v)]
        tensors = [*module.parameters(), *state]
        found.append([copy.deepcopy(_plain(t.detach())) for t in (norm, *tensors)])
        found.append([str((type(t), t._version, t.requires_grad, t.is_leaf)) for t in tensors])
    return found


def _steps(rank: int, folder: str) -> None:
    with a_group(rank, folder):
        _MESHES[0] = init_device_mesh("cpu", (2,))
        for n, optimizer_of in enumerate(_OPTIMIZERS):
            make = (_fully_sharded, _tensor_parallel, _sequence_parallel, _tensor_parallel)[n % 4]
            engine.reset()  # else each optimizer would recompile the same function
            with engine.record() as session:
                got = _stepped(make, optimizer_of, compiles=True)
            _same(got, _stepped(make, optimizer_of, compiles=False))
            assert len({c.id.partition("/")[0] for c in session.compilations}) == 1
            for compilation in session.compilations:
                assert compilation.trace is not None
                assert not compilation.trace.breaks
                assert compilation.aot is not None
                assert not compilation.aot.note, compilation.aot.note


def _relaid(rank: int, folder: str) -> None:
    with a_group(rank, folder):
        _MESHES[0] = init_device_mesh("cpu", (2,))
        module, x = _tensor_parallel(), torch.arange(8.0).reshape(2, 4)
        compiled = engine.compile(module, backend="aot_eager")
        whole = torch.arange(32.0).reshape(8, 4)
        for n in (0, 0, 0, 0, 0, 1, 0, 1):
            placement = (Replicate(), Partial())[n]
            module.up.weight = nn.Parameter(DTensor.from_local(whole, _MESHES[0], [placement], run_check=False))
            with torch.no_grad():
                _same(compiled(x), module(x))


def averages(x: Any) -> Any:
    """Global sizes are numbers of the graph and of its results."""
    return x.view(-1, 2, 2).sum(0), x.softmax(0) * x.shape[0], x.new_zeros(x.shape) + x.mean(0)


def _resized(rank: int, folder: str) -> None:
    with a_group(rank, folder):
        _MESHES[0] = init_device_mesh("cpu", (2,))
        for placement in (Shard(0), Replicate()):
            engine.reset()
            compiled = engine.compile(averages, backend="aot_eager")
            with engine.record() as session:
                for rows in (8, 12, 16, 20, 7, 9, 24):
                    x = distribute_tensor(torch.randn(rows, 4), _MESHES[0], [placement])
                    _same(compiled(x), averages(x))
            first, dynamic, *_ = session.compilations
            assert [c.aot.note for c in (first, dynamic) if c.aot is not None] == ["", ""]


@pytest.mark.thorough
def test_sizes_that_change_stay_in_the_graph(tmp_path: pathlib.Path) -> None:
    """Sizes of an even shard are multiples of the local ones; uneven shards are right too."""
    in_two_processes(_resized, tmp_path)


@pytest.mark.thorough
def test_a_new_parameter_with_another_placement_recompiles(tmp_path: pathlib.Path) -> None:
    """A parameter set anew at each call is compared with the placements of the compiled code."""
    in_two_processes(_relaid, tmp_path)


@pytest.mark.thorough
def test_optimizers_step_in_one_graph(tmp_path: pathlib.Path) -> None:
    """Clipping and an optimizer's step are one graph over local tensors, and equal eager's."""
    in_two_processes(_steps, tmp_path)


@pytest.mark.thorough
def test_distributed_tensors_are_captured(tmp_path: pathlib.Path) -> None:
    """``DTensor`` operations are captured in one graph and match eager on every backend.

    Tensors are created inside, passed in, returned, redistributed and asked for their layout, which is guarded:
    another layout recompiles once.
    """
    in_two_processes(_captures, tmp_path)


@pytest.mark.thorough
def test_parallel_modules_train(tmp_path: pathlib.Path) -> None:
    """Tensor-parallel and sequence-parallel modules are captured in forward and backward.

    They have no graph break.
    """
    in_two_processes(_trains, tmp_path)
