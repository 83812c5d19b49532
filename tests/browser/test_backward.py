"""Test the captured backwards view: linked rows, captures, contrast, narrow windows.

Rows light up by mouse and keys.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.records.session import Session
from tests.browser.test_explorer import Show, open_view, press, said
from tests.notebook_ext.views.test_backward import recorded

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def session() -> Session:
    """Two backwards that accumulate, compiled, and one that torch's engine runs."""
    return recorded("aot_eager")


def lit(page: Any, pane: str) -> list[str]:
    """Texts of the rows of a pane that are lit up."""
    found: list[str] = page.locator(f'.lm .lines[aria-label="{pane}"] li.lit code').all_inner_texts()
    return found


def test_a_click_lights_what_a_node_became(explorer: Show, session: Session) -> None:
    """Selecting an autograd node or a compiled row lights its linked rows in other panes.

    The node lights its nodes of the captured graph and of the compiled one. The row lights the way back.
    """
    page = explorer(session)
    open_view(page, "backward")
    page.locator(".lm .lines li", has_text="AddmmBackward0 →").first.click()
    assert any("autograd.AddmmBackward0(" in text for text in lit(page, "Captured graph"))
    assert any("aten.mm(" in text for text in lit(page, "Compiled graph"))
    assert "1 autograd node" in said(page)
    page.locator('.lm .lines[aria-label="Compiled graph"] li', has_text="aten.mm(").first.click()
    assert ["AddmmBackward0" in text for text in lit(page, "Autograd nodes, in eager order")] == [True]


def test_keys_go_through_rows_panes_and_captures(explorer: Show, session: Session) -> None:
    """Keys walk the panes, linked rows and captures, and Enter opens the compiled graph.

    Arrows move down a pane and across to the linked row and back. j selects the next capture and states its
    cause. Enter opens what was compiled.
    """
    page = explorer(session)
    open_view(page, "backward")
    assert said(page).startswith("0 GraphRoot")
    first = press(page, "ArrowDown ArrowDown")
    assert first.startswith("2 AddmmBackward0")
    assert not press(page, "ArrowRight").startswith("2 AddmmBackward0")
    assert press(page, "ArrowLeft") == first
    press(page, "j")
    assert "now have a .grad to accumulate into" in page.locator(".lm .backward").inner_text()
    assert said(page).startswith("0 GraphRoot")
    assert page.locator('.lm .lines [aria-selected="true"]').count() == 1
    press(page, "Enter")
    assert page.locator('.lm .tabs [data-view="linked"]').get_attribute("aria-selected") == "true"


def test_each_pane_takes_the_focus(explorer: Show, session: Session) -> None:
    """A pane that is tabbed to is the one that arrows go through."""
    page = explorer(session)
    open_view(page, "backward")
    page.locator('.lm .lines[aria-label="Captured graph"]').focus()
    first = said(page)
    page.keyboard.press("ArrowDown")
    page.wait_for_function(
        "(before) => !document.querySelector('.lm [aria-live]').innerText.startsWith(before)", arg=first
    )
    selected = page.locator('.lm .lines[aria-label="Captured graph"] [aria-selected="true"]')
    assert selected.get_attribute("data-row") == "1"


def test_backwards_that_ran_lead_to_their_captures(explorer: Show, session: Session) -> None:
    """Each backward is listed with its outcome, and clicking a capture's name opens it.

    A backward that torch's engine ran also shows the reason.
    """
    page = explorer(session)
    open_view(page, "backward")
    runs = page.locator(".lm .runs li").all_inner_texts()
    assert [r.split()[1] for r in runs] == ["captured", "captured", "eager"]
    assert "nomaly" in runs[2]
    name = session.backwards[1].id
    page.locator(".lm .runs button", has_text=name).click()
    assert page.locator(".lm .backward").get_by_label("Capture", exact=True).input_value() == name


def test_narrow_windows_show_three_panes(explorer: Show, session: Session) -> None:
    """At 420 pixels the panes stand below each other, and nothing is wider than the window."""
    page = explorer(session, width=420)
    open_view(page, "backward")
    tops = [box.bounding_box()["y"] for box in page.locator(".lm .three section").all()]
    assert tops == sorted(set(tops))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
