"""Compilers that are not ours: what they are given, and what they take for granted of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.backends.aot import kernel_guards
from engine.options import Options


def rows(x: torch.Tensor) -> torch.Tensor:
    """Depends on how many rows there are."""
    return (x * 2).relu() + x.shape[0]


def _compiled_for(*sizes: int, backend: Any) -> int:
    """How often ``rows`` was compiled for these sizes, each result compared with eager."""
    with engine.record() as session:
        compiled = engine.compile(rows, backend=backend, dynamic=True)
        for size in sizes:
            x = torch.randn(size, 4)
            torch.testing.assert_close(compiled(x), rows(x))
    assert not any(c.failures for c in session.compilations)
    return len(session.compilations)


@pytest.mark.thorough
def test_inductor_keeps_symbols() -> None:
    """torch's own compiler serves every size with what it compiled once."""
    assert _compiled_for(4, 6, 8, 6, backend="inductor") == 1


def test_sizes_are_symbols_for_a_backend() -> None:
    """A custom backend sees symbolic sizes, and compiles once if it specializes none."""
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        seen.extend(s for e in examples if isinstance(e, torch.Tensor) for s in e.shape)
        return graph.forward

    assert _compiled_for(4, 6, 8, backend=backend) == 1
    assert any(isinstance(s, torch.SymInt) for s in seen)


class Block(torch.nn.Module):
    """A layer below the root module."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer and an activation."""
        return self.layers[0](x).relu()


def test_a_backend_reads_the_metadata_that_dynamo_sets() -> None:
    """Each operation has the lines, the modules and the function it comes from."""
    seen: dict[str, dict[str, Any]] = {}

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        seen.update((n.name, n.meta) for n in graph.graph.nodes if n.op.startswith("call"))
        return graph

    x, block = torch.randn(3, 2), Block()
    torch.testing.assert_close(engine.compile(block, backend=backend)(x), block(x))
    linear, relu = seen["linear"], seen["relu"]
    assert "in forward\n    return self.layers[0](x).relu()" in linear["stack_trace"]
    assert [cls for _, cls in linear["nn_module_stack"].values()] == [Block, torch.nn.ModuleList, torch.nn.Linear]
    assert [cls for _, cls in relu["nn_module_stack"].values()] == [Block]
    assert linear["source_fn_stack"] == [("linear", torch.nn.functional.linear)]
    assert relu["source_fn_stack"] == [("relu", "relu")]


def test_a_size_that_a_backend_takes_for_granted_is_guarded() -> None:
    """A size that a backend converts to an int is specialized; other sizes recompile.

    The results are right for every size.
    """

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        sizes = [int(s) for e in examples if isinstance(e, torch.Tensor) for s in e.shape]

        def run(*given: Any) -> Any:
            assert [s for e in given if isinstance(e, torch.Tensor) for s in e.shape] == sizes
            return graph(*given)

        return run

    assert _compiled_for(4, 6, 8, 6, 4, backend=backend) == 3


def test_a_backend_sees_this_call_where_sizes_are_fixed() -> None:
    """Without symbols, the example inputs are the call's real tensors.

    A backend may compute with them.
    """
    sums: list[float] = []

    def backend(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        sums.extend(float(e.sum()) for e in examples)
        return graph.forward

    engine.compile(lambda x: x + 1, backend=backend)(torch.full((3,), 2.0))
    assert sums == [6.0]


@pytest.mark.parametrize(
    ("backend", "device", "guarded"), [("triton", "cuda", 1), ("triton", "cpu", 0), ("eager", "cuda", 0)]
)
def test_kernels_guard_the_precision_of_products(backend: str, device: str, guarded: int) -> None:
    """Kernels of products are generated for one precision: a change of it compiles again."""
    guards = kernel_guards(Options(backend=backend), {device})
    assert len(guards) == guarded
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if before == "highest" else "highest")
    try:
        assert guards == () or guards != kernel_guards(Options(backend=backend), {device})
    finally:
        torch.set_float32_matmul_precision(before)
