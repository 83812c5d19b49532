"""%%compile in a shell: roots, state afterwards and messages for bad input."""

from __future__ import annotations

import base64
import inspect
import io
import logging
import pathlib
import pickle
import re
import zlib
from collections.abc import Callable

import pytest

from engine.records.counts import groups
from notebook_ext import tracebacks
from notebook_ext.views.breaks import breaks
from notebook_ext.views.home import findings, home
from notebook_ext.views.summary import summary
from tests.notebook_ext.conftest import Shell
from tests.notebook_ext.sample_sessions import head_session

SOFTMAX = "def f(x):\n    return torch.softmax(x * 0.5, dim=-1)\n"


def names(shell: Shell) -> list[str]:
    """Names of the frames that the last cell called itself."""
    return [f.name for f in shell.ns["_compile"].frames if not f.parent]


@pytest.mark.thorough
def test_a_function_defined_and_called_in_the_cell_is_compiled(shell: Shell) -> None:
    """The function becomes a root, and the cell displays the last value, equal to Python's."""
    ran = shell.run(f"%%compile\n{SOFTMAX}x = torch.ones(2, 4)\nf(x)")
    assert ran.succeeded, ran.text
    assert names(shell) == ["f"]
    assert "tensor([[0.2500" in ran.text
    assert shell.ns["_"].shape == (2, 4)


def test_a_semicolon_hides_the_last_value(shell: Shell) -> None:
    """As in a plain cell, ``;`` at the end suppresses the display."""
    ran = shell.run(f"%%compile\n{SOFTMAX}f(torch.ones(2, 4));")
    assert ran.succeeded
    assert "tensor(" not in ran.text


def test_a_compiled_function_stays_what_it_was(shell: Shell) -> None:
    """type, source, signature and pickling by name are unchanged after the cell."""
    shell.run(f"%%compile\n{SOFTMAX}f(torch.ones(2, 4));")
    f = shell.ns["f"]
    assert inspect.isfunction(f)
    assert inspect.getsource(f) == SOFTMAX
    assert str(inspect.signature(f)) == "(x)"
    assert f.__name__ == f.__qualname__ == "f"
    shell.run("import pickle\nsame = pickle.loads(pickle.dumps(f)) is f")
    assert shell.ns["same"] is True


def test_a_module_made_in_the_cell_stays_compiled(shell: Shell) -> None:
    """Its class, state_dict keys and pickle are unchanged; a later plain call is dispatched."""
    shell.run(
        "%%compile\nm = nn.Sequential(nn.Linear(4, 4), nn.ReLU())\nwith torch.no_grad():\n    y = m(torch.ones(1, 4))"
    )
    m = shell.ns["m"]
    assert type(m).__name__ == "Sequential"
    assert list(m.state_dict()) == ["0.weight", "0.bias"]
    assert pickle.loads(pickle.dumps(m))[0].weight.equal(m[0].weight)
    assert names(shell) == ["Sequential.forward"]
    from engine.runtime.dispatch.compiled_modules import compiled_forward

    assert compiled_forward(m) is not None


def test_an_older_module_is_compiled_only_during_the_cell(shell: Shell) -> None:
    """A module from an earlier cell is a root of this one, and plain again afterwards."""
    shell.run("m = nn.Linear(4, 4)")
    ran = shell.run("%%compile\nwith torch.no_grad():\n    m(torch.ones(1, 4))")
    assert ran.succeeded, ran.text
    assert names(shell) == ["Linear.forward"]
    from engine.runtime.dispatch.compiled_modules import compiled_forward

    assert compiled_forward(shell.ns["m"]) is None


def test_an_older_function_is_compiled_only_during_the_cell(shell: Shell) -> None:
    """The name means the same plain function before and after."""
    shell.run(SOFTMAX)
    before = shell.ns["f"]
    shell.run("%%compile\nf(torch.ones(2, 4));")
    assert names(shell) == ["f"]
    assert shell.ns["f"] is before


def test_roots_are_found_in_blocks_and_through_attributes(shell: Shell) -> None:
    """Top-level calls inside for, with, if and comprehensions are compiled.

    This includes calls through attributes and containers.
    """
    shell.run(
        "class Pair(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a, self.b = nn.Linear(2, 2), nn.Tanh()\n"
        "p = Pair()\nfs = [lambda x: x + 1]"
    )
    ran = shell.run(
        "%%compile\nx = torch.ones(1, 2)\nwith torch.no_grad():\n    if True:\n        y = [p.a(x) for _ in range(2)]\n"
        "    for g in fs:\n        z = g(p.b(x))"
    )
    assert ran.succeeded, ran.text
    assert sorted(names(shell)) == ["<lambda>", "Linear.forward", "Tanh.forward"]


def test_a_driver_runs_as_python_and_its_modules_are_compiled(shell: Shell) -> None:
    """A training function runs as Python, and the model and loss that it calls are roots.

    The reason for the function is recorded, and training works.
    """
    ran = shell.run(
        "%%compile\nm, loss_of = nn.Linear(4, 1), nn.MSELoss()\nopt = torch.optim.SGD(m.parameters(), 0.1)\n"
        "def train(steps):\n    for _ in range(steps):\n        loss = loss_of(m(torch.ones(2, 4)), torch.zeros(2, 1))\n"
        "        loss.backward()\n        opt.step()\n        opt.zero_grad()\n    return loss.item()\nfirst, last = train(1), train(20)"
    )
    assert ran.succeeded, ran.text
    assert shell.ns["last"] < shell.ns["first"]
    assert {"Linear.forward", "MSELoss.forward"} <= set(names(shell))
    assert any("train" in s.name and "backward" in s.reason for s in shell.ns["_compile"].skipped)


def test_functions_of_other_files_are_named_unless_they_are_installed(
    shell: Shell, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of the user's own file is told how to compile it; torch's is passed over."""
    (tmp_path / "mine_beside.py").write_text("def twice(x):\n    return x * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    body = "torch.manual_seed(0)\ndef f(x): return x.sin()\nf(mine_beside.twice(torch.ones(3)))"
    shell.run("import mine_beside")
    shell.run(f"%%compile\n{body}")
    skipped = shell.ns["_compile"].skipped
    assert [(s.name, s.hint) for s in skipped] == [("mine_beside.twice", "Name it: %%compile mine_beside.twice")]


def test_methods_comprehensions_and_closures_of_a_driver_are_not_roots(shell: Shell) -> None:
    """Only the modules, losses and plain inner functions that a driver calls are roots.

    The optimizer's closure is part of the driver.
    """
    ran = shell.run(
        "%%compile\nclass Trainer:\n    def __init__(self, m):\n        self.m, self.opt = m, torch.optim.SGD(m.parameters(), 0.1)\n"
        "    def one(self, x):\n        def penalty(y):\n            return y.abs().sum()\n"
        "        def closure():\n            self.opt.zero_grad()\n            loss = self.m(x).pow(2).mean() + 0 * penalty(x)\n"
        "            loss.backward()\n            return loss\n        return self.opt.step(closure).item()\n"
        "    def fit(self, n):\n        return [self.one(torch.ones(2, 4)) for _ in range(n)]\n"
        "losses = Trainer(nn.Linear(4, 1)).fit(4)"
    )
    assert ran.succeeded, ran.text
    assert shell.ns["losses"][-1] < shell.ns["losses"][0]
    assert {n.rpartition(".")[2] for n in names(shell)} == {"forward", "penalty"}


def test_a_closure_of_the_cell_runs_as_python_and_its_modules_are_compiled(shell: Shell) -> None:
    """``opt.step`` calls the closure, which the cell itself does not call."""
    ran = shell.run(
        "%%compile\nm = nn.Linear(2, 1)\nopt = torch.optim.LBFGS(m.parameters(), max_iter=2)\ndef closure():\n"
        "    opt.zero_grad()\n    loss = m(torch.ones(3, 2)).pow(2).mean()\n    loss.backward()\n    return loss\n"
        "losses = [opt.step(closure=closure).item() for _ in range(3)]"
    )
    assert ran.succeeded, ran.text
    assert shell.ns["losses"][-1] < shell.ns["losses"][0]
    assert set(names(shell)) == {"Linear.forward"}
    assert [s.name for s in shell.ns["_compile"].skipped] == ["closure", "opt.step"]


def test_a_cell_without_roots_is_itself_the_frame(shell: Shell) -> None:
    """Tensor code at the top level is compiled as one frame.

    The names that it assigns are in the namespace afterwards.
    """
    shell.run("a = torch.arange(4.0)")
    ran = shell.run("%%compile\nb = a.sin() * 2\nc = b.sum()\nc > 0")
    assert ran.succeeded, ran.text
    assert [f.role for f in shell.ns["_compile"].frames] == ["cell"]
    assert shell.ns["b"].shape == (4,)
    assert "tensor(True)" in ran.text


def test_a_cell_that_computes_nothing_says_so(shell: Shell) -> None:
    """The headline says that nothing was compiled, and the remedy follows."""
    ran = shell.run("%%compile\nprint('hello')")
    assert ran.text.startswith("hello\nNothing was compiled")
    assert "%%compile NAME" in ran.text


def test_the_cell_runs_once(shell: Shell) -> None:
    """Side effects of the top level and of roots happen once."""
    shell.run("count = []")
    shell.run("%%compile\ndef f(x):\n    count.append(1)\n    return x + 1\ncount.append('top')\nf(torch.ones(2));")
    assert shell.ns["count"] == ["top", 1]


def test_names_choose_the_roots(shell: Shell) -> None:
    """With NAMES, only those functions are compiled, whoever calls them.

    Afterwards the names refer to the original functions again.
    """
    shell.run("def inner(x):\n    return x + 1\ndef outer(x):\n    return inner(x) * 2")
    before = shell.ns["inner"]
    ran = shell.run("%%compile inner\ny = outer(torch.ones(2))")
    assert ran.succeeded, ran.text
    assert names(shell) == ["inner"]
    assert shell.ns["inner"] is before


def test_a_name_that_the_cell_defines_is_compiled(shell: Shell) -> None:
    """NAMES may name what the cell itself makes."""
    ran = shell.run(
        "%%compile m\nm = nn.Linear(2, 2)\ndef call(x):\n    return m(x)\nwith torch.no_grad():\n    call(torch.ones(1, 2))"
    )
    assert ran.succeeded, ran.text
    assert names(shell) == ["Linear.forward"]


@pytest.mark.parametrize("chosen", ["update", "adam.step"])
def test_a_step_that_the_user_names_is_compiled(shell: Shell, chosen: str) -> None:
    """An optimizer's step runs as Python only in functions that nobody named."""
    shell.run("p = torch.ones(3, requires_grad=True)\nadam = torch.optim.Adam([p])\ndef update():\n    adam.step()")
    ran = shell.run(f"%%compile {chosen} --backend eager\np.grad = torch.ones(3)\n{chosen}()")
    assert ran.succeeded, ran.text
    assert len(names(shell)) == 1
    assert shell.ns["_compile"].skipped == ()
    assert shell.ns["p"][0] < 1


@pytest.mark.parametrize(
    "source", ["async def h(x):\n    return x\nh(1).close()", "def h(x):\n    yield x\nlist(h(1))"]
)
def test_async_and_generator_roots_run_as_python(shell: Shell, source: str) -> None:
    """They run as Python, with the reason."""
    ran = shell.run(f"%%compile\n{source}")
    assert ran.succeeded, ran.text
    assert [s.name for s in shell.ns["_compile"].skipped] == ["h"]
    assert "runs as Python" in ran.text


def test_a_generator_compiles_what_it_calls(shell: Shell) -> None:
    """A decoding loop that yields compiles its model and helpers; its name stays as it is."""
    ran = shell.run(
        "%%compile --backend eager\nstep = nn.Linear(4, 4)\ndef pick(scores):\n    return scores.argmax(-1)\n"
        "def stream(x):\n    for _ in range(3):\n        x = step(x)\n        yield pick(x).item()\n"
        "given = stream\nlen(list(stream(torch.ones(1, 4))))"
    )
    assert ran.value == 3, ran.text
    assert names(shell) == ["Linear.forward", "pick"]
    assert shell.ns["stream"] is shell.ns["given"]
    assert "stream: runs as Python because it is a generator" in ran.text


def test_a_decorated_generator_compiles_what_it_calls(shell: Shell) -> None:
    """torch.no_grad around a generator method of a module does not hide the module's calls."""
    ran = shell.run(
        "%%compile --backend eager\nclass Walk(nn.Module):\n    def forward(self, x):\n        return x.tanh()\n"
        "    @torch.no_grad()\n    def roll(self, x, n):\n        for _ in range(n):\n            x = self(x)\n"
        "            yield x.sum().item()\nlen(list(Walk().roll(torch.ones(2), 3)))"
    )
    assert ran.value == 3, ran.text
    assert names(shell) == ["Walk.forward"]


def test_the_session_is_bound_and_saved(shell: Shell, tmp_path: pathlib.Path) -> None:
    """-o binds it to a name as well as to _compile, --save writes it, %explore opens the file."""
    path = tmp_path / "s.json"
    shell.run(f"%%compile -o mine --save {path}\n{SOFTMAX}f(torch.ones(2, 4));")
    assert shell.ns["mine"] is shell.ns["_compile"]
    ran = shell.run(f"%explore {path}")
    assert ran.succeeded
    assert ran.text.startswith("f: ")
    shell.ns["path"] = path
    assert shell.run("%explore path").text == ran.text


def test_explore_diff_tells_what_changed(shell: Shell) -> None:
    """%explore --diff compares the last two runs of a cell, or the one or two named.

    A missing run or session gets a message that says what to do.
    """
    shell.run("def f(x):\n    return x + 1")
    shell.run("%%compile f\nf(torch.ones(2));", "a")
    assert "ran only once" in shell.run("%explore --diff").text
    shell.run("def f(x):\n    return x.sin() + 1")
    shell.run("%%compile f -o mine\nf(torch.ones(2));", "a")
    ran = shell.run("%explore --diff")
    assert ran.succeeded
    assert ran.text.startswith("the previous run → this run: 1 of 1 function differs")
    assert "+ line 2: sin = x.sin()" in ran.text
    assert "differ" not in shell.run("%explore --diff mine").text.split("no difference")[0]
    assert "no difference" in shell.run("%explore --diff mine mine").text
    assert "at most two" in shell.run("%explore --diff mine mine mine").text
    assert "neither a session or plan" in shell.run("%explore --different").text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[: len(text) // 2], "was cut off"),
        (lambda text: text.replace('"version": ', '"version": 9', 1), "open it with the version that wrote it"),
        (lambda text: text.replace('"frames": [', '"frames": [5, ', 1), "frames"),
        (lambda text: "[" + text, "s.json"),
        (lambda text: "", "s.json"),
    ],
)
def test_a_damaged_session_is_refused_in_one_line(
    shell: Shell, tmp_path: pathlib.Path, change: Callable[[str], str], said: str
) -> None:
    """%explore of a damaged file names the file and the cause; the last session stays.

    The file was cut, changed or written by another version.
    """
    path = head_session().save(tmp_path / "s.json")
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    ran = shell.run(f"%explore {path}")
    assert not ran.succeeded
    assert ran.text.startswith("UsageError: ")
    assert said in ran.text
    assert "s.json" in ran.text
    assert len(ran.text.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--backend tritn", "no backend 'tritn'"),
        ("--backend torch:nope", "no backend 'torch:nope'"),
        ("--target h100", "no target 'h100'"),
        ("--nonsense", "no option '--nonsense': %%compile? lists all"),
        ("--bakend eager", "no option '--bakend': did you mean --backend?"),
        ("--backend", "%%compile --backend needs a value after it; %%compile? lists all options."),
        ("--world two", "%%compile --world needs a whole number, not 'two'."),
        ("nowhere", "no 'nowhere' here"),
        ("number", "'number' cannot be compiled: it is of type int"),
        ("nn.Linear", "it is a class"),
        ('"open', "A quote is not closed"),
        ("--dynamic --static", "exclude each other"),
        ("-o 1x", "needs a Python name"),
        ("--save /no/such/folder/x.json", "there is no folder"),
    ],
)
def test_bad_arguments_are_one_sentence_and_run_nothing(shell: Shell, line: str, said: str) -> None:
    """The cell does not run, and no traceback is shown."""
    shell.run("number = 1")
    ran = shell.run(f"%%compile {line}\nran_anyway = True")
    assert not ran.succeeded
    assert ran.text.startswith("UsageError: ")
    assert said in ran.text
    assert len(ran.text.strip().splitlines()) == 1
    assert "ran_anyway" not in shell.ns


def test_top_level_await_is_refused(shell: Shell) -> None:
    """One sentence, and nothing has run."""
    ran = shell.run("%%compile\nran_anyway = True\nimport asyncio\nawait asyncio.sleep(0)")
    assert "await" in ran.text
    assert "Traceback" not in ran.text
    assert "ran_anyway" not in shell.ns


@pytest.mark.parametrize(
    "body",
    [
        "def g(x):\n    raise ValueError('no')\n\nfor i in range(2):\n    g(\n      i)",
        "x = [1, 2]\ny = (x\n  .index(\n    3))",
        "torch.ones(2) @ torch.ones(3)",
        "undefined_name(1)",
        "def g(x):\n    return torch.ones(2) @ x\ng(torch.ones(3))",
        "class M(nn.Module):\n    def forward(self, x):\n        return x + self.missing\nM()(torch.ones(2))",
        "def g(x):\n    try:\n        {}['key']\n    except KeyError as error:\n        raise RuntimeError('second') from error\ng(torch.ones(1))",
    ],
    ids=["nested", "chain", "plain", "name", "function", "module", "cause"],
)
def test_an_error_looks_as_it_does_without_us(shell: Shell, body: str) -> None:
    """The traceback equals that of the cell without the magic; the summary follows it.

    The summary is that of the explorer.
    """
    plain = shell.run(body)
    ran = shell.run(f"%%compile\n{body}")
    assert not ran.succeeded
    assert type(ran.error) is type(plain.error)
    expected = without_numbers(plain.text)
    assert without_numbers(ran.text).startswith(expected)
    assert "compiled" in ran.text.removeprefix(expected) or "graph" in ran.text.removeprefix(expected)
    assert "_compile" in shell.ns


def without_numbers(text: str) -> str:
    """Remove the cell number and torch's module call step from a traceback.

    The step is torch's own, from a module's call to its forward.
    """
    step = r"File \S+/torch/nn/modules/module\.py:\d+, in Module\.\w*call_impl\(.*?\n\n"
    return re.sub(r"In\[\d+\]", "In[n]", re.sub(step, "", text, flags=re.DOTALL))


def test_an_error_is_placed_at_the_whole_expression(shell: Shell) -> None:
    """``x.sin() @ x`` is no call of ``x.sin``."""
    ran = shell.run("%%compile\ndef f(x): return x.sin() @ x\nf(torch.ones(2, 3))")
    assert "raises an exception (line 1: x.sin() @ x)" in ran.text


def test_an_error_before_any_call_is_named_as_the_reason(shell: Shell) -> None:
    """A cell that fails before its first call says so instead of 'nothing was called'."""
    shell.run("%%compile\ndef f(x): return x.sin()\nf(misspelled)")
    (skipped,) = shell.ns["_compile"].skipped
    assert (skipped.name, skipped.reason.partition(" was")[0]) == ("the cell", "NameError")


def test_a_syntax_error_looks_as_it_does_without_us(shell: Shell) -> None:
    """As IPython shows it, and nothing has run."""
    plain = shell.run("ok = 1\ndef f(x)\n    return x")
    ran = shell.run("%%compile\nok = 2\ndef f(x)\n    return x")
    assert without_numbers(ran.text) == without_numbers(plain.text)
    assert "ok" not in shell.ns


def test_after_an_error_everything_works_again(shell: Shell) -> None:
    """After an error, assigned names exist, older objects are plain, and cells compile.

    The assigned names are those from before the error; the next cell compiles.
    """
    shell.run(f"{SOFTMAX}m = nn.Linear(4, 4)")
    before = shell.ns["f"]
    ran = shell.run("%%compile\nkept = f(m(torch.ones(2, 4)))\nraise RuntimeError('later')")
    assert not ran.succeeded
    assert shell.ns["kept"].shape == (2, 4)
    assert shell.ns["f"] is before
    assert shell.run("%%compile\nf(torch.ones(2, 4)).shape").succeeded
    assert names(shell) == ["f"]


def test_magics_inside_the_cell_work(shell: Shell) -> None:
    """Line magics in the body are run as in any cell."""
    ran = shell.run(f"%%compile\n{SOFTMAX}%time y = f(torch.ones(2, 4))")
    assert ran.succeeded, ran.text
    assert shell.ns["y"].shape == (2, 4)


def test_compile_name_keeps_it_compiled(shell: Shell) -> None:
    """%compile on a function or module keeps it compiled after the line."""
    shell.run(f"{SOFTMAX}m = nn.Linear(4, 4)")
    plain = shell.ns["f"]
    assert shell.run("%compile f").succeeded
    assert shell.run("%compile m").succeeded
    from engine.runtime.dispatch.compiled_modules import compiled_forward
    from engine.runtime.dispatch.dispatcher import dispatcher_state_of, unwrap_compiled

    assert dispatcher_state_of(shell.ns["f"]) is not None
    assert unwrap_compiled(shell.ns["f"]) is plain
    assert compiled_forward(shell.ns["m"]) is not None


def test_compile_expression_gives_its_value(shell: Shell) -> None:
    """%compile EXPR runs the expression compiled; its value can be assigned."""
    shell.run(SOFTMAX)
    ran = shell.run("y = %compile f(torch.ones(2, 4))")
    assert ran.succeeded, ran.text
    assert shell.ns["y"].shape == (2, 4)
    assert names(shell) == ["f"]


def test_guards_recompiles_and_kernels_answer_in_text(shell: Shell) -> None:
    """Each magic names the function's guards, reasons and kernels.

    %guards with a call explains the call and runs nothing.
    """
    shell.run(f"%%compile\n{SOFTMAX}f(torch.ones(2, 4)); f(torch.ones(3, 4));")
    named = {line.partition(":")[0] for line in shell.run("%guards f").text.splitlines() if not line.startswith(" ")}
    assert named == {"entry 0", "entry 1"}
    assert "would use entry 1." in shell.run("%guards f(torch.ones(2, 4))").text
    assert "  entry 1: " in shell.run("%guards f(torch.ones(2, 4).double())").text
    assert "f entry 1 k0 " in shell.run("%kernels f").text
    assert "f: 2 entries" in shell.run("%recompiles f").text
    assert "triton" in shell.run("%kernels f").text


@pytest.mark.thorough
def test_completion_offers_options_values_and_names(shell: Shell) -> None:
    """Completion after %%compile offers options, backends, targets and names.

    The names are those of functions and modules.
    """
    shell.run(SOFTMAX)

    def complete(line: str) -> list[str]:
        return list(shell.shell.complete("", line, len(line))[1])

    assert complete("%%compile --ba") == ["--backend"]
    assert "triton" in complete("%%compile --backend tr")
    assert "inductor" in complete("%%compile --backend torch:i")
    assert "90" in complete("%%compile --target cuda:")
    assert "f" in complete("%%compile f")


def test_help_lists_every_argument(shell: Shell) -> None:
    """The magic's docstring, which ``%%compile?`` shows, has all options."""
    text = shell.shell.find_cell_magic("compile").__doc__
    assert "%%compile [" in text
    for flag in (
        "--backend",
        "--target",
        "--dynamic",
        "--compare",
        "--verify",
        "--steps",
        "--launches",
        "--keep",
        "--no-static",
        "--save",
        "-o",
    ):
        assert flag in text


def test_unloading_takes_the_magics_away(shell: Shell) -> None:
    """After %unload_ext no magic of ours is left; loading again brings them back."""
    shell.run("%unload_ext notebook_ext")
    assert shell.shell.find_cell_magic("compile") is None
    assert shell.run("%load_ext notebook_ext").succeeded
    assert shell.shell.find_cell_magic("compile") is not None


MIXERS = """%%compile --backend torch:eager
class First(nn.Module):
    def forward(self, x):
        return x.relu()

class Second(nn.Module):
    def forward(self, x):
        print("mean", x.mean().item())
        return x.tanh()

head = nn.Linear(4, 2)
for n in (2, 3, 4):
    head(Second()(First()(torch.randn(n, 4))))
"""


def test_stock_names_what_a_stranger_wrote(shell: Shell) -> None:
    """Models of a cell keep their frames, layers their arguments; no Dynamo name is shown."""
    shell.run(MIXERS)
    session = shell.ns["_compile"]
    assert [(g.root.name, len(g.compilations)) for g in groups(session)] == [
        ("First.forward", 2), ("Second.forward", 6), ("Linear.forward", 2),
    ]  # fmt: skip
    resumed = {f.name.partition(" (")[0] for f in session.frames if f.role == "resume"}
    assert resumed == {"Second.forward"}
    rows = {row["name"]: row for row in home(session)["compiled"]}
    assert {row["calls"] for row in rows.values()} == {3}
    assert rows["Linear.forward"]["inputs"] == "input f32[2, 4]"
    found = findings(session)
    texts = "\n".join(" ".join((f.title, f.cause, f.edit_text, *(t for t, _ in f.fixes))) for f in found)
    assert not re.search(r"___stack|arguments|Please report|float32", texts)
    assert "Remove the graph break before this line" in texts
    removals = [f for f in found if f.edit_text.startswith("Remove print()")]
    assert len(removals) == 1  # Both breaks of the line have one edit.
    assert "The edit of finding 1 fixes this, too." in texts
    told = shell.run("%guards head(torch.randn(3, 4))").text
    assert told.startswith("This call would use entry ")


def test_a_module_can_change_compilers_from_cell_to_cell(shell: Shell) -> None:
    """A module can switch between stock torch.compile and this engine in each cell.

    It works in both directions.
    """
    ran = shell.run(
        "%%compile --backend torch:eager\nm = nn.Linear(4, 4)\nwith torch.no_grad():\n    m(torch.ones(1, 4))"
    )
    assert ran.succeeded, ran.text
    assert shell.ns["_compile"].compiler == "torch"
    assert "not checked (run with --compare instead of --backend)" in ran.text
    ran = shell.run("%%compile\nwith torch.no_grad():\n    m(torch.ones(1, 4))")
    assert ran.succeeded, ran.text
    assert "Nothing was compiled" not in ran.text
    assert names(shell) == ["Linear.forward"]


def test_warnings_of_stock_torch_compile_are_folded_into_one_note(shell: Shell) -> None:
    """The session keeps their text; after the cell, warnings reach the screen again."""
    screen, log = io.StringIO(), logging.getLogger("torch._dynamo")
    handler = logging.StreamHandler(screen)
    log.addHandler(handler)
    try:
        ran = shell.run(
            "%%compile --backend torch:eager\ndef tag(x, k):\n    return x + len(k)\n"
            "for n in range(12):\n    tag(torch.ones(3), 'a' * n)"
        )
        log.warning("after the cell")
    finally:
        log.removeHandler(handler)
    assert ran.succeeded, ran.text
    assert screen.getvalue() == "after the cell\n"
    (note,) = (n for n in shell.ns["_compile"].notes if "logged" in n)
    assert note.startswith("torch.compile logged 1 warning: torch._dynamo hit config.recompile_limit (8).")
    (text,) = (a.text for a in shell.ns["_compile"].artifacts if a.name == "warnings of torch.compile")
    assert "function: 'tag'" in text


@pytest.mark.thorough
def test_a_cell_is_saved_as_one_page_that_says_what_it_holds(shell: Shell, tmp_path: pathlib.Path) -> None:
    """--save FILE.html writes the explorer with all kernels compiled so far.

    Page and summary name whose source is inside.
    """
    path = tmp_path / "softmax.html"
    shell.run(f"%%compile --save {path}\n{SOFTMAX}f(torch.ones(2, 4));")
    text = path.read_text(encoding="utf-8")
    parts = re.findall(r'<script type="text/plain" id="p\d+">(.*?)</script>', text)
    assert any(b"torch.softmax" in zlib.decompress(base64.b64decode(part)) for part in parts)
    assert len(text) < 400_000
    assert "default-src 'none'" in text
    assert 'class="private">This page contains ' in text
    assert "no tensor values" in text
    assert any("Saved as softmax.html. It contains " in note for note in shell.ns["_compile"].notes)


def test_a_file_that_cannot_be_written_costs_no_result(shell: Shell, tmp_path: pathlib.Path) -> None:
    """The cell's work is kept, and the summary says why there is no file."""
    path = tmp_path / "taken.html"
    path.mkdir()
    ran = shell.run(f"%%compile --save {path}\n{SOFTMAX}y = f(torch.ones(2, 4))")
    assert ran.succeeded, ran.text
    assert shell.ns["y"].shape == (2, 4)
    assert any(note.startswith("Not saved as taken.html") for note in shell.ns["_compile"].notes)


def test_files_that_mean_compiling_exist() -> None:
    """An interrupt while compiling is known by files on the stack, each of which is there."""
    assert all(pathlib.Path(file).is_file() for file in tracebacks.COMPILING_FILES)


def test_an_exception_of_compiled_code_is_no_success(shell: Shell) -> None:
    """A branch that only raises is left out of the graph; a call that takes it raises."""
    ran = shell.run("""%%compile --backend eager
def head(x, labels):
    if labels.max() >= 5:
        raise ValueError(f"label {labels.max()} is out of range")
    return x.sum() + labels.sum()

for last in (1, 7):
    head(torch.ones(3), torch.tensor([0, last]))
""")
    assert not ran.succeeded
    session = shell.ns["_compile"]
    assert breaks(session)["breaks"] == []
    told = home(session)
    assert told["outcome"].endswith("; then the cell raised ValueError.")
    assert told["tone"] == "bad"
    assert told["findings"][0]["title"] == "The cell raised ValueError: label 7 is out of range"
    assert told["findings"][0]["place"] == "line 3"
    assert told["findings"][0]["pointed"].startswith("raise ValueError(f")
    assert "The cell raised ValueError: label 7 is out of range." in summary(session).notes
