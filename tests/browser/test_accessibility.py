"""Check every view with an accessibility checker, and its colors in both themes.

Covers names, roles, contrast and keyboard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.test_comparison import changed_session
from tests.browser.test_explorer import VIEWS, click_line, low_contrast, open_view, press
from tests.notebook_ext.sample_sessions import empty_session, hostile_session, verified_session
from tests.notebook_ext.sample_step_sessions import steps_session, wrappers_session
from tests.notebook_ext.views.test_backward import recorded

pytestmark = pytest.mark.browser

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]

Show = Callable[..., Any]


def faults(page: Any, axe: str) -> list[str]:
    """Return what the checker finds in the widget, and text with low contrast in either theme.

    A fault has one line, with an element that has it.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    found: list[str] = page.evaluate(
        """async (tags) => (await axe.run('.lm', { runOnly: { type: 'tag', values: tags }, resultTypes: ['violations'] })).violations.map((v) =>
        `${v.id}: ${v.help}: ${v.nodes.length} × ${v.nodes[0].html.slice(0, 200)} ${JSON.stringify(v.nodes[0].any.map((a) => a.message)).slice(0, 300)}`)""",
        RULES,
    )
    return found + low_contrast(page)


def test_no_view_has_a_fault(explorer: Show, axe: str) -> None:
    """All views of a session with every kind of record, lit lines, and another session."""
    page = explorer(verified_session(), others={"the run before": changed_session()}, name="this run")
    found = {}
    for view in VIEWS:
        open_view(page, view)
        if view == "linked":
            click_line(page, "ptx", 62)
        found[view] = faults(page, axe)
    assert not any(found.values()), "\n".join(f"{view}: {line}" for view, lines in found.items() for line in lines)


def test_nor_have_backwards(explorer: Show, axe: str) -> None:
    """Captured backwards have no accessibility faults, even with rows lit in all panes.

    Includes hooks, notes, and a backward that torch's engine ran.
    """
    page = explorer(recorded("aot_eager"))
    open_view(page, "backward")
    press(page, "ArrowDown ArrowDown ArrowRight j")
    found = faults(page, axe)
    assert not found, "\n".join(found)


def test_nor_has_a_trace_with_steps_or_a_graph_with_layers(explorer: Show, axe: str) -> None:
    """The tracer, AOT wrapper and graph views have no accessibility faults in mid-use.

    Covers the tracer in the middle of a trace, the AOT wrappers in the middle of a call, the list of keys, the
    rewrites and the table of a graph.
    """
    found = {}
    page = explorer(steps_session())
    open_view(page, "tracer")
    press(page, "g ?")
    found["tracer"] = faults(page, axe)
    page = explorer(wrappers_session())
    open_view(page, "aot")
    press(page, "ArrowRight ArrowRight")
    found["aot"] = faults(page, axe)
    page = explorer(verified_session())
    open_view(page, "graph")
    page.locator('.lm .graph select[aria-label="Stage"]').select_option("aten")
    page.locator(".lm").focus()
    press(page, "r j j t")
    found["graph"] = faults(page, axe)
    open_view(page, "compare")
    press(page, "] ] ]")
    found["compare"] = faults(page, axe)
    assert not any(found.values()), "\n".join(f"{view}: {line}" for view, lines in found.items() for line in lines)


def test_nor_have_dialogs_and_odd_sessions(explorer: Show, axe: str) -> None:
    """The key list, the finder, and empty or markup-filled sessions have no faults.

    The key list and finder are opened over a view; every view is checked for the empty session and the one full
    of markup.
    """
    found = {}
    page = explorer(verified_session())
    for name, keys in (("keys", "?"), ("finder", "Escape : s o f t")):
        page.locator(".lm").focus()
        press(page, keys)
        found[name] = faults(page, axe)
    for name, session in (("empty", empty_session()), ("hostile", hostile_session())):
        page = explorer(session)
        for view in VIEWS:
            open_view(page, view)
            found[f"{name} {view}"] = faults(page, axe)
    assert not any(found.values()), "\n".join(f"{view}: {line}" for view, lines in found.items() for line in lines)


def test_tab_goes_through_a_view_from_top_to_bottom(explorer: Show) -> None:
    """Tab follows the visual order, and a dialog takes the focus and gives it back.

    The order is summary, tabs, tools, then the view's own controls.
    """
    page = explorer(verified_session())
    page.locator(".lm").focus()
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        box = page.evaluate(
            "() => { const e = document.activeElement; return e.closest('.lm') ? [e.closest('.sum') ? 0 : e.closest('.top') ? 1 : e.closest('.ctx') ? 2 : e.closest('.rail') ? 3 : 4] : null; }"
        )
        if box is None:
            break
        seen += box
    assert seen == sorted(seen)
    assert {0, 1, 2, 3, 4} <= set(seen)
    page.locator(".lm").focus()
    press(page, ":")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "combobox"
    press(page, "Escape")
    assert page.evaluate("document.activeElement.classList.contains('lm')")


def test_nothing_moves_by_itself(explorer: Show) -> None:
    """There is no animation and no transition to reduce: what changes, changes at once."""
    page = explorer(verified_session())
    for view in VIEWS:
        open_view(page, view)
        assert page.evaluate("document.getAnimations().length") == 0
