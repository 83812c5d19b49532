"""Test the home view: the outcome, the figures, and findings with edits of the cell."""

from __future__ import annotations

import pathlib
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

import engine
from engine.records.counts import counts
from engine.records.findings import find_problems
from engine.records.lowering import FusionDecision
from engine.records.session import Session
from engine.records.trace import TraceRecord
from notebook_ext.compile_run import CompileRun
from notebook_ext.views import source_lines
from notebook_ext.views.breaks import breaks
from notebook_ext.views.cell_edits import CellEdit, CellText, Replacement, cell_texts, combine, diff_rows, edit_id
from notebook_ext.views.compilations import compilations
from notebook_ext.views.home import Replayed, findings, home, replay_edit, replayed_edits
from notebook_ext.views.kernels import kernels
from notebook_ext.views.recompiles import recompiles
from notebook_ext.views.summary import summary
from tests.notebook_ext.conftest import Shell
from tests.notebook_ext.sample_sessions import at, head_session

forks = pytest.mark.skipif(
    not sys.platform.startswith("linux") or torch.cuda.is_available(), reason="the cell is replayed in a fork"
)

BREAKING = """\
def clip(x, limit):
    n = x.norm()
    print("norm", n)
    if n > limit:
        x = x * (limit / n)
    else:
        x = x * 1.0
    return x.softmax(-1)

clip(torch.randn(8, 4), 3.0)
"""
RECOMPILING = """\
def scale(x, k):
    return torch.relu(x) * k

for rows in (4, 8, 16):
    x = torch.randn(rows, 32)
    scale(x, 2.0)
scale(x, 0.5)
"""


def run(shell: Shell, body: str, options: str = "") -> Session:
    """Run a %%compile cell and return its session."""
    shell.run(f"%%compile --backend eager {options}\n{body}")
    found = shell.ns["_compile"]
    assert isinstance(found, Session)
    return found


def diff_of(row: dict[str, Any]) -> list[str]:
    """The changed lines of a finding's edit."""
    return [sign + text for sign, text in row["edit"]["diff"] if sign in "+-"]


def test_a_cell_without_findings_says_that_nothing_is_to_do(shell: Shell) -> None:
    """The outcome is one sentence, and the figures are those of the summary's counts."""
    shown = home(run(shell, "def f(x):\n    return x.sin() + 1\n\nf(torch.ones(3));\n"))
    assert shown["outcome"] == "f was compiled into 1 graph, with no graph break and no recompile: nothing to do."
    assert (shown["tone"], shown["findings"]) == ("ok", [])
    assert [f["value"] for f in shown["figures"][:4]] == ["1", "0", "1", "0"]


def test_without_a_graph_no_compile_is_counted(shell: Shell) -> None:
    """Below "Nothing was compiled", counts are of attempts."""
    shown = home(run(shell, 'def f(x):\n    print("a")\n    return 1\n\nf(torch.ones(3));\n'))
    assert shown["outcome"].startswith("Nothing was compiled")
    assert "Compiles" not in [f["name"] for f in shown["figures"]]
    assert (shown["compiled_title"], shown["compiles_title"]) == ("What was tried", "Attempts")


def test_a_graph_break_has_its_cause_its_line_and_an_edit(shell: Shell) -> None:
    """Output is removed, and a branch on a tensor becomes torch.where."""
    session = run(shell, BREAKING)
    shown = home(session)
    assert shown["outcome"] == "clip was compiled into 3 graphs, with 2 graph breaks."
    changes = {f["place"]: diff_of(f) for f in shown["findings"]}
    assert changes["line 3"] == ['-    print("norm", n)']
    assert changes["line 4"][-1] == "+    x = torch.where(n > limit, x * (limit / n), x * 1.0)"
    assert all("1 graph break, 1 compile" in f["saves"] for f in shown["findings"])
    assert shown["together"]["source"].startswith("%%compile --backend eager\ndef clip")


def test_a_recompile_has_an_edit_of_the_calls(shell: Shell) -> None:
    """A size is marked before the recompiling call; a number becomes a tensor everywhere."""
    shown = home(run(shell, RECOMPILING))
    size, number = sorted(shown["findings"], key=lambda f: "recompiles: k " in f["title"])
    assert diff_of(size) == ["+import engine", "+    engine.mark_dynamic(x, 0)"]
    assert diff_of(number) == [
        *("-    scale(x, 2.0)", "-scale(x, 0.5)"),
        *("+    scale(x, torch.tensor(2.0))", "+scale(x, torch.tensor(0.5))"),
    ]


KEYWORD_ONLY = """\
def pool(batch, *weights, scale=1.0):
    x = batch["x"] * scale
    for w in weights:
        x = x @ w
    return x

x, w = torch.ones(3, 8), torch.ones(8, 8)
pool({"x": x}, w, scale=1.5)
pool({"x": x}, w, scale=2.0)
"""


def test_a_fix_of_a_keyword_leaves_the_positional_arguments(shell: Shell) -> None:
    """Behind ``*weights``, a parameter is passed by name only."""
    shown = home(run(shell, KEYWORD_ONLY))
    assert [diff_of(f) for f in shown["findings"]] == [
        [
            *('-pool({"x": x}, w, scale=1.5)', '-pool({"x": x}, w, scale=2.0)'),
            *('+pool({"x": x}, w, scale=torch.tensor(1.5))', '+pool({"x": x}, w, scale=torch.tensor(2.0))'),
        ]
    ]


VARYING = """\
def smooth(signal, window, mode="mean"):
    frames = signal.unfold(-1, window, 1)
    if mode == "mean":
        return frames.mean(-1)
    return frames.amax(-1)

for window in (3, 5, 7):
    smooth(torch.ones(2, 16), window)
smooth(torch.ones(2, 32), 5, mode="max")
smooth(torch.ones(16), 5)
smooth(torch.ones(2, 16, requires_grad=True), 5)
"""


def test_recompiles_are_told_apart_by_what_changed(shell: Shell) -> None:
    """The entry that fits a call best names its cause, whatever an older entry rejects first."""
    found = [f for f in findings(run(shell, VARYING)) if "recompiles" in f.title]
    titles = {f.title.removeprefix("smooth recompiles: "): f.saves.split(",")[0] for f in found}
    assert titles == {
        "window 3 -> 5": "2 compiles",
        "mode 'mean' -> 'max'": "",
        "signal ndim: 2 -> 1": "1 compile",
        "signal requires_grad: False -> True": "1 compile",
    }


CALLED_IN_A_LOOP = """\
class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(64, 10)

    def forward(self, x):
        return self.fc(x.relu())

def pick(x, top):
    return x.topk(top).values

def solve(x):
    for i in range(12):
        if x.norm().item() < 0:
            break
        if i % 10 == 0:
            x = x + 1
    return x

solve(torch.ones(8))
for top in (3, 5):
    pick(torch.ones(8), top)
with torch.inference_mode():
    x = torch.ones(8)
pick(x, 5)
Head()(torch.ones(2, 7));
"""


def test_findings_name_what_a_stranger_knows(shell: Shell) -> None:
    """No symbol, no stack slot, no dispatch key, and no advice that the program cannot take."""
    shell.run(f"%%compile --backend eager\n{CALLED_IN_A_LOOP}")
    session = shell.ns["_compile"]
    found = findings(session)
    causes = {f.title.partition(": ")[2]: f for f in found if "recompiles" in f.title}
    assert {"top 3 -> 5", "x is an inference tensor"} <= causes.keys()
    counter = causes["needs (i % 10) == 0, but i = 1"]
    assert counter.fixes == (("Two cache entries are enough: one where (i % 10) == 0, one where not.", ""),)
    assert all(word not in title for title in causes for word in ("stack[", "s77", "DispatchKey"))
    top = causes["top 3 -> 5"]
    assert (top.edit_text, top.fixes) == ("Make top and every size a symbol from the first call.", ())
    crossing = next(f for f in causes.values() if re.match("A (value|loop's iterator) carried over", f.cause))
    assert crossing.fixes[0][0] in {
        "Move the graph break out of the loop",
        "Remove the graph break at line 14: Python values that cross it are guarded",
    }
    assert [f.place for f in found if f.title.endswith("raises an exception")] == ["line 7 of cell 2"]
    meaning: dict[int, set[tuple[str, int]]] = {}
    for compilation in session.compilations:
        for line, number in source_lines.ordinals(session, compilation).numbers.items():
            meaning.setdefault(number, set()).add(line)
    assert len(meaning) > 4
    assert all(len(lines) == 1 for lines in meaning.values())  # One number is one line in every table.
    cells = {lane["name"]: lane["columns"][-1]["cells"] for lane in recompiles(session)["lanes"]}
    assert list(cells["Linear.forward"].values()) == ["python"]


def test_a_fix_that_the_recompile_itself_refutes_is_not_offered(shell: Shell) -> None:
    """A number that became a symbol and was specialized again needs another line."""
    session = run(shell, VARYING)
    row = next(f for f in home(session)["findings"] if "window 3" in f["title"])
    assert row["edit"] is None
    assert [f["text"] for f in row["fixes"]] == [
        "Change what needs the concrete value of window at line 2, or pass fewer values: each one is compiled separately"
    ]
    columns = recompiles(session)["lanes"][0]["columns"]
    assert [f["text"] for f in columns[1]["rejections"][0]["fixes"]] == [f["text"] for f in row["fixes"]]
    # The last call differs from the second in nothing that its inputs say.
    assert columns[1]["inputs"] == columns[-1]["inputs"]
    assert columns[-1]["varying"][-1] == "signal requires_grad: False -> True"


def test_a_break_is_in_the_function_that_has_its_line(shell: Shell) -> None:
    """A helper that breaks is named, in Home as in Breaks, and not the function that calls it."""
    body = "class Net(nn.Module):\n    def forward(self, x):\n        return helper(x)\n\ndef helper(x):\n    print(1)\n    return x + 1\n\nNet()(torch.ones(2))\n"
    session = run(shell, body)
    assert [f.title for f in findings(session)] == ["helper breaks the graph: output is printed"]
    assert [b["root"] for b in breaks(session)["breaks"]] == ["helper"]


def test_kernels_that_did_not_run_are_not_beside_aten_calls_that_did_not_either(shell: Shell) -> None:
    """Where the results come from ATen, "0 ATen calls" would be wrong."""
    shell.run("%%compile\ndef double(x):\n    return x + x\n\ndouble(torch.ones(4))")
    session = shell.ns["_compile"]
    figures = {f["name"]: f["value"] for f in home(session)["figures"]}
    if "not run here" in summary(session).text:
        assert "ATen calls" not in figures
        assert figures[f"Kernels for {session.target}"] == "1"
    else:
        assert "ATen calls" in figures


@forks
def test_an_edit_is_verified_by_a_replay(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell runs without and with the edit in a fork; counts and results are compared."""
    made: list[CompileRun] = []
    show = CompileRun.show
    monkeypatch.setattr(CompileRun, "show", lambda self: (made.append(self), show(self)))
    session = run(shell, BREAKING)
    replay = made[0]._make_replay(made[0]._make_cell_replay())
    assert replay is not None
    before = dict(shell.ns)
    for row in (*(f["edit"] for f in home(session)["findings"]), home(session)["together"]):
        found = replay_edit(session, row["id"], replay)
        assert found is not None
        assert found.helps, found.text
    assert found.text == "verified: compiles 3 -> 1, graph breaks 2 -> 0, graphs 3 -> 1, same results"
    assert shell.ns.keys() == before.keys()
    assert home(session)["together"]["result"] == found.text


ON_NUMBERS = """\
def clip(x, limit):
    n = x.norm().item()
    far = n - limit
    if far > 0:
        x = x / n
    return x.softmax(-1)

clip(torch.randn(8, 4), 3.0)
"""


@forks
def test_a_branch_on_a_number_of_a_tensor_keeps_the_tensor(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The edit also removes ``.item()``: torch.where takes no bool. A replay verifies it.

    An edited cell that raises is said to.
    """
    made: list[CompileRun] = []
    show = CompileRun.show
    monkeypatch.setattr(CompileRun, "show", lambda self: (made.append(self), show(self)))
    session = run(shell, ON_NUMBERS)
    (row,) = home(session)["findings"]
    assert row["edit"]["text"] == "Keep n a tensor, compute both outcomes and select with torch.where."
    assert ["+", "    n = x.norm()"] in row["edit"]["diff"]
    cell = made[0]._make_cell_replay()
    assert cell is not None
    replay = made[0]._make_replay(cell)
    assert replay is not None
    found = replay_edit(session, row["edit"]["id"], replay)
    assert found is not None
    assert found.text.startswith("verified: compiles 2 -> 1, graph breaks 1 -> 0")
    wrong = cell.verify(CellText("--backend eager", ON_NUMBERS.replace("softmax", "softmin"), cell.cell.file))
    assert wrong.text.startswith("not verified: the edited cell raises AttributeError: ")


@forks
def test_a_trial_of_the_cell_sees_values_of_the_notebook(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run without the edit is made again after another cell changed a value."""
    made: list[CompileRun] = []
    monkeypatch.setattr(CompileRun, "show", lambda self: made.extend([self]))
    shell.run("scale = 2.0")
    run(shell, "def times(x):\n    return x * scale\n\ny = times(torch.ones(3))\n")
    cell = made[0]._make_cell_replay()
    assert cell is not None
    cell.prepare()
    shell.run("scale = 3.0")
    body = "%%compile --backend eager\ndef times(x):\n    return scale * x\n\ny = times(torch.ones(3))\n"
    trial = cell.try_text(body)
    assert (trial.problem, trial.difference) == ("", "")
    assert cell.try_text(body.replace("scale * x", "2.0 * x")).difference == "y changes"


@forks
def test_an_edit_that_changes_results_is_not_verified(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that saves a compile but computes in another dtype is called what it is."""
    made: list[CompileRun] = []
    show = CompileRun.show
    monkeypatch.setattr(CompileRun, "show", lambda self: (made.append(self), show(self)))
    body = "def f(x):\n    return x.sin()\n\na = f(torch.ones(3))\nb = f(torch.ones(3, dtype=torch.float64))\n"
    session = run(shell, body)
    (row,) = home(session)["findings"]
    replay = made[0]._make_replay(made[0]._make_cell_replay())
    assert replay is not None
    found = replay_edit(session, row["edit"]["id"], replay)
    assert found is not None
    assert not found.helps
    assert found.text == "not verified: the results differ (b changes); compiles 2 -> 1"


def test_an_exception_is_no_graph_break(shell: Shell) -> None:
    """An error of the user's code is a finding of its own, and the first one."""
    shell.run(
        "%%compile --backend eager\ndef f(x, w):\n    return x.tanh() @ w\n\nf(torch.ones(2, 3), torch.ones(4, 2))\n"
    )
    session = shell.ns["_compile"]
    shown = home(session)
    assert shown["outcome"] == "f was compiled into 1 graph; then it raised an exception."
    assert (shown["findings"][0]["title"], shown["tone"]) == ("f raises an exception", "bad")
    assert counts(session).breaks == 0
    shown = home(
        run(
            shell,
            "def f(x, of):\n    return x * {'a': 1}[of]\n\ntry:\n    f(torch.ones(2), 'b')\nexcept KeyError:\n    pass\n",
        )
    )
    assert shown["outcome"] == "Nothing was compiled: f raises an exception (line 2: {'a': 1}[of])."
    assert [(f["title"], f["cause"]) for f in shown["findings"]] == [("f raises an exception", "KeyError: 'b'.")]


def test_a_break_in_a_loop_is_one_place_in_every_table(shell: Shell) -> None:
    """The resume function ends at the same break: its row names the line."""
    body = (
        "def f(x):\n    for i in range(3):\n        x = x.sin()\n        print(i)\n    return x\n\nf(torch.ones(3))\n"
    )
    session = run(shell, body)
    assert counts(session).breaks == 1
    places = [r["breaks"] for r in compilations(session)["rows"]]
    assert places[:2] == ["line 4", "line 4"]
    assert set(places) == {"line 4", ""}


def test_a_number_of_the_caller_is_not_selected_with_where(shell: Shell) -> None:
    """``torch.where`` takes no bool, and the call of ``.item()`` is in another function."""
    body = (
        "def step(state, action):\n    push = 1.0 if action == 1 else -1.0\n    return state * push\n\n"
        "def rollout(state):\n    action = state.exp().argmax().item()\n    return step(state, action)\n\n"
        "rollout(torch.randn(4))\n"
    )
    found = findings(run(shell, body))
    (branch,) = (f for f in found if "branch" in f.title)
    assert branch.edit is None


def test_inputs_whose_dtypes_change_together_are_converted_together(shell: Shell) -> None:
    """A conversion of one alone would save no compile; the edit of both saves it."""
    body = "def f(x, w):\n    return x @ w\n\nx, w = torch.ones(2, 2), torch.ones(2, 2)\nf(x, w)\nf(x.double(), w.double())\n"
    finding = next(f for f in findings(run(shell, body)) if "dtype" in f.title)
    assert finding.cause.endswith(" w dtype changed, too.")
    assert finding.edit_text == "Convert x and w before the call, so that one cache entry is enough"
    assert finding.saves.startswith("1 compile")
    assert finding.fixes == ()
    cell = cell_texts[shell.ns["_compile"]]
    assert finding.edit is not None
    assert "f(x.double().to(torch.float32), w.double().to(torch.float32))" in finding.edit.apply(cell).body


STACKED = """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(4, 4)

    def forward(self, x):
        h = self.up(x)
        if h.abs().max() > 100:
            print("large")
        return x + h

net = nn.Sequential(Block(), Block())
net(torch.ones(2, 4)).sum().backward()
"""


def test_an_input_of_an_inlined_call_is_no_argument_of_the_cell(shell: Shell) -> None:
    """The second block's x requires a gradient, and is not the x that the cell passes."""
    shell.run("import torch.nn as nn")
    found = [f for f in findings(run(shell, STACKED)) if "x requires_grad: False -> True" in f.title]
    assert [f.edit for f in found] == [None]
    assert "Remove the graph break" in str(found[0].fixes)


CREDITED = {
    "a number beside a size": ("return x * k", "f(ones(4), 2.0)\nf(ones(5), 3.0)", {"k 2.0 -> 3.0": ""}),
    "two numbers": ("return x * k + m", "f(ones(4), 2.0, 1.0)\nf(ones(4), 3.0, 5.0)", {"k 2.0 -> 3.0": "1 compile"}),
    "two sizes": (
        "return x * k.sum()",
        "f(ones(4), ones(6))\nf(ones(5), ones(7))",
        {"k.size(0) 6 -> 7": "1 compile"},
    ),
    "a dtype and a size of one input": (
        "x * k",
        "f(ones(4), 2.0)\nf(ones(5).double(), 2.0)",
        {"x dtype: f32 -> f64": ""},
    ),
    "resume functions": (
        "y = x * k\n    print()\n    return y + 1",
        "f(ones(4), 2.0)\nf(ones(4), 3.0)\nf(ones(4).double(), 2.0)",
        {"k 2.0 -> 3.0": "1 compile", "x dtype: f32 -> f64": "2 compiles"},
    ),
}


@pytest.mark.parametrize("name", CREDITED)
def test_each_fix_is_credited_with_what_it_alone_saves(shell: Shell, name: str) -> None:
    """No fix of one of two reasons saves a recompile; replays of the edits count alike."""
    body, calls, expected = CREDITED[name]
    session = run(shell, f"ones = torch.ones\n\ndef f(x, k, m=0):\n    {body}\n\n{calls};\n")
    cell, compiles = cell_texts[session], len(session.compilations)
    shown = {}
    for finding in (f for f in findings(session) if "recompiles" in f.title):
        shown[finding.title.removeprefix("f recompiles: ")] = finding.saves.partition(",")[0]
        saved = int(finding.saves.partition(" ")[0] or 0)
        if finding.edit is not None:
            shell.run(finding.edit.apply(cell).source)
            assert len(shell.ns["_compile"].compilations) == compiles - saved
        doctored = [p.gain for p in find_problems(session) if p.kind == "recompiles" and p.cause in finding.cause]
        assert saved or doctored == [""]
    assert shown == expected


def test_what_no_fix_can_save_is_not_promised(shell: Shell) -> None:
    """A flag, a value beside another that changed, and a graph without kernels save nothing."""
    cell = "def f(x, flag, n):\n    return (x + n) * 2 if flag else x - n\n\nx = torch.ones(2)\nf(x, True, 1)\nf(x, False, 1)\nf(x.double(), False, 2)\n"
    found = {f["title"]: f for f in home(run(shell, cell))["findings"]}
    assert {t.removeprefix("f recompiles: "): (f["sign"], f["saves"]) for t, f in found.items()} == {
        "flag True -> False": ("i", ""),
        "n 1 -> 2": ("!", ""),
    }
    assert found["f recompiles: n 1 -> 2"]["cause"].endswith(
        " x dtype changed, too: a fix of one alone saves no compile."
    )
    traced = home(run(shell, "def g(x):\n    return x.to_sparse()\n\ng(torch.ones(2))\n", "--backend aot_eager"))[
        "findings"
    ]
    assert [(f["title"], f["cause"], f["place"], f["saves"]) for f in traced] == [
        (
            "The graph of g runs as traced, without kernels",
            "to_sparse returns a sparse or quantized tensor.",
            "line 2",
            "",
        )
    ]


def test_one_line_that_breaks_several_times_is_one_finding(shell: Shell) -> None:
    """Opening a file and entering its block both break a line's graph; one fix counts both."""
    cell = "def f(x):\n    with open('/dev/null') as file:\n        y = x + 1\n    return y * 2\n\nf(torch.ones(2))\n"
    found = home(run(shell, cell))["findings"]
    assert [(f["title"], f["saves"].partition(",")[0]) for f in found] == [
        ("f breaks the graph: a file or the file system is used", "2 graph breaks")
    ], [f["place"] for f in found]
    assert found[0]["fixes"][0]["text"].startswith("Read files before the compiled function")


def test_a_break_in_a_library_belongs_to_the_line_that_called_it(
    shell: Shell, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library function is inlined and called by Python: its breaks are one finding."""
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "filelib.py").write_text(
        "def open_file(path, mode='r'):\n    return open(path, mode)\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(library))
    shell.run("from filelib import open_file")
    cell = (
        "def f(x):\n    with open_file('/dev/null') as file:\n        y = x + 1\n    return y * 2\n\nf(torch.ones(2))\n"
    )
    (found,) = home(run(shell, cell))["findings"]
    assert found["title"] == "f breaks the graph: a file or the file system is used"
    assert found["saves"].startswith("3 graph breaks")
    assert re.fullmatch(r"line 2 of cell \d+ \(line 2 of filelib\.py\)", found["place"])
    assert found["pointed"].startswith("with open_file('/dev/null') as file:\n")
    assert found["line"].endswith("|line=2")


DRAWING = "def f(x):\n    return torch.relu(x) + torch.rand(64) * 2\n\nf(torch.ones(64));\n"


def test_advice_is_in_the_form_of_the_run(shell: Shell) -> None:
    """A cell is told an option of its magic, which works; a function an argument."""

    def advice_of(session: Session) -> list[str]:
        drawn = [f for f in findings(session) if "generates random numbers" in f.cause]
        texts = [e["hint"].rstrip(".") for e in kernels(session)["externs"] if e["hint"] and not e["is_cpu"]]
        assert all(text in texts for f in drawn for text, _ in f.fixes)
        return [text for f in drawn for text, _ in f.fixes]

    shell.run(f"%%compile\n{DRAWING}")
    (advice,) = advice_of(shell.ns["_compile"])
    assert advice.startswith("Compile with %%compile --fused-random if other numbers are fine")
    assert shell.run(f"%%compile --fused-random\n{DRAWING}").succeeded
    assert advice_of(shell.ns["_compile"]) == []
    assert any("rand" in k.text for k in shell.ns["_compile"].compilations[0].kernels)
    engine.reset()
    with engine.record() as session:
        engine.compile(lambda x: torch.relu(x) + torch.rand(64))(torch.ones(64))
    (advice,) = advice_of(session)
    assert advice.startswith('Compile with engine.compile(..., options={"fused_random": True})')
    refused = shell.run(f"%%compile --fused-random --backend torch:eager\n{DRAWING}")
    assert "leave out --backend torch" in refused.text


def test_an_argument_that_is_left_out_needs_no_fix(shell: Shell) -> None:
    """Calls with and without a mask need an entry each, so no change is advised."""
    cell = "def f(x, mask=None):\n    return x if mask is None else x * mask\n\nf(torch.ones(2))\nf(torch.ones(2), torch.ones(2))\n"
    (found,) = home(run(shell, cell))["findings"]
    assert (found["sign"], found["saves"]) == ("i", "")
    assert found["fixes"][0]["text"] == "No fix needed: calls with and without mask need one cache entry each."


def test_only_inputs_of_the_call_are_marked(shell: Shell) -> None:
    """A local of a function in which the graph breaks has no name at the call."""
    cell = "def inner(rows):\n    doubled = rows * 2\n    print('in')\n    return doubled + rows\n\ndef f(x):\n    return inner(x) + 1\n\nfor n in (3, 4):\n    f(torch.ones(n))\n"
    (found,) = [f for f in home(run(shell, cell))["findings"] if "x.size(0) 3 -> 4" in f["title"]]
    assert "Mark dimension 0 of x as dynamic" in str(found["fixes"])
    assert "mark_dynamic(rows" not in str(found)


def test_a_function_that_builds_a_module_is_not_compiled(shell: Shell) -> None:
    """Only the module that it builds is compiled."""
    cell = "def build(n):\n    return nn.Sequential(nn.Linear(2, n), nn.ReLU())\n\nmodel = build(3)\nmodel(torch.ones(1, 2))\n"
    assert [row["name"] for row in home(run(shell, cell))["compiled"]] == ["Sequential.forward"]


def test_the_counts_are_those_of_the_summary(shell: Shell) -> None:
    """Summary and home never disagree."""
    session = run(shell, BREAKING)
    text, figures = summary(session).text, {f["name"]: f["value"] for f in home(session)["figures"]}
    assert f"{figures['Graphs']} graphs" in text
    assert f"{figures['Graph breaks']} breaks" in text


def test_a_loaded_session_has_findings_without_edits(shell: Shell, tmp_path: pathlib.Path) -> None:
    """A session from a file does not know its cell: the fixes are text."""
    session = run(shell, BREAKING)
    loaded = Session.load(session.save(tmp_path / "session.json"))
    assert [f.title for f in findings(loaded)] == [f.title for f in findings(session)]
    assert all(f["edit"] is None for f in home(loaded)["findings"])


CELL = CellText("--steps", "a = 1\nb = 2\nc = 3\n", "cell")


def test_edits_of_different_places_combine() -> None:
    """Two edits are one if they do not touch; options are added once."""
    one, two = (
        CellEdit((Replacement(4, 5, "10"),), ("--dynamic",)),
        CellEdit((Replacement(16, 17, "30"),), ("--dynamic",)),
    )
    both = combine([one, two])
    assert both is not None
    assert both.apply(CELL).source == "%%compile --steps --dynamic\na = 10\nb = 2\nc = 30\n"
    assert combine([one, CellEdit((Replacement(4, 5, "11"),))]) is None
    assert edit_id(CELL, one) != edit_id(CELL, two)


def test_a_diff_has_one_line_around_each_change() -> None:
    """Rows are a sign and a text."""
    after = CellEdit((Replacement(10, 11, "20"),)).apply(CELL)
    assert diff_rows(CELL, after) == [(" ", "a = 1"), ("-", "b = 2"), ("+", "b = 20"), (" ", "c = 3")]


OF_STRANGERS = """\
@torch.library.custom_op("strangers::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

twice.register_fake(torch.empty_like)

def at_least_two(x):
    n = int((x > 0).sum())
    if n < 2:
        n = 2
    return twice(x[:n])

at_least_two(torch.ones(4))
"""


def test_a_number_gets_no_tensor_edit_and_a_custom_operator_a_line(shell: Shell) -> None:
    """Advice that the program cannot take is not offered."""
    shell.run(f"%%compile\n{OF_STRANGERS}")
    found = findings(shell.ns["_compile"])
    custom = next(f for f in found if "strangers.twice" in f.title)
    assert (custom.title.partition(" runs ")[2], custom.place) == (
        "its own code and is not fused with the kernels around",
        "line 11",
    )
    assert custom.pointed == "return twice(x[:n])"
    assert all(f.edit is None for f in found if f.title.startswith("at_least_two breaks"))


SCHEDULED = """\
import engine
model = torch.nn.Linear(4, 2)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
step = engine.compile(opt.step, backend="eager")
for _ in range(2):
    model(torch.ones(3, 4)).sum().backward()
    step()
    schedule.step()
"""


def test_a_scheduled_optimizer_is_named_as_the_user_names_it(shell: Shell) -> None:
    """A fix of the learning rate alone saves no compile if the state changed, too."""
    session = run(shell, SCHEDULED)
    found = next(f for f in findings(session) if "recompiles" in f.title)
    assert found.title == "Adam.step recompiles: opt.param_groups[0]['lr'] 0.001 -> 0.0001"
    assert found.saves == ""
    assert found.cause.endswith(" opt.state changed, too: a fix of one alone saves no compile.")
    assert {r["name"]: r["called"] for r in home(session)["compiled"]} == {
        "Linear.forward": "line 7 of cell 2: model(torch.ones(3, 4)).sum().backward()",
        "Adam.step": "line 8 of cell 2: step()",
    }
    assert [r["called"].partition(":")[0] for r in compilations(session)["rows"]] == [
        "line 7 of cell 2",
        *["line 8 of cell 2"] * 2,
    ]


RECOMPILING_FOR_ONE_OF_TWO = """\
def noisy(x, options):
    if options["kind"] == "gauss":
        x = x + options["std"]
    return x.tanh()

for kind, std in (("none", 0.1), ("gauss", 0.2), ("gauss", 0.3)):
    noisy(torch.ones(4), {"kind": kind, "std": std})

def at_least_two(x):
    n = int((x > 0).sum())
    if n < 2:
        n = 2
    return x[:n]

def looped(x):
    for i in range(4):
        x = x + 1
        if i % 2 == 0:
            print("step", i)
    return x

at_least_two(torch.ones(4))
at_least_two(-torch.ones(4))
looped(torch.ones(2))
"""


def test_each_recompile_is_blamed_on_what_changed_since_the_newest_entry(shell: Shell) -> None:
    """Values at a graph break are described without the names of iterators' methods."""
    found = {f.title for f in findings(run(shell, RECOMPILING_FOR_ONE_OF_TWO)) if "recompiles" in f.title}
    assert found == {
        "noisy recompiles: options['kind'] 'none' -> 'gauss'",
        "noisy recompiles: options['std'] 0.2 -> 0.3",
        "at_least_two recompiles: needs value >= 2, but value = 0 (carried over the graph break at line 10)",
        "looped recompiles: item 2 from here of a loop with a graph break is missing",
    }


def test_only_the_rest_of_a_function_runs_as_python() -> None:
    """A resume function that is not compiled is named, not the function that it continues."""
    session = head_session()
    whole, rest = session.compilation("1/0"), session.compilation("2/0")
    assert whole.trace is not None
    (printed,) = whole.trace.breaks
    skipped = replace(printed, span=at(20), skips_frame=True)
    session.put_compilation(replace(rest, trace=TraceRecord(breaks=(skipped,))))
    titles = [f.title for f in findings(session) if " runs as Python: " in f.title]
    assert [t.partition(" runs ")[0] for t in titles] == ["loss, resumed after line 19"]


PASTED = """\
import random
def flip(x):
    y = x * 2
    if random.random() < 0.5:
        y = y + 1
    return y

def match(a, b):
    logits, labels = a @ b.T, torch.arange(a.size(0))
    return nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.T, labels)

def route(x, layers):
    out = torch.zeros_like(x)
    for i, layer in enumerate(layers):
        rows, _ = torch.where(x > i)
        if rows.numel():
            out[rows] += layer(x[rows])
    return out

flip(torch.ones(3))
for n in (2, 3, 4):
    match(torch.ones(n, 5), torch.ones(n, 5))
route(torch.ones(6, 2) * 5, [torch.nn.Linear(2, 2) for _ in range(3)])
"""


def test_findings_blame_what_causes_them(shell: Shell) -> None:
    """A break has the compiles that follow it; equal sizes are symbols, not constants."""
    session = run(shell, PASTED)
    found = {f.title: f for f in findings(session)}
    assert found["flip breaks the graph: Python needs the value of a random number"].edit is None
    route = found["route breaks the graph: a branch depends on a size that is known only at run time"]
    assert re.match(r"1 graph break, [3-9] compiles", route.saves)
    assert (
        next(f for t, f in found.items() if "out requires_grad" in t).fixes[0][0].startswith("Remove the graph break")
    )
    assert any(t.endswith("items left in a loop with a graph break True -> False") for t in found)
    match = next(f for t, f in found.items() if t.startswith("match recompiles"))
    assert match.fixes[0][0].startswith("Mark dimension 0 of b and dimension 0 of a as dynamic")
    (entry,) = (e["inputs"] for r in recompiles(session)["lanes"] if r["name"] == "match" for e in r["entries"][1:])
    assert re.fullmatch(r"a f32\[(s\d+), 5\], b f32\[\1, 5\], \1 >= 2", entry)
    attempts = [a for b in breaks(session)["breaks"] for a in b["attempts"]]
    assert not [a for a in attempts if "symbol" in a or not re.search("where|random", a)]


def test_a_failing_pass_of_the_user_is_no_internal_error(shell: Shell) -> None:
    """Summary and Home name the pass and its line; the compiler is not accused."""
    shell.run(
        "import engine\n\ndef undone(module):\n    raise ValueError('mine')\n\nmine = engine.register_pass(undone, stage='aten')"
    )
    try:
        shell.run("%%compile --backend aot_eager\ndef f(x):\n    return x.sin()\n\nf(torch.ones(2));\n")
    finally:
        shell.run("mine.remove()")
    session = shell.ns["_compile"]
    assert "1 pass undone" in summary(session).text
    assert "internal error" not in summary(session).text
    (found,) = findings(session)
    assert found.title == "A registered pass was undone: the graph is as it was before"
    assert "ValueError: mine" in found.cause


def test_traffic_between_kernels_is_a_fact_without_a_fix() -> None:
    """The largest value is named with its reader; no line says "Fix" where none is known."""
    session = head_session()
    first = session.compilations[0]
    assert first.lowering is not None
    made, read = (next(n.id for n in g.nodes if n.op == "call_function") for g in first.graphs[:2])
    decision = FusionDecision((made,), (read,), False, "Both write all of it.", None, 2_000_000)
    session.put_compilation(replace(first, lowering=replace(first.lowering, decisions=(decision,))))
    (row,) = [f for f in home(session)["findings"] if "through memory" in f["title"]]
    assert row["fixes"] == []
    assert row["saves"] == ""
    assert re.match(r"The largest part is 2 MB from \w+ to \w+\. Both write all of it\. No fix is known", row["cause"])


@pytest.mark.parametrize(
    ("sizes", "saves"), [((3, 5, 1), "1 compile"), ((1, 4, 6), ""), ((3, 5, 7), "1 compile"), ((4, 0), "")]
)
def test_sizes_0_and_1_are_compiled_for_themselves(sizes: tuple[int, ...], saves: str) -> None:
    """No mark saves their compile, and none makes one entry of a first size 1 and others."""
    engine.reset()

    def mean(x: torch.Tensor) -> torch.Tensor:
        return x.sum(-1) * 2

    compiled = engine.compile(mean, backend="eager")
    with engine.record() as session:
        for size in sizes:
            compiled(torch.ones(size, 6))
    (found,) = findings(session)[:1]
    assert found.saves.partition(",")[0] == saves
    assert any(text.startswith("No fix needed: sizes 0 and 1") for text, _ in found.fixes) == (not saves)


REPEATED_STATE = """\
import engine
class Counter:
    def __init__(self):
        self.calls, self.mean = 0, 0.0

def limited(x, state):
    state.calls += 1
    return x * 2 if state.calls < 1000 else x

def averaged(x, state):
    state.calls += 1
    state.mean += (x.sum() - state.mean) / state.calls
    return state.mean

def grow(ids):
    return ids.float() * torch.arange(ids.shape[1])[:, None].sum()

first, second = Counter(), Counter()
for _ in range(2):
    limited(torch.ones(3), first)
    averaged(torch.ones(3), second)
ids = torch.zeros(2, 16, dtype=torch.long)
grow(ids)
ids = ids[:1, :4]
for _ in range(3):
    grow(ids)
    ids = torch.cat((ids, ids[:, -1:]), 1)
"""


def test_a_fix_is_offered_only_where_it_helps(shell: Shell) -> None:
    """Compared numbers stay numbers; values that changed together share a fix."""
    found = {f.title: f for f in findings(run(shell, REPEATED_STATE))}
    ((text, code),) = found["limited recompiles: state.calls 0 -> 1"].fixes
    assert text.startswith("No fix needed: state.calls is a symbol in the recompiled code")
    assert text.endswith("A tensor would break the graph where it is compared (line 8).")
    assert not code
    ((text, code),) = found["averaged recompiles: state.calls 0 -> 1"].fixes
    assert text.endswith("not part of the code; the same for state.mean")
    assert code == "state.calls = torch.tensor(state.calls)\nstate.mean = torch.tensor(state.mean)"
    ((text, _),) = found["grow recompiles: ids shape: [2, 16] -> [1, 4]"].fixes
    assert text.startswith("No fix needed: sizes 0 and 1")
    ((text, _),) = found["grow recompiles: ids is not a view of another tensor in this call"].fixes
    assert text.startswith("Pass ids as a view in every call or in none")


@forks
def test_a_replay_without_results_claims_no_equal_ones(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that only calls has nothing to compare; a fix without effect saves nothing."""
    made: list[CompileRun] = []
    show = CompileRun.show
    monkeypatch.setattr(CompileRun, "show", lambda self: (made.append(self), show(self)))
    session = run(shell, "def f(x):\n    print('called')\n    return x * 2\n\nfor n in (3, 4):\n    f(torch.ones(n))\n")
    cell = made[0]._make_cell_replay()
    replay = made[0]._make_replay(cell)
    assert cell is not None
    assert replay is not None
    editor = made[0]._make_editor(cell)
    assert editor is not None
    text = editor.answer("open", "cell", "cell", "")["text"]
    found = editor.answer("apply", "cell", "cell", text.replace("x * 2", "x * 3"))
    nothing = "the cell neither shows nor assigns a tensor or float"
    assert found["trial"]["sentence"] == f"No results were compared: {nothing}."
    first = home(session)["findings"][0]
    assert first["saves"]
    verified = replay_edit(session, first["edit"]["id"], replay)
    assert verified is not None
    assert verified.text.endswith(f"no results to compare: {nothing}")
    replayed_edits[session][first["edit"]["id"]] = Replayed("no effect: the counts do not change", helps=False)
    assert home(session)["findings"][0]["saves"] == ""
