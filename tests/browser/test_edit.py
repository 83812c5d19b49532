"""Test the Edit view in a real JupyterLab: a stage and the cell are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.jupyter_server import Lab, errors_in, open_notebook, run_all, set_theme
from tests.browser.test_explorer import CONTRAST, choose_view, keep, said
from tests.browser.test_jupyterlab import write_notebook

pytestmark = pytest.mark.browser

CELLS = [
    "%load_ext notebook_ext\nimport torch\nimport torch.nn.functional as F",
    """
%%compile
def bias_gelu(x, b):
    y = F.gelu(x + b) * 2
    return y.sum(-1)

out = bias_gelu(torch.randn(64, 128), torch.randn(128))
""",
]
RESULT = "document.querySelector('.lm .edit [data-result]')"


@pytest.fixture(scope="module")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory, kernel_variables: dict[str, str]) -> Iterator[Lab]:
    """A server with one notebook."""
    folder = tmp_path_factory.mktemp("edits")
    write_notebook(folder / "edit.ipynb", CELLS)
    started = Lab(folder, variables=kernel_variables)
    yield started
    started.close()


def replace(page: Any, old: str, new: str) -> None:
    """Change the text as typing does, and apply it with Ctrl Enter."""
    area = page.locator(".lm .edit textarea")
    text = area.input_value()
    assert old in text
    area.fill(text.replace(old, new))
    area.press("Control+Enter")
    page.wait_for_function(
        "!document.querySelector('.lm .edit .ctx').textContent.includes('Compiling')", timeout=60_000
    )
    page.wait_for_selector(".lm .edit [data-result]", timeout=60_000)


def edit_a_kernel(page: Any) -> None:
    """From the Kernels tab by keyboard: a wrong access is a sentence at its line."""
    choose_view(page, "kernels")
    page.wait_for_selector(".lm .kernels tr.sel")
    page.locator(".lm .kernels [tabindex='0']").first.focus()
    page.keyboard.press("e")
    page.wait_for_function(
        "/kernel [kc]0 of/.test(document.querySelector('.lm .edit textarea')?.value)", timeout=20_000
    )
    area = page.locator(".lm .edit textarea")
    is_triton = "import triton" in area.input_value()
    replace(
        page, *(("b_ptr + ", "b_ptr + 1 + ") if is_triton else ("ptr %b_ptr, i64 %r0\n", "ptr %b_ptr, i64 90000\n"))
    )
    assert page.locator(".lm .edit [data-result]").inner_text().startswith("✗ Line ")
    assert "past the end of b." in page.locator(".lm .edit [data-result]").inner_text()
    keep(page, "edit-kernel-fault")
    choose_view(page, "guards")
    choose_view(page, "edit")
    assert "edited" in said(page)


def tune_a_kernel(page: Any) -> None:
    """In the Kernels tab: a heat map by button and by key; the fastest setting is kept."""
    choose_view(page, "kernels")
    page.locator(".lm .kernels select[aria-label='Target']").select_option("cpu")
    page.locator(".lm .kernels .ctx button", has_text="Tune").click()
    page.wait_for_selector(".lm .heat .hc.def", timeout=60_000)
    assert page.locator(".lm .heat .hc", has_text="–").count() > 4
    page.keyboard.press("r")
    page.wait_for_function(
        "/tried: the (fastest|default).*(bits of a vector|no vectors)/.test(document.querySelector('.lm .say').textContent)",
        timeout=60_000,
    )
    page.wait_for_function("document.querySelectorAll('.lm .heat .hc').length > 7")
    assert page.locator(".lm .heat .hc", has_text="–").count() == 0
    assert page.locator(".lm .heat small", has_text="fastest").count() == 1
    for name in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(page, name)
        page.locator(".lm").scroll_into_view_if_needed()
        keep(page, f"tune-{name[11:].lower()}")
        assert page.evaluate(CONTRAST) == []
    page.set_viewport_size({"width": 800, "height": 900})
    keep(page, "tune-800")
    page.locator(".lm .tune .pick button", has_text="Keep").click()
    page.wait_for_function("document.querySelector('.lm .tune .pick').textContent.includes('Later compiles use it.')")
    page.locator(".lm .tune .pick button", has_text="Forget").click()
    page.wait_for_function("!document.querySelector('.lm .tune .pick').textContent.includes('Later compiles')")
    page.set_viewport_size({"width": 1400, "height": 900})
    page.locator(".lm .kernels select[aria-label='Target']").select_option(index=0)
    page.wait_for_selector(".lm .heat .hc.def", timeout=60_000)
    keep(page, "tune-triton-open")
    page.locator(".lm .tune .ctl button", has_text="Try all").click()
    page.wait_for_function(
        "document.querySelector('.lm .say').textContent.includes('registers, spills and occupancy')", timeout=120_000
    )
    keep(page, "tune-triton")
    page.locator(".lm .kernels .ctx button", has_text="Tune").click()


def test_a_stage_and_the_cell_are_edited(lab: Lab, tab: Callable[..., Any]) -> None:
    """Apply gives a verdict and the later stages; an error marks its line.

    Both themes and two widths are readable, and the notebook's values stay.
    """
    found = tab(1400)
    page = found.page
    open_notebook(page, lab, "edit.ipynb")
    run_all(page, 120)
    page.wait_for_selector(".lm .say", timeout=60_000)
    choose_view(page, "graph")
    page.locator(".lm .graph button", has_text="Edit").click()
    page.wait_for_function("document.querySelector('.lm .edit textarea')?.value.includes('def graph(x, b)')")
    replace(page, "gelu * 2", "gelu + gelu")
    assert "agree with eager" in page.locator(".lm .edit [data-result]").inner_text()
    assert page.locator(".lm .edit .res summary").count() >= 3
    for name in ("JupyterLab Light", "JupyterLab Dark"):
        set_theme(page, name)
        page.locator(".lm").scroll_into_view_if_needed()
        keep(page, f"edit-{name[11:].lower()}")
        assert page.evaluate(CONTRAST) == []
    page.locator(".lm .tools button", has_text="?").click()
    page.wait_for_function("document.querySelector('.lm .keys').textContent.includes('Keep an edited graph in a file')")
    keep(page, "edit-keys")
    page.locator(".lm .tools button", has_text="?").click()
    page.locator(".lm .edit .ctx button", has_text="Copy as script").click()
    page.wait_for_function("document.querySelector('.lm .say').textContent.includes('recorded dtypes')", timeout=60_000)
    page.set_viewport_size({"width": 800, "height": 900})
    replace(page, "gelu + gelu", "gelu + (gelu")
    assert page.locator(".lm .edit .gut .at").inner_text() == "5"
    assert said(page).startswith("Line 5: syntax error")
    keep(page, "edit-fault-800")
    page.locator(".lm .edit .ctx button", has_text="Undo").click()
    page.wait_for_function(f"{RESULT}?.textContent.includes('agree with eager')", timeout=60_000)
    page.set_viewport_size({"width": 1400, "height": 900})
    tune_a_kernel(page)
    edit_a_kernel(page)
    page.locator('.lm .edit select[aria-label="Stage to edit"]').select_option("cell|cell")
    page.wait_for_function("document.querySelector('.lm .edit textarea').value.startsWith('%%compile\\ndef bias_gelu')")
    replace(page, "F.gelu", "F.relu")
    assert "The cell's results differ: out changes." in page.locator(".lm .edit [data-result]").inner_text()
    assert page.locator(".lm .edit .res summary", has_text="ATen graph").count() == 1
    keep(page, "edit-cell")
    area = page.locator(".lm .edit textarea")
    for text in ("  # first", "  # second"):  # The second is typed and applied before the result of the first.
        area.press("End")
        area.type(text)
        area.press("Control+Enter")
    page.wait_for_function("!document.querySelector('.lm .edit .res').ariaBusy", timeout=60_000)
    assert "# first  # second" in area.input_value()
    page.locator(".lm .edit button", has_text="Compare in full").click()
    page.wait_for_selector(".lm .compare table.facts", timeout=20_000)
    sides = [
        page.locator(f".lm .compare select[aria-label={s}] option:checked").inner_text() for s in ("Left", "Right")
    ]
    newest = page.locator(".lm .compare select[aria-label=Left] option").last.inner_text().split(" · ")[0]
    assert [side.split(" · ")[0] for side in sides] == ["this run", newest]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert errors_in(page) == []
    assert found.errors == []


FOCUSED = "document.activeElement.closest('.lm') && (document.activeElement.getAttribute('aria-label') || document.activeElement.textContent)"


def tab_to(page: Any, name: str) -> None:
    """Press Tab until the control with this name has the focus."""
    for _ in range(90):
        page.keyboard.press("Tab")
        if (page.evaluate(FOCUSED) or "").startswith(name):
            return
    raise AssertionError(f"Tab does not reach {name!r}")


def test_the_keyboard_alone_edits_and_asks(lab: Lab, tab: Callable[..., Any]) -> None:
    """Menu, what-if, Edit and Tune keep the focus on the control that was pressed."""
    found = tab(1400)
    page = found.page
    open_notebook(page, lab, "edit.ipynb")
    run_all(page, 120)
    page.wait_for_selector(".lm .say", timeout=60_000)
    page.locator(".lm").focus()
    page.keyboard.press("m")
    assert page.evaluate("document.activeElement.closest('.others') !== null")
    page.keyboard.press("Escape")
    assert page.evaluate(FOCUSED) == "More"

    choose_view(page, "guards")
    page.wait_for_selector(".lm .guards .tr:not(.th)")
    page.locator(".lm").focus()
    page.keyboard.press("w")
    page.wait_for_selector(".lm .wi input", timeout=20_000)
    tab_to(page, "shape of ")
    page.keyboard.press("Control+a")
    page.keyboard.type("7, 64")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lm .wi-out button", timeout=20_000)
    assert page.locator("input[aria-label='stride of x']").input_value() == "64, 1"
    tab_to(page, "Reset")
    page.keyboard.press("Space")
    page.wait_for_function("!document.querySelector('.lm .wi-out button')", timeout=20_000)
    assert page.evaluate(FOCUSED)

    choose_view(page, "edit")
    page.wait_for_function("document.querySelector('.lm .edit textarea')?.value")
    page.locator(".lm").focus()
    page.keyboard.press("e")
    page.keyboard.press("Control+End")
    page.keyboard.type("\n")
    page.keyboard.press("Escape")
    tab_to(page, "Apply")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lm .edit [data-result]", timeout=60_000)
    assert page.evaluate(FOCUSED) == "Apply"
    tab_to(page, "Undo")
    page.keyboard.press("Space")
    page.wait_for_function("!document.querySelector('.lm .edit [data-result]')", timeout=60_000)
    assert page.evaluate(FOCUSED)

    choose_view(page, "kernels")
    page.locator(".lm").focus()
    tab_to(page, "Tune")
    page.keyboard.press("Enter")
    page.wait_for_selector(".lm .heat .hc", timeout=60_000)
    assert page.evaluate(FOCUSED)
    tab_to(page, "–")
    page.keyboard.press("Space")
    assert page.evaluate("document.activeElement.matches('.heat [aria-pressed=true]')")
    assert found.errors == []
