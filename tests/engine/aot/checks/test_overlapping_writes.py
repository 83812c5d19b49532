"""Writes that overlap what they read, in a graph and in functions that it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import engine
from engine.aot.checks.overlapping_writes import OverlappingWriteMode
from engine.ir.fallback import FallbackRequired


def scan_of_view(x: torch.Tensor) -> torch.Tensor:
    """A scan of what its result overwrites."""
    return torch.cumsum(x.view_as(x), 0, out=x)


def sine_of_view(x: torch.Tensor) -> torch.Tensor:
    """A sine in place, through a view."""
    return torch.sin(x.view_as(x), out=x)


def scan_of_other_half(x: torch.Tensor) -> torch.Tensor:
    """A scan of memory beside its result."""
    return torch.cumsum(x[:2], 0, out=x[2:])


@pytest.mark.parametrize(
    ("function", "reason"), [(scan_of_view, "in another order"), (sine_of_view, ""), (scan_of_other_half, "")]
)
def test_out_over_its_operand_falls_back_unless_it_is_elementwise(function: Callable[..., Any], reason: str) -> None:
    """An elementwise operator reads each element before it writes it."""
    engine.reset()
    x, y = torch.arange(4.0), torch.arange(4.0)
    with engine.record() as session:
        result = engine.compile(function, backend="aot_eager")(x)
    torch.testing.assert_close(result, function(y))
    torch.testing.assert_close(x, y)
    (compilation,) = session.compilations
    assert compilation.aot is not None
    fallback = compilation.aot.fallback
    assert reason in fallback.reason if reason else fallback is None


def test_a_callee_may_read_overlapping_elements_but_not_write_them() -> None:
    """Only the written tensor counts, be it the first argument or ``out=``."""
    x, row = torch.ones(3, 4), torch.ones(1, 4).expand(3, 4)
    with OverlappingWriteMode():
        x.add_(row)
        torch.add(row, row, out=x)
        for write in (lambda: row.add_(1), lambda: torch.add(x, x, out=row)):
            with pytest.raises(FallbackRequired, match="elements overlap in memory"):
                write()


def test_a_dead_operator_of_a_callee_raises_as_in_eager() -> None:
    """Functional graphs drop it, and eager has no kernel for it."""

    def region(x: torch.Tensor, has_kernel: bool) -> torch.Tensor:
        F.hardswish(x if has_kernel else x.long())
        return x * 2

    def call(x: torch.Tensor, has_kernel: bool) -> torch.Tensor:
        result: torch.Tensor = checkpoint(region, x, has_kernel, use_reentrant=False)
        return result + 1

    engine.reset()
    compiled = engine.compile(call, backend="aot_eager")
    x = torch.ones(3, requires_grad=True)
    with engine.record() as session:
        torch.testing.assert_close(compiled(x, True), call(x, True))
    assert [c.aot.fallback for c in session.compilations if c.aot is not None] == [None]
    with pytest.raises(NotImplementedError):
        call(x, False)
    with pytest.raises(NotImplementedError):
        compiled(x, False)
