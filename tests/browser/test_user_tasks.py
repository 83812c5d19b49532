"""Test five user questions, each answered by keys alone on an arbitrary model.

No view was made for the model.
"""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import engine
from engine import api
from engine.records.session import Session
from tests.browser.test_explorer import press, said

pytestmark = pytest.mark.browser

Show = Callable[..., Any]

MODEL = """
    import torch
    from torch import nn

    class Gate(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.mix = nn.Linear(width, width)
            self.scale = nn.Parameter(torch.ones(width))

        def forward(self, x):
            gate = torch.sigmoid(x * self.scale)
            print("gated")
            return self.mix(gate * x).{last}
"""


def recorded(folder: pathlib.Path, last: str) -> Session:
    """Two calls of the model with different batches, as a person's own file has it."""
    path = folder / "gate.py"
    path.write_text(textwrap.dedent(MODEL.format(last=last)).lstrip(), encoding="utf-8")
    space: dict[str, Any] = {"__name__": "gate"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    torch.manual_seed(0)
    compiled = engine.compile(space["Gate"](16))
    with engine.record() as session, torch.no_grad():
        compiled(torch.randn(4, 16))
        compiled(torch.randn(6, 16))
    assert api.wait(session, 120)
    return session


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Session, Session]]:
    """The model as it is, and as it was before its last line changed."""
    pytest.importorskip("triton")
    made = [recorded(tmp_path_factory.mktemp(last.partition("(")[0]), last) for last in ("softmax(-1)", "tanh()")]
    yield made[0], made[1]
    engine.reset()


def keys_only(page: Any) -> None:
    """Reach the widget as a person without a mouse does."""
    page.locator("#theme").focus()
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('lm')"):
            return
    pytest.fail("Tab does not reach the widget")


def test_which_line_breaks_the_graph(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """4 opens the breaks; Enter leads to the line, and the sentence says that it breaks there."""
    page = explorer(sessions[0])
    keys_only(page)
    press(page, "4")
    card = page.locator(".lm .card").first.inner_text()
    assert 'print("gated")' in card
    told = press(page, "Enter")
    assert "Line 12" in told
    assert "Graph break here" in told


def test_which_guard_failed(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """2 opens the guards with the failing one in hand: what it expected and what it got."""
    page = explorer(sessions[0])
    keys_only(page)
    told = press(page, "2 F")
    assert "expected [4, 16], got [6, 16]" in told
    assert "x" in told.split("shape")[0]


def test_what_to_do_about_it(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """3 opens the recompiles with the miss selected; its first fix is code to paste."""
    page = explorer(sessions[0])
    keys_only(page)
    told = press(page, "3")
    assert "x.size(0) 4 -> 6" in told
    assert "mark_dynamic(x, 0)" in page.locator(".lm .recompiles .fixes li").first.inner_text()


def test_which_kernel_a_line_went_into(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """Keys in the linked view lead from the sigmoid line to its PTX and Triton kernel.

    The status text names the line's chain down to PTX. j in the Triton pane selects the lines of its kernel.
    """
    page = explorer(sessions[0])
    keys_only(page)
    told = press(page, "1 Home")
    for _ in range(40):
        if "torch.sigmoid" in told:
            break
        told = press(page, "ArrowDown")
    assert told.split("torch.sigmoid")[1].count("→") >= 4
    assert "PTX" in told
    press(page, "Enter ] ] j")
    row = page.locator(".lm section.cur .r.at")
    assert page.locator(".lm section.cur").get_attribute("data-pane") == "triton"
    assert "hit" in row.get_attribute("class").split()


def test_what_changed_between_two_runs(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """0 opens the comparison with the previous run, and Enter shows the changed operation.

    The down key selects the function that differs.
    """
    after, before = sessions
    page = explorer(after, others={"the run before": before}, name="this run")
    keys_only(page)
    told = press(page, "0")
    assert "1 of" in told.split(";")[0]
    for _ in range(6):
        if "differs in graphs" in told:
            break
        told = press(page, "ArrowDown")
    told = press(page, "Enter")
    assert "tanh" in told.split("became")[0]
    assert "softmax" in told.split("became")[1]


# The same five by mouse alone.


def test_by_mouse_which_line_breaks_the_graph(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """A click on the summary's break opens its card, its button the line."""
    page = explorer(sessions[0])
    page.locator('.lm .sum [data-target^="breaks"]').click()
    page.locator(".lm .card button", has_text="Show in linked view").first.click()
    assert "Line 12" in said(page)
    assert "Graph break here" in said(page)


def test_by_mouse_which_guard_failed(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """The tab opens with the failure in hand; its button leads back to it from elsewhere."""
    page = explorer(sessions[0])
    page.locator('.lm .tabs [data-view="guards"]').click()
    page.locator(".lm .guards .ctx button", has_text="p").first.click()
    page.locator(".lm .guards .ctx button", has_text="First failure").click()
    assert "expected [4, 16], got [6, 16]" in said(page)


def test_by_mouse_what_to_do_about_it(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """The summary's recompile opens the miss, whose first remedy is code."""
    page = explorer(sessions[0])
    page.locator('.lm .sum [data-target^="recompiles"]').first.click()
    assert "x.size(0) 4 -> 6" in said(page)
    assert "mark_dynamic(x, 0)" in page.locator(".lm .recompiles .fixes li").first.inner_text()


def test_by_mouse_which_kernel_a_line_went_into(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """Clicking the sigmoid line lights one Triton kernel, and clicking there names the line.

    The second click is on one of the lit Triton lines.
    """
    page = explorer(sessions[0])
    page.locator('.lm section[data-pane="source"] .r', has_text="torch.sigmoid").click()
    assert "PTX" in said(page)
    page.locator('.lm section[data-pane="triton"] .r.hit').first.click()
    assert "→ line 11" in said(page)


def test_by_mouse_what_changed_between_two_runs(explorer: Show, sessions: tuple[Session, Session]) -> None:
    """Clicking the function that differs, then its button, shows the changed operation.

    The tab lists the functions.
    """
    after, before = sessions
    page = explorer(after, others={"the run before": before}, name="this run")
    page.locator('.lm .tabs [data-view="compare"]').click()
    page.locator('.lm .compare [aria-label="Functions"] tbody tr', has=page.locator("td.new")).last.click()
    page.locator(".lm .changes button", has_text="Compare its entries").click()
    assert "tanh" in said(page).split("became")[0]
    assert "softmax" in said(page).split("became")[1]
