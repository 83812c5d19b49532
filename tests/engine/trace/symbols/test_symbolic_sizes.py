"""Sizes and ints as symbols."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.ir.compiler_protocol import CompileRequest
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.guards.symbolic_shapes import SymbolicShapeGuard
from engine.ir.guards.tensors import TensorMatch
from engine.ir.traced_frame import TracedFrame
from engine.options import Options
from engine.trace.driver import trace_frame


def trace(function: Any, dynamic: dict[str, frozenset[int]], options: Options, **arguments: Any) -> TracedFrame:
    return trace_frame(CompileRequest(function, arguments, "0", 0, "first call", dynamic), options)


def halves(x: Any) -> Any:
    rows, columns = x.shape
    y = x.view(rows * columns)
    return (y * 2 if columns > 3 else y), columns // 2


def test_symbols_need_no_files_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A symbol is created without torch's list of its files, for which Inductor is imported."""

    def uninteresting_files() -> set[str]:
        raise AssertionError("torch lists its files")

    monkeypatch.setattr("torch.fx.experimental.symbolic_shapes.uninteresting_files", uninteresting_files)
    assert trace(halves, {}, Options(dynamic=True), x=torch.randn(4, 6)).graph is not None


def test_sizes_become_symbols_on_request() -> None:
    """With dynamic=True sizes are symbols, and each comparison leaves a relation."""
    traced = trace(halves, {}, Options(dynamic=True), x=torch.randn(4, 6))
    assert traced.graph is not None
    match = next(g for g in traced.guards if isinstance(g, TensorMatch))
    assert match.sizes == (None, None)
    relations = [str(g.relation) for g in traced.guards if isinstance(g, SymbolicShapeGuard)]
    assert any("> 3" in r or ">= 4" in r for r in relations)


def test_what_only_pythons_forms_can_evaluate_is_traced() -> None:
    """Operators use their Python implementations if C++ rejects symbolic sizes."""
    asked: list[bool] = []

    def particular(x: torch.Tensor) -> torch.Tensor:
        asked.append(torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher))
        if not asked[-1]:
            raise RuntimeError("Cannot call numel() on tensor with symbolic sizes/strides")
        return x * 2

    engine.allow_in_graph(particular)
    traced = trace(lambda x: particular(x) + 1, {}, Options(dynamic=True), x=torch.randn(4, 6))
    assert asked == [True]
    assert traced.graph is not None


def test_only_the_dimension_seen_to_change_becomes_a_symbol() -> None:
    """Automatic dynamic names origin and dimension; the other stays a number."""
    traced = trace(halves, {"L['x']": frozenset({0})}, Options(), x=torch.randn(4, 6))
    match = next(g for g in traced.guards if isinstance(g, TensorMatch))
    assert match.sizes == (None, 6)


def test_ints_seen_to_change_become_inputs() -> None:
    """Such an int is an input of the graph and is not guarded by its value."""

    def scaled(x: Any, n: int) -> Any:
        return x * n + n

    traced = trace(scaled, {"L['n']": frozenset({-1})}, Options(), x=torch.randn(3), n=5)
    assert traced.graph is not None
    assert [i.name for i in traced.graph.inputs] == ["x", "n"] or [i.name for i in traced.graph.inputs] == ["n", "x"]
    assert not any(isinstance(g, EqualsMatch) for g in traced.guards)


def test_marked_dimensions_are_symbols() -> None:
    """mark_dynamic's attribute on a tensor is heard, ours and torch's."""
    for attribute, value in (("_engine_dynamic", {1: (None, None)}), ("_dynamo_dynamic_indices", {1})):
        x = torch.randn(4, 6)
        setattr(x, attribute, value)
        match = next(g for g in trace(halves, {}, Options(), x=x).guards if isinstance(g, TensorMatch))
        assert match.sizes == (4, None)


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (lambda x: torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear"), ((2, 3, 5, 6), (2, 3, 7, 8))),
        (
            lambda x: torch.nn.functional.conv1d(torch.nn.functional.pad(x, (2, 0)), torch.ones(3, 3, 3)),
            ((2, 3, 5), (2, 3, 8)),
        ),
        (lambda x: torch.nn.functional.conv2d(x, torch.ones(4, 3, 3, 3), padding="same"), ((2, 3, 5, 6), (2, 3, 7, 8))),
        (lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 2), ((2, 3, 4, 6), (2, 3, 9, 8))),
    ],
    ids=["interpolate", "pad and conv1d", "conv2d", "adaptive pool"],
)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_composites_keep_symbols(
    function: Callable[[torch.Tensor], torch.Tensor], sizes: tuple[tuple[int, ...], ...], backend: str
) -> None:
    """Composite torch functions accept other sizes without a recompile."""
    compiled = engine.compile(function, backend=backend, dynamic=True)
    with engine.expect(recompiles=0):
        for size in sizes:
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), function(x))


@pytest.mark.parametrize(
    "calculate",
    [
        lambda n: int(n / 2),
        lambda n: math.floor(n / 3) + math.ceil(n * 0.7) + round(n / 4) + math.trunc(n / 5),
        lambda n: int(math.sqrt(n)) + int(math.prod([n, n])),
        lambda n: torch.sym_int(torch.sym_float(n) * 0.5),
    ],
)
def test_what_python_calculates_of_a_size_stays_a_symbol(calculate):
    """Two compilations serve all sizes: one for the first, one for those that follow."""
    engine.reset()
    compiled = engine.compile(lambda x: x.new_ones(calculate(x.shape[0])), backend="eager")
    with engine.record() as session:
        for n in (6, 9, 13, 20, 31):
            assert compiled(torch.ones(n)).shape[0] == int(calculate(n))
    assert len(session.compilations) == 2
