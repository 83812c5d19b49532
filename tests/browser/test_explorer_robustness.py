"""Test the explorer under failures: no kernel answer, shared sessions, endless text.

Shared means two explorers of one session.
"""

from __future__ import annotations

import io
import pathlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.records.aot import (
    AotRecord,
    CallValuesRecord,
    ValueFacts,
    WrapperAction,
    WrapperRecord,
    WrapperValuesRecord,
)
from engine.records.bytecode import SourceFile
from engine.records.graph import EditRecord, PassRecord
from engine.records.trace import BreakRecord, TraceRecord
from notebook_ext.notebook_html import OUTPUT_METADATA_KEY, notebook_page
from notebook_ext.widgets.standalone_page import write_page
from tests.browser.standalone_pages import page_text
from tests.browser.test_explorer import VIEWS, open_view, press
from tests.notebook_ext.sample_sessions import HOSTILE, head_session, hostile_session

pytestmark = pytest.mark.browser

Show = Callable[..., Any]


def test_a_megabyte_in_one_line_is_shown_and_stays_inert(explorer: Show) -> None:
    """Every view opens soon with a huge guard, a huge name with markup and a huge source line.

    The guard compares a megabyte; the name has a hundred thousand letters, and the source line is as long.
    """
    session = head_session()
    first = session.compilations[0]
    assert first.guards is not None
    long = "<img src=x onerror=window.pwned=1>" * 30_000
    guards = (replace(first.guards.guards[0], expected=long, source=f"L[{long[:100_000]!r}]"), *first.guards.guards[1:])
    graph = first.graphs[0]
    nodes = (replace(graph.nodes[0], text=long, name=long[:100_000]), *graph.nodes[1:])
    session.put_compilation(
        replace(
            first, guards=replace(first.guards, guards=guards), graphs=(replace(graph, nodes=nodes), *first.graphs[1:])
        )
    )
    file = session.files[0]
    session._records["files"][file.id] = SourceFile(
        file.id, file.name, file.text + "\nx = '" + "y" * 1_000_000 + "'", file.first_line
    )
    assert len(page_text(session)) < 9_000_000
    page = explorer(session)
    for view in VIEWS:
        open_view(page, view)
        press(page, "ArrowDown")
        assert page.locator(".lm img").count() == 0
    assert page.evaluate("window.pwned") is None


def test_two_explorers_of_one_session_do_not_touch_each_other(explorer: Show) -> None:
    """Ids differ, and keys move only the one that has them."""
    page = explorer(head_session())
    page.evaluate(
        "() => document.querySelector('#explorer').insertAdjacentElement('afterend', Object.assign(document.createElement('div'), {id: 'second'}))"
    )
    page.evaluate(
        "() => { const model = {get: (n) => JSON.parse(document.getElementById('data').textContent)[n], on() {}, off() {}, send() {}}; window.again(model, document.getElementById('second')); }"
    )
    roots = page.locator(".lm")
    assert roots.count() == 2
    ids = page.evaluate("() => [...document.querySelectorAll('.lm [id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    before = roots.nth(1).locator(".say").inner_text()
    roots.nth(0).focus()
    page.keyboard.press("ArrowDown")
    assert roots.nth(1).locator(".say").inner_text() == before


def test_a_kernel_that_does_not_answer_is_told_of(explorer: Show) -> None:
    """A view whose data never come says so after a while, and what is on screen stays."""
    page = explorer(head_session())
    page.clock.install()
    page.evaluate(
        "() => { const model = {get: (n) => n === 'parts' ? {} : JSON.parse(document.getElementById('data').textContent)[n], on() {}, off() {}, send() {}}; const e = document.createElement('div'); e.id = 'silent'; document.body.append(e); window.again(model, e); }"
    )
    page.clock.run_for(10_000)
    assert "The kernel has not answered yet" in page.locator("#silent .say").inner_text()
    assert page.locator("#silent .sum").inner_text() != ""


def test_hostile_text_in_what_finds_copies_and_plays_is_inert(explorer: Show) -> None:
    """Hostile text in passes, contents, breaks and symbols stays inert when found or copied.

    Markup and terminal escapes are found, copied and played: they are text everywhere, and no escape is left.
    """
    session = hostile_session()
    first = session.compilations[0]
    lines = ("x", f"y = {HOSTILE!r}(x)", "return (y,)")
    told = PassRecord(
        HOSTILE, 3, 3, 1, 1, (HOSTILE,), (HOSTILE,), True, (EditRecord(1, 1, (f"z = {HOSTILE}(x)",)),), lines
    )
    passage = CallValuesRecord(
        (
            WrapperValuesRecord("call", "in", ((HOSTILE, HOSTILE),)),
            WrapperValuesRecord(HOSTILE, "out", ((HOSTILE, HOSTILE),)),
        )
    )
    action = WrapperAction(HOSTILE, HOSTILE, HOSTILE)
    aot = AotRecord(
        "inference", (ValueFacts(HOSTILE, "input", (HOSTILE,)),), (WrapperRecord(HOSTILE, (action,)),), HOSTILE
    )
    stopped = BreakRecord(HOSTILE, HOSTILE, HOSTILE, HOSTILE, (HOSTILE,), example_before=HOSTILE, example_after=HOSTILE)
    session.put_compilation(
        replace(
            first,
            graphs=(replace(first.graphs[0], passes=(told,)), *first.graphs[1:]),
            aot=aot,
            call_values=(passage,),
            trace=replace(first.trace or TraceRecord(), breaks=(stopped,)),
        )
    )
    page = explorer(session)
    for view in VIEWS:
        open_view(page, view)
        press(page, "ArrowDown ArrowRight p r y")
        press(page, ":")
        page.keyboard.type("script")
        page.keyboard.press("Escape")
        assert page.locator(".lm img, .lm script").count() == 0
        assert "\x1b" not in page.locator(".lm").inner_text()
    assert page.evaluate("window.pwned") is None


INJECTED = """<body><script>window.pwned = 1</script><script type="module">window.pwned = 2</script>
<img src="data:," onerror="window.pwned = 3"><svg onload="window.pwned = 4"></svg>
<iframe srcdoc="<script>top.pwned = 5</script>"></iframe><iframe src="javascript:top.pwned = 6"></iframe>"""


def saved_page() -> str:
    """Return the page of ``--save`` with scripts injected, its policy as written."""
    page = io.BytesIO()
    write_page(head_session(), page, "saved", view="linked")
    head, body, rest = page.getvalue().decode().partition("<body")
    assert body
    return f"{head}{INJECTED}{body}{rest}"


def test_an_injected_script_does_not_run_in_a_page(tab: Callable[[int], Any], tmp_path: pathlib.Path) -> None:
    """The page works, and injected scripts and handlers do not run."""
    path = tmp_path / "page.html"
    path.write_text(saved_page(), encoding="utf-8")
    page = tab(1200).page
    page.goto(path.as_uri())
    page.wait_for_selector('.lm section[data-pane="ptx"] .r')
    assert page.evaluate("window.pwned") is None


def test_an_injected_script_does_not_run_in_a_notebook_page(tab: Callable[[int], Any], tmp_path: pathlib.Path) -> None:
    """An explorer in a notebook's page works; scripts injected there do not run."""
    told = {"text/html": INJECTED.removeprefix("<body>")}
    output = {"output_type": "display_data", "data": told, "metadata": {OUTPUT_METADATA_KEY: {"session": 1}}}
    cell = SimpleNamespace(cell_type="code", source="x", outputs=[Output(output)])
    path = tmp_path / "notebook.html"
    path.write_text(notebook_page(SimpleNamespace(cells=[cell]), "notebook", {1: saved_page()}), encoding="utf-8")
    page = tab(1200).page
    page.goto(path.as_uri())
    page.locator("summary", has_text="Explorer").click()
    frame = page.frame_locator('iframe[title="Explorer"]')
    frame.locator('.lm section[data-pane="ptx"] .r').first.wait_for()
    assert page.evaluate("window.pwned") is None
    assert frame.locator("body").evaluate("() => window.pwned") is None


class Output(dict[str, Any]):
    """An output of a notebook: its items are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        return self[name]
