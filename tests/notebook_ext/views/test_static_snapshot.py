"""The static twin: closed, escaped, without paths, below its limit."""

from __future__ import annotations

import html.parser
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import engine
from engine.records.trace import TraceRecord
from notebook_ext.views.static_snapshot.render import snapshot_html, snapshot_text, summary_html
from tests.notebook_ext.sample_sessions import (
    empty_session,
    head_session,
    hostile_session,
    large_session,
    verified_session,
)
from tests.notebook_ext.sample_step_sessions import steps_session, wrappers_session
from tests.notebook_ext.views.test_backward import recorded

ALLOWED = {"details", "summary", "div", "p", "b", "pre", "span", "table", "tr", "th", "td", "ul", "li", "img"}


class Tags(html.parser.HTMLParser):
    """All tags with their attributes, and the tags still open at the end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("session", [head_session, empty_session, hostile_session, large_session])
def test_only_plain_elements_inline_styles_and_data_uris(session: object) -> None:
    """A snapshot holds no script, event handler, class, link or external address.

    This is true for every session. Every element is closed.
    """
    tags = Tags(snapshot_html(session()) + summary_html(session()))  # type: ignore[operator]
    assert {tag for tag, _ in tags.found} <= ALLOWED
    for tag, attributes in tags.found:
        assert set(attributes) <= {"style", "src", "alt"}
        if tag == "img":
            assert (attributes["src"] or "").startswith("data:image/svg+xml;base64,")
    assert tags.open == []


def test_it_is_closed_and_says_its_size() -> None:
    """One closed element around closed ones."""
    text = snapshot_html(head_session())
    assert text.startswith("<details style")
    assert " open" not in re.sub(r"<pre.*?</pre>", "", text, flags=re.DOTALL)
    assert "kB)" in text


def test_the_limit_holds_and_what_is_cut_is_named() -> None:
    """With little room, sections are left out and named."""
    for limit in (2, 10, 30, 100):
        text = snapshot_html(head_session(), limit)
        assert len(text.encode()) <= limit * 1000
    assert "Left out to stay below 10 kB" in snapshot_html(head_session(), 10)


def test_no_absolute_path_is_saved() -> None:
    """A path in a sentence or a kernel's text is shortened."""
    session = head_session()
    record = session.compilation("1/0")
    assert record.trace is not None
    told = replace(record.trace.breaks[0], explanation='see "/home/someone/secret/model.py" line 3')
    session.put_compilation(replace(record, trace=TraceRecord(breaks=(told,))))
    assert "/home" not in snapshot_html(session)
    assert "/home" not in snapshot_text(session)
    assert "…/model.py" in snapshot_text(session)


def test_the_text_form_tells_breaks_recompiles_kernels_and_times() -> None:
    """A terminal gets the same facts."""
    text = snapshot_text(head_session())
    for part in (
        "Break in loss, line 19",
        "^^^^",
        "Head.forward, call 3: compiled, because",
        "head_fwd_1",
        "Time by stage",
    ):
        assert part in text


def test_source_lines_carry_their_numbers() -> None:
    """The badge of a line is the number that the widget gives it."""
    text = snapshot_html(head_session())
    assert re.search(r"<b>  3</b></span> <span[^>]*>   12 </span>        p = torch\.softmax", text)


def test_a_fusion_decision_names_its_nodes_once() -> None:
    """Nodes are names in a row, and a decision that two programs share is one row."""
    engine.reset()
    with engine.record() as session:
        engine.compile(lambda x: (x.sin() + 1).mean())(torch.ones(8))
    table = snapshot_html(session).partition(">Fusion decisions")[2].partition("</table>")[0]
    rows = re.findall(r"<tr.*?>(.*?)</tr>", table)
    assert any("sin with add, mean" in row for row in rows)
    assert "[" not in table
    assert len(rows) == len(set(rows))


def test_every_view_has_its_twin() -> None:
    """The static snapshot holds a table for every view.

    The views: lines with their nodes and kernels, AOT runtime wrappers, values saved for backward, graphs
    with their passes, fusion, tracer steps and captured backward graphs.
    """
    engine.reset()
    with engine.record() as trained:
        engine.compile(lambda x, w: (x @ w).tanh().exp(), backend="aot_eager")(
            torch.ones(4, 8), torch.ones(8, 8, requires_grad=True)
        )
    text = "".join(map(snapshot_html, (steps_session(), wrappers_session(), verified_session(), trained)))
    for title in (
        "Graph breaks",
        "Compilations",
        "Source lines with their nodes and kernels",
        "AOT runtime wrappers",
        "Saved for backward",
        "Graphs, ",
        "Fusion decisions",
        "Tracer steps",
        "Kernels",
        "Guards of ",
        "Compile times",
        "Triton of",
    ):
        assert f'<summary style="cursor:pointer">{title}' in text, title
    assert re.search(r">Guards of [^<]+ entry 0 \(\d+\)<", text)  # the names of the explorer


def test_captured_backwards_stand_in_the_twin() -> None:
    """Each capture with what it holds and why it was captured, as the Backward view says."""
    assert "Captured backwards" in snapshot_html(recorded("aot_eager"))


def test_modules_of_a_container_stand_in_the_order_of_use() -> None:
    """The snapshot of an ``nn.Sequential`` lists its modules as the graph uses them."""
    net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    with engine.record() as session:
        engine.compile(net, backend="eager")(torch.ones(2, 4))
    rows = re.findall(r">\s*</span>(\d)(?=\n|<)", snapshot_html(session))
    assert rows[:6] == ["0", "1", "2", "3", "4", "5"]


def test_only_python_is_colored_as_python() -> None:
    """LLVM IR is plain: Python's colors would mark numbers in the names of values."""
    with engine.record() as session:
        engine.compile(lambda x: x.sin() + 1)(torch.ones(64))
    sections = snapshot_html(session).split("<summary")
    (llvm,) = (s for s in sections if "LLVM IR of" in s.partition("</summary>")[0])
    (triton,) = (s for s in sections if "Triton of" in s.partition("</summary>")[0])
    assert "define i32" in llvm
    assert "<span" in triton
    assert "<span" not in llvm
