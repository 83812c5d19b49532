"""The vector loop is divided where conditions change, as in a concatenation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.ir.kernels.host_vectors import VectorUnit
from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_conditions import condition_in, iterations_under, pieces_of
from engine.ir.loop_ir.index_expr import LoopVar, variable
from tests.engine.kernels.cpu.test_cpu_kernels import UNITS, assert_same, run_on_cpu

F = torch.nn.functional


def _gates(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[-1] // 3
    gate, value = x[..., :n].sigmoid(), x[..., n : 2 * n].tanh()
    return torch.cat([value * gate * (1 - gate), gate * (1 - value * value), x[..., 2 * n :].exp()], -1)


def _assign_slices(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[..., 20:] = x[..., 20:].sqrt()
    y[..., :3] += 1
    return y


def _bands(x: torch.Tensor) -> torch.Tensor:
    i = torch.arange(x.shape[-1])
    return torch.where((i >= 18) & (i < 40) | (i < 1), x.sqrt(), x.exp())


FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "gates": _gates,
    "parts of one element": lambda x: torch.cat([x[..., :1].sin(), x.exp(), x[..., :2].cos()], -1),
    "padding": lambda x: F.pad(x.exp(), (3, 40), value=math.nan),
    "slices": _assign_slices,
    "bands": _bands,
    "rows": lambda x: torch.cat([x.sin(), x.exp()]),
    "half": lambda x: torch.cat([x.half().sin(), x.half().exp()], -1),
    "integers": lambda x: torch.cat([(x * 9).long() // 2, (x > 0).long()], -1),
    "checked positions": lambda x: torch.cat([x[..., (x.flatten()[:30] > 0).long()], x.exp()], -1),
}


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
@pytest.mark.parametrize("shape", [(40, 48), (3, 131), (2000,)], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_divided_loops_are_right(name: str, shape: tuple[int, ...], unit: VectorUnit) -> None:
    """Results are eager's for rests, shared loops, short pieces, and NaN in untaken branches."""
    torch.manual_seed(0)
    args = (torch.randn(shape),)
    _, found = run_on_cpu(FUNCTIONS[name], args, unit)
    assert_same(found, FUNCTIONS[name](*args))


def test_parts_of_a_concatenation_are_computed_only_there() -> None:
    """Each piece has the function of its part, none selects, and nothing is stored in between."""
    program, _ = run_on_cpu(lambda x: torch.cat([x.sin(), x.erf()], -1) * 2, (torch.randn(100, 512),), UNITS[0])
    (kernel,) = program.kernels
    body = kernel.text.partition("define internal")[0]
    assert "%where" not in body
    assert "masked.load" not in body


def test_pieces_end_where_conditions_change() -> None:
    """A piece has a least length, and a condition that changes in it has no value there."""
    var, other = LoopVar("i", 100), LoopVar("j", 100)
    b = LoopBuilder()
    low, high = b.index_lt(variable(var), 30), b.index_ge(variable(var) * 2, 65)
    near, unrelated = b.index_lt(variable(var), 99), b.index_lt(variable(var) + variable(other), 50)
    assert pieces_of([low, high, near, unrelated], var, 1) == [(0, 30), (30, 33), (33, 99), (99, 100)]
    pieces = pieces_of([low, high, near, unrelated], var, 16)
    assert pieces == [(0, 30), (30, 46), (46, 99), (99, 100)]
    assert [condition_in(low, var, *piece) for piece in pieces] == [True, False, False, False]
    assert [condition_in(low | high, var, *piece) for piece in pieces] == [True, None, True, True]
    assert [condition_in(low & high, var, *piece) for piece in pieces] == [False, False, False, False]
    assert condition_in(unrelated, var, 0, 30) is None
    assert (iterations_under(near, var, pieces), iterations_under(high, var, pieces)) == (99, None)
