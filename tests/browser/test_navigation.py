"""Test navigation between all views: finding, going back, copying and links."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.test_explorer import VIEWS, Show, choose_view, open_view, press, said
from tests.notebook_ext.sample_sessions import broken_session, head_session, hostile_session, verified_session
from tests.notebook_ext.views.test_backward import recorded

pytestmark = pytest.mark.browser


def find(page: Any, text: str) -> None:
    """Type into the finder, opened by its key, and take the first thing found."""
    press(page, ":")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


NAMED = {
    "guard shape": ("guards", "shape"),
    "kernel k0": ("kernels", "k0"),
    "node softmax": ("graph", "softmax"),
    "line softmax": ("linked", "softmax"),
    "view timeline": ("timings", ""),
    "ptx ex2.approx": ("linked", "PTX"),
    "triton tl.exp": ("linked", "Triton"),
}


def test_everything_with_a_name_is_found(explorer: Show) -> None:
    """Typed words find a guard, kernel, node, line or view; the widget regains the keys."""
    page = explorer(verified_session())
    for text, (view, told) in NAMED.items():
        page.locator(".lm").focus()
        find(page, text)
        assert page.locator('.lm .tabs [aria-selected="true"]').get_attribute("data-view") == view, text
        assert told in said(page), text
        assert page.evaluate("document.activeElement.classList.contains('lm')"), text


def test_the_finder_by_mouse_says_what_it_finds_not(explorer: Show) -> None:
    """Its button opens it, a click takes a row, no match is said, Escape closes it."""
    page = explorer(head_session())
    page.locator(".lm .tools button", has_text="Find").click()
    page.keyboard.type("nothing like it")
    assert page.locator(".lm .find p").inner_text() == "No match."
    page.keyboard.press("Escape")
    assert not page.locator(".lm .find").is_visible()
    page.keyboard.press("Control+k")
    page.locator(".lm .find input").fill("guard dtype")
    page.locator('.lm .find [role="option"]').first.click()
    assert "dtype" in said(page)


def test_back_and_forth_over_all_views(explorer: Show) -> None:
    """Comma goes back and full stop forward over lines, guards, nodes and kernels.

    Both ends of the history are reported.
    """
    page = explorer(verified_session())
    page.locator(".lm").focus()
    told = [press(page, "ArrowDown"), press(page, "ArrowDown")]
    for view, keys in (("guards", "p"), ("graph", "ArrowRight"), ("kernels", "")):
        open_view(page, view)
        told.append(said(page))
        if keys:
            told.append(press(page, keys))
    assert [press(page, ",") for _ in told[:-1]] == told[-2::-1]
    assert [press(page, ".") for _ in told[:-1]] == told[1:]
    assert "newest selection" in press(page, ".")
    for _ in range(3 * len(told)):
        press(page, ",")
    assert "oldest selection" in said(page)


def test_a_link_leads_to_what_was_selected(explorer: Show) -> None:
    """The page address follows the selection and restores it; a changed address moves there."""
    page = explorer(verified_session(), "dark")
    open_view(page, "guards")
    told = press(page, "p p")
    number = told.partition(":")[0].removeprefix("Guard ")
    page.wait_for_url(f"**guard%3D{number}")  # the address follows after a pause; the one before names another guard
    address = page.evaluate("location.href")
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(".lm .guards .tr.sel")
    assert said(page) == told
    assert page.evaluate("document.body.dataset.jpThemeLight") == "false"
    page.evaluate("location.hash = '#dark&view=timings'")
    page.wait_for_selector(".lm .timings")


def test_any_view_is_copied_as_text(explorer: Show) -> None:
    """Any view is copied as text, and the status states how much was copied.

    Covers the active pane with its numbers, all guards, and a graph as its program.
    """
    page = explorer(verified_session())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for view, held in (
        ("linked", "softmax"),
        ("guards", "1. "),
        ("graph", "# f32["),
        ("kernels", "Regs"),
        ("timings", "Self time by stage"),
    ):
        open_view(page, view)
        press(page, "y")
        page.locator(".lm .say", has_text="Copied").wait_for()
        assert held in page.evaluate("navigator.clipboard.readText()")


def test_breaks_and_rows_of_backwards_are_places_too(explorer: Show) -> None:
    """Back and forward stop at each graph break and each row of a captured backward.

    They do not stop only at the views.
    """
    page = explorer(recorded("aot_eager"))
    open_view(page, "backward")
    told = [press(page, "Home"), press(page, "ArrowDown"), press(page, "ArrowDown")]
    assert press(page, ",") == told[1]
    assert press(page, ".") == told[2]
    page = explorer(broken_session())
    open_view(page, "breaks")
    first = said(page)
    if page.locator(".lm .card").count() > 1:
        assert press(page, "ArrowDown") != first
        assert press(page, ",") == first


def test_a_pane_shows_any_stage_and_keeps_it(explorer: Show) -> None:
    """Braces or the list change the stage of the active pane, and other entries keep it.

    A stage that another pane showed changes places with this one.
    """
    page = explorer(verified_session())
    page.locator(".lm").focus()
    slots = "() => [...document.querySelectorAll('.lm .pane')].map((e) => e.dataset.pane)"
    assert page.evaluate(slots) == ["source", "fx", "triton", "ptx"]
    press(page, "] ] ] }")
    assert page.evaluate(slots) == ["source", "fx", "triton", "sass"]
    page.locator('.lm section.pane.C select[aria-label="Stage in this pane"]').select_option("sass")
    assert page.evaluate(slots) == ["source", "fx", "sass", "triton"]
    # This entry has no SASS yet: another pane stands there for now.
    page.locator('.lm select[aria-label="Function and cache entry"]').select_option("0/1")
    assert page.evaluate(slots) == ["source", "fx", "ptx", "triton"]
    page.locator('.lm select[aria-label="Function and cache entry"]').select_option("0/0")
    assert page.evaluate(slots) == ["source", "fx", "sass", "triton"]
    page.locator('.lm .tabs [data-view="guards"]').click()
    page.locator('.lm .tabs [data-view="linked"]').click()
    assert page.evaluate(slots) == ["source", "fx", "sass", "triton"]


def test_zoomed_to_200_percent_everything_is_within_reach(explorer: Show) -> None:
    """At double size on a 1280 by 900 screen no view overflows the window.

    No control is cut off by its view.
    """
    page = explorer(hostile_session(), width=640)
    page.set_viewport_size({"width": 640, "height": 450})
    faults = {}
    for view in VIEWS:
        choose_view(page, view)
        faults[view] = page.evaluate(
            """() => [...document.querySelectorAll('.lm button, .lm select, .lm input')].filter((e) => { const r = e.getBoundingClientRect();
            return r.width && !e.closest('.scr, .side, .rows, .rail, .gbox, .clock') && (r.right > innerWidth + 1 || r.left < -1); }).map((e) => e.outerHTML.slice(0, 120))"""
        )
        if not page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            faults[view].append("the page is wider than its window")
    assert not any(faults.values()), faults


def test_tabs_are_one_row_where_a_notebook_is_850_pixels_wide(explorer: Show) -> None:
    """Tabs fit on one row in a narrow notebook, with shorter labels and full accessible names.

    The width is that of JupyterLab beside its file browser on a 1280-pixel screen.
    """
    page = explorer(verified_session(), width=860)
    assert page.evaluate("document.querySelector('.lm .tabs').clientHeight") < 40
    assert page.locator(".lm .tools").get_by_role("button", name="Find").count() == 1
    page = explorer(verified_session(), width=1240)
    assert page.evaluate("document.querySelector('.lm .tabs').clientHeight") < 40
    assert page.locator('.lm .tabs [data-view="linked"]').inner_text() == "Linked view"
