"""Measure the explorer in a browser against its limits.

Measures first paint, highlight, step, panning and payload, each beside its limit.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from engine.records.graph import GraphRecord
from engine.records.session import Session
from notebook_ext.views.explorer_parts import initial_parts, linked_part, overview
from tests.browser.standalone_pages import START, page_text
from tests.browser.test_graph import blocks, with_graph
from tests.notebook_ext.sample_sessions import large_session
from tests.notebook_ext.sample_step_sessions import many_steps_session

ROUNDS = 5
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

PRESS = """(keys) => { const root = document.querySelector('.lm'), times = [];
for (const key of keys) { const start = performance.now();
  root.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})); root.offsetHeight; times.push(performance.now() - start); }
return times; }"""
OPEN = """(view) => { const start = performance.now(); document.querySelector(`.lm .tabs [data-view="${view}"]`).click();
document.querySelector('.lm').offsetHeight; return performance.now() - start; }"""
PAN = """async () => { const box = document.querySelector('.lm .gbox'), times = [];
for (let i = 0; i < 60; i++) { const start = performance.now(); box.scrollTop += 120; await new Promise(requestAnimationFrame); box.offsetHeight; times.push(performance.now() - start); }
return times; }"""
FIRST = """() => { const at = (name) => performance.getEntriesByName(name)[0].startTime; return at('drawn') - at('unpacked') + at('waiting') - at('arrived'); }"""


def measure() -> list[tuple[str, float, float, str]]:
    """What was measured, its figure, its bar and the unit; medians over rounds."""
    thousand = with_graph(GraphRecord("g", "fx", "", blocks(10, 50)))
    ten_thousand = with_graph(GraphRecord("g", "fx", "", blocks(100, 50)))
    with _browser() as browser:
        found = [
            ("first paint, a session of 1,000 nodes", _first(browser, thousand), 500.0, "ms"),
            ("  its graph view", _opened(browser, thousand, "graph"), 500.0, "ms"),
            ("first paint, a joint graph of 10,000 nodes", _opened(browser, ten_thousand, "graph"), 1500.0, "ms"),
            ("  with all its calls open", _pressed(browser, ten_thousand, "graph", ["C", "O"])[1], 1500.0, "ms"),
            ("  a frame of panning through it", _panned(browser, ten_thousand), 33.0, "ms"),
        ]
        lit = statistics.median(_pressed(browser, large_session(), "linked", ["ArrowDown"] * 20))
        keys = ["ArrowRight", "ArrowRight", "ArrowLeft", "g", "ArrowDown", "i", "o", "ArrowUp"] * 3
        stepped = statistics.median(_pressed(browser, many_steps_session(), "tracer", keys))
        found += [
            ("a selection in 10,000 lines lights up all panes", lit, 50.0, "ms"),
            ("a step of the tracer in 10,000 instructions", stepped, 30.0, "ms"),
        ]
    block = gpt_block()
    first = sum(len(json.dumps(p)) for p in (overview(block), initial_parts(block, "home")))
    return [
        *found,
        ("first payload of a GPT-2 block", first / 1e3, 1000.0, "kB"),
        ("  CPU time to make and send it", _widget_seconds("home") * 1e3, 300.0, "ms"),
        ("payload of its linked view", len(json.dumps(linked_part(block))) / 1e3, 1000.0, "kB"),
        ("  CPU time to make and send it, with home", _widget_seconds("linked") * 1e3, 150.0, "ms"),
    ]


def _widget_seconds(view: str) -> float:
    from notebook_ext.widgets.explorer import Explorer

    figures = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        Explorer(gpt_block(), view=view).close()
        figures.append(time.thread_time() - start)
    return min(figures)


_block: list[Session] = []


def gpt_block() -> Session:
    """A session of one GPT-2 block, forward and backward, with its kernels compiled."""
    if _block:
        return _block[0]
    import torch
    from transformers import GPT2Config, GPT2Model

    import engine
    from engine import api

    config = GPT2Config(n_layer=1, n_embd=64, n_head=4, vocab_size=128, bos_token_id=0, eos_token_id=0)
    block = engine.compile(GPT2Model(config))
    with engine.record() as session:
        block(torch.randint(0, 128, (2, 16))).last_hidden_state.sum().backward()
    api.wait(session, 300)
    _block.append(session)
    return session


@contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        raise FileNotFoundError("no Chromium is on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def _page(browser: Any, session: Session) -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="bench-explorer-") as folder:
        path = pathlib.Path(folder) / "page.html"
        text = page_text(session)
        # From when the data are there to when the first view is laid out: what an output costs once it has arrived.
        text = text.replace("{\nconst data =", "{\nperformance.mark('arrived');\nconst data =")
        text = text.replace("const unpacked", "performance.mark('waiting');\nconst unpacked").replace(
            START, "performance.mark('unpacked');\n" + START
        )
        text = text.replace(
            START, START + "\ndocument.body.offsetHeight; requestAnimationFrame(() => performance.mark('drawn'));"
        )
        path.write_text(text, encoding="utf-8")
        page = browser.new_page(viewport={"width": 1200, "height": 900}, bypass_csp=True)
        page.goto(path.as_uri())
        page.wait_for_function("performance.getEntriesByName('drawn').length > 0")
        yield page
        page.close()


def _first(browser: Any, session: Session) -> float:
    figures = []
    for _ in range(ROUNDS):
        with _page(browser, session) as page:
            figures.append(page.evaluate(FIRST))
    return statistics.median(figures)


def _opened(browser: Any, session: Session, view: str) -> float:
    figures = []
    for _ in range(ROUNDS):
        with _page(browser, session) as page:
            figures.append(page.evaluate(OPEN, view))
    return statistics.median(figures)


def _pressed(browser: Any, session: Session, view: str, keys: list[str]) -> list[float]:
    with _page(browser, session) as page:
        page.evaluate(OPEN, view)
        times: list[float] = page.evaluate(PRESS, keys)
        return times


def _panned(browser: Any, session: Session) -> float:
    with _page(browser, session) as page:
        page.evaluate(OPEN, "graph")
        page.evaluate(PRESS, ["O"])
        return statistics.median(page.evaluate(PAN))
