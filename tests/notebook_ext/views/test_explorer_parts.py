"""Guards, recompiles, timings, breaks, kernels, graph and the parts of the explorer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import engine
from engine.records.bytecode import Span
from engine.records.graph import GraphRecord, NodeRecord, operator_name
from engine.records.guards import CallExplanation, Fix
from engine.records.lowering import AutotuneChoice
from engine.records.runtime import CallRecord, Timing
from engine.records.session import Session
from engine.records.trace import SymbolAssumption, TracedSymbolRecord, TraceRecord
from engine.supported_versions import torch_version
from notebook_ext.views.breaks import breaks
from notebook_ext.views.comparison.session_comparison import entry_summary
from notebook_ext.views.explorer_parts import all_parts, initial_parts, overview, part, start_entry
from notebook_ext.views.graph import graphviz_layout
from notebook_ext.views.graph.node_table import MAX_PER_RANK, layered_layout
from notebook_ext.views.guards import fix_rows, guards, symbol_range, what_if
from notebook_ext.views.kernels import kernels
from notebook_ext.views.performance import roofline
from notebook_ext.views.performance.timings import exclusive_seconds, timings
from notebook_ext.views.recompiles import MAX_COLUMNS, recompiles
from notebook_ext.views.static_snapshot.render import snapshot_html, snapshot_text
from tests.notebook_ext.sample_sessions import (
    broken_session,
    empty_session,
    head_session,
    hostile_session,
    large_session,
    rejection,
)


def test_the_guard_tree_holds_every_guard_once_below_its_value() -> None:
    """All sixteen guards are leaves of the guard tree.

    A value with one guard is one row. The numbers keep the order of checking.
    """
    told = guards(head_session(), "0/0")
    assert sorted(row["guard"] for row in told["tree"] if row["guard"] >= 0) == list(range(16))
    labels = [row["label"] for row in told["tree"] if row["guard"] < 0]
    assert labels == ["L['self']", ".norm", "L['x']", "L['keep']"]
    for i, row in enumerate(told["tree"]):
        assert row["parent"] < i
        assert row["depth"] == (0 if row["parent"] < 0 else told["tree"][row["parent"]]["depth"] + 1)


def test_a_case_tells_verdicts_up_to_the_failure_and_hypothetical_ones_after() -> None:
    """A cache miss has passes, one failure with the actual value and "would" verdicts."""
    case = guards(head_session(), "0/0")["cases"][0]
    assert case["failed"] == 6
    assert case["verdicts"][5] == ["pass", ""]
    assert case["verdicts"][6] == ["fail", "[96, 128]"]
    assert case["verdicts"][9] == ["would fail", "[96, 128]"]
    assert case["fixes"][0]["code"] == "engine.mark_dynamic(x, 0)"


def test_a_rejection_without_results_still_has_verdicts() -> None:
    """Guards before the failing one passed, those after it were not reached."""
    session = head_session()
    bare = replace(rejection("0/2", "[1, 128]", "[7, 128]"), results=())
    session.add_call(CallRecord(0, "0", "compiled", "0/3", None, None, ("0/2",), (bare,)))
    verdicts = guards(session, "0/2")["cases"][0]["verdicts"]
    assert [v[0] for v in verdicts[5:8]] == ["pass", "fail", "not reached"]


def test_recompiles_show_who_was_asked_in_which_order() -> None:
    """Call 8 checked both entries, missed both, and compiled the third."""
    lane = recompiles(head_session())["lanes"][0]
    assert [e["from"] for e in lane["entries"]] == [1, 3, 8]
    last = lane["columns"][-1]
    assert last["cells"] == {"0/0": "rejected", "0/1": "rejected", "0/2": "compiled"}
    # The one that Home names comes first.
    assert [r["short"] for r in last["rejections"]] == ["x shape: [s0, 128], s0 >= 2 -> [1, 128]", "x.size(0) 64 -> 1"]


def test_runs_of_equal_hits_share_a_column() -> None:
    """Two thousand calls of one shape take two columns.

    Different shapes are cut at a limit, and counted.
    """
    session = large_session(1)
    for _ in range(1_900):
        session.add_call(CallRecord(0, "0", "hit", "0/0", None, {"x": "f32[64]"}, ("0/0",)))
    lane = recompiles(session)["lanes"][0]
    assert [(c["first"], c["last"]) for c in lane["columns"]] == [(1, 1), (2, 1901)]
    for i in range(90):
        session.add_call(CallRecord(0, "0", "hit", "0/0", None, {"x": f"f32[{i}]"}, ("0/0",)))
    lane = recompiles(session)["lanes"][0]
    assert (len(lane["columns"]), lane["cut"]) == (MAX_COLUMNS, 92 - MAX_COLUMNS)


def test_stage_times_add_up_to_the_whole() -> None:
    """Nested stages are not counted twice."""
    session = head_session()
    record = replace(
        session.compilation("0/0"),
        timings=(Timing("compile", 0, 1.0), Timing("aot", 0.1, 0.6, "compile"), Timing("lowering", 0.2, 0.4, "aot")),
    )
    assert exclusive_seconds(record) == pytest.approx({"compile": 0.4, "aot": 0.2, "lowering": 0.4})
    session.put_compilation(record)
    row = timings(session)["rows"][0]
    assert row["seconds"] == 1.0
    assert [b["depth"] for b in row["bars"]] == [0, 1, 2]


def test_breaks_point_at_the_expression() -> None:
    """The source line is above carets under the span, without the path of the file."""
    found = breaks(head_session())["breaks"][0]
    code, carets = found["pointed"].split("\n")
    assert code[carets.index("^") : carets.rindex("^") + 1] == 'print("loss", l.item())'
    assert found["root"] == "loss"


def test_breaks_tell_what_was_given_up_and_an_example() -> None:
    """A graph break has a minimal example before and after.

    Each attempt says how far it came and what was undone.
    """
    told = breaks(broken_session())
    attempt = "At line 19, after 3 operations and 1 guard: print() is called; undone: seen: contents are replaced; restored: grad mode"
    assert told["breaks"][0]["attempts"] == told["attempts"] == [attempt]
    assert told["breaks"][0]["before"] == "def f(x):\n    print(x)"
    text = snapshot_text(broken_session())
    assert "Before:\n      def f(x):\n          print(x)" in text
    assert f"Discarded attempt: {attempt}" in text
    assert text.count(attempt) == snapshot_html(broken_session()).count(attempt) == 2


def test_kernels_tell_resources_or_that_there_are_none_yet() -> None:
    """A compiled kernel has registers, and one that still compiles has none.

    ATen fallbacks are listed.
    """
    told = kernels(head_session())
    assert [r["targets"].get("cuda:90", {}).get("registers") for r in told["rows"][:2]] == [28, None]
    assert told["rows"][0]["ordinals"] == [1, 2, 3, 4]
    assert [e["op"] for e in told["externs"]] == ["aten.slice"] * 3


def test_a_kernel_is_set_against_the_roof_of_its_target() -> None:
    """The estimate is the longer of memory and arithmetic, plus the launch.

    Unknown quantities get no estimate.
    """
    small, large = roofline.estimate("cuda:90", 48_000, 1_000), roofline.estimate("cuda:90", 48_000_000_000, 0)
    assert small is not None
    assert large is not None
    assert (small["bound"], large["bound"]) == ("launch", "memory")
    assert large["seconds"] == pytest.approx(0.01 + roofline.LAUNCH_SECONDS)
    assert large["rate"] == pytest.approx(4.8e12, rel=0.01)
    heavy = roofline.estimate("cuda:80", 1_000, 10**12)
    assert heavy is not None
    assert heavy["bound"] == "arithmetic"
    assert roofline.estimate("cuda:90", None, 5) is None
    assert roofline.estimate("cuda:1", 5, 5) is None


def test_how_a_grid_fills_a_card_is_said_in_words() -> None:
    """Fewer programs than multiprocessors, more, or a size that is a symbol."""
    assert roofline.grid_fill_text("cuda:90", "(32)") == "The grid fills 32 of 132 multiprocessors of the H200."
    assert (
        roofline.grid_fill_text("cuda:80", "(108, 3)")
        == "The grid has 3 programs for each of the 108 multiprocessors of the A100 80GB."
    )
    assert roofline.grid_fill_text("cuda:90", "(cdiv(s0, 1024))") == ""


def test_decisions_name_the_kernels_that_they_are_about() -> None:
    """A fusion belongs to the kernel that holds both sides."""
    told = kernels(head_session())
    fused = next(d for d in told["decisions"] if d["fused"])
    assert fused["kernels"] == ["k0"]
    assert set(told["peaks"]) == {"cuda:90"}
    assert "cuda:90" not in told["further"]


def test_a_kernel_says_which_way_was_taken_and_what_each_took() -> None:
    """Autotune choices list the fastest first and those that could not run last.

    A choice about other nodes does not belong to the kernel.
    """
    session = head_session()
    compiled = session.compilations[0]
    assert compiled.lowering is not None
    ways = (("blocks of 2048, 4 warps", 2e-5), ("blocks of <b>", None), ("blocks of 4096, 8 warps", 1.5e-5))
    mine = AutotuneChoice(
        compiled.kernels[0].fused_nodes[:2], "blocks of 4096, 8 warps", "Measured on a card: it is so.", ways
    )
    other = AutotuneChoice(("aten:9/9:mm",), "vendor", "Measured, too.")
    session.put_compilation(replace(compiled, lowering=replace(compiled.lowering, autotune_choices=(mine, other))))
    (told,) = kernels(session)["rows"][0]["choices"]
    assert told["ways"] == [
        "blocks of 4096, 8 warps: 15 µs",
        "blocks of 2048, 4 warps: 20 µs",
        "blocks of <b>: not measured",
    ]
    assert (told["taken"], told["reason"]) == (mine.chosen, mine.reason)
    text = snapshot_html(session)
    assert "Autotuning" in text
    assert "<b>: not" not in text


def test_a_layout_puts_every_node_below_its_inputs_and_none_on_another() -> None:
    """Ranks grow along edges, boxes do not overlap, wide ranks wrap."""
    nodes = [NodeRecord(f"p{i}", f"p{i}", "placeholder", "", "") for i in range(30)]
    nodes += [NodeRecord(f"n{i}", f"n{i}", "call_function", "", "", (f"p{i}", f"n{i - 1}")) for i in range(30)]
    boxes = layered_layout(GraphRecord("g", "fx", "", tuple(nodes)))
    places = {b.node.id: (b.x, b.y) for b in boxes}
    assert len(set(places.values())) == 60
    for node in nodes[30:]:
        assert all(places[i][1] < places[node.id][1] for i in node.inputs if i in places)
    wide = layered_layout(GraphRecord("g", "fx", "", tuple(nodes[:30])))
    assert max(b.x for b in wide) < MAX_PER_RANK * 250


def test_graphviz_puts_every_node_and_edge_of_a_small_graph() -> None:
    """No two nodes overlap, every edge has a path, and each node stands below what it reads."""
    session = head_session()
    graph = session.compilations[0].graphs[-1]
    placed = graphviz_layout.graphviz_layout(session, "0/0", graph.stage)
    assert placed["problem"] == ""
    assert len(placed["nodes"]) == len(graph.nodes)
    rows = [(y, x) for x, y in placed["nodes"]]
    assert all(abs(a[0] - b[0]) >= 34 or abs(a[1] - b[1]) >= 168 for i, a in enumerate(rows) for b in rows[:i])
    index = {n.id: i for i, n in enumerate(graph.nodes)}
    wanted = {(index[i], to) for to, n in enumerate(graph.nodes) for i in n.inputs}
    assert {(a, b) for a, b, _ in placed["edges"]} == wanted
    assert all(rows[a][0] < rows[b][0] for a, b in wanted if a != b)


def test_names_in_a_graph_for_graphviz_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call name that looks like Graphviz code or HTML is a plain label.

    Without Graphviz, one sentence says how to install it.
    """
    session = head_session()
    graph = session.compilations[0].graphs[0]
    hostile = replace(graph.nodes[-2], module='<b>"];\\N{|}.a\\')
    session.put_compilation(
        replace(session.compilations[0], graphs=(replace(graph, nodes=(*graph.nodes[:-2], hostile)),))
    )
    assert graphviz_layout.graphviz_layout(session, "0/0")["problem"] == ""
    monkeypatch.setattr(graphviz_layout, "PROGRAMS", ("no-such-program",))
    told = graphviz_layout.graphviz_layout(session, "0/0")
    assert told["problem"] == graphviz_layout.MISSING_MESSAGE
    assert told["nodes"] == []


def test_ten_thousand_nodes_are_laid_out_in_a_second() -> None:
    """Linear time: no search over crossings."""
    import time

    nodes = [
        NodeRecord(
            f"n{i}", f"n{i}", "call_function", "", "", tuple(f"n{j}" for j in (i - 1, i - 7, i // 2) if 0 <= j < i)
        )
        for i in range(10_000)
    ]
    start = time.thread_time()  # of this thread: other processes may use the cores
    layered_layout(GraphRecord("g", "fx", "", tuple(nodes)))
    assert time.thread_time() - start < 1.0


@pytest.mark.parametrize("session", [head_session, empty_session, hostile_session, lambda: large_session(300), Session])
def test_all_parts_are_json_and_saved_sessions_show_the_same(session: object, tmp_path: object) -> None:
    """Every part of every session is JSON-able and equal, also after loading from a file."""
    made = session()  # type: ignore[operator]
    made.versions = {**made.versions, "torch": torch_version()}  # a session of another torch has a note about that
    told = json.dumps([overview(made), initial_parts(made, "linked"), all_parts(made)])
    loaded = Session.load(made.save(tmp_path / "session.json"))  # type: ignore[operator]
    assert json.dumps([overview(loaded), initial_parts(loaded, "linked"), all_parts(loaded)]) == told


def test_an_unknown_part_is_a_key_error() -> None:
    """A stale page may ask for an entry that is gone."""
    for key in ("guards|7/7", "linked|7/7|", "nothing"):
        with pytest.raises(KeyError):
            part(head_session(), key)


def test_the_story_of_symbols_is_told_beside_the_guards() -> None:
    """The guard view gives each symbol's sources, range and assumptions as text.

    A specialized symbol is valid for one number only.
    """
    session = head_session()
    line = SymbolAssumption("s0 > 3", "taken for granted", Span(session.files[0].id, 12))
    free = TracedSymbolRecord("s0", ("x.shape[0]",), "96", "its size changed between calls", 4, None, (line,))
    bound = TracedSymbolRecord("s1", ("x.shape[1]",), "128", "marked dynamic", 2, 64, (), "128", line)
    record = session.compilation("0/1")
    trace = replace(record.trace or TraceRecord(), symbols=(free, bound))
    session.put_compilation(replace(record, trace=trace))
    first, second = guards(session, "0/1")["symbols"]
    assert (first["range"], first["relations"][0]["line"], second["range"]) == ("4 or more", 12, "only 128")
    assert second["specialized_by"]["place"]
    assert [symbol_range(replace(free, low=a, high=b)) for a, b in ((None, None), (None, 9), (2, 9))] == [
        "any", "at most 9", "2 to 9",
    ]  # fmt: skip
    assert guards(session, "0/0")["symbols"] == []


def test_a_what_if_answer_names_the_entry_or_why_there_is_none() -> None:
    """A what-if answer names the cache entry that is hit, or says why each one is not.

    It holds verdicts for the entry that is shown, unless that entry is hit.
    """
    session = head_session()
    refused = rejection("0/0", "[64, 128]", "[96, 128]")
    told = CallExplanation("0", "0/1", ("0/1", "0/0"), (refused,), {})
    answer = what_if(session, told, "0/0")
    assert (answer["hit"], answer["text"]) == ("0/1", "This call would use entry 1.")
    assert answer["case"]["failed"] == 6
    assert [r["is_reached"] for r in answer["rejections"]] == [False]  # look-up stops at 0/1
    assert what_if(session, replace(told, entries=("0/0", "0/1")), "0/0")["rejections"][0]["is_reached"]
    assert what_if(session, told, "0/1")["case"] is None
    assert "would recompile" in what_if(session, replace(told, hit=None), "0/0")["text"]


def test_fixes_say_what_was_found_when_they_were_tried() -> None:
    """Verified, tried in vain and never tried are three things."""
    fixes = (Fix("a", "x = 1", verified="re-run"), Fix("b", "x = 2", unverified_reason="not verifiable: <b>"), Fix("c"))
    rows = fix_rows(fixes)
    assert [(r["verified"], r["unverified_reason"]) for r in rows] == [
        ("re-run", ""),
        ("", "not verifiable: <b>"),
        ("", ""),
    ]


def test_the_users_function_is_shown_first_where_it_raises() -> None:
    """Its library callees are compiled alone then; the explorer does not open on them."""
    layer = nn.Linear(4, 4)

    def block(x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        if y.shape[1] != 9:
            raise ValueError("no")
        return y

    with engine.record() as session, pytest.raises(ValueError, match="no"):
        engine.compile(block, backend="aot_eager")(torch.ones(2, 4))
    frames = {f.id: f.name.rpartition(".")[2] for f in session.frames}
    assert {frames[c.frame] for c in session.compilations} == {"block", "forward"}
    entry = start_entry(session)
    assert frames[session.compilation(entry).frame] == "block"
    assert list(part(session, f"linked|{entry}|")["breaks"].values()) == ["The function raises an exception here"]


def test_compared_graphs_are_named_by_their_stage_in_words() -> None:
    """Nobody but the records calls the traced graph fx."""
    names = [name for name, _, _ in entry_summary(head_session(), "0/0")["facts"]]
    assert {"Traced graph", "ATen graph"} <= set(names)
    assert not any(name.startswith("Graph:") for name in names)


def test_an_operator_of_the_engine_is_named_as_the_users_layer() -> None:
    """Kernels, memory and advice say LSTM and not the name of an internal operator."""
    node = NodeRecord("aten:0/0:r", "r", "call_function", "engine.recurrent", "r = engine.recurrent('lstm', x, [h])")
    assert operator_name("engine.recurrent", node) == "LSTM"
    assert operator_name("engine.recurrent_backward.default", node) == "LSTM backward"
    assert operator_name("engine.attention_with_backward") == "scaled_dot_product_attention"
    assert operator_name("aten.mm") == "aten.mm"
