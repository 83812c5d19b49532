"""Looking at the tracer's state from traced code."""

from __future__ import annotations

import torch

import engine
from engine.ir.annotations import TracerSnapshot

SEEN: list[TracerSnapshot] = []


def look(view: TracerSnapshot) -> None:
    """Keep what was shown."""
    SEEN.append(view)


def program(x: torch.Tensor) -> torch.Tensor:
    """Looks between two operations."""
    y = x * 2
    engine.while_tracing(look)
    return y + 1


def test_the_view_tells_locals_graph_and_guards() -> None:
    """The trace view shows the graph, locals and guards known at its line.

    Here: one operation so far, both locals, and the guards on the argument.
    """
    SEEN.clear()
    engine.reset()
    compiled = engine.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
    (view,) = SEEN
    assert list(view.locals) == ["x", "y"]
    assert "mul" in view.graph
    assert "add" not in view.graph
    assert any("L['x']" in guard for guard in view.guards)
    assert "test_trace_view.py" in view.stack[-1]
    assert "locals" in str(view)


def test_it_looks_when_tracing_only() -> None:
    """Neither a call that hits nor plain Python looks."""
    engine.reset()
    compiled = engine.compile(program, backend="eager")
    compiled(torch.ones(3))
    SEEN.clear()
    compiled(torch.ones(3))
    program(torch.ones(3))
    assert SEEN == []
