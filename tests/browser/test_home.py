"""Test the home view in a browser: the outcome, the findings, their lines and their edits."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.records.session import Session
from notebook_ext.views.home import Replayed, home, replay_edit
from tests.browser.standalone_pages import page_text
from tests.notebook_ext.conftest import Shell
from tests.notebook_ext.views.test_home import BREAKING

pytestmark = pytest.mark.browser

HELD = """() => [...document.querySelectorAll('.lm .home *')].filter((e) => e.scrollWidth > e.clientWidth + 1
  && getComputedStyle(e).overflowX === 'visible' && getComputedStyle(e).display !== 'inline').map((e) => e.className)"""


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """A cell with two graph breaks, one edit of which was replayed."""
    shell = Shell()
    shell.run(f"%%compile --backend eager\n{BREAKING}")
    found = shell.ns["_compile"]
    first = home(found)["findings"][0]["edit"]["id"]
    replay_edit(found, first, lambda _: Replayed("verified: compiles 3 -> 2, same results", helps=True))
    yield found
    shell.close()


@pytest.fixture
def page(session: Session, tab: Callable[..., Any], file_context: Any, tmp_path: pathlib.Path) -> Callable[[int], Any]:
    """The page of the session, opened on home, at a width."""
    path = tmp_path / "page.html"
    path.write_text(page_text(session, view="home"), encoding="utf-8")

    def show(width: int) -> Any:
        found = tab(width, file_context)
        found.page.goto(f"file://{path}")
        found.page.locator(".lm .home .find1").first.wait_for()
        return found

    return show


@pytest.mark.parametrize("width", [1400, 1024, 800, 600])
def test_home_fits_and_says_what_happened(page: Callable[[int], Any], width: int) -> None:
    """Outcome, figures and findings are there at every width, and nothing overflows."""
    found = page(width)
    assert found.page.locator(".home .out").inner_text() == "clip was compiled into 3 graphs, with 2 graph breaks."
    assert found.page.locator(".home .find1[data-sign]").count() == 2
    assert found.page.evaluate(HELD) == []
    assert found.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert found.page.evaluate("((e) => e.scrollWidth <= e.clientWidth)(document.querySelector('.home .made'))")
    assert found.errors == []


def test_a_finding_leads_to_its_line_and_back(page: Callable[[int], Any]) -> None:
    """The keys select a finding, open its line and its details; h comes back to it."""
    shown = page(1400).page
    shown.locator(".lm").focus()
    shown.keyboard.press("ArrowDown")
    assert shown.locator('.home .find1[aria-current="true"] .n').inner_text() == "2"
    title = shown.locator(".home .find1.sel b").first.inner_text()
    shown.keyboard.press("Enter")
    assert "Line" in shown.locator(".say").inner_text()
    shown.keyboard.press("h")
    shown.keyboard.press("w")
    assert shown.locator(".lm .card.sel").is_visible()
    shown.keyboard.press("h")
    assert shown.locator(".home .find1.sel b").first.inner_text() == title


def test_an_edit_shows_its_diff_and_its_verdict(page: Callable[[int], Any]) -> None:
    """A page without a kernel shows the replay's verdict and offers the fixed cell."""
    shown = page(1024).page
    shown.context.grant_permissions(["clipboard-read", "clipboard-write"])
    assert shown.locator(".home [data-result]").first.inner_text() == "✓ verified: compiles 3 -> 2, same results"
    assert shown.locator(".home button", has_text="Verify").count() == 0
    shown.locator(".home button", has_text="Copy fixed cell").last.click()
    shown.locator(".say", has_text="Copied the fixed cell").wait_for()
