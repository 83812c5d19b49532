"""A recorded program allocates its outputs, and nothing else, in their own memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from engine.kernels.triton.printer import print_triton
from engine.lowering.driver import lower
from engine.runtime import graph_pools, program_executor, program_text
from tests.engine.lowering.trace_aten import trace_to_aten


class Pool:
    """Counts the allocations that are made in it."""

    def __init__(self) -> None:
        self.is_active = False

    @contextlib.contextmanager
    def allocations(self) -> Iterator[None]:
        """Inside the block, it is active."""
        assert not self.is_active
        self.is_active = True
        yield
        self.is_active = False


def allocated_shapes(function: Any, *args: torch.Tensor) -> tuple[list[Any], list[Any]]:
    """Shapes that a program allocates inside and outside of the memory of outputs."""
    pool, inside, outside = Pool(), [], []
    program = lower(trace_to_aten(function, args), "cuda:90", print_triton)
    bind = lambda kernel, misaligned: lambda *arguments: None  # noqa: E731
    executor = program_executor.ProgramExecutor(program, bind, is_boxed=True, output_memory=graph_pools.output_memory)
    allocate, copy = torch.empty_strided, torch.Tensor.clone

    def empty_strided(size: Any, stride: Any, *rest: Any, **named: Any) -> torch.Tensor:
        (inside if pool.is_active else outside).append(tuple(size))
        return allocate(size, stride, dtype=torch.float32)

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        (inside if pool.is_active else outside).append(tuple(tensor.shape))
        return copy(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_text, "empty_strided_cpu", empty_strided)
        patch.setattr(torch, "empty_strided", empty_strided)
        patch.setattr(torch.Tensor, "clone", clone)
        with graph_pools.outputs_in(pool):  # type: ignore[arg-type]
            executor(list(args))
    return inside, outside


def test_temporaries_are_allocated_in_the_pool_of_the_graph() -> None:
    """A kernel that writes an output and a temporary allocates each in its memory."""

    def f(x: torch.Tensor) -> Any:
        y = x.sin() + 1
        return y * 2, (y @ y).sum()

    inside, outside = allocated_shapes(f, torch.randn(48, 48))
    assert sorted(inside) == [(), (48, 48)]
    assert (48, 48) in outside


def test_a_small_output_beside_large_temporaries_is_copied() -> None:
    """The gradient of a convolution's weight is copied out of the graph's pool."""

    def f(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        given, weight, _ = torch.ops.aten.convolution_backward(
            grad, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )
        return weight, given.sum((0, 1, 2, 3))

    image, w = torch.randn(2, 4, 32, 32), torch.randn(4, 4, 3, 3)
    inside, _ = allocated_shapes(f, image, image, w)
    assert sorted(inside) == [(), (4, 4, 3, 3)]


def test_nothing_is_copied_without_a_pool_of_outputs() -> None:
    """A program that is not recorded returns what the call returned."""
    tensor = torch.ones(2)
    assert graph_pools.copied_to_output_memory(tensor) is tensor
