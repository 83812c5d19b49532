"""Symbols stay out of torch's cache of the placements that operators on DTensors get."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import engine
from engine.torch_private.lazily_loaded import FakeStore

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """The mesh of two ranks, of which only this one exists."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield init_device_mesh("cpu", (2,))
    finally:
        dist.destroy_process_group()


def updates(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Call the same operators with many numbers that are read from a tensor."""
    for weight in weights:
        number = weight.item()
        x.lerp_(x.sin(), number).addcdiv_(x, x.cos(), value=number)
    return x


def test_a_number_read_from_a_tensor_never_meets_another_one(mesh: DeviceMesh) -> None:
    """Each number is a symbol: a comparison of two would break the graph."""
    parts, weights = [torch.linspace(0.1, 1.0, 16).reshape(4, 4) for _ in range(2)], torch.linspace(0.0, 0.1, 40)
    x, other = (DTensor.from_local(part, mesh, [Shard(0)], run_check=False) for part in parts)
    with engine.record() as session, engine.expect(graphs=1, breaks=0):
        got = engine.compile(updates, backend="aot_eager")(x, weights)
    want = updates(other, weights)
    (compilation,) = session.compilations
    assert compilation.aot is not None
    assert not compilation.aot.note
    torch.testing.assert_close(got.to_local(), want.to_local())
