"""%%compile in a real kernel: outputs, progress, errors and interrupts in a front end."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.notebook_ext.conftest import Kernel, Ran

pytestmark = pytest.mark.thorough

WIDGET = "application/vnd.jupyter.widget-view+json"
SOFTMAX = "def f(x):\n    return torch.softmax(x * 0.5, dim=-1)\n"
SLOW = "def slow(graph, inputs):\n    import time\n    time.sleep(2.5)\n    return graph.forward\nengine.register_backend('slow', slow)\n"


def summaries(ran: Ran) -> list[dict[str, Any]]:
    """Outputs that are summaries."""
    return [shown for shown in ran.shown if shown.get("kind") == "display_data" and "text/html" in shown]


def widgets(ran: Ran) -> list[dict[str, Any]]:
    """Outputs that are explorers; a line of progress is none."""
    return [
        shown
        for shown in ran.shown
        if shown.get("kind") == "display_data" and "Explorer" in shown.get("text/plain", "")
    ]


def test_a_cell_leaves_its_own_output_then_summary_then_widget(kernel: Kernel) -> None:
    """In this order; the summary is text, and HTML with a snapshot open at its kernels."""
    ran = kernel.run(f"%%compile\n{SOFTMAX}print('mine')\nf(torch.ones(2, 4))")
    assert ran.succeeded, ran.text
    assert ran.shown[0] == {"stream": "stdout", "text": "mine\n"}
    (result,) = [shown for shown in ran.shown if shown.get("kind") == "execute_result"]
    (summary,), (widget,) = summaries(ran), widgets(ran)
    assert ran.shown.index(result) < ran.shown.index(summary) < ran.shown.index(widget)
    assert WIDGET in widget
    assert "<details" in summary["text/html"]
    assert summary["text/html"].count("<details open") in {3, 4}  # the whole, compilations, kernels of each target
    assert "Kernels for cuda:" in summary["text/html"]
    assert "<script" not in summary["text/html"]
    assert summary["text/plain"].startswith("f: 1 graph")
    assert len(summary["text/html"].encode()) <= 100_000


def test_output_of_libraries_that_wait_for_the_end_of_the_cell_stands_above(kernel: Kernel) -> None:
    """Figures that a library shows when the cell ends come before the summary, and once."""
    ran = kernel.run(
        "%%compile\n"
        "from IPython.display import HTML\n"
        "waiting = ['figure']\n"
        "def flush(): \n"
        "    while waiting: display(HTML(waiting.pop()))\n"
        "get_ipython().events.register('post_execute', flush)\n"
        "def wave(t): return torch.sin(t) + 1\n"
        "wave(torch.ones(4));"
    )
    found = [text for shown in ran.shown if (text := shown.get("text/html"))]
    assert found[0] == "figure", ran.text
    assert "data-explorer-summary" in found[1]
    assert sum(f == "figure" for f in found) == 1


def test_no_static_keeps_the_line_only(kernel: Kernel) -> None:
    """--no-static leaves the twin out."""
    ran = kernel.run(f"%%compile --no-static\n{SOFTMAX}f(torch.ones(2, 4));")
    assert "<details" not in summaries(ran)[0]["text/html"]


def test_nothing_of_this_machine_is_saved(kernel: Kernel) -> None:
    """No absolute path is in what a notebook keeps."""
    ran = kernel.run(f"%%compile\n{SOFTMAX}f(torch.ones(2, 4));")
    kept = str(summaries(ran)[0])
    assert "/tmp/" not in kept
    assert "site-packages" not in kept


def test_user_text_stays_text(kernel: Kernel) -> None:
    """Names and strings of the user's code never become HTML."""
    ran = kernel.run(
        "%%compile\ndef f(x):\n    print('<img src=x onerror=alert(1)>')\n    return x + 1\nf(torch.ones(2));"
    )
    assert "<img src=x" not in summaries(ran)[0]["text/html"]


def test_an_error_comes_before_the_explorer_and_fails_the_cell(kernel: Kernel) -> None:
    """The reply says error, so that "run all" stops; one traceback, then summary and widget."""
    ran = kernel.run(f"%%compile\n{SOFTMAX}f(torch.ones(2, 4))\n1 / 0")
    assert not ran.succeeded
    errors = [i for i, shown in enumerate(ran.shown) if "error" in shown]
    assert len(errors) == 1
    assert ran.shown.index(summaries(ran)[0]) > errors[0]
    assert widgets(ran)
    assert "notebook_ext" not in ran.text
    assert kernel.run("1 + 1").succeeded


def test_getsource_and_pickle_work_afterwards(kernel: Kernel) -> None:
    """In a real kernel too."""
    kernel.run(f"%%compile\n{SOFTMAX}f(torch.ones(2, 4));")
    ran = kernel.run(
        "import inspect, pickle\nprint(inspect.getsource(f), end='')\nassert pickle.loads(pickle.dumps(f)) is f"
    )
    assert ran.succeeded, ran.text
    assert ran.text == SOFTMAX


def test_progress_appears_within_a_second_and_leaves_nothing(kernel: Kernel) -> None:
    """A long compile shows a line with its stage; at the end its output is emptied."""
    kernel.run(f"import engine\n{SLOW}")
    seen: list[float] = []
    start = time.monotonic()

    def watch(_: float) -> None:
        seen.append(time.monotonic() - start)

    ran = kernel.run(f"%%compile --backend slow\n{SOFTMAX}f(torch.ones(2, 4));", while_running=watch)
    assert ran.succeeded, ran.text
    first = next(shown for shown in ran.shown if shown.get("kind") == "display_data")
    assert "Compiling" in first["text/plain"]
    emptied = [shown for shown in ran.shown if shown.get("kind") == "update_display_data"]
    assert emptied[-1]["text/plain"] == ""
    assert ran.shown.index(emptied[-1]) < ran.shown.index(summaries(ran)[0])


def test_interrupting_a_compile_breaks_nothing(kernel: Kernel) -> None:
    """An error shows one sentence, and the traceback ends at the user's line.

    The same call works afterwards.
    """
    kernel.run(f"import engine\n{SLOW}")
    sent: list[bool] = []

    def interrupt(seconds: float) -> None:
        if seconds > 1.5 and not sent:
            sent.append(True)
            kernel.manager.interrupt_kernel()

    ran = kernel.run(f"%%compile --backend slow\n{SOFTMAX}f(torch.ones(2, 4))", while_running=interrupt)
    assert not ran.succeeded
    assert "KeyboardInterrupt" in ran.text
    assert "notebook_ext" not in ran.text
    assert "Interrupted while compiling" in summaries(ran)[0]["text/plain"]
    again = kernel.run(f"%%compile\n{SOFTMAX}f(torch.ones(2, 4)).shape")
    assert again.succeeded, again.text
    assert "f: 1 graph" in summaries(again)[0]["text/plain"]
    assert kernel.run("f(torch.ones(3, 4))").succeeded


def test_cancel_ends_the_compile_and_runs_the_code(kernel: Kernel) -> None:
    """A click on the button interrupts the compile, and the cell continues as Python.

    The click arrives through a subshell, long before the compile would end. The summary says so.
    """
    kernel.run(f"import engine\n{SLOW.replace('2.5', '20')}")
    subshell = kernel.subshell()
    clicked: list[float] = []

    def click(seconds: float) -> None:
        if seconds > 1.5 and kernel.progress and not clicked:
            clicked.append(seconds)
            kernel.click(kernel.progress[0], subshell)

    start = time.monotonic()
    ran = kernel.run(
        f"%%compile --backend slow\n{SOFTMAX}y = f(torch.ones(2, 4))\nz = f(torch.ones(3, 4, 5))", while_running=click
    )
    assert clicked
    assert time.monotonic() - start < 15
    assert ran.succeeded, ran.text
    assert "Cancelled: the part that was not compiled ran as plain Python" in summaries(ran)[0]["text/html"]
    assert kernel.run("assert y.shape == (2, 4) and z.shape == (3, 4, 5) and abs(y.sum().item() - 2) < 1e-5").succeeded
    again = kernel.run(f"%%compile\n{SOFTMAX}f(torch.ones(2, 4)).shape")
    assert "f: 1 graph" in summaries(again)[0]["text/plain"]


@pytest.mark.parametrize("line", ["--backend nope", '"', "nowhere"])
def test_bad_arguments_are_one_line(kernel: Kernel, line: str) -> None:
    """No traceback reaches the front end."""
    ran = kernel.run(f"%%compile {line}\n1")
    assert not ran.succeeded
    assert ran.text.startswith("UsageError: ")
    assert len(ran.text.strip().splitlines()) == 1


def test_guards_of_a_call_open_in_the_explorer(kernel: Kernel) -> None:
    """``%guards f(x)`` answers in text and shows the explorer.

    A call that does not fit the signature gets text alone.
    """
    kernel.run(f"%%compile\n{SOFTMAX}f(torch.ones(2, 4));")
    ran = kernel.run("%guards f(torch.ones(3, 4))")
    assert "would recompile" in ran.text
    assert any("application/vnd.jupyter.widget-view+json" in shown for shown in ran.shown)
    ran = kernel.run("%guards f(1, 2, 3)")
    assert ran.succeeded
    assert not any("application/vnd.jupyter.widget-view+json" in shown for shown in ran.shown)


def test_stock_torch_shows_in_the_same_summary(kernel: Kernel) -> None:
    """--backend torch:eager shows graphs, graph breaks and recompiles of torch.compile.

    It shows the recompile reasons, for a library model too.
    """
    ran = kernel.run(
        "%%compile --backend torch:eager\nm = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()\n"
        "def f(x):\n    print('break')\n    return x + 1\n"
        "with torch.no_grad():\n    for n in (2, 3):\n        f(m(torch.ones(1, n, 8)))"
    )
    assert ran.succeeded, ran.text
    told = summaries(ran)[0]["text/plain"]
    assert told.startswith("stock torch.compile")
    assert "TransformerEncoderLayer.forward" in told
    assert "break" in told
    assert "recompile" in told
    assert kernel.run("assert m._compiled_call_impl is not None").succeeded


def test_compare_runs_the_same_calls_through_torch(kernel: Kernel) -> None:
    """--compare shows both compilers and the difference of their results.

    The cell's own side effects happen once.
    """
    ran = kernel.run(
        f"%%compile --compare\ncount = []\n{SOFTMAX}f(torch.ones(2, 4)); count.append(1); f(torch.ones(3, 4));"
    )
    assert ran.succeeded, ran.text
    ours, theirs, numbers = summaries(ran)
    assert "torch.compile on copies of the same 2 recorded calls: largest difference" in ours["text/plain"]
    assert theirs["text/plain"].startswith("stock torch.compile")
    assert re.search(r"^2 +result +float32\[3, 4\] +\S+ +\S+ +\S+$", numbers["text/plain"], re.MULTILINE)
    assert kernel.run("assert count == [1]").succeeded


@pytest.mark.forks_backward
def test_compare_tells_gradients_and_writes_into_arguments(kernel: Kernel) -> None:
    """--compare also compares gradients and mutated arguments by name.

    It compares each pair of this engine, torch.compile and eager.
    """
    ran = kernel.run(
        "%%compile --compare\nlayer = torch.nn.Linear(3, 2)\n\ndef g(x, state):\n    state['seen'].add_(1)\n"
        "    return {'loss': layer(x).pow(2).sum()}\n\ng(torch.ones(4, 3, requires_grad=True), {'seen': torch.zeros(2)});"
    )
    assert ran.succeeded, ran.text
    table = summaries(ran)[2]["text/plain"]
    lines = [re.split(r"\s{2,}", line) for line in table.splitlines() if line.startswith("1  ")]
    rows = {line[1]: line[3:] for line in lines}
    assert set(rows) == {"result['loss']", "state['seen'] after the call", "gradient of x"}
    assert all(float(number) < 1e-4 for numbers in rows.values() for number in numbers)


def test_what_cannot_be_repeated_is_said(kernel: Kernel) -> None:
    """--compare with an argument that cannot be copied says so, and shows ours."""
    ran = kernel.run("%%compile --compare\ndef f(x, o):\n    return x + 1\nf(torch.ones(2), object());")
    assert ran.succeeded, ran.text
    assert "Not compared with torch.compile: an argument is of type object" in summaries(ran)[0]["text/plain"]


def test_rerunning_a_cell_starts_empty_and_keep_continues(kernel: Kernel) -> None:
    """The second run compiles again; with --keep it finds what the one before compiled."""
    cell = f"{SOFTMAX}f(torch.ones(2, 4));"
    kernel.run(f"%%compile\n{cell}")
    kernel.run(f"%%compile\n{cell}")
    assert kernel.run("assert len(_compile.compilations) == 1").succeeded
    kernel.run(f"%%compile --keep\n{cell}")
    ran = kernel.run("print(len(_compile.compilations), [c.outcome for c in _compile.calls])")
    assert ran.text == "0 ['hit']\n"
