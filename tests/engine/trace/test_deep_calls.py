"""Calls nested so deeply that the tracer has no stack left for them."""

from __future__ import annotations

import pytest
import torch

import engine


def deep(x: torch.Tensor, n: int) -> torch.Tensor:
    """Add one, n calls deep."""
    return x if n == 0 else deep(x + 1, n - 1)


def test_a_tracer_without_stack_leaves_calls_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A RecursionError while tracing is not the user's, and no callee is compiled."""

    def exhausted(*_: object, **__: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr("engine.trace.emit_node.evaluate_on_fakes", exhausted)
    with engine.record() as session:
        result = engine.compile(deep, backend="eager")(torch.zeros(2), 150)
    assert torch.equal(result, torch.full((2,), 150.0))
    assert [b.kind for c in session.compilations if c.trace for b in c.trace.breaks] == ["depth"]
