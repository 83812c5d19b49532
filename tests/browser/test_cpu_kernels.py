"""Test the explorer on kernels that ran on the CPU: ladder, links, resources and times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine
from engine.ir.kernels.llvm_machine import why_llvm_is_missing
from engine.records.session import Session
from tests.browser.test_explorer import click_line, keep, low_contrast, open_view, press, said
from tests.notebook_ext.views.test_cpu_kernels_views import recorded, scores

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(why_llvm_is_missing()), reason="llvmlite is not installed"),
]

Show = Callable[..., Any]


@pytest.fixture(scope="module")
def ran() -> Session:
    """A recorded call whose kernel ran here, checked and timed."""
    session = recorded(scores, torch.randn(32, 200), torch.randn(200))
    engine.verify(session)
    engine.measure_kernels(session)
    return session


def test_the_summary_leads_to_the_kernels_that_ran(explorer: Show, ran: Session) -> None:
    """The kernel tab opens with the CPU: its name, time, vectors, spills and instructions."""
    page = explorer(ran)
    page.locator('.lm button[data-target="kernels|cpu"]').click()
    assert "Ran on this CPU" in page.locator(".lm .kernels .ctx").inner_text()
    heads = page.locator(".lm .ktable th").all_inner_texts()
    assert heads[2:10] == ["Iterations", "Time", "Bytes", "GB/s", "Of copy", "Vector", "Spills", "Instr."]
    assert "ran on this CPU" in said(page)
    assert "Measured " in said(page)
    assert "Checked against ATen on this CPU" in said(page)
    assert "vector arithmetic" in page.locator(".lm .kdetail").inner_text()
    ladder = page.locator(".lm .kdetail .lad button").all_inner_texts()
    assert ladder[:3] == ["Loop IR", "LLVM IR", "Optimized IR"]
    assert ladder[3] in ("x86-64", "AArch64")
    press(page, "t")
    assert "Estimated, not measured" in page.locator(".lm .kernels .ctx").inner_text()
    page.get_by_role("button", name="Kernels that ran here").click()
    assert "ran on this CPU" in said(page)


def test_a_source_line_lights_up_its_assembly(explorer: Show, ran: Session) -> None:
    """From the ladder to the assembly, and from a user's line to its instructions and back."""
    page = explorer(ran)
    page.locator('.lm button[data-target="kernels|cpu"]').click()
    page.locator(".lm .kdetail .lad button").nth(3).click()
    assert page.locator('.lm section[data-pane="asm"]').count() == 1
    line = page.locator('.lm section[data-pane="source"] [data-row]').filter(has_text="gelu(x)")
    click_line(page, "source", int(line.get_attribute("data-row")))
    assert page.locator('.lm .rail [data-pane="asm"] i.hit').count() == 1
    assert page.locator('.lm .rail [data-pane="llopt"] i.hit').count() == 1
    assert "x86-64" in said(page) or "AArch64" in said(page)
    page.select_option('.lm select[aria-label="Target"]', "cuda:90")
    assert page.locator('.lm .rail [data-pane="asm"]').count() == 0
    assert page.locator('.lm .rail [data-pane="ptx"]').count() == 1


def test_contrast_of_cpu_kernels(explorer: Show, ran: Session) -> None:
    """The kernel tab and the assembly are readable in both themes."""
    page = explorer(ran)
    page.locator('.lm button[data-target="kernels|cpu"]').click()
    keep(page, "kernels-cpu")
    assert low_contrast(page) == []
    page.locator(".lm .kdetail .lad button").nth(3).click()
    keep(page, "linked-cpu")
    assert low_contrast(page) == []
    open_view(page, "kernels")


def test_recorded_launches_stand_below_the_kernel(explorer: Show) -> None:
    """What varies is in a table, here the rows of x; what is equal stands once above it."""
    f = engine.compile(scores, dynamic=True)
    with engine.record(launches=True) as session:
        for rows in (32, 64, 32):
            f(torch.randn(rows, 200), torch.randn(200))
    page = explorer(session)
    page.locator('.lm button[data-target="kernels|cpu"]').click()
    section = page.locator(".lm .kdetail .launches")
    assert section.locator("h4").inner_text() == "Launches: 3"
    assert "f32[200]" in section.locator("p").first.inner_text()
    heads = section.locator("th").all_inner_texts()
    assert heads[0] == "x_ptr"
    assert heads[-3:] == ["Launches", "Fastest", "Total"]
    rows = {row[0]: row[len(heads) - 3] for row in _cells(section)}
    assert rows == {"f32[32, 200]": "2", "f32[64, 200]": "1"}


def _cells(section: Any) -> list[list[str]]:
    return [row.locator("td").all_inner_texts() for row in section.locator("tbody tr").all()]
