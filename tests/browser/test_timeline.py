"""Zoom the timeline and save it for other tools."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from engine.records.runtime import Timing
from engine.records.session import CompilationRecord, FrameRecord, Session

pytestmark = pytest.mark.browser


def test_the_clock_zooms_and_is_saved(explorer: Callable[..., Any]) -> None:
    """Ticks stay distinct when zoomed, and both files have the stages."""
    session = Session()
    session.add_frame(FrameRecord("0", "model", "cell", 1))
    timings = (
        Timing("compile", 1.0, 8.0),
        Timing("trace", 1.0, 3.0, "compile"),
        Timing("guards", 8.0, 0.01, "compile"),
    )
    session.put_compilation(CompilationRecord("0/0", "0", "first call", timings=timings))
    page = explorer(session, view="timings")
    for box in (".clockin", ".ticks", ".track"):
        assert page.locator(box).first.evaluate("(e) => e.scrollWidth - e.clientWidth") <= 0, box
    page.locator(".clock .tbar", has_text="trace").dblclick()
    for _ in range(8):
        page.keyboard.press("+")
    ticks = page.locator(".clock .tick").all_inner_texts()
    assert len(ticks) == len(set(ticks)) >= 3
    page.keyboard.press("w")
    width = page.evaluate(
        "document.querySelector('.clockin').clientWidth / document.querySelector('.clock').clientWidth"
    )
    assert width == pytest.approx(1, abs=0.02)
    for key, ending in (("e", ".perfetto.json"), ("E", ".speedscope.json")):
        with page.expect_download() as saved:
            page.keyboard.press(key)
        assert saved.value.suggested_filename.endswith(ending)
        assert "guards" in json.dumps(json.loads(pathlib.Path(saved.value.path()).read_text(encoding="utf-8")))
