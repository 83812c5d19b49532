"""Open the static site from disk: search, a lesson with its explorer, themes, widths."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.test_accessibility import RULES

pytestmark = pytest.mark.browser

LEAST_CONTRAST = 4.5
PAGES = (
    "index.html",
    "tutorials/08_loops_to_triton.html",
    "reference/engine.html",
    "reference/magics.html",
    "explanation/map.html",
)
LOW_CONTRAST = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) ?? []).map(Number);
  const lum = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (let at = e; at; at = at.parentElement) { const c = parse(getComputedStyle(at).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  for (const fold of document.querySelectorAll(".output details")) fold.open = true;
  const found = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const e = node.parentElement, style = getComputedStyle(e);
    if (!node.data.trim() || e.closest("script, .anchor, .skip") || !e.checkVisibility()) continue;
    const color = parse(style.color);
    if (color[3] === 0) continue;
    const [a, b] = [lum(color), lum(ground(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < LEAST) found.add(`${node.data.trim().slice(0, 30)}: ${ratio.toFixed(1)} ${e.outerHTML.slice(0, 80)}`);
  }
  return [...found];
}""".replace("LEAST)", f"{LEAST_CONTRAST})")


@pytest.fixture
def open_page(tab: Callable[[int], Any], site_folder: pathlib.Path) -> Callable[..., Any]:
    """Open a page of the site from disk, in a theme and a width."""

    def show(address: str, theme: str = "light", width: int = 1400) -> Any:
        page = tab(width).page
        page.emulate_media(color_scheme=theme)
        page.goto(f"{site_folder.resolve().as_uri()}/{address}")
        return page

    return show


def test_from_search_to_a_step_in_an_explorer(open_page: Callable[..., Any]) -> None:
    """By keys alone: search, open a lesson, open its explorer, and step through its lines."""
    page = open_page("index.html")
    page.keyboard.press("/")
    page.keyboard.type("read the kernel")
    page.keyboard.press("Enter")
    page.wait_for_selector("#hits a")
    assert "section" in page.inner_text("#said")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "Read the kernel"
    page.keyboard.press("Enter")
    page.wait_for_url("**/tutorials/08_loops_to_triton.html#read-the-kernel")

    fold = page.locator("details.explorer").first
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    explorer = fold.locator("iframe").content_frame
    said = explorer.locator(".lm .say")
    said.wait_for(state="attached")
    explorer.locator(".pane").first.wait_for()
    explorer.locator(".lm").first.focus()
    before = explorer.locator(".lm").first.inner_text()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    explorer.locator(".lm .say", has_text="Line").wait_for(state="attached")
    assert explorer.locator(".lm").first.inner_text() != before


def test_a_recorded_trace_opens_on_its_steps(open_page: Callable[..., Any]) -> None:
    """The explorer of a cell with ``--steps`` opens on the tracer, which can step."""
    page = open_page("tutorials/01_bytecode_to_graph.html")
    fold = page.locator("details.explorer").first
    fold.locator("summary").click()
    widget = fold.locator("iframe").content_frame.locator(".lm")
    widget.locator(".say").wait_for(state="attached")
    widget.focus()
    said = widget.locator(".say")
    for key, step in (("ArrowRight", 2), ("ArrowRight", 3), ("ArrowLeft", 2)):
        page.keyboard.press(key)
        widget.locator(".say", has_text=f"Step {step}: ").wait_for(state="attached")
    assert "line" in said.inner_text()


def test_search_shows_text_and_says_when_there_is_nothing(open_page: Callable[..., Any]) -> None:
    """A query that looks like HTML is text; one without a hit says so."""
    page = open_page("search.html?q=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")
    assert "No section has all words of “<img src=x onerror=alert(1)>”" in page.inner_text("#said")
    page.fill("form[role=search] input", "mark_dynamic")
    assert page.locator("#hits a").first.inner_text() == "mark_dynamic"
    assert page.locator("#hits mark").count() > 0
    assert "q=mark_dynamic" in page.url


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(open_page: Callable[..., Any], theme: str) -> None:
    """All text of a page has enough contrast, with the folds of saved outputs open."""
    low = {}
    for address in PAGES:
        page = open_page(address, theme)
        if found := page.evaluate(LOW_CONTRAST):
            low[address] = found[:5]
        page.close()
    assert low == {}


def test_pages_have_no_accessibility_fault(open_page: Callable[..., Any], axe: str) -> None:
    """A checker finds nothing on a page of each kind, with the folds of outputs open.

    Contrast is the subject of another test, which takes less time.
    """
    found = {}
    for address in (PAGES[1], PAGES[3], "search.html?q=guard"):
        page = open_page(address)
        page.evaluate('for (const fold of document.querySelectorAll(".output details")) fold.open = true')
        page.evaluate(axe)
        found[address] = page.evaluate(
            "async (tags) => (await axe.run(document, { iframes: false, rules: { 'color-contrast': { enabled: false } }, runOnly: { type: 'tag', values: tags } })).violations.map((v) => `${v.id}: ${v.nodes[0].html.slice(0, 200)}`)",
            RULES,
        )
        page.close()
    assert not any(found.values()), found


def test_nothing_overflows(open_page: Callable[..., Any]) -> None:
    """No page scrolls sideways; wide code and tables scroll in themselves."""
    wide = []
    for address in (*PAGES, "how-to/install.html", "explanation/names.html", "search.html?q=guard"):
        page = open_page(address)
        for width in (1400, 800, 380):
            page.set_viewport_size({"width": width, "height": 900})
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                wide.append((address, width))
        page.close()
    assert wide == []


def test_a_theme_is_kept_and_reaches_the_explorer(open_page: Callable[..., Any]) -> None:
    """The chosen theme holds on the next page and in an open explorer; print is light."""
    page = open_page("index.html")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    frame = page.locator("details.explorer iframe").content_frame
    frame.locator("body[data-jp-theme-light=false]").wait_for()
    with page.expect_navigation():  # A click does not wait: what follows would reach the old page.
        page.click("nav.parts a >> nth=2")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.emulate_media(media="print")
    assert not page.locator("header.top").is_visible()
