"""Ways through the explorer that lead from any view to any other: finding, going back, copying, links."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.test_explorer import Show, open_view, press, said
from tests.notebook_ext.sessions import head_session, verified_session

pytestmark = pytest.mark.browser


def find(page: Any, text: str) -> None:
    """Type into the finder, opened by its key, and take the first thing found."""
    press(page, ":")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


@pytest.mark.parametrize(
    ("text", "view", "told"),
    [
        ("guard shape", "guards", "shape"),
        ("kernel k0", "kernels", "k0"),
        ("node softmax", "graph", "softmax"),
        ("line softmax", "linked", "softmax"),
        ("view timeline", "timings", ""),
    ],
)
def test_everything_with_a_name_is_found(explorer: Show, text: str, view: str, told: str) -> None:
    """Typed words lead to a guard, a kernel, a node, a line or a view; the keys go back to the widget."""
    page = explorer(verified_session())
    page.locator(".lm").focus()
    find(page, text)
    assert page.locator('.lm .tabs [aria-selected="true"]').get_attribute("data-view") == view
    assert told in said(page)
    assert page.evaluate("document.activeElement.classList.contains('lm')")


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
    """From lines to guards to a node and a kernel: the comma leads back to each, the full stop forth again, and both ends say so."""
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
    assert "where the history begins" in said(page)


def test_a_link_leads_to_what_was_selected(explorer: Show) -> None:
    """The page's address follows the selection; opened again it shows the same guard, and going to another address shows another."""
    page = explorer(verified_session(), "dark")
    open_view(page, "guards")
    told = press(page, "p p")
    page.wait_for_url("**guard%3D**")
    address = page.evaluate("location.href")
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(".lm .guards .tr.sel")
    assert said(page) == told
    assert page.evaluate("document.body.dataset.jpThemeLight") == "false"
    page.evaluate("location.hash = '#dark&view=timings'")
    page.wait_for_selector(".lm .timings")


def test_any_view_is_copied_as_text(explorer: Show) -> None:
    """The pane in use with its numbers, all guards, a graph as its program; how much was copied is said."""
    page = explorer(verified_session())
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    for view, held in (
        ("linked", "softmax"),
        ("guards", "1. "),
        ("graph", "# f32["),
        ("kernels", "Regs"),
        ("timings", "By stage"),
    ):
        open_view(page, view)
        press(page, "y")
        page.locator(".lm .say", has_text="Copied").wait_for()
        assert held in page.evaluate("navigator.clipboard.readText()")
