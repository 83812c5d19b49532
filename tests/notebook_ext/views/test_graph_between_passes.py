"""Test graphs between two passes: exact, linked to earlier nodes, and in the explorer."""

from __future__ import annotations

import pytest
import torch

import engine
from engine.records.session import CompilationRecord, Session
from notebook_ext.views.explorer_parts import all_keys, part
from notebook_ext.views.graph.graph_between_passes import (
    graph_before_pass,
    intermediate_graph,
    intermediate_graphs,
    lines_after_passes,
    nodes_from_lines,
    passes_of,
)


def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Holds an alias, and an operator that is taken apart."""
    return torch.nn.functional.huber_loss((x @ w).detach() + w.sum(), x)


@pytest.fixture(scope="module")
def session() -> Session:
    """One compilation with its backward."""
    with engine.record() as session:
        engine.compile(loss)(torch.ones(4, 8), torch.ones(8, 8, requires_grad=True))
    return session


@pytest.fixture
def record(session: Session) -> CompilationRecord:
    """What was recorded of it."""
    return session.compilations[0]


def test_the_last_snapshot_of_a_row_of_passes_is_the_graph_itself(record: CompilationRecord) -> None:
    """The graph after the last pass equals the joint graph, node for node.

    The inputs of each node are equal too.
    """
    joint = next(g for g in record.graphs if g.stage == "joint")
    assert lines_after_passes(joint.passes, len(joint.passes)) == tuple(n.text for n in joint.nodes)
    names = {n.id: n.name for n in joint.nodes}
    made = nodes_from_lines(lines_after_passes(joint.passes, len(joint.passes)), "s", {})
    assert [[i.rpartition(":")[2] for i in n.inputs] for n in made] == [
        [names[i] for i in dict.fromkeys(n.inputs)] for n in joint.nodes
    ]


def test_a_node_knows_what_it_was_before_the_pass(record: CompilationRecord) -> None:
    """What stayed comes from itself; what an operator was taken apart into comes from it."""
    graph = next(g for g in record.graphs if g.stage == "forward")
    number = next(i for i, p in enumerate(passes_of(record, graph), 1) if p.name == "decompose")
    after, before = intermediate_graph(record, f"forward@{number}"), graph_before_pass(record, f"forward@{number}")
    assert after is not None
    assert before is not None
    taken = next(n for n in before.nodes if "huber_loss" in n.text)
    parts = [n for n in after.nodes if taken.id in n.origins]
    assert len(parts) > 2
    same = {n.text: n.id for n in before.nodes}
    kept = [n for n in after.nodes if n.text in same]
    assert all(n.origins == (same[n.text],) for n in kept)
    assert any(n.shape for n in kept)


def test_snapshots_are_stages_of_the_graph_view(session: Session, record: CompilationRecord) -> None:
    """Each graph between passes is its own part and stage of the graph view.

    Every other part offers it, with its rewrites to replay. A page holds all of them, and passes link to
    them.
    """
    found = intermediate_graphs(record)
    assert found
    for between in found:
        told = part(session, f"graph|{record.id}|{between.stage}")
        assert told["stage"] == between.stage
        assert [between.stage, between.label] in told["snapshots"]
        assert bool(told["before"]) == (" after " in between.label)
        assert f"graph|{record.id}|{between.stage}" in set(all_keys(session))
    passes = part(session, f"graph|{record.id}|joint")["passes"]
    assert {p["snapshot"] for p in passes if p["snapshot"]} <= {s.stage for s in found}


def test_what_is_no_snapshot_is_none(record: CompilationRecord) -> None:
    """A stage, a number too high, and a graph without passes have none."""
    assert intermediate_graph(record, "joint") is None
    assert intermediate_graph(record, "joint@99") is None
    assert intermediate_graph(record, "fx@1") is None
    assert graph_before_pass(record, "joint@0") is None
