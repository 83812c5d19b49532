"""Two cache entries side by side, of one session or of two, by keys alone."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.records.graph import GraphRecord
from engine.records.session import Session
from notebook_ext.widgets.standalone_page import write_page
from tests.browser.test_explorer import choose_view, keep, low_contrast, open_view, press, said
from tests.notebook_ext.sample_sessions import empty_session, head_session, verified_session

pytestmark = pytest.mark.browser

Show = Callable[..., Any]


def with_another_operation(graph: GraphRecord) -> GraphRecord:
    """The graph with tanh where it has softmax, or the exponential of a decomposed softmax."""
    nodes = (
        replace(n, text=n.text.replace("softmax", "tanh").replace("aten.exp(", "aten.tanh("), target="tanh")
        if "softmax" in n.text or "aten.exp(" in n.text
        else n
        for n in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def changed_session() -> Session:
    """The run before: one operation of the first graph was another, one guard was not there."""
    session = head_session()
    first = session.compilations[0]
    assert first.guards is not None
    graphs = tuple(map(with_another_operation, first.graphs))
    assert graphs[0] != first.graphs[0]
    guards = replace(first.guards, guards=first.guards.guards[1:])
    session.put_compilation(replace(first, graphs=graphs, guards=guards))
    return session


def text_shown(page: Any) -> str:
    """The text that is compared."""
    chosen: str = page.locator('.lm .compare select[aria-label="Text"] option:checked').inner_text()
    return chosen


def test_what_changed_between_two_runs_is_found_by_keys(explorer: Show) -> None:
    """Keys lead from the summary of two runs to the changed graph line and guards.

    The summary names the function and the stages. Enter shows the graphs side by side with the changed line
    selected. Brackets go on to the guards.
    """
    page = explorer(head_session(), others={"the run before": changed_session()}, name="this run")
    open_view(page, "compare")
    assert said(page).startswith("the run before → this run: 1 of 3 functions differs; guards")
    assert "differs in graphs, guards" in said(page)
    told = press(page, "Enter")
    assert text_shown(page) == "FX"
    assert told.startswith("Change 1 of 1: left line")
    assert "tanh" in told.split("became")[0]
    assert "softmax" in told.split("became")[1]
    assert page.locator(".lm .dr.at mark").count() == 2
    while text_shown(page) != "Guards":
        press(page, "[")
    assert "In all: 0 lines changed, 0 only left, 1 only right" in said(page)
    assert "1 only left, 0 only right" in press(page, "x")


def test_entries_of_one_function_are_compared(explorer: Show) -> None:
    """From a call that missed, d compares the entry whose guard failed with the new entry."""
    page = explorer(head_session())
    open_view(page, "recompiles")
    assert "differ in" in press(page, "d")
    sides = page.locator(".lm .compare th").all_inner_texts()
    assert ["entry 0" in sides[1], "entry 1" in sides[2]] == [True, True]
    press(page, "]")
    assert text_shown(page) == "Guards"
    assert "64, 128" in said(page)
    shown = page.locator(".lm .dr").count()
    press(page, "a")
    assert page.locator(".lm .dr").count() >= shown
    assert page.locator(".lm .dr.fold").count() == 0


def test_one_thing_alone_is_not_compared(explorer: Show) -> None:
    """The view says how to get a second."""
    page = explorer(empty_session())
    open_view(page, "compare")
    assert "Run the cell again" in page.locator(".lm .compare").inner_text()


def test_contrast_of_what_differs(explorer: Show) -> None:
    """Added, removed and folded lines are readable in both themes."""
    page = explorer(head_session(), others={"the run before": changed_session()}, name="this run")
    open_view(page, "compare")
    for keys in ("", "Enter"):
        press(page, keys)
        keep(page, f"compare-{keys or 'summary'}")
        assert low_contrast(page) == []


def test_a_saved_page_compares_and_opens_every_view(tab: Callable[[int], Any], tmp_path: pathlib.Path) -> None:
    """A page from ``--save`` unpacks its session and the compared one when they are opened."""
    path = tmp_path / "saved.html"
    with path.open("wb") as stream:
        write_page(
            verified_session(), stream, "saved", view="linked", others={"the run before": head_session()}, name="now"
        )
    page = tab(1200).page
    page.goto(f"{path.as_uri()}#light")
    page.wait_for_selector('.lm section[data-pane="ptx"] .r')
    for view, shown in (("graph", "svg .nd"), ("kernels", "tr.sel"), ("compare", "table.facts")):
        choose_view(page, view)
        page.wait_for_selector(f".lm .panel {shown}", timeout=10_000)
    assert "the run before" in page.locator(".lm .panel").inner_text()
