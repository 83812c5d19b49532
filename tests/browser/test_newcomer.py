"""Run a newcomer's programs through the explorer, in both themes and at three widths.

No count contradicts another, nothing overflows, and no script fails.
"""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.records.session import Session
from tests.browser.standalone_pages import page_text
from tests.notebook_ext.conftest import Shell

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SETUP = "import torch, torch.nn as nn, torch.nn.functional as F\ntorch.manual_seed(0)"
PROGRAMS = {
    "transformers": (
        "",
        """
from transformers import BertConfig, BertModel
sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50)
bert = BertModel(BertConfig(**sizes)).eval()
with torch.no_grad():
    out = bert(torch.randint(0, 50, (2, 8))).last_hidden_state
""",
    ),
    "cnn": (
        "",
        """
cnn = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).eval()
scores = cnn(torch.randn(4, 3, 16, 16))
""",
    ),
    "training": (
        "",
        """
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
opt, loss_of = torch.optim.AdamW(net.parameters(), lr=1e-2), nn.CrossEntropyLoss()
for step in range(3):
    opt.zero_grad()
    loss = loss_of(net(torch.randn(8, 16)), torch.randint(0, 4, (8,)))
    loss.backward()
    opt.step()
""",
    ),
    "recompiling": (
        "",
        """
def scale(x, k):
    return torch.relu(x) * k + x.mean(-1, keepdim=True)

for rows in (4, 8, 16):
    scale(torch.randn(rows, 32), 2.0)
scale(torch.randn(4, 32, dtype=torch.float64), 0.5)
""",
    ),
    "recompiling for four reasons": (
        "",
        """
def smooth(signal, window, mode="mean"):
    frames = signal.unfold(-1, window, 1)
    return frames.mean(-1) if mode == "mean" else frames.amax(-1)

for window in (3, 5, 7):
    smooth(torch.randn(2, 64), window)
smooth(torch.randn(2, 128), 5, mode="max")
smooth(torch.randn(128), 5)
smooth(torch.randn(2, 64, requires_grad=True), 5)
""",
    ),
    "breaking": (
        "",
        """
def clip(x, limit):
    n = x.norm()
    print("norm", n)
    if n > limit:
        x = x * (limit / n)
    return x.softmax(-1)

clip(torch.randn(8, 64), 3.0)
""",
    ),
    "breaking in a loop": (
        "",
        """
import time

def solve(a, b):
    start = time.perf_counter()
    x = torch.zeros_like(b)
    for i in range(12):
        r = b - a @ x
        x = x + 0.1 * r
        if r.norm().item() < 0:
            break
    return x, time.perf_counter() - start

solve(torch.eye(16), torch.randn(16))
""",
    ),
    "error": ("", "def project(x, w):\n    return x.tanh() @ w\n\nproject(torch.randn(4, 8), torch.randn(9, 3))\n"),
    "plot": (
        "",
        """
import matplotlib.pyplot as plt
def wave(t):
    return torch.sin(t) * torch.exp(-t / 8)
t = torch.linspace(0, 20, 400)
plt.plot(t, wave(t))
""",
    ),
    "stock": (
        "--backend torch:eager",
        """
def block(x, w):
    h = F.gelu(x @ w)
    print("inside")
    return F.layer_norm(h, h.shape[-1:])

block(torch.randn(4, 16), torch.randn(16, 16))
block(torch.randn(8, 16), torch.randn(16, 16))
""",
    ),
}
NEEDS = {"transformers": "transformers", "plot": "matplotlib"}
SIZES = (("light", 1400), ("dark", 1024), ("light", 800), ("dark", 800))

FIGURES = """() => Object.fromEntries([...document.querySelectorAll('.home .figs button')].map((b) => [b.querySelector('span').innerText, b.querySelector('b').innerText]))"""
TOTALS = """() => [...document.querySelectorAll('.home .made tbody tr')].map((r) => [...r.querySelectorAll('td.num')].map((c) => +c.innerText.replaceAll(',', '') || 0))"""


@pytest.fixture(scope="module")
def sessions() -> Iterator[Callable[[str], Session]]:
    """Sessions of the programs, each run once."""
    shell = Shell()
    shell.run(SETUP)
    made: dict[str, Session] = {}

    def find(name: str) -> Session:
        if name not in made:
            options, body = PROGRAMS[name]
            shell.run(f"%%compile {options}\n{body.strip()}\n")
            made[name] = shell.ns["_compile"]
        return made[name]

    yield find
    shell.close()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_newcomers_program_is_shown_without_contradiction(
    sessions: Callable[[str], Session], tab: Callable[..., Any], tmp_path: pathlib.Path, name: str
) -> None:
    """Home, summary and Compilations count alike; every view fits at every width."""
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    path = tmp_path / "page.html"
    path.write_text(page_text(sessions(name), view="home"), encoding="utf-8")
    for theme, width in SIZES:
        found = tab(width)
        page = found.page
        page.goto(f"file://{path}#{theme}")
        page.locator(".home .out").wait_for()
        _check_counts(page)
        for view in page.locator(".lm .tabs [role=tab]:visible").evaluate_all(
            "tabs => tabs.map((t) => t.dataset.view)"
        ):
            page.locator(f'.lm .tabs [data-view="{view}"]').click()
            page.wait_for_timeout(30)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (view, theme, width)
            if view == "recompiles":  # It opens on a recompile, and shows it.
                selected, lanes = (page.locator(f".lm .lanes{s}").first.bounding_box() for s in (" .cc.sel", ""))
                assert lanes["y"] <= selected["y"] < lanes["y"] + lanes["height"] - 60, (theme, width)
            assert "undefined" not in page.locator(".lm .say").inner_text(), view
        assert found.errors == [], (theme, width)


def _check_counts(page: Any) -> None:
    """Compare the figures of Home with the summary line and with the sums of its table."""
    figures = page.evaluate(FIGURES)
    summary = page.locator(".lm .sum").inner_text()
    totals = [sum(column) for column in zip(*page.evaluate(TOTALS), strict=True)]
    _, graphs, breaks, compiles, kernels, calls = totals[:6]
    title = "CPU kernels" if "CPU kernels" in figures else next(n for n in figures if n.startswith("Kernels"))
    # Where results come from ATen, calls of the program that did not run are left out if there is none.
    if "ATen calls" not in figures:
        assert (title.startswith("Kernels for "), calls) == (True, 0)
    attempts = "Compiles" if graphs else "Attempts"
    names = ("Graphs", "Graph breaks", attempts, title, "ATen calls")
    shown = [int(figures.get(n, "0").replace(",", "")) for n in names]
    assert shown == [graphs, breaks, compiles, kernels, calls]
    if kernels:
        assert f"{kernels} {'C++ ' if 'C++' in summary else ''}kernel" in summary
    if calls:
        assert f"{calls} ATen call" in summary
    if breaks:
        assert f"{breaks} break" in summary
