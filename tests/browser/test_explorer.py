"""Test the explorer on a page without a kernel.

Covers clicking, keys only, the status text, contrast, hostile text and many lines.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import engine
from engine.records.bytecode import Span
from engine.records.runtime import CallRecord, SkippedRecord
from notebook_ext.views.plan import plan_session
from tests.notebook_ext.sample_plans import make_plan
from tests.notebook_ext.sample_sessions import (
    broken_session,
    empty_session,
    head_session,
    hostile_session,
    large_session,
    verified_session,
)
from tests.notebook_ext.sample_step_sessions import many_steps_session, steps, steps_session, traced, wrappers_session

pytestmark = pytest.mark.browser
VIEWS = (
    "linked",
    "guards",
    "recompiles",
    "breaks",
    "graph",
    "kernels",
    "timings",
    "tracer",
    "aot",
    "compare",
    "compilations",
    "backward",
    "devices",
)

Show = Callable[..., Any]


def lit(page: Any, pane: str, kind: str = "hit") -> list[int]:
    """Line numbers of a pane that are lit up and drawn."""
    rows = page.locator(f'.lm [data-pane="{pane}"] .r.{kind}')
    return [int(row.get_attribute("data-row")) + 1 for row in rows.all()]


def said(page: Any) -> str:
    """The sentence below the view."""
    return page.locator(".lm .say").inner_text()


def click_line(page: Any, pane: str, row: int) -> None:
    """Click a row of a pane, counted from 0."""
    page.locator(f'.lm section[data-pane="{pane}"] .r[data-row="{row}"] .n').click()


def keep(page: Any, name: str) -> None:
    """A screenshot, where SCREENSHOTS names a folder for them."""
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(pathlib.Path(folder) / f"{name}.png"))


def test_clicking_a_source_line_lights_up_its_ptx(explorer: Show) -> None:
    """Clicking the softmax line lights exactly its Triton and PTX lines.

    The status text states the chain.
    """
    page = explorer(head_session())
    click_line(page, "source", 11)
    assert lit(page, "triton") == [11, 12, 13, 14]  # lines 10 to 13 of the kernel, below its heading
    assert "max.f32" in page.locator('.lm section[data-pane="ptx"] .r.hit').first.inner_text()
    assert len(lit(page, "ptx")) == 42
    assert "Line 12" in said(page)
    assert "42 PTX" in said(page)
    assert page.locator('.lm .rail [data-pane="sass"] i').inner_text() == "64 / 152"


def test_a_recipe_opens_its_program(explorer: Show) -> None:
    """A page without kernel and network shows the program that a recipe's title names."""
    page = explorer(head_session())
    choose_view(page, "graph")
    page.keyboard.press("?")
    recipe = page.locator(".lm .keys details", has_text="Count the operators of each graph")
    assert not recipe.locator("pre").is_visible()
    recipe.locator("summary").click()
    assert "def count_operators(module):" in recipe.locator("pre").inner_text()
    assert recipe.locator("button").get_attribute("aria-label") == "Copy: Count the operators of each graph"


def test_devices_shows_a_plan(explorer: Show) -> None:
    """Only Home and Devices hold something; the table of collectives names line and code."""
    page = explorer(plan_session(make_plan()), view="devices")
    tabs = page.locator(".lm .tabs [role=tab]:visible").evaluate_all("t => t.map((x) => x.dataset.view)")
    assert tabs == ["home", "devices"]
    assert page.locator(".lm .devices img").count() == 3
    assert "all_reduce float32" in page.locator(".lm .devices table tbody tr").inner_text()
    assert said(page).startswith("Ranks 0, 3: peak 576 B in forward")
    page.locator(".lm .sum button").first.click()
    choose_view(page, "home")
    assert page.locator(".home .figs").inner_text().startswith("4\nRanks")


def test_narrow_pages_use_their_room(explorer: Show) -> None:
    """Home fills its panel, all stages are in sight, and tables keep room for names."""
    page = explorer(verified_session(), width=640)
    rail = page.locator(".lm .rail")
    for width in (860, 640):
        page.set_viewport_size({"width": width, "height": 900})
        assert rail.evaluate("(e) => e.scrollWidth <= e.clientWidth")
    choose_view(page, "home")
    panel = page.locator(".lm .panel").evaluate("(e) => e.clientHeight")
    assert page.locator(".lm .home").evaluate("(e) => e.clientHeight") >= panel - 2
    choose_view(page, "kernels")
    assert page.locator(".lm .ktable td code").first.evaluate("(e) => e.clientWidth") >= 90
    choose_view(page, "recompiles")
    assert page.locator(".lm .chip").first.evaluate("(e) => e.clientWidth") < 200


def test_clicking_a_ptx_line_leads_back_to_the_source(explorer: Show) -> None:
    """Clicking a PTX instruction lights its Triton line, FX node and source line.

    The other instructions of the line are lit more weakly.
    """
    page = explorer(head_session())
    click_line(page, "ptx", 62)
    assert lit(page, "source") == [12]
    assert len(lit(page, "triton", "exact")) == 1
    assert len(lit(page, "triton")) == 4
    assert "softmax" in page.locator('.lm section[data-pane="fx"] .r.exact').inner_text()


def test_everything_can_be_done_with_keys_only(explorer: Show) -> None:
    """Keys move, change panes, cycle links, pin, go back and list the keys.

    Arrows move and light up rows, brackets change the pane, j and k cycle, Enter pins, comma goes back, question
    mark lists the keys.
    """
    page = explorer(head_session())
    page.locator(".lm").focus()
    assert "Line 13" in said(page)  # the line with most rows in the kernels
    for _ in range(2):
        page.keyboard.press("ArrowUp")
    assert "Line 11" in said(page)
    page.keyboard.press("ArrowDown")
    assert "Line 12" in said(page)
    page.keyboard.press("Enter")
    assert page.locator('.lm button[aria-pressed="true"]', has_text="Unpin").count() == 1
    page.keyboard.press("]")
    page.keyboard.press("]")
    assert "cur" in page.locator('.lm section[data-pane="triton"]').get_attribute("class")
    page.keyboard.press("j")
    assert page.locator(".lm section.cur .r.at").get_attribute("data-row") == "11"
    assert "Line 12" in said(page)  # pinned
    page.keyboard.press("Enter")
    page.keyboard.press(",")
    page.keyboard.press("?")
    assert page.locator(".lm .keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator(".lm .keys").is_visible()
    page.keyboard.press("/")
    page.keyboard.type("nothing like it")
    page.keyboard.press("Enter")
    assert "No match" in said(page)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement === document.body")


def test_tab_visits_every_control_and_leaves(explorer: Show) -> None:
    """Tab keeps its meaning: it goes through the controls and out of the widget at the end."""
    page = explorer(head_session())
    page.locator("#theme").focus()
    seen = set()
    for _ in range(120):
        page.keyboard.press("Tab")
        inside = page.evaluate("document.activeElement.closest('.lm') !== null")
        seen.add(page.evaluate("document.activeElement.textContent.slice(0, 30)"))
        if not inside and len(seen) > 1:
            break
    else:
        pytest.fail("Tab never left the widget")
    assert {"Verify", "Linked view", "Pin", "hit ▸"} <= {s.strip() for s in seen} | {"Linked view"}


def test_each_summary_item_opens_its_view(explorer: Show) -> None:
    """Every underlined fact of the summary is a button into the view that shows it."""
    page = explorer(head_session())
    links = page.locator(".lm .sum .lnk")
    assert links.count() >= 8
    for i in range(links.count()):
        target = links.nth(i).get_attribute("data-target")
        links.nth(i).click()
        chosen = page.locator('.lm .tabs [role=tab][aria-selected="true"]').get_attribute("data-view")
        assert chosen == target.split("|")[0]
    page.locator(".lm .sum button", has_text="Verify").click()
    assert "no kernel" in said(page)


def test_guards_step_in_the_order_of_checking(explorer: Show) -> None:
    """Guard stepping starts at the first failure and stops there until the rest is evaluated.

    p steps back. n does not pass the failure until the rest is evaluated; later guards are then called
    hypothetical.
    """
    page = explorer(head_session())
    page.locator('.lm .tabs [data-view="guards"]').click()
    assert "expected [64, 128], got [96, 128]" in said(page)
    page.locator(".lm").focus()
    page.keyboard.press("p")
    assert said(page).startswith("Guard 6")
    page.keyboard.press("n")
    page.keyboard.press("n")
    assert "stops at guard 7" in said(page)
    page.keyboard.press("e")
    page.keyboard.press("n")
    assert "Hypothetical" in said(page)
    page.keyboard.press("F")
    assert said(page).startswith("Guard 7")
    assert "mark_dynamic" in page.locator(".lm .side").inner_text()
    assert page.locator('.lm [role=treegrid] [role=row][aria-selected="true"]').count() == 1


def test_a_long_list_shows_the_same_rows_when_one_comes_back_to_it(explorer: Show) -> None:
    """The selected guard is visible again after another tab, for any number of guards."""
    session = head_session()
    first = session.compilations[0]
    assert first.guards is not None
    more = tuple(replace(first.guards.guards[0], id=f"m{n}", source=f"L['more'][{n}]") for n in range(400))
    session.put_compilation(replace(first, guards=replace(first.guards, guards=(*first.guards.guards, *more))))
    page = explorer(session)
    open_view(page, "guards")
    page.keyboard.press("End")
    for view in ("linked", "guards"):
        open_view(page, view)
        page.wait_for_timeout(100)
    at = page.locator(".lm .tree .sel")
    assert at.count() == 1
    box, frame = at.bounding_box(), page.locator(".lm .rows.tree").bounding_box()
    assert frame["y"] <= box["y"] <= frame["y"] + frame["height"]


def test_recompiles_say_which_guard_failed_and_why(explorer: Show) -> None:
    """The first cache miss is selected, the next shows both guard failures, Enter opens one.

    Enter opens the guard that failed.
    """
    page = explorer(head_session())
    page.locator('.lm .tabs [data-view="recompiles"]').click()
    assert "x.size(0) 64 -> 96" in said(page)
    page.locator(".lm").focus()
    page.keyboard.press("j")
    assert said(page).count("guard failed") == 2
    page.keyboard.press("Enter")
    assert "Guard 7" in said(page)


def test_a_break_shows_its_line_reason_and_remedy(explorer: Show) -> None:
    """The breaks view points at the expression and says what to do; Enter leads to the line."""
    page = explorer(head_session())
    page.locator('.lm .tabs [data-view="breaks"]').click()
    card = page.locator(".lm .card").inner_text()
    assert "^^^^" in card
    assert "Move the print out" in card
    page.locator(".lm").focus()
    page.keyboard.press("Enter")
    assert "Graph break here" in said(page)


def test_a_break_shows_an_example_and_what_was_given_up(explorer: Show) -> None:
    """Opened graph break details show the code before and after, and the attempts.

    Their colors are readable.
    """
    page = explorer(broken_session())
    page.locator('.lm .tabs [data-view="breaks"]').click()
    for summary in page.locator(".lm .card summary").all():
        summary.click()
    card = page.locator(".lm .card").first.inner_text()
    assert "print(x)" in card
    assert "After 3 operations" in card or "after 3 operations" in card
    assert "retraced without a break" in page.locator(".lm .breaks").inner_text()


def test_a_pane_without_text_says_why(explorer: Show) -> None:
    """Where no PTX exists yet the pane says what is being waited for."""
    page = explorer(head_session())
    page.locator('.lm select[aria-label="Function and cache entry"]').select_option("0/1")
    assert "while the notebook runs" in page.locator('.lm section[data-pane="ptx"] .empty').inner_text()
    page.locator('.lm select[aria-label="Function and cache entry"]').select_option("1/0")
    assert page.locator('.lm section[data-pane="aten"] .empty').inner_text() != ""


def test_tabs_show_what_holds_something_and_more_says_what_would_fill_the_rest(explorer: Show) -> None:
    """The key m lists empty views; the tab of one stays while it is open."""
    page = explorer(head_session())
    assert page.locator(".lm .tabs [role=tab]:visible").all_inner_texts() == [
        *("Home", "Linked view", "Guards", "Recompiles", "Breaks", "Graph", "Kernels", "Timeline", "Compare"),
        "Compilations",
    ]
    page.locator(".lm").focus()
    page.keyboard.press("m")
    listed = page.locator(".lm .others").inner_text()
    assert "Tracer" in listed
    assert "Run the cell with %%compile --steps" in listed
    assert "engine.compiled_autograd()" in listed
    page.keyboard.press("Enter")
    assert page.locator('.lm .tabs [aria-selected="true"]').inner_text() == "Tracer"
    assert not page.locator(".lm .others").is_visible()
    page.keyboard.press("m")
    page.keyboard.press("Escape")
    assert not page.locator(".lm .others").is_visible()
    choose_view(page, "guards")
    assert not page.locator('.lm .tabs [data-view="tracer"]').is_visible()


def test_twelve_tabs_are_one_line_at_800_pixels(explorer: Show) -> None:
    """Those of a training step fit beside the buttons."""
    page = explorer(head_session(), width=800)
    for view in ("aot", "memory"):
        page.evaluate("view => { document.querySelector(`.lm .tabs [data-view=${view}]`).hidden = false; }", view)
    assert page.locator(".lm .tabs [role=tab]:visible").count() == 12
    assert page.evaluate("document.querySelector('.lm .tabs').offsetHeight") < 40
    words = page.locator(".lm .tools button").evaluate_all(
        "buttons => buttons.filter((b) => parseFloat(getComputedStyle(b).fontSize) > 10).map((b) => b.innerText)"
    )
    assert words == ["‹", "›", "Find", "Copy", "Link", "?"]


def test_breaks_counts_each_function_that_was_not_compiled(explorer: Show) -> None:
    """One reason may be for several functions; what is zero is not listed."""
    session = empty_session()
    session.add_skipped(SkippedRecord("F.nll_loss, clip_ and SGD.step", "library code called from Python", ""))
    page = explorer(session)
    choose_view(page, "breaks")
    assert page.locator(".lm .breaks .ctx").inner_text().split("\n")[-1].endswith("4 not compiled")


@pytest.mark.parametrize("width", [1400, 1024, 800, 640])
def test_the_explorer_keeps_its_height_and_width_in_every_view(explorer: Show, width: int) -> None:
    """No view is taller, shorter or wider than the first, however long its sentence is."""
    page = explorer(head_session(), width=width)
    sizes = set()
    for view in VIEWS:
        choose_view(page, view)
        page.wait_for_function("!document.querySelector('.lm .panel').innerText.includes('Loading')")
        page.evaluate("document.querySelector('.lm .say').append('word '.repeat(99))")
        sizes.add(page.evaluate("document.querySelector('.lm .low').offsetHeight"))
        assert (
            page.evaluate(
                "(() => { const r = document.querySelector('.lm'); return r.scrollWidth - r.clientWidth; })()"
            )
            == 0
        )
    assert len(sizes) == 1


def test_the_live_summary_takes_the_place_of_the_static_one(explorer: Show) -> None:
    """A cell shows one summary line; the static one comes back when the widget is closed."""
    page = explorer(head_session())
    page.evaluate(
        """() => { const data = JSON.parse(document.getElementById("data").textContent);
        const model = { get: (n) => (n === "summary_id" ? "summary-1" : data[n]), on() {}, off() {}, send() {} };
        const cell = document.createElement("div"), fixed = document.createElement("p"), el = document.createElement("div");
        fixed.id = "fixed"; fixed.dataset.explorerSummary = "summary-1"; fixed.textContent = "1 graph, not checked";
        const other = fixed.cloneNode(true); other.id = "other"; other.dataset.explorerSummary = "summary-2"; document.body.append(other);
        cell.append(fixed, el); document.body.append(cell); window.shut = window.again(model, el); }"""
    )
    assert not page.locator("#fixed").is_visible()
    assert page.locator("#other").is_visible()
    page.evaluate("fixed.replaceWith(fixed.cloneNode(true))")  # JupyterLab draws outputs again.
    assert not page.locator("#fixed").is_visible()
    page.evaluate("window.shut()")
    assert page.locator("#fixed").is_visible()


def test_nothing_compiled_is_said_with_a_remedy(explorer: Show) -> None:
    """An empty session has a headline, a remedy, and no view that fails or stays blank."""
    page = explorer(empty_session())
    assert "Nothing was compiled" in page.locator(".lm .sum").inner_text()
    choose_view(page, "home")
    assert "Put the tensor work" in page.locator(".lm .panel").inner_text()
    assert "Put the tensor work" not in page.locator(".lm .sum").inner_text()  # said once
    for view in VIEWS:
        choose_view(page, view)
        assert len(page.locator(".lm .panel").inner_text() + said(page)) > 20


def test_hostile_text_stays_text(explorer: Show) -> None:
    """Markup and terminal escapes in any field are shown as text.

    No element, script or escape comes from them.
    """
    page = explorer(hostile_session())
    for view in VIEWS:
        choose_view(page, view)
        assert page.locator(".lm img, .lm script").count() == 0
        assert "\x1b" not in page.locator(".lm").inner_text()
    assert page.evaluate("window.pwned") is None
    assert "<script>" in page.locator(".lm").inner_text()


def test_a_highlight_in_ten_thousand_lines_is_quick(explorer: Show) -> None:
    """Only visible lines of 10,000 PTX lines become elements, and selection is fast enough.

    The bench measures the 50 ms that a selection may take. This test catches only gross excess.
    """
    page = explorer(large_session())
    page.locator(".lm").focus()
    page.wait_for_selector('.lm section[data-pane="ptx"] .r')
    times = page.evaluate(
        """() => { const root = document.querySelector('.lm'), times = [];
        for (let i = 0; i < 20; i++) { const start = performance.now();
          root.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown', bubbles: true})); root.offsetHeight; times.push(performance.now() - start); }
        return times.sort((a, b) => a - b); }"""
    )
    assert page.locator('.lm section[data-pane="ptx"] .r').count() < 200
    assert times[0] < 100, times


def choose_view(page: Any, view: str, root: str = ".lm") -> None:
    """Click a view's tab; the tab of an empty view is behind "More"."""
    tab = page.locator(f'{root} .tabs [data-view="{view}"]')
    if not tab.is_visible():
        page.locator(f"{root} .top > button", has_text="More").click()
        tab = page.locator(f'{root} .others [data-view="{view}"]')
    tab.click()


def open_view(page: Any, view: str) -> None:
    """Open a view, from behind "More" if it is empty, and take the keyboard."""
    choose_view(page, view)
    page.locator(".lm").focus()


def pane(page: Any, name: str) -> str:
    """What a pane of the tracer says."""
    return page.locator(f'.lm .tp[aria-label="{name}"]').inner_text()


def press(page: Any, keys: str) -> str:
    """Press keys one after another; the sentence after the last."""
    for pressed in keys.split():
        page.keyboard.press(pressed)
    return said(page)


def test_the_tracer_walks_into_a_call_and_out_again(explorer: Show) -> None:
    """Arrow keys step; i and o go in and out; g finds the op, x the break; the panes follow."""
    page = explorer(steps_session())
    open_view(page, "tracer")
    assert said(page).startswith("Step 1: RESUME at line 4 of f")
    assert press(page, "ArrowRight ArrowRight").startswith("Step 3: LOAD_FAST x at line 5")
    assert "Tensor (not read yet)" in pane(page, "Stack")
    assert press(page, "i").startswith("Step 6: RESUME at line 1 of scaled")
    assert pane(page, "Frames").split() == ["Frames", "2", "scaled", "line", "2", "f", "line", "5"]
    assert "in scaled, inlined from line 5" in pane(page, "Source")
    assert "Adds x, mul to the graph" in press(page, "g")
    assert "x * 2" in pane(page, "Graph so far")
    assert press(page, "o").startswith("Step 11: STORE_FAST a at line 5 of f")
    assert press(page, "ArrowDown").startswith("Step 12: LOAD_FAST out at line 6")
    assert "The graph breaks here: Output is printed" in press(page, "x")
    assert "contents of the list are replaced" in pane(page, "Pending side effects")
    assert press(page, "ArrowUp").startswith("Step 12:")
    assert "None so far" in pane(page, "Pending side effects")


def test_inside_code_without_source_its_caller_is_shown(explorer: Show) -> None:
    """The pane says whose source is missing, and marks the user's line that led there."""
    session = traced(tuple(replace(s, span=Span("lib.py", 9)) if s.frame else s for s in steps()))
    page = explorer(session)
    open_view(page, "tracer")
    assert press(page, "i").startswith("Step 6: RESUME at line 9 of scaled")
    assert "scaled was not recorded: its caller" in pane(page, "Source")
    assert "a = scaled(x, 2)" in page.locator('.lm .tp[aria-label="Source"] .cur').inner_text()
    press(page, "o")
    assert "in f" in pane(page, "Source")


def test_going_back_shows_exactly_what_was_there(explorer: Show) -> None:
    """Each step looks the same on the way back as on the way there."""
    page = explorer(steps_session())
    open_view(page, "tracer")
    look = "() => [...document.querySelectorAll('.lm .tp:not([aria-label=Source]):not([aria-label=Bytecode]), .lm .say')].map((e) => e.innerText).join('|')"
    there = [page.evaluate(look)]
    for _ in range(18):
        page.keyboard.press("ArrowRight")
        there.append(page.evaluate(look))
    back = [page.evaluate(look)]
    for _ in range(18):
        page.keyboard.press("ArrowLeft")
        back.append(page.evaluate(look))
    assert back[::-1] == there
    assert len(set(there)) == 19


def test_a_value_or_a_node_leads_to_the_step_that_made_it(explorer: Show) -> None:
    """Clicking a stack value, variable, node or guard opens the step that created it."""
    page = explorer(steps_session())
    open_view(page, "tracer")
    press(page, "End")
    page.locator('.lm [aria-label="Stack"] button.v', has_text="mul").click()
    assert said(page).startswith("Step 9:")
    press(page, "End")
    page.locator('.lm [aria-label="Stack"] button.v', has_text="print").click()
    assert said(page).startswith("Step 17:")
    page.locator('.lm [aria-label="Locals"] button.v', has_text="list of 1").click()
    assert said(page).startswith("Step 15:")
    page.locator('.lm .tp[aria-label="Guards so far"] .fact').first.click()
    assert said(page).startswith("Step 2:")


def test_breakpoints_stop_on_their_line(explorer: Show) -> None:
    """b marks the line in hand, B goes there from elsewhere; without one the remedy is said."""
    page = explorer(steps_session())
    open_view(page, "tracer")
    assert "b sets one" in press(page, "B")
    assert "Breakpoint on line 2" in press(page, "g b")
    assert press(page, "Home B").startswith("Step 7:")
    assert page.locator(".lm .tp .stop").count() == 1
    assert "No breakpoint on line 2" in press(page, "b")


def test_the_slider_has_ticks_and_takes_keys(explorer: Show) -> None:
    """Ticks of all four kinds are drawn; the arrow keys on the slider step."""
    page = explorer(steps_session())
    open_view(page, "tracer")
    for kind in ("tk-op", "tk-guard", "tk-call", "tk-break"):
        assert page.locator(f".lm .ticks .{kind}").count() > 0
    page.locator(".lm input[type=range]").focus()
    assert press(page, "ArrowRight g").startswith("Step 9:")


def test_a_step_in_ten_thousand_takes_less_than_30_ms(explorer: Show) -> None:
    """Steps, jumps and lines in a long trace each take less than 30 ms with layout.

    The bench measures this exactly.
    """
    page = explorer(many_steps_session())
    open_view(page, "tracer")
    times = page.evaluate(
        """() => { const root = document.querySelector('.lm'), slider = root.querySelector('input[type=range]'), times = [];
        const timed = (act) => { const start = performance.now(); act(); root.offsetHeight; times.push(performance.now() - start); };
        for (const at of [0, 2500, 5000, 7500, 9990]) {
          timed(() => { slider.value = at; slider.dispatchEvent(new Event('input')); });
          for (const key of ['ArrowRight', 'ArrowRight', 'ArrowLeft', 'g', 'ArrowDown', 'i', 'o', 'ArrowUp'])
            timed(() => root.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})));
        }
        return times.sort((a, b) => a - b); }"""
    )
    assert said(page).startswith("Step 9,9") or said(page).startswith("Step 99")
    assert page.locator(".lm .tracer .r").count() < 600
    assert times[len(times) // 4] < 30, times


def test_a_call_goes_through_the_wrappers(explorer: Show) -> None:
    """Right steps inward through the AOT wrappers and out again; clicking a ring selects it.

    On the way out it shows what each wrapper does. The graph opens from the view.
    """
    page = explorer(wrappers_session())
    open_view(page, "aot")
    assert said(page).startswith("In: inputs of the call")
    assert page.locator(".lm .ring .ring .ring .ring.core").count() == 1
    assert press(page, "ArrowRight").startswith("Functional graph. 1 operation")
    assert "x copied back" in press(page, "ArrowRight")
    assert "output 0 created again as a view of x" in press(page, "ArrowRight")
    assert press(page, "ArrowRight").startswith("Out: results of the call")
    assert "Wrappers that had nothing to do: Autocast off" in page.locator(".lm .aot").inner_text()
    page.locator(".lm .ring.core").click()
    assert said(page).startswith("Functional graph")
    press(page, "Enter")
    assert page.locator('.lm .tabs [aria-selected="true"]').get_attribute("data-view") == "graph"


def test_a_narrow_tracer_shows_source_bytecode_and_stack_together(explorer: Show) -> None:
    """At 800 pixels of a notebook, what a step reads and changes is seen without scrolling."""
    page = explorer(traced(steps()), width=640)
    open_view(page, "tracer")
    panel = page.locator(".lm .panel").bounding_box()
    boxes = {n: page.locator(f".lm section[aria-label={n}]").bounding_box() for n in ("Source", "Bytecode", "Stack")}
    assert boxes["Source"]["y"] == boxes["Bytecode"]["y"] < boxes["Stack"]["y"]
    assert boxes["Stack"]["y"] + boxes["Stack"]["height"] <= panel["y"] + panel["height"]


@pytest.mark.parametrize("view", ["tracer", "aot"])
def test_narrow_windows_show_steps_and_rings(explorer: Show, view: str) -> None:
    """At 420 pixels nothing of them is wider than the widget."""
    page = explorer(wrappers_session(), width=420)
    open_view(page, view)
    keep(page, f"{view}-steps-narrow")
    for body in page.locator(".lm .tracer .tp, .lm .aot .ring").all():
        assert body.bounding_box()["height"] > 40
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_narrow_windows_keep_everything_reachable(explorer: Show) -> None:
    """In a pane of 368 pixels nothing is wider, but for panes that scroll by themselves."""
    session = head_session()
    session.add_call(CallRecord(0, "1", "python", "1/0"))
    page = explorer(session, width=392)
    for view in VIEWS:
        choose_view(page, view)
        keep(page, f"{view}-narrow")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        bars = page.locator(".lm :is(.top, .ctx):visible").evaluate_all(
            "all => all.map((e) => e.scrollWidth - e.clientWidth)"
        )
        assert max(bars) <= 0, view


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const known = new Map();
  const paint = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; known.set(text, [r, g, b, a / 255]); return known.get(text); };
  const rgba = (text) => known.get(text) ?? paint(text);
  const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3])).concat(1);
  const behind = (e) => { const layers = []; for (let n = e; n; n = n.parentElement) layers.push(rgba(getComputedStyle(n).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]); };
  const luminance = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const bad = [];
  for (const e of document.querySelectorAll('.lm *')) {
    if (e.closest('svg') || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue;
    const ground = behind(e), ink = over(rgba(getComputedStyle(e).color), ground);
    const [a, b] = [luminance(ground), luminance(ink)].sort((x, y) => y - x), ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push([e.className, e.textContent.slice(0, 20), Math.round(ratio * 100) / 100]);
  }
  return bad.slice(0, 12);
}"""
"""Text in the widget with a contrast below 4.5:1."""


def low_contrast(page: Any) -> list[str]:
    """Return text with low contrast in each theme; the theme stays as it was."""
    found = []
    for _ in range(2):
        found += [f"low contrast: {text}" for text in page.evaluate(CONTRAST)]
        page.evaluate("document.getElementById('theme').click()")
    return found


def test_the_view_shows_values_before_and_after_a_wrapper(explorer: Show) -> None:
    """The wrapper that copies an input back shows its contents before and now, changes marked.

    The two stand side by side.
    """
    engine.reset()

    def doubled(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    with engine.record(level="steps") as session:
        engine.compile(doubled, backend="aot_eager")(torch.ones(2))
    page = explorer(session)
    open_view(page, "aot")
    row = page.locator(".lm .held tr", has_text="x").first
    assert row.inner_text().split("\t") == ["x", "[1, 1]"]
    for _ in range(12):
        if "Input mutation" in press(page, "ArrowRight"):
            break
    assert row.locator("td.new").inner_text() == "[2, 2]"
    assert "[1, 1]" in row.inner_text()


WRAPPED = """(pane) => {
  const list = document.querySelector(`.lm [data-pane="${pane}"] .rows`), rows = [...list.querySelectorAll(".r")].map((r) => r.getBoundingClientRect());
  const sorted = rows.sort((a, b) => a.top - b.top), texts = [...list.querySelectorAll(".r .x")];
  return {
    isWide: list.scrollWidth > list.clientWidth + 1, lines: Math.max(...rows.map((r) => r.height)) / 18, count: rows.length,
    overlaps: sorted.some((r, i) => i && r.top < sorted[i - 1].bottom - 0.5), cut: texts.some((x) => x.scrollHeight > x.parentElement.clientHeight + 1),
  };
}"""


@pytest.mark.parametrize(("session", "pane"), [(head_session, "triton"), (large_session, "ptx")])
def test_long_lines_wrap_by_a_key_and_a_button(explorer: Show, session: Callable[[], Any], pane: str) -> None:
    """Wrapped rows are as high as their text, none overlaps or is cut; the selection stays."""
    page = explorer(session(), width=800)
    before = page.evaluate(WRAPPED, pane)
    assert before["isWide"]
    assert before["lines"] == 1
    click_line(page, pane, 3)
    lines = lit(page, pane)
    page.keyboard.press("w")
    assert "wrapped" in said(page)
    for name in ("source", pane):
        after = page.evaluate(WRAPPED, name)
        assert [after[k] for k in ("isWide", "overlaps", "cut")] == [False] * 3, name
    assert page.evaluate(WRAPPED, pane)["lines"] > 1
    assert set(lines[:3]) <= set(lit(page, pane))
    page.locator('.lm .panes [data-pane="' + pane + '"] .rows').evaluate("e => { e.scrollTop = e.scrollHeight / 2; }")
    page.wait_for_timeout(60)
    assert page.evaluate(WRAPPED, pane)["count"] > 5
    page.get_by_role("button", name="Wrap").click()
    assert page.evaluate(WRAPPED, pane)["lines"] == 1


def test_notes_and_lists_are_whole_on_a_narrow_page(explorer: Show) -> None:
    """Notes beside the buttons of Kernels are not cut; lists that scroll take the focus."""
    page = explorer(head_session(), width=800)
    page.locator('.lm .tabs [data-view="kernels"]').click()
    cut = page.locator(".lm .kernels .ctx .mut").evaluate_all(
        "all => all.map((e) => e.scrollWidth > e.clientWidth + 1)"
    )
    assert cut
    assert not any(cut)
    assert page.locator(".lm .kernels h4", has_text="in the program for cuda:90").count() == 1
    page.locator('.lm .tabs [data-view="compilations"]').click()
    assert page.locator(".lm .compilations .two > [tabindex='0']").count() >= 1
    table = page.locator(".lm .compilations .two > [tabindex='0']")
    assert table.evaluate("e => e.scrollWidth <= e.clientWidth + 1")


def test_columns_of_recompiles_are_aligned_in_all_rows(explorer: Show) -> None:
    """Long inputs wrap in their column: no name is broken, no row has a wider column."""

    def scaled(hidden_mask: torch.Tensor, factor: int, mode: str) -> torch.Tensor:
        return hidden_mask * 2 if mode == "twice" else hidden_mask * factor

    compiled = engine.compile(scaled, backend="eager")
    with engine.record() as session:
        for size in range(2, 8):
            compiled(torch.ones((2,) * size), size, "twice" if size % 2 else "by the given factor")
    page = explorer(session, width=800)
    page.locator('.lm .tabs [data-view="recompiles"]').click()
    rows = page.locator(".lm .lane .mxr").evaluate_all(
        "rows => rows.map((r) => [...r.querySelectorAll('.cc')].map((c) => Math.round(c.getBoundingClientRect().left)))"
    )
    assert len(rows[0]) == 6
    assert [row for row in rows if row != rows[0]] == []
    lines_of_names = page.locator(".lm .lane .cc.in code").evaluate_all(
        """codes => codes.map((code) => {
          const name = document.createRange();
          name.setStart(code.firstChild, 0);
          name.setEnd(code.firstChild, code.textContent.indexOf(" "));
          return name.getClientRects().length;
        })"""
    )
    assert set(lines_of_names) == {1}
