"""Go through every view with the keyboard alone, as one without a mouse does.

Each control is reached by Tab, shows the focus and has a name; what a click selects, keys select too.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.records.session import Session
from tests.browser.standalone_pages import page_text
from tests.browser.test_comparison import changed_session
from tests.notebook_ext.sample_sessions import broken_session, verified_session
from tests.notebook_ext.sample_step_sessions import steps_session, wrappers_session
from tests.notebook_ext.views.test_backward import recorded

pytestmark = pytest.mark.browser

SESSIONS: dict[str, Callable[[], Session]] = {
    "verified": verified_session,
    "broken": broken_session,
    "steps": steps_session,
    "wrappers": wrappers_session,
    "backward": lambda: recorded("aot_eager"),
}
MAX_STOPS = 300

# Elements that react to a click, whatever they are made of.
WATCH = """window.clickable = new Set(); const add = EventTarget.prototype.addEventListener;
EventTarget.prototype.addEventListener = function (type, ...rest) { if (type === 'click' && this instanceof Element) window.clickable.add(new WeakRef(this)); return add.call(this, type, ...rest); };"""
CONTROLS = "button,select,input,textarea,summary,a[href]"
UNREACHED = f"""() => [...document.querySelectorAll('.lm :is({CONTROLS},[tabindex="0"])')].filter((e) => e.getClientRects().length && !e.disabled && e.tabIndex >= 0 && !e.wasReached)
  .map((e) => e.outerHTML.slice(0, 120))"""
FOCUSED = f"""() => {{ const e = document.activeElement, style = getComputedStyle(e); if (!e.closest('.lm')) return null; e.wasReached = true;
  const name = e.getAttribute('aria-label') || e.title || (e.matches('{CONTROLS}') ? e.innerText || e.textContent || [...(e.labels || [])].map((l) => l.innerText).join('') : '');
  const isMarked = !style.outlineStyle.startsWith('none') || style.boxShadow !== 'none';
  return [name.trim() ? '' : 'has no name', isMarked ? '' : 'shows no focus'].filter(Boolean).map((fault) => `${{fault}}: ${{e.outerHTML.slice(0, 120)}}`); }}"""
# Rows, boxes and bars that are no controls: one is selected at a time.
ITEMS = f"""() => [...window.clickable].map((r) => r.deref()).filter((e) => e?.isConnected && document.querySelector('.lm .panel').contains(e) && e.tabIndex < 0 && e.getClientRects().length && !e.matches('{CONTROLS},details,.gmap,.gh,.grp'))"""
CLICK = f"(i) => {{ const e = ({ITEMS})()[i]; e.dispatchEvent(new MouseEvent('click', {{ bubbles: true }})); return e.textContent.slice(0, 60); }}"
SAID = "() => document.querySelector('.lm .say').innerText"

# Keys that go through all of a view. Lines of the linked view, the tracer and a comparison have tests of their own.
WALK = "ArrowUp*60 ArrowDown*120 ArrowRight*60 ArrowLeft*60"
WALKS = {
    "recompiles": "ArrowUp*9" + " ArrowRight*9 ArrowLeft*9 ArrowDown" * 5,
    "backward": "[ [ [ [" + " ArrowDown*120 ]" * 4,
}
LINES = ("linked", "tracer", "compare")


@pytest.fixture(params=SESSIONS)
def page(request: pytest.FixtureRequest, tab: Callable[..., Any], file_context: Any, tmp_path: pathlib.Path) -> Any:
    """A page of one session that knows what reacts to clicks."""
    session = SESSIONS[request.param]()
    others = {"before": changed_session()} if request.param == "verified" else None
    path = tmp_path / "page.html"
    path.write_text(page_text(session, view="home", others=others), encoding="utf-8")
    found = tab(1200, file_context).page
    found.add_init_script(WATCH)
    found.goto(f"{path.as_uri()}#light")
    found.wait_for_selector(".lm .say")
    return found


def views(page: Any) -> Iterator[str]:
    """Open each view that holds something, with the focus on the explorer."""
    for view in page.locator(".lm .tabs [role=tab]:visible").evaluate_all("tabs => tabs.map((t) => t.dataset.view)"):
        page.locator(f'.lm .tabs [data-view="{view}"]').click()
        page.wait_for_timeout(30)
        page.locator(".lm").focus()
        yield view


def test_tab_reaches_every_control(page: Any) -> None:
    """Each control of each view is a tab stop with a name, and shows that it has the focus."""
    faults = []
    for view in views(page):
        for _ in range(MAX_STOPS):
            page.keyboard.press("Tab")
            found = page.evaluate(FOCUSED)
            if found is None:
                break
            faults += [f"{view} {fault}" for fault in found]
        faults += [f"{view} not reached: {e}" for e in page.evaluate(UNREACHED)]
    assert faults == []


def test_keys_select_what_a_click_selects(page: Any) -> None:
    """Clicks on rows, boxes and bars lead to no sentence that arrow keys do not lead to."""
    faults = []
    for view in views(page):
        by_keys = {page.evaluate(SAID)}
        for walk in WALKS.get(view, WALK).split() if view not in LINES else ():
            name, _, count = walk.partition("*")
            heard: list[str] = []
            while len(heard) < int(count or 1) and (len(set(heard[-4:])) > 1 or len(heard) < 4):  # until nothing moves
                page.keyboard.press(name)
                heard.append(page.evaluate(SAID))
            by_keys.update(heard)
        total = page.evaluate(f"() => ({ITEMS})().length") if view not in LINES else 0
        for number in range(0, total, max(1, total // 10)):
            if number < page.evaluate(f"() => ({ITEMS})().length"):
                name = page.evaluate(CLICK, number)
                said = page.evaluate(SAID)
                faults += [] if said in by_keys else [f"{view}: {name!r} says {said[:80]!r}"]
    assert faults == []
