"""Test the kernel view: resources, roofline, IR ladder, fusion decisions and targets.

Two targets of one kernel are shown side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine.records.kernels import KernelResources, LineLink, Listing, TargetRecord
from engine.records.session import Session
from tests.browser.test_explorer import keep, low_contrast, open_view, press, said
from tests.notebook_ext.sample_sessions import head_session

pytestmark = pytest.mark.browser

Show = Callable[..., Any]


def two_targets() -> Session:
    """The first kernel compiled for a second target."""
    session = head_session()
    first = session.compilations[0]
    links = (LineLink(1, triton_line=10), LineLink(2, label="generated: epilogue"))
    listing = Listing("amdgcn", "v_add_f32 v0, v1\ns_endpgm\n", links, instructions=2)
    further = TargetRecord(
        "hip:gfx942",
        (listing,),
        KernelResources(11, 2, 0, 1, 1.0),
        0.1,
    )
    kernel = first.kernels[0]
    session.put_compilation(
        replace(first, kernels=(replace(kernel, targets=(*kernel.targets, further)), *first.kernels[1:]))
    )
    return session


def test_a_kernel_tells_its_resources_roof_ladder_and_reasons(explorer: Show) -> None:
    """A selected kernel shows stage bars, its roofline point, fusion reasons and estimate.

    Each stage of its lowering has a bar, its point is filled, and the estimate is labelled as one.
    """
    page = explorer(head_session())
    open_view(page, "kernels")
    page.set_viewport_size({"width": 600, "height": 900})
    assert page.evaluate("((e) => e.scrollWidth <= e.clientWidth)(document.querySelector('.lm .ktable'))")
    page.set_viewport_size({"width": 1400, "height": 900})
    assert "28 registers, 0 spills. Estimated" in said(page)
    assert "for the launch (assumed)" in said(page)
    assert page.locator(".lm .lad button").all_inner_texts() == [
        "Loop IR",
        "Triton",
        "TTIR",
        "TTGIR",
        "LLVM IR",
        "PTX",
        "SASS",
    ]
    assert page.locator(".lm .kd.sel").count() == 1
    assert "stays in registers" in page.locator(".lm .kdetail").inner_text()
    assert "Estimated, not measured" in page.locator(".lm .ctx").inner_text()
    page.locator(".lm .lad button", has_text="SASS").click()
    assert page.locator('.lm section[data-pane="sass"]').count() == 1


def test_two_targets_of_a_kernel(explorer: Show) -> None:
    """t shows the other target's resources and stages; d compares the two side by side."""
    page = explorer(two_targets())
    open_view(page, "kernels")
    assert "11 registers, 2 spills" in press(page, "t")
    assert "AMDGCN" in page.locator(".lm .lad button").all_inner_texts()
    assert page.locator(".lm .kdetail tr.sel td").first.inner_text() == "hip:gfx942"
    press(page, "t d")
    assert page.locator('.lm .compare select[aria-label="Left"]').input_value() == "~0/0~cuda:90"
    assert page.locator('.lm .compare select[aria-label="Right"]').input_value() == "~0/0~hip:gfx942"


def test_contrast_of_two_targets(explorer: Show) -> None:
    """The table of targets is readable in both themes."""
    page = explorer(two_targets())
    open_view(page, "kernels")
    keep(page, "kernels-two")
    assert low_contrast(page) == []
