"""Test the explorer in a real JupyterLab, in both themes.

It is drawn, linked, and follows its session while the kernel is busy.
"""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.conftest import Tab
from tests.browser.jupyter_server import (
    ROOT,
    Lab,
    errors_in,
    open_instead,
    open_notebook,
    run_all,
    run_cell,
    set_theme,
    wait_until_ready,
)
from tests.browser.test_explorer import CONTRAST, choose_view, click_line, keep, lit, said
from tests.engine.observe.sample_traces import session_and_log

pytestmark = pytest.mark.browser

TOUR = ROOT / "notebooks" / "00_tour.ipynb"
TOUR_SECONDS = 240

CELLS = [
    """
import threading, time
from notebook_ext.widgets.explorer import Explorer
from tests.notebook_ext.sample_sessions import head_compilation, head_session, verified_session
session = head_session()
def check():
    for compilation in verified_session().compilations:
        session.put_compilation(compilation)
Explorer(session, on_verify=check)
""",
    """
compiled = head_compilation(1, "s0", "x.size(0) changed from 64 to 96")
threading.Thread(target=session.put_compilation, args=(compiled,)).start()
time.sleep(45)
""",
]


TUNED = """
%%compile --backend tuned
def scaled(x):
    return x * 0.5
scaled(torch.ones(2, 4)).sum()
"""

TUNING = """
%load_ext notebook_ext
import time, torch, engine
from engine.ir.current_session import current_session
from engine import session_jobs
from tests.engine.runtime.interpreter_launcher import interpreter_launcher
from engine.runtime.autotune import Autotuner
from engine.ir.kernels.template_choice import ChoiceRequest
from tests.engine.runtime.test_autotune import turned, way

def slow_clock(work):  # stands for a GPU's: each measurement takes its time
    work()
    time.sleep(0.6)
    return 1e-5

def tuned(graph, inputs):
    session = current_session()
    tuner = Autotuner("a card", slow_clock, interpreter_launcher, on_progress=session.set_stage, stop=session_jobs.stop_event_of(session))
    question = ChoiceRequest("aten:0/0:mm", (way("vendor"), *(way(f"template {n}", turned) for n in range(5))))
    print(tuner.choose(question).reason)
    return graph.forward
engine.register_backend("tuned", tuned)
"""

BUSY = [
    """
%load_ext notebook_ext
import time, torch, engine
def slow(graph, inputs):
    time.sleep(6)
    return graph.forward
engine.register_backend("slow", slow)
""",
    """
%%compile --backend slow
def scaled(x):
    return x * 0.5
scaled(torch.ones(2, 4)).sum()
""",
]


AOT_WRAPPERS = [
    """
%load_ext notebook_ext
import torch
x = torch.tensor([1.0, 3.0])
w = torch.tensor([2.0, 4.0], requires_grad=True)
""",
    """
%%compile --backend aot_eager
def scaled(x, w):
    return (x * w).sum()
scaled(x, w);
""",
]


BREAKING = [
    "%load_ext notebook_ext\nimport torch",
    """
%%compile --backend eager
def total(x):
    y = x.sin()
    print("summing")
    return y.sum()
total(torch.ones(3))
""",
]


MARKED = [BREAKING[0], BREAKING[1].replace("--backend eager", "")]


def write_notebook(path: pathlib.Path, cells: list[str]) -> None:
    """A notebook with these code cells."""
    made = [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": source.strip(),
        }
        for i, source in enumerate(cells)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path.write_text(
        json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}), encoding="utf-8"
    )


@pytest.fixture(scope="module")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory, kernel_variables: dict[str, str]) -> Iterator[Lab]:
    """A server with a few notebooks, whose kernels are forked."""
    folder = tmp_path_factory.mktemp("notebooks")
    if TOUR.exists():
        shutil.copy(TOUR, folder)
    write_notebook(folder / "made.ipynb", CELLS)
    write_notebook(folder / "restarted.ipynb", CELLS[:1])
    write_notebook(folder / "busy.ipynb", BUSY)
    write_notebook(folder / "tuned.ipynb", [TUNING, TUNED])
    write_notebook(folder / "aot_wrappers.ipynb", AOT_WRAPPERS)
    write_notebook(folder / "breaking.ipynb", BREAKING)
    write_notebook(folder / "marked.ipynb", MARKED)
    (folder / "trace.log").write_bytes(session_and_log()[1])
    write_notebook(folder / "log.ipynb", ["%load_ext notebook_ext", "%explore trace.log"])
    started = Lab(folder, variables=kernel_variables)
    yield started
    started.close()


@pytest.fixture(scope="module")
def lab_tab(lab: Lab, browser: Any) -> Iterator[Tab]:
    """The tab in which the tests open one notebook after the other."""
    context = browser.new_context()
    yield Tab(context, 1400)
    context.close()


@pytest.fixture
def opened(lab: Lab, lab_tab: Tab) -> Iterator[Callable[[str], Tab]]:
    """Open a notebook in JupyterLab; fail on any script error or outside request."""

    def show(name: str) -> Tab:
        lab_tab.page.set_viewport_size({"width": 1400, "height": 900})
        open_instead(lab_tab.page, lab, name)
        return lab_tab

    yield show
    outside, errors = lab_tab.outside[:], lab_tab.errors[:]
    lab_tab.outside.clear()
    lab_tab.errors.clear()
    assert outside == []
    assert errors == []


@pytest.fixture(scope="module")
def notebook(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Notebook 7, with one notebook."""
    folder = tmp_path_factory.mktemp("notebook7")
    write_notebook(folder / "made.ipynb", CELLS)
    started = Lab(folder, "notebook")
    yield started
    started.close()


@pytest.mark.parametrize("front_end", ["lab", "notebook"])
def test_the_widget_works_in_jupyter(request: pytest.FixtureRequest, front_end: str) -> None:
    """In Jupyter a click lights PTX, and keys stay in the widget until Escape.

    Parts come from the kernel, and contrast holds in the front end's own colors.
    """
    if front_end == "lab":
        page = request.getfixturevalue("opened")("made.ipynb").page
    else:
        page = request.getfixturevalue("tab")(1400).page
        open_notebook(page, request.getfixturevalue(front_end), "made.ipynb")
    run_cell(page, 0)
    page.wait_for_selector(".lm .say", timeout=60_000)
    choose_view(page, "linked")
    click_line(page, "source", 11)
    assert len(lit(page, "ptx")) == 42
    cells = page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets.length")
    for pressed in ("ArrowDown", "j", "a", "b", "x"):  # a, b and x would add and delete cells in the notebook
        page.keyboard.press(pressed)
    assert page.evaluate("window.jupyterapp.shell.currentWidget.content.widgets.length") == cells
    assert "Line 13" in said(page)
    page.keyboard.press("Escape")
    page.keyboard.press("b")  # a cell below, now that the keys are the notebook's again
    page.wait_for_function("(n) => window.jupyterapp.shell.currentWidget.content.widgets.length === n", arg=cells + 1)
    for name in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(page, name)
        page.locator(".lm").scroll_into_view_if_needed()
        keep(page, f"{front_end}-{name[11:].lower()}")
        assert page.evaluate(CONTRAST) == []
    page.locator('.lm .tabs [data-view="guards"]').click()
    page.wait_for_function("document.querySelector('.lm .say').textContent.startsWith('Guard 7')")
    for view, shown in (("graph", "svg .nd"), ("tracer", ".tracer"), ("compare", "table.facts")):
        choose_view(page, view)  # its code comes from the kernel
        page.wait_for_selector(f".lm .panel {shown}", timeout=10_000)
    page.locator(".lm .sum button", has_text="Verify").click()
    page.wait_for_function("document.querySelector('.lm .sum').textContent.includes('all checked')")


def test_a_trace_is_explored_in_jupyterlab(opened: Callable[[str], Tab]) -> None:
    """``%explore FILE`` shows a stock torch.compile log, readable in both themes.

    It shows the log's graph breaks, its contents and one of its texts.
    """
    page = opened("log.ipynb").page
    run_all(page, 90)
    page.wait_for_selector(".lm .say", timeout=60_000)
    assert "stock torch.compile" in page.locator(".lm .sum").inner_text()
    page.locator('.lm .tabs [data-view="breaks"]').click()
    page.wait_for_function("document.querySelector('.lm .breaks .card') !== null")
    page.locator('.lm .tabs [data-view="compilations"]').click()
    page.wait_for_function("document.querySelectorAll('.lm .compilations tr[data-id]').length >= 4")
    page.locator('.lm .compilations tr[data-id="2/0"]').click()
    page.locator(".lm .compilations .files button", has_text="Joint graph").click()
    page.wait_for_function("document.querySelector('.lm .compilations .ln') !== null")
    for name in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(page, name)
        page.locator(".lm").scroll_into_view_if_needed()
        keep(page, f"log-{name[11:].lower()}")
        assert page.evaluate(CONTRAST) == []
    assert errors_in(page) == []


def test_kernels_fill_their_panes_while_the_kernel_is_busy(opened: Callable[[str], Tab]) -> None:
    """PTX that arrives from a background thread appears although a cell is still running."""
    page = opened("made.ipynb").page
    run_cell(page, 0)
    page.wait_for_selector(".lm .say", timeout=60_000)
    choose_view(page, "linked")
    page.locator('.lm select[aria-label="Function and cache entry"]').select_option("0/1")
    page.wait_for_function(
        """document.querySelector('.lm section[data-pane="ptx"] .empty').textContent.includes('while the notebook runs')"""
    )
    click_line(page, "source", 11)
    run_cell(page, 1)
    # The kernel's status is no sign: answering a widget beside the cell ends with "idle".
    is_running = "document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')[1].textContent.includes('*')"
    page.wait_for_function(is_running)
    page.wait_for_selector('.lm section[data-pane="ptx"] .r.hit', timeout=8_000)
    assert "Line 12" in said(page)
    assert page.evaluate(is_running)


def test_a_widget_outlives_its_kernel(opened: Callable[[str], Tab]) -> None:
    """An open explorer survives a kernel restart and explains what it can no longer load.

    What is on screen still links, and the cell can run again.
    """
    page = opened("restarted.ipynb").page
    run_cell(page, 0)
    page.wait_for_selector(".lm .say", timeout=60_000)
    choose_view(page, "linked")  # it comes after the first paint
    page.wait_for_selector('.lm section[data-pane="ptx"] .r', timeout=60_000)
    page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.restart()")
    wait_until_ready(page, 60)
    click_line(page, "source", 11)
    assert len(lit(page, "ptx")) == 42
    choose_view(page, "recompiles")
    page.wait_for_function(
        "document.querySelector('.lm .say').textContent.includes('was restarted or stopped')", timeout=15_000
    )
    run_cell(page, 0)
    page.wait_for_function("document.querySelectorAll('.lm .say').length === 1", timeout=60_000)
    page.wait_for_function("!document.querySelector('.lm .say').textContent.includes('restarted')", timeout=30_000)
    choose_view(page, "recompiles")
    page.wait_for_selector(".lm .panel .recompiles", timeout=20_000)
    assert errors_in(page) == []


def test_a_reopened_notebook_shows_its_snapshot_alone(opened: Callable[[str], Tab]) -> None:
    """Without the kernel that made it, the explorer leaves no error message behind."""
    page = opened("breaking.ipynb").page
    run_all(page, 90)
    page.wait_for_selector(".lm .say", timeout=60_000)
    page.evaluate("() => window.jupyterapp.shell.currentWidget.context.save()")
    page.evaluate("() => window.jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
    page.reload()
    failed = ".jp-OutputArea-output.jupyter-widgets:not(:has(*))"
    page.wait_for_selector(failed, state="attached", timeout=60_000)
    assert not page.locator(failed).is_visible()
    summary = page.locator("[data-explorer-summary]")
    assert summary.is_visible()
    assert "Run the cell for the interactive explorer." in summary.inner_text()
    assert summary.get_by_text("Without it:").first.is_visible()  # Breaks and kernels are unfolded.


@pytest.mark.parametrize("stops", [pytest.param(False, marks=pytest.mark.slow), True])
def test_measuring_ways_is_followed_and_stopped(opened: Callable[[str], Tab], stops: bool) -> None:
    """A cell shows autotuning progress, and Cancel ends it without losing the result.

    The progress states the number of candidates and the node.
    """
    page = opened("tuned.ipynb").page
    run_cell(page, 0)
    wait_until_ready(page, 60)
    run_cell(page, 1)
    page.wait_for_function(
        "document.body.innerText.includes('autotuning 1, measuring 6 candidates for mm on the GPU')", timeout=60_000
    )
    keep(page, f"tuning-{stops}")
    if stops:
        page.locator("button", has_text="Cancel").click()
    page.wait_for_selector(".lm .say", timeout=90_000)
    wait_until_ready(page, 60)
    told = page.locator(".jp-OutputArea").nth(1).inner_text()
    assert "tensor(4.)" in told
    assert ("Measured on a card" in told) is not stops
    assert ("Cancelled" in told) is stops
    assert page.locator("text=measuring 6 candidates").count() == 0


def test_contents_are_noted_in_a_live_notebook(opened: Callable[[str], Tab]) -> None:
    """After a plain run, c in the AOT wrappers view replays the call with its values.

    Values of forward and backward come from the kernel.
    """
    page = opened("aot_wrappers.ipynb").page
    run_all(page, 90)
    page.wait_for_selector(".lm .say", timeout=60_000)
    page.locator('.lm .tabs [data-view="aot"]').click()
    page.wait_for_selector(".lm .aot .ring.core")
    page.locator(".lm").focus()
    page.keyboard.press("c")
    page.wait_for_selector(".lm .held", timeout=30_000)
    assert "[1, 3]" in page.locator(".lm .held").inner_text()
    page.keyboard.press("End")
    assert "gradient of w" in page.locator(".lm .held").inner_text()
    page.wait_for_function("document.querySelector('.lm .aot').innerText.includes('the output gradients are ones')")
    keep(page, "aot-replayed")
    assert errors_in(page) == []


def test_a_verified_fix_goes_into_a_new_cell(opened: Callable[[str], Tab]) -> None:
    """Home replays an edit of the cell on request, and puts the edited cell below the cell."""
    shown = opened("breaking.ipynb")
    page = shown.page
    run_all(page, 90)
    explorer = page.locator(".jp-CodeCell").nth(1).locator(".lm")
    explorer.locator(".home button", has_text="Verify").first.click(timeout=60_000)
    explorer.locator("[data-result]", has_text="verified: compiles 2 -> 1, graph breaks 1 -> 0").wait_for(
        timeout=60_000
    )
    explorer.locator(".home button", has_text="New cell below").first.click()
    explorer.locator(".say", has_text="The fixed cell is below this one.").wait_for()
    made = page.locator(".jp-CodeCell").nth(2).locator(".cm-content").inner_text()
    assert made.startswith("%%compile --backend eager")
    assert "print" not in made
    assert shown.errors == []


def test_marks_stand_beside_the_code_of_a_cell(opened: Callable[[str], Tab]) -> None:
    """Breaks and kernels are in the margin; a click or Enter opens the view."""
    shown = opened("marked.ipynb")
    page = shown.page
    run_all(page, 90)
    cell = page.locator(".jp-CodeCell").nth(1)
    cell.locator(".lm .say").wait_for(timeout=60_000)
    marks = cell.locator(".ce-margin .ce-mark")
    marks.first.wait_for(timeout=30_000)
    titles = [m.get_attribute("title") for m in marks.all()]
    assert len(titles) == 3
    assert titles[1].startswith("graph break: ")
    assert [t.startswith("part of 1 kernel, which moves ") for t in titles] == [True, False, True]
    marks.nth(1).click()
    cell.locator('.lm .tabs [data-view="breaks"][aria-selected="true"]').wait_for()
    button = cell.get_by_role("button", name="part of 1 kernel").first  # None is found below an aria-hidden element.
    button.focus()
    page.keyboard.press("Enter")
    cell.locator('.lm .tabs [data-view="linked"][aria-selected="true"]').wait_for()
    cell.locator(".cm-line", has_text="summing").click()
    page.keyboard.type("x")
    page.wait_for_function("document.querySelectorAll('.ce-mark').length === 2")
    assert shown.errors == []


def test_outputs_cleared_while_compiling_do_no_harm(opened: Callable[[str], Tab]) -> None:
    """Clearing all outputs during a compile still leaves the result, summary and explorer.

    The progress line is cleared away with the outputs.
    """
    page = opened("busy.ipynb").page
    run_cell(page, 0)
    wait_until_ready(page, 60)
    run_cell(page, 1)
    page.wait_for_function("document.body.innerText.includes('Compiling scaled')", timeout=30_000)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    page.wait_for_selector(".lm .say", timeout=60_000)
    wait_until_ready(page, 60)
    assert "tensor(4.)" in page.locator(".jp-OutputArea").nth(1).inner_text()
    assert "scaled" in page.locator(".lm .sum").inner_text()
    assert page.locator("text=Compiling scaled").count() == 0
    assert errors_in(page) == []


@pytest.mark.slow  # it runs the tour once more
def test_the_tour_runs_and_links_source_to_ptx(opened: Callable[[str], Tab]) -> None:
    """All cells of the tour run, and its first explorer links source lines to PTX.

    The PTX was compiled on this machine. Both themes are readable.
    """
    page = opened(TOUR.name).page
    run_all(page, TOUR_SECONDS)
    assert errors_in(page) == []
    first = page.locator(".lm").first
    first.scroll_into_view_if_needed()
    first.locator('.tabs [data-view="linked"]').click()
    page.wait_for_function("document.querySelector('.lm section[data-pane=ptx] .r') !== null", timeout=120_000)
    lines = first.locator('section[data-pane="source"] .r.own:not(.head) .n')
    assert lines.count() > 0
    for i in range(lines.count()):
        lines.nth(i).click()
        if first.locator('section[data-pane="ptx"] .r.hit').count():
            break
    else:
        pytest.fail("no source line is linked to PTX")
    assert first.locator('section[data-pane="triton"] .r.hit').count() > 0
    assert "PTX" in first.locator(".say").inner_text()
    assert page.locator(".lm").count() >= 2
    for name in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(page, name)
        first.scroll_into_view_if_needed()
        keep(page, f"tour-{name[11:].lower()}")
        assert page.evaluate(CONTRAST) == []
