"""Every view, in both themes, through an accessibility checker: names, roles, contrast, keyboard."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.test_compare import changed_session
from tests.browser.test_explorer import VIEWS, open_view, press
from tests.notebook_ext.sessions import verified_session
from tests.notebook_ext.test_views_backward import recorded
from tests.notebook_ext.traces import onion_session, steps_session

pytestmark = pytest.mark.browser

AXE = pathlib.Path(__file__).parents[1] / "js" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def axe() -> str:
    """The checker's source; it is Deque's axe-core, and no part of this repository."""
    if not AXE.exists():
        assert "CI" not in os.environ, "axe-core must be installed where CI runs: npm ci in tests/js"
        pytest.skip("axe-core is not here: npm ci in tests/js installs it")
    return AXE.read_text(encoding="utf-8")


def faults(page: Any, axe: str) -> list[str]:
    """What the checker finds in the widget, one line a fault with an element that has it."""
    page.evaluate(axe)
    found: list[str] = page.evaluate(
        """async (tags) => (await axe.run('.lm', { runOnly: { type: 'tag', values: tags } })).violations.map((v) =>
        `${v.id}: ${v.help}: ${v.nodes.length} × ${v.nodes[0].html.slice(0, 200)} ${JSON.stringify(v.nodes[0].any.map((a) => a.message)).slice(0, 300)}`)""",
        RULES,
    )
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_view_has_a_fault(explorer: Show, axe: str, theme: str) -> None:
    """All views of a session with every kind of record, beside another session."""
    page = explorer(verified_session(), theme, others={"the run before": changed_session()}, name="this run")
    found = {}
    for view in VIEWS:
        open_view(page, view)
        found[view] = faults(page, axe)
    assert not any(found.values()), "\n".join(f"{view}: {line}" for view, lines in found.items() for line in lines)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nor_have_backwards(explorer: Show, axe: str, theme: str) -> None:
    """Captured backwards with rows lit up in all three panes, hooks, notes, and a backward that torch's engine ran."""
    page = explorer(recorded("aot_eager"), theme)
    open_view(page, "backward")
    press(page, "ArrowDown ArrowDown ArrowRight j")
    found = faults(page, axe)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nor_has_a_trace_with_steps_or_a_graph_with_layers(explorer: Show, axe: str, theme: str) -> None:
    """The tracer in the middle of a trace, the onion in the middle of a call, the list of keys, the rewrites and the table of a graph."""
    found = {}
    page = explorer(steps_session(), theme)
    open_view(page, "tracer")
    press(page, "g ?")
    found["tracer"] = faults(page, axe)
    page = explorer(onion_session(), theme)
    open_view(page, "onion")
    press(page, "ArrowRight ArrowRight")
    found["onion"] = faults(page, axe)
    page = explorer(verified_session(), theme)
    open_view(page, "graph")
    page.locator('.lm .graph select[aria-label="Stage"]').select_option("aten")
    page.locator(".lm").focus()
    press(page, "r j j t")
    found["graph"] = faults(page, axe)
    open_view(page, "compare")
    press(page, "] ] ]")
    found["compare"] = faults(page, axe)
    assert not any(found.values()), "\n".join(f"{view}: {line}" for view, lines in found.items() for line in lines)
