"""The summary line and the words it is made of."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

from engine.records.bytecode import Span
from engine.records.counts import counts
from engine.records.format_amounts import format_bytes, format_seconds
from engine.records.kernels import VerifyRecord
from engine.records.session import Session
from engine.records.trace import BreakRecord
from notebook_ext.views.breaks import breaks
from notebook_ext.views.compilations import compilations
from notebook_ext.views.format_text import format_change, one_line, pluralize, sanitize, shorten_paths, source_name
from notebook_ext.views.kernels import kernels
from notebook_ext.views.static_snapshot.render import snapshot_html, snapshot_text
from notebook_ext.views.summary import break_text, summary
from tests.notebook_ext.sample_sessions import empty_session, head_session, hostile_session, verified_session


def test_the_line_counts_what_happened_and_says_what_did_not() -> None:
    """The summary line counts what was compiled and says what was not run or checked.

    It holds graphs, graph breaks with their line, recompiles with their reason, kernels, where they ran,
    whether they were checked, and the time.
    """
    text = summary(head_session()).text
    assert text == (
        "Head.forward: 1 graph, no breaks, 2 recompiles (line 11: x.size(0) 64 -> 96, …) · "
        "loss: 2 graphs, 1 break (line 19: print), 1 recompile (line 18: y.size(0) 64 -> 96), "
        "6 kernels for cuda:90 and 3 ATen calls, not run here (results: ATen), not checked [Verify], 1.8 s\n"
        "  Not compiled: plot: it computes with NumPy only, not with tensors. Nothing to do: it ran as Python."
    )


def test_an_exception_of_the_user_is_no_graph_break() -> None:
    """A place where the traced code raises is named as that, in the line and in the views."""
    session = head_session()
    found = next(c for c in session.compilations if c.trace and c.trace.breaks)
    assert found.trace is not None
    raised = replace(found.trace.breaks[0], kind="raises")
    for c in session.compilations:
        if c.trace and c.trace.breaks:
            session.put_compilation(replace(c, trace=replace(c.trace, breaks=(raised,))))
    text = summary(session).text
    assert "loss: 2 graphs, no breaks, raises an exception (line 19: print)" in text
    assert [(b["is_error"], b["before"]) for b in breaks(session)["breaks"]] == [(True, "")]
    page = snapshot_html(session)
    assert ">Exceptions (1)<" in page
    assert "Graph breaks" not in page
    assert "\nException in loss, line 19: " in snapshot_text(session)
    assert counts(session).breaks == 0
    assert {r["breaks"] for r in compilations(session)["rows"]} == {""}


def test_every_view_shows_the_same_counts() -> None:
    """Kernels and ATen calls of forward and backward are counted once, constants never."""
    session = head_session()
    first = session.compilations[0]
    assert first.lowering is not None
    called = first.lowering.externs[0]
    constant = replace(called, kind="allocation", reason="a constant tensor of the graph")
    session.put_compilation(
        replace(
            first,
            lowering=replace(first.lowering, externs=(*first.lowering.externs, constant)),
            backward_lowering=replace(first.lowering, externs=(called, called)),
        )
    )
    found, rows = counts(session), compilations(session)["rows"]
    assert f"{found.kernels} kernels for cuda:90 and {found.aten_calls} ATen calls" in summary(session).text
    assert len(kernels(session)["externs"]) == sum(r["externs"] for r in rows) == found.aten_calls == 5
    assert len(kernels(session)["rows"]) == sum(r["kernels"] for r in rows) == found.kernels
    assert sum(r["graphs"] for r in rows) == found.graphs + found.recompiles


def test_a_graph_of_aten_calls_has_no_kernels_to_check() -> None:
    """Nothing is said about where kernels ran, and there is nothing to verify."""
    session = head_session()
    for c in session.compilations:
        session.put_compilation(replace(c, kernels=()))
    assert "no kernels, 3 ATen calls, 1.8 s" in summary(session).text


def test_links_name_a_view_and_what_to_open_in_it() -> None:
    """Facts that a view shows are links; the rest is text."""
    items = {i.text: i for i in summary(head_session()).items}
    assert items["1 break"].target == "breaks|1/0"
    assert items["2 recompiles"].target == "recompiles|0"
    assert items["line 11: x.size(0) 64 -> 96"].target == "guards|0/0"
    assert items["6 kernels for cuda:90"].target == "kernels"
    assert items["Verify"].kind == "action"


def test_a_checked_session_says_how_and_how_close() -> None:
    """After verifying there is no button, but the place and the largest difference."""
    text = summary(verified_session()).text
    assert "all checked in Triton interpreter (largest difference 2.4e-07)" in text
    assert "[Verify]" not in text


def test_a_wrong_kernel_is_not_hidden_among_good_ones() -> None:
    """One kernel that differs is counted by itself."""
    session = verified_session()
    first = session.compilations[0]
    wrong = replace(first.kernels[0], verify=VerifyRecord("different", "Triton interpreter", 3.0, 1e-5))
    session.put_compilation(replace(first, kernels=(wrong, *first.kernels[1:])))
    assert "5 of 6 checked" in summary(session).text
    assert "1 DIFFERENT from ATen" in summary(session).text


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cpu", "not run here (results: ATen)"),
        ("cuda:0", "run on cuda:0, not checked"),
    ],
)
def test_it_says_whether_kernels_ran(device: str, words: str) -> None:
    """Kernels that were made for a device which is not here are not said to have run."""
    session = head_session()
    session.device = device
    assert words in summary(session).text


def test_nothing_compiled_is_the_headline_with_its_remedy() -> None:
    """A session without a graph says so first, then why and what to do."""
    told = summary(empty_session())
    assert told.text.startswith("Nothing was compiled")
    assert told.hints == (
        "main: it is an async function, and those run as Python. Put the tensor work in a plain function and compile that.",
    )
    assert "name what to compile" in summary(Session()).hints[0]


def test_the_text_form_holds_no_control_characters() -> None:
    """Terminal escapes in user text do not reach a terminal."""
    assert "\x1b" not in summary(hostile_session()).text
    assert "\x07" not in summary(hostile_session()).text


@pytest.mark.parametrize(
    ("expected", "actual", "words"),
    [
        ("[4, 8]", "[6, 8]", "x.size(0) 4 -> 6"),
        ("(4, 8)", "(4, 9)", "x.size(1) 8 -> 9"),
        ("[4, 8]", "[5, 9]", "x shape: [4, 8] -> [5, 9]"),
        ("[4]", "[4, 1]", "x shape: [4] -> [4, 1]"),
        ("[4]", "", "x shape: [4]"),
    ],
)
def test_a_changed_shape_is_told_by_the_size_that_changed(expected: str, actual: str, words: str) -> None:
    """One differing size is named; otherwise both shapes are shown."""
    assert format_change("L['x']", "shape", expected, actual) == words


def test_a_size_of_a_value_without_a_name_is_told_in_words() -> None:
    """A value that crossed a graph break has no name to put a method call behind."""
    assert format_change("L['past']", "id", "None", "list of 2") == "past None -> list of 2"


def test_the_module_of_a_long_type_name_is_left_out() -> None:
    """The class is what differs, so it stays whole; a short name keeps its module."""
    name = "DistilBertForSequenceClassificationAndSomeMore"
    change = format_change("L['m']", "type", f"transformers.models.distilbert.{name}", "torch.nn.Linear")
    assert change == f"m type: {name} -> torch.nn.Linear"
    assert format_change("L['__stack_0']", "shape", "[4]", "[6]") == "size(0) of a value at a graph break 4 -> 6"


def test_words_for_numbers() -> None:
    """Units leave two or three digits, and plurals are English."""
    assert [pluralize(n, w) for n, w in ((1, "graph"), (2, "graph"), (2, "entry"), (1000, "line"), (2, "day"))] == [
        *("1 graph", "2 graphs", "2 entries", "1,000 lines", "2 days")
    ]
    assert [format_seconds(s) for s in (31.2, 3.14, 0.412, 0.0031, 0.00005)] == [
        "31 s",
        "3.1 s",
        "412 ms",
        "3.1 ms",
        "50 µs",
    ]
    assert [format_bytes(b) for b in (None, 12, 32768, 5_000_000)] == ["", "12 B", "32.8 kB", "5 MB"]


def test_amounts_never_have_an_exponent() -> None:
    """A number that rounds up to one more digit keeps its digits: no ``1e+02 ms``."""
    assert [format_seconds(s) for s in (0.0996, 0.9996, 9.96e-6, 250.0, 0.0)] == [
        "100 ms",
        "1000 ms",
        "10 µs",
        "250 s",
        "0 µs",
    ]
    assert [format_seconds(s, 3) for s in (1.2345, 0.9999, 1.5e-3)] == ["1.23 s", "1000 ms", "1.5 ms"]
    assert [format_bytes(b) for b in (999, 999_900, 1_234_000_000_000)] == ["999 B", "1 MB", "1234 GB"]


def test_untrusted_text_is_made_harmless() -> None:
    """``sanitize`` removes escape sequences and makes other control characters visible.

    Newlines and tabs stay. ``one_line`` gives one line.
    """
    assert sanitize("a\x1b[31mb\x1b[0m\tc\nd\x00\u202ee\x1b]0;title\x07f") == "ab\tc\nd\ufffd\ufffdef"
    assert one_line("a\n  b" + "c" * 200, 10) == "a bcccccc…"


def test_absolute_paths_are_shortened_and_nothing_else() -> None:
    """Paths of any system lose their folders; divisions, URLs and relative paths stay."""
    assert shorten_paths('File "/home/me/work/model.py", line 3') == 'File "…/model.py", line 3'
    assert shorten_paths(r"C:\Users\me\model.py:3") == "…/model.py:3"
    for text in ("a / b / c", "x/y/z", "https://host/a/b", "f32[64, 128] // comment", "1/2"):
        assert shorten_paths(text) == text


def test_the_condition_of_a_jump_is_shown_whole() -> None:
    """A break at a branch shows the condition, not the first call in it, on every Python."""
    torch = pytest.importorskip("torch")
    import engine

    def f(x: Any) -> Any:
        return x + 1 if x.isnan().any() else x

    with engine.record() as session:
        engine.compile(f, backend="eager")(torch.ones(2))
    assert session.compilations[0].trace is not None
    assert "x.isnan().any()" in break_text(session, session.compilations[0].trace.breaks[0])


def test_a_break_in_library_code_is_named_by_what_was_met_there() -> None:
    """The text of a library's line says nothing to the user."""
    span = Span(inspect.getfile(inspect), 253)
    found = BreakRecord("module-hook", "Hooks cannot be traced", "the hooks of module Conv2d run", span=span)
    assert break_text(Session(), found) == "the hooks of module Conv2d run"


def test_members_of_modules_are_named_as_attributes() -> None:
    """Members of modules are read from dictionaries; the user writes attributes."""
    blocks = "L['self'].__dict__['_modules']['blocks']"
    assert source_name(f"{blocks}._modules['0'].scale") == "self.blocks[0].scale"
    assert source_name("L['self']._modules['head']._parameters['weight']") == "self.head.weight"
    assert source_name("L['self']._modules") == "self._modules"
