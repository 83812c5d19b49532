"""Provide one Chromium for the browser tests, which blocks and counts outside requests.

An outside request is one that would leave this machine.
"""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

AXE = pathlib.Path(__file__).parents[1] / "js" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, headless=True, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def axe() -> str:
    """The checker's source; it is Deque's axe-core, and no part of this repository."""
    if not AXE.exists():
        assert "CI" not in os.environ, "axe-core must be installed where CI runs: npm ci in tests/js"
        pytest.skip("axe-core is not here: npm ci in tests/js installs it")
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def file_context(browser: Any) -> Iterator[Any]:
    """A context for pages that store nothing.

    A page in a context of its own starts a process and compiles its script again, which is over half of what a short
    test costs. The empty page keeps that process.
    """
    context = browser.new_context()
    context.new_page()
    yield context
    context.close()


class Tab:
    """A page with what went wrong on it: errors of scripts, and requests to other machines."""

    def __init__(self, context: Any, width: int) -> None:
        self.context = context
        self.outside: list[str] = []
        self.errors: list[str] = []
        self._blocked = re.compile(r"^https?://(?!127\.0\.0\.1)")
        self.context.route(self._blocked, self._stop)
        self.page = self.context.new_page()
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.on("pageerror", self._note)

    def _note(self, error: Any) -> None:
        """Note an error, unless Jupyter raised it in its own code.

        Notebook 7 raises one when it loads its settings; JupyterLab raises one for a subshell that a restarting
        kernel did not create. The explorer's module has a ``blob:`` address.
        """
        stack = error.stack or ""
        is_jupyter = "/static/notebook/" in stack or str(error).startswith("Error: Canceled future for create_subshell")
        if not is_jupyter or "blob:" in stack:
            self.errors.append(f"{error}\n{stack[:1000]}")

    def _stop(self, route: Any) -> None:
        self.outside.append(route.request.url)
        route.abort()

    def leave(self) -> None:
        """Close the page, and take back what was changed in its context."""
        self.page.close()
        self.context.unroute(self._blocked, self._stop)
        self.context.clear_permissions()


@pytest.fixture
def tab(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Open tabs of a given width; fail on any script error or outside request.

    Each has a context of its own, unless one is given. The check runs at the end of the test.
    """
    tabs: list[Tab] = []
    own: list[Any] = []

    def new(width: int = 1200, context: Any = None) -> Tab:
        if context is None:
            context = browser.new_context()
            own.append(context)
        tabs.append(Tab(context, width))
        return tabs[-1]

    yield new
    for made in tabs:
        made.leave()
    for context in own:
        context.close()
    assert [t.outside for t in tabs if t.outside] == []
    assert [t.errors for t in tabs if t.errors] == []


@pytest.fixture
def explorer(tab: Callable[..., Tab], file_context: Any, tmp_path: pathlib.Path) -> Callable[..., Any]:
    """Opens the page that shows a session; returns Playwright's page."""
    from tests.browser.standalone_pages import page_text, with_edited_script

    def show(session: Any, theme: str = "light", width: int = 1200, **beside: Any) -> Any:
        path = tmp_path / "explorer.html"
        text = page_text(session, **beside)
        # Tests that need a second widget, or one with a model of their own, make it with this.
        text = with_edited_script(
            text, "{\nconst data =", "{\nwindow.again = (model, el) => explorer.render({ model, el });\nconst data ="
        )
        path.write_text(text, encoding="utf-8")
        page = tab(width, file_context).page
        page.goto(f"{path.as_uri()}#{theme}")
        page.wait_for_selector(".lm .say")
        return page

    return show
