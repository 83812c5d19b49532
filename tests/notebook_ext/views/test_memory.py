"""Show live memory: one row of steps, forward then backward, with its blocks and lines."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import engine
from engine.editing.try_checkpoints import try_checkpoints
from engine.records.session import Session
from notebook_ext.views.aot_wrappers import aot_wrappers
from notebook_ext.views.explorer_parts import empty_views
from notebook_ext.views.performance.memory import checkpoint_trials, memory
from notebook_ext.views.static_snapshot.stage_tables import detail_tables
from tests.forked_backwards import skip_if_forks_run_no_backward


def test_forward_and_backward_share_one_row_of_steps() -> None:
    """The peak, its sentence, the blocks at it and their source lines agree."""
    weight = nn.Parameter(torch.randn(64, 256))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight).exp().sum()

    with engine.record() as session:
        engine.compile(loss)(torch.randn(32, 64)).backward()
    entry = session.compilations[0].id
    shown = memory(session, entry)
    forward, backward = shown["programs"]
    assert (forward["first"], backward["first"]) == (0, forward["count"])
    assert len(shown["steps"]) == forward["count"] + backward["count"]
    live = [b for b in shown["blocks"] if b["first"] <= shown["peak"] <= b["last"]]
    assert sum(b["bytes"] for b in live) == shown["steps"][shown["peak"]]["bytes"]
    assert f"{len(live)} tensors live" in shown["outcome"]
    saved = next(b for b in shown["blocks"] if b["kind"] == "saved")
    assert shown["source"][saved["lines"][0]][2].startswith("return torch.tanh")
    (table,) = [t for t in detail_tables(session, session.compilation(entry)) if t[0].startswith("Live memory")]
    assert [row[0] for row in table[2]] == ["forward", "backward"]
    assert "memory" not in empty_views(session)


def test_results_of_one_operator_have_the_names_of_the_graph() -> None:
    """The forward, the backward and the AOT view name a saved value alike."""
    query, key, value = (torch.randn(2, 4, 16, 8, requires_grad=True) for _ in range(3))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sin()

    with engine.record() as session:
        engine.compile(attend)(query, key, value).sum().backward()
    entry = session.compilations[0].id
    shown = memory(session, entry)
    saved = {b["name"] for b in shown["blocks"] if b["kind"] == "saved"}
    assert {b["name"] for b in shown["blocks"] if b["why"] == "saved for the backward"} == saved != set()
    assert saved < {n["name"] for n in aot_wrappers(session, entry)["backward"]["inputs"]}
    names = {n.name for g in session.compilation(entry).graphs for n in g.nodes}
    assert {b["name"] for b in shown["blocks"]} <= names
    assert any(f"largest {name} " in shown["outcome"] for name in names)


def test_sizes_known_only_at_run_time_are_symbols_in_both_views() -> None:
    """Bytes of such sizes are expressions and no guess; run-time checks are no results."""
    weight = nn.Parameter(torch.randn(3))

    def loss(x: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        bins = torch.bincount(counted, minlength=3)
        return (x.nonzero().float().sin() * weight[0]).sum() + (weight[: bins.shape[0]] * bins).sum()

    with engine.record() as session:
        engine.compile(loss, backend="aot_eager")(torch.ones(4), torch.tensor([0, 1, 2])).backward()
    entry = session.compilations[0].id
    shown = aot_wrappers(session, entry)
    sizes = {row["name"]: row["bytes"] for row in shown["partition"]["rows"]}
    assert sizes["bincount"] == "24 B"
    assert any("*u" in size for size in sizes.values())
    assert "unknown until it runs" in shown["partition"]["text"]
    assert "unknown until it runs" in memory(session, entry)["recompute"]
    assert [v["name"] for v in shown["outputs"]] == ["output 0"]
    assert shown["checks"] >= 1
    assert not [row for row in shown["graph"]["outputs"] if "SymBool" in row["type"]]


@pytest.mark.thorough
def test_checkpoints_are_tried_and_compared_with_eager() -> None:
    """Trials say what a checkpoint would save for the backward, and the peaks."""
    skip_if_forks_run_no_backward()
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU())
    with engine.record() as session:
        engine.compile(net)(torch.randn(16, 32)).sum().backward()
    entry = session.compilations[0].id
    assert "saved for the backward" in {b["why"] for b in memory(session, entry)["blocks"]}
    everything, selective = trials = tuple(try_checkpoints(session, entry))
    assert [(t.problem, t.difference) for t in trials] == [("", "")] * 2
    before = session.compilations[0].aot.partition.saved_bytes
    assert everything.saved_bytes < before
    assert everything.saved_bytes <= selective.saved_bytes <= before
    assert len(everything.peaks) == 2
    checkpoint_trials[session] = {entry: trials}
    rows = memory(session, entry)["checkpoints"]
    assert [r["policy"] for r in rows] == ["As compiled", everything.policy, selective.policy]
    assert rows[1]["verdict"] == "✓ those of eager"
    assert "checkpoint(" in rows[1]["code"]


def test_a_session_without_programs_says_what_fills_the_view() -> None:
    """Without lowering nothing is known of memory; the view says so in one sentence."""
    with engine.record() as session:
        engine.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert "backend triton" in empty_views(session)["memory"]
    assert (
        memory(session, session.compilations[0].id)["outcome"] == "No program was recorded, so its memory is not known."
    )
    assert "memory" in empty_views(Session())
