"""Edited graphs: text reads back, replaces its graph, is checked and kept."""

from __future__ import annotations

import ast
import pathlib
import runpy

import pytest
import torch
import torch.nn.functional as F

import engine
from engine import errors
from engine.editing.edit_graphs import edit_file_text
from engine.graph.user_passes.read_graph import lines_of, read_graph
from engine.records.graph import PassRecord


def bias_gelu(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = F.gelu(x + b)
    y += 1
    y[0] = 3.0
    return y.sum(-1)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 8), torch.randn(8)


def text_of(stage: str) -> str:
    engine.reset()
    with engine.record() as session:
        engine.compile(bias_gelu, backend="aot_eager")(*inputs())
    return engine.graph_text(session, session.compilations[0].id, stage)


def edits(session: engine.Session) -> list[PassRecord]:
    return [p for c in session.compilations for g in c.graphs for p in g.passes if p.is_user]


@pytest.mark.parametrize("stage", ["fx", "aten"])
def test_an_edit_replaces_its_graph(stage: str) -> None:
    """The result is the edited graph's; a difference of values is recorded, with a warning."""
    x, b = inputs()
    text = text_of(stage)
    same = engine.edited(bias_gelu, {"same": text}, backend="aot_eager")
    torch.testing.assert_close(same(x, b), bias_gelu(x, b))
    assert same.unused == ()
    changed = text.replace("F.gelu(", "F.relu(").replace("aten.gelu(", "aten.relu(")
    with engine.record() as session, pytest.warns(errors.WrongResult, match="changes values: result 0 differs"):
        made = engine.edited(bias_gelu, {"mine": changed}, backend="aot_eager")(x, b)
    want = F.relu(x + b) + 1
    want[0] = 3
    torch.testing.assert_close(made, want.sum(-1))
    (record,) = edits(session)
    assert "differs" in record.difference
    graph = next(g for g in session.compilations[0].graphs if g.stage == stage)
    lines = {n.name: n.span for n in graph.nodes if n.op == "call_function"}
    assert all(lines.values())
    torch.testing.assert_close(engine.compile(bias_gelu, backend="aot_eager")(x, b), bias_gelu(x, b))


FAULTS = {  # edit, sentence, and its line: the last one for -1
    "does not parse": ("(add)", "(add", "syntax error: '(' was never closed: gelu = aten.gelu(add", 4),
    "breaks a later line": ("add = aten.add.Tensor(x, b)", "add = aten.sum(x)", "the graph cannot run at select", 3),
    "returns no tuple": ("return (", "return 1 # (", "a graph returns a tuple, as in: return (x,), not: return 1", -1),
    "unknown name": ("(add)", "(nope)", "NameError: name 'nope' is not defined", 4),
    "another signature": ("def graph(x, b)", "def graph(x)", "the text must begin with: def graph(x, b):", 2),
    "another result": ("return (", "return (add, ", "the graph returns 2 results, and returned 1 before", -1),
    "no statement": ("gelu = ", "del ", "each line must be an assignment to one name, or the return", 4),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_sentence_at_its_line(fault: str) -> None:
    """A text that cannot be used is undone: the result is eager's, the warning names the line."""
    x, b = inputs()
    old, new, sentence, line = FAULTS[fault]
    text = text_of("aten").replace(old, new, 1)
    if fault == "no statement":
        text = text.replace("del aten.gelu(add)", "del add")
    number = len(text.splitlines()) if line < 0 else line  # versions of torch decompose into more or fewer lines
    with engine.record() as session, pytest.warns(errors.PassUndone, match=rf"line {number}\b"):
        made = engine.edited(bias_gelu, {"mine": text}, backend="aot_eager")(x, b)
    torch.testing.assert_close(made, bias_gelu(x, b))
    assert sentence in edits(session)[0].failure


@pytest.mark.parametrize("stage", ["fx", "aten"])
def test_what_is_read_at_run_time_may_be_computed_otherwise(stage: str) -> None:
    """A line before ``item()`` can be edited; another operator in place of ``item()`` cannot."""

    def branch(x: torch.Tensor) -> tuple[torch.Tensor, bool]:
        y = (x * 2).tanh()
        return y, float(y.sum()) > 1

    engine.reset()
    x = torch.full((8,), 0.01)
    with engine.record() as session:
        engine.compile(branch, backend="aot_eager")(x)
    text = engine.graph_text(session, session.compilations[0].id, stage)
    changed = text.replace("x * 2", "x * 50").replace("(x, 2)", "(x, 50)")
    assert changed != text
    with pytest.warns(errors.WrongResult, match="changes values"):
        result = engine.edited(branch, {"mine": changed}, backend="aot_eager")(x)
    torch.testing.assert_close(result[0], (x * 50).tanh())
    assert result[1] is True
    changed = text.replace("tanh.sum()", "tanh.double().sum()").replace("sum(tanh)", "sum(tanh, dtype=torch.float64)")
    assert changed != text
    with pytest.warns(errors.PassUndone, match="has another operator, or inputs of other shapes or dtypes"):
        engine.edited(branch, {"mine": changed}, backend="aot_eager")(x)


def test_an_edit_is_for_its_graph_only() -> None:
    """Another graph is compiled without the edit, and this is said."""
    text = text_of("aten")
    x = torch.randn(3, 5)
    run = engine.edited(lambda x: x.cos(), {"mine": text}, backend="aot_eager")
    torch.testing.assert_close(run(x), x.cos())
    assert "Compiled without your edit" in run.unused[0]
    assert "has changed since" in run.unused[0]
    with pytest.raises(errors.BadArgument, match="must begin with the comment"):
        engine.edited(bias_gelu, {"mine": "def graph(x):\n    return (x,)"})


def test_an_edit_is_kept_in_a_file(tmp_path: pathlib.Path) -> None:
    """The file compiles the function with the same edit in another process."""
    x, b = inputs()
    text = text_of("aten").replace("aten.gelu(", "aten.relu.default(")
    path = engine.edited(bias_gelu, {"mine": text}, backend="aot_eager").keep(tmp_path / "kept.py")
    assert text in path.read_text()  # line by line, as it was edited
    with pytest.warns(errors.WrongResult):
        made = runpy.run_path(str(path))["apply"](bias_gelu)(x, b)
    want = F.relu(x + b) + 1
    want[0] = 3
    torch.testing.assert_close(made, want.sum(-1))


@pytest.mark.parametrize(
    "text", ['say("""\\n""")\n', "c:\\new\\x", 'ends with "', "a\rb\r\n", "\0\ud800", "", "{x} \u2028"]
)
def test_a_file_of_edits_has_the_text_that_was_kept(text: str) -> None:
    """Quotes, backslashes and line ends of other systems are read back as they were."""
    source = edit_file_text({"k0": text}, "triton")
    values = {n.targets[0].id: n.value for n in ast.parse(source).body if isinstance(n, ast.Assign)}  # type: ignore[attr-defined]
    assert ast.literal_eval(values["TEXTS"]) == {"k0": text}


@pytest.mark.parametrize("stage", ["traced", "aten"])
def test_every_line_reads_back_by_itself(stage: str) -> None:
    """Lines that are evaluated anew give the same graph as those that are copied."""

    def program(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
        y = torch.arange(n, device="cpu", dtype=torch.float32) + x[1:3, None, ..., 0]
        y *= 2
        parts = y.split([1, n - 1], -1)
        return parts[0].contiguous(), torch.where(y > 1, float("inf"), y), torch.full((2,), -1.5)

    seen: list[str] = []

    def read_back(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        *nodes, _ = lines_of(module)
        names = [n.name for n in module.graph.find_nodes(op="placeholder")]
        lines = [line for line in lines_of(module) if line not in names]
        text = "\n".join([f"def graph({', '.join(names)}):", *(f"    {line}" for line in lines)])
        made = read_graph(module, text, "<text>", evaluate_all=True)
        seen.extend(nodes)
        return made

    x = torch.randn(4, 3, 2)
    with engine.register_pass(read_back, stage=stage, verify=True), engine.record() as session:
        for found, want in zip(engine.compile(program, backend="aot_eager")(x, 3), program(x, 3), strict=True):
            torch.testing.assert_close(found, want)
    assert seen
    assert [p.failure for p in edits(session)] == [""]
