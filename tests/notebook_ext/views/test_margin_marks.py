"""Test the marks beside the lines of the user's code."""

from __future__ import annotations

import torch

import engine
from notebook_ext.views.linked.margin_marks import margin
from notebook_ext.views.linked.row_links import linked


def scaled(x: torch.Tensor) -> torch.Tensor:
    y = torch.exp(x) * 2
    print("between")
    return y.sum(-1)


def test_lines_have_breaks_recompiles_and_the_cost_of_their_kernels() -> None:
    """A graph break, recompiles, and the bytes of kernels are at their lines."""
    with engine.record() as session:
        run = engine.compile(scaled)
        for size in (64, 96):
            run(torch.randn(size, size))
    first = session.compilations[0]
    (file,) = [f for f in margin(session) if any("print(" in m["code"] for m in f["marks"])]
    marks = {m["code"]: m for m in file["marks"]}
    define, exp, between = (
        marks["def scaled(x: torch.Tensor) -> torch.Tensor:"],
        marks["y = torch.exp(x) * 2"],
        marks['print("between")'],
    )
    assert define["sign"] == "↻1"
    assert define["text"] == "1 recompile"
    assert exp["text"].startswith("part of 2 kernels, which move ")
    assert exp["number"] > 0
    assert 0 < exp["heat"] <= 1
    assert between["sign"].startswith("✗")
    assert between["text"].startswith("graph break: ")
    assert exp["target"] == f"linked|{first.id}|line={exp['line']}"
    # The source pane shows the same where there is no editor with a margin.
    costs = linked(session, first.id)["costs"]
    assert costs[str(define["line"] - 1)] == [1, 0.0, "1 recompile"]
    assert costs[str(exp["line"] - 1)][1] == exp["heat"]
