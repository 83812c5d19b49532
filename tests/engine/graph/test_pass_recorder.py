"""What is recorded of passes over graphs."""

from __future__ import annotations

import torch

import engine
from engine.graph.passes.recorder import MAX_LINES, PASS_RECORDS_KEY, PassRecorder
from engine.ir.current_session import set_current_session
from engine.records.session import Session


def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Holds an alias, and an operator that is taken apart."""
    return torch.nn.functional.huber_loss((x @ w).detach() + w.sum(), x)


def test_a_recorded_compilation_tells_its_passes_in_order() -> None:
    """Passes are recorded in order, and each node count continues that of the previous pass.

    Aliases and dead nodes are removed before lowering; operators are decomposed during lowering.
    """
    with engine.record() as session:
        engine.compile(loss)(torch.ones(4, 8), torch.ones(8, 8, requires_grad=True))
    record = session.compilations[0]
    joint = next(g for g in record.graphs if g.stage == "joint")
    assert [p.name for p in joint.passes] == ["eliminate_dead_code", "remove_noop_aliases", "eliminate_dead_code"]
    assert all(a.nodes_after == b.nodes_before for a, b in zip(joint.passes, joint.passes[1:], strict=False))
    assert joint.passes[-1].nodes_after == len(joint.nodes)
    # torch 2.14 and newer trace detach() to aten.alias
    assert any("aten.detach" in line or "aten.alias" in line for p in joint.passes for line in p.removed)
    assert record.lowering is not None
    taken = record.lowering.passes[0]
    assert taken.name == "decompose"
    assert any("huber_loss" in line for line in taken.removed)
    assert taken.nodes_after > taken.nodes_before


def test_edits_lead_from_the_graph_before_each_pass_to_the_one_after() -> None:
    """Applying the edits of each pass in turn yields the lowered graph, line by line.

    The edits start at the graph before the first pass. After each pass the line count equals the node count.
    """
    engine.reset()
    with engine.record() as session:
        engine.compile(loss)(torch.ones(4, 8), torch.ones(8, 8, requires_grad=True))
    joint = next(g for g in session.compilations[0].graphs if g.stage == "joint")
    lines: tuple[str, ...] = ()
    for told in joint.passes:
        lines = told.lines_before or lines
        assert told.has_exact_edits
        assert len(lines) == told.nodes_before
        for edit in told.edits:
            lines = (*lines[: edit.line], *edit.added_lines, *lines[edit.line + edit.removed_count :])
        assert len(lines) == told.nodes_after
    assert lines == tuple(n.text for n in joint.nodes)


def test_long_lists_are_cut_and_counted_and_nothing_is_noted_without_a_session() -> None:
    """At most MOST lines of a pass are kept; the whole numbers are told."""
    graph = torch.fx.Graph()
    last = graph.placeholder("x")
    for _ in range(MAX_LINES + 20):
        last = graph.call_function(torch.ops.aten.neg.default, (last,))
    graph.output(())
    watch = PassRecorder(torch.fx.GraphModule({}, graph))
    with watch.record_pass("nothing"):
        pass
    assert watch.records == []
    with set_current_session(Session()), watch.record_pass("empty"):
        graph.eliminate_dead_code()
    (told,) = watch.records
    assert (told.nodes_before, told.nodes_after, told.removed_count, told.added_count) == (
        MAX_LINES + 22,
        2,
        MAX_LINES + 20,
        0,
    )
    assert len(told.removed) == MAX_LINES
    assert PASS_RECORDS_KEY not in watch.module.meta
