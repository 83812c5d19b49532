"""Edits of stages in the explorer: what the view shows after each request."""

from __future__ import annotations

import json
import pathlib
import runpy
from dataclasses import replace
from typing import Any

import pytest
import torch

import engine
from engine import session_jobs
from engine.editing.try_edits import EditTrial
from engine.records.kernels import Listing, TargetRecord
from engine.session_jobs import with_kernels
from notebook_ext.replay.edit_stages import CELL, StageEditor
from notebook_ext.views.cell_edits import CellText
from notebook_ext.views.comparison.session_comparison import comparison, entry_summary, stage_differences


def total(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).sum(-1)


@pytest.fixture
def session() -> engine.Session:
    """Two entries of one function: static, then with a symbol."""
    engine.reset()
    run = engine.compile(total)
    with engine.record() as made:
        run(torch.randn(4, 8))
        run(torch.randn(5, 8))
    return made


def apply(editor: StageEditor, entry: str, stage: str, old: str, new: str) -> dict[str, Any]:
    text = editor.answer("open", entry, stage, "")["text"]
    assert old in text
    found = editor.answer("apply", entry, stage, text.replace(old, new))
    json.dumps(found)
    return found


def test_an_edit_replaces_a_stage_and_shows_the_later_ones(session: engine.Session) -> None:
    """The result has a verdict, times and diffs; the edit is recorded in the session."""
    editor = StageEditor(session)
    entry = session.compilations[0].id
    titles = [c["title"] for c in editor.answer("open", "", "", "")["choices"]]
    assert titles[0] == "total entry 0: Traced graph"
    found = apply(editor, entry, "fx", "x * 3", "x * 4")
    assert not found["trial"]["ok"]
    assert found["trial"]["sentence"].startswith("Result 0 differs from eager")
    assert len(found["trial"]["times"]) == 2
    changed = [d["title"] for d in found["trial"]["differences"]]
    assert changed[:2] == ["Traced graph", "ATen graph"]
    assert any(t.startswith("Kernel") for t in changed)
    assert session.artifacts[-1].name == f"edit of traced graph {entry}"
    assert list(editor.tried) == ["edit 1"]
    compared = found["trial"]["compared"]
    assert compared[0] == f"~{entry}~"
    assert compared[1].startswith("edit 1~")
    assert compared[2] == "fx"


def test_a_kept_edit_says_that_its_results_differ(
    session: engine.Session, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    """The file is written, and nobody takes it for checked."""
    monkeypatch.chdir(tmp_path)
    editor = StageEditor(session)
    entry = session.compilations[0].id
    apply(editor, entry, "fx", "x * 3", "x * 4")
    said = editor.answer("keep", entry, "fx", "")["said"]
    assert said.startswith("Written to edited_total.py")
    assert "Its results are not those of eager: result 0 differs" in said


def test_edits_stack_and_are_undone(session: engine.Session, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    """A later stage is edited on top of an earlier one; undo goes back one by one."""
    monkeypatch.chdir(tmp_path)
    editor = StageEditor(session)
    entry = session.compilations[0].id
    assert "apply one first" in editor.answer("keep", entry, "fx", "")["said"]
    apply(editor, entry, "fx", "x * 3", "x * 4")
    both = apply(editor, entry, "aten", ", 4)", ", 3)")
    assert both["trial"]["ok"], both["trial"]
    assert both["edits"] == ["Traced graph", "ATen graph"]
    said = editor.answer("keep", entry, "aten", "")["said"]
    assert said.startswith("Written to edited_total.py")
    kept = runpy.run_path(str(tmp_path / "edited_total.py"))["apply"](total)
    x = torch.randn(4, 8)
    with pytest.warns(engine.errors.WrongResult):
        torch.testing.assert_close(kept(x), total(x))
    assert kept.unused == ()
    assert editor.answer("undo", entry, "aten", "")["edits"] == ["Traced graph"]
    last = editor.answer("undo", entry, "aten", "")
    assert (last["edits"], last["trial"]) == ([], None)
    assert ", 3)" in last["text"]


def test_another_entry_offers_the_edit(session: engine.Session) -> None:
    """An entry compiled without the edit says so and has the text to apply."""
    editor = StageEditor(session)
    first, second = (c.id for c in session.compilations)
    apply(editor, first, "fx", "x * 3", "x + x + x")
    found = editor.answer("open", second, "fx", "")
    assert found["other"]["entry"] == first
    used = editor.answer("apply", second, "fx", found["other"]["text"])
    assert used["trial"]["ok"], used["trial"]
    assert used["other"] is None


def test_a_fault_marks_its_line(session: engine.Session) -> None:
    """A text that cannot be used is one sentence at a line, and stays to be mended."""
    editor = StageEditor(session)
    entry = session.compilations[0].id
    found = apply(editor, entry, "fx", "x * 3", "x * (3")
    assert (found["trial"]["stage"], found["trial"]["line"]) == ("fx", 3)
    assert found["text"].splitlines()[2].lstrip().startswith("mul = x * (3")
    assert editor.answer("apply", entry, "fx", "nothing")["trial"]["line"] == 1
    assert not editor.tried


def test_a_kernel_more_is_no_change_of_the_later_ones(session: engine.Session) -> None:
    """Kernels are compared by name: their ids count through the program."""
    before = session.compilations[0]
    (kernel,) = before.cpu_kernels
    added = replace(kernel, name="added", text="; added")
    assert before.lowering is not None
    program = replace(before.cpu_program, kernels=(added, replace(kernel, id="c1")))
    after = replace(before, lowering=replace(before.lowering, cpu=program))
    assert [d["title"] for d in stage_differences(before, after) if "llvm" in d["title"]] == ["Kernel c0, new (llvm)"]


def test_a_fault_of_another_stage_is_named(session: engine.Session) -> None:
    """An edit on top of a faulty one says which stage is at fault; so does Keep."""
    editor = StageEditor(session)
    entry = session.compilations[0].id
    apply(editor, entry, "fx", "x * 3", "x * nothing")
    sentence = apply(editor, entry, "aten", ", 3)", ", 4)")["trial"]["sentence"]
    assert sentence.startswith("Traced graph, which is edited too, fails: Line 3:"), sentence
    assert editor.answer("keep", entry, "aten", "")["said"].startswith("Not written, as the edits have no result: Line")


def test_the_cell_is_a_stage_too(session: engine.Session) -> None:
    """Its text comes first; text that is no Python has its line."""

    def try_text(body: str) -> Any:
        return compile(body, "cell", "exec")

    editor = StageEditor(session, CellText("--keep", "y = total(x)\n", "cell"), try_text)
    found = editor.answer("open", "", "", "")
    assert (found["entry"], found["text"]) == (CELL, "%%compile --keep\ny = total(x)\n")
    broken = editor.answer("apply", CELL, CELL, "y = 1\nz = (")
    assert broken["trial"]["line"] == 2


def test_an_edited_cell_is_compared_by_the_names_of_its_functions(session: engine.Session) -> None:
    """It is another file than the cell that ran."""
    engine.reset()
    with engine.record() as edited:
        engine.compile(total)(torch.randn(3, 8))
    for frame in edited.frames:
        edited.add_frame(replace(frame, file="another cell"))
    editor = StageEditor(session, CellText("", "", "cell"), lambda _: EditTrial(session, edited))
    (left, right) = editor.answer("apply", CELL, CELL, "y = 1")["trial"]["compared"]
    assert left.startswith("~")
    assert right == f"edit 1~{edited.compilations[0].id}"


@pytest.mark.thorough
def test_a_kernel_is_edited_and_kept(session: engine.Session, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    """Its listings differ; edits of graphs stack apart from it; the file applies it."""
    monkeypatch.chdir(tmp_path)
    editor = StageEditor(session)
    entry = session.compilations[0].id
    assert session_jobs.wait(session, 120)
    found = apply(editor, entry, "k0", "x * 3.0", "x + x + x")
    assert found["trial"]["ok"], found["trial"]
    assert found["edits"] == ["Kernel k0"]
    changed = [d["title"] for d in found["trial"]["differences"]]
    assert {"Kernel k0 (triton)", "PTX of kernel k0"} <= set(changed)
    assert session.artifacts[-1].name == f"edit of kernel k0 {entry}"
    said = editor.answer("keep", entry, "k0", "")["said"]
    assert said.startswith("Written to edited_total.py")
    assert (
        "Checked on the values of the compiled call (x f32[4, 8]) only; other values, shapes and strides were not"
        in said
    )
    compared = comparison(session, editor.tried["edit 1"], ("a", "b"))
    assert compared["headline"].startswith("a → b: 1 of 1 function differs")
    assert compared["frames"][0]["verdict"] == "different: text of kernels"
    (changed_kernels,) = (c for c in compared["frames"][0]["changes"] if c["what"] == "kernels")
    assert [c.partition(" = ")[2] for c in changed_kernels["only_first"]] == ["x * 3.0"]
    assert [c.partition(" = ")[2] for c in changed_kernels["only_second"]] == ["x + x + x"]
    assert "x + x + x" in (tmp_path / "edited_total.py").read_text()
    assert apply(editor, entry, "fx", "x * 3", "x * 4")["edits"] == ["Traced graph"]
    assert editor.answer("undo", entry, "k0", "")["edits"] == []


def test_a_summary_of_two_entries_tells_equal_counts_of_other_texts(session: engine.Session) -> None:
    """Another operation leaves each count as it is; the digests differ."""
    editor = StageEditor(session)
    entry = session.compilations[0].id
    apply(editor, entry, "fx", "x * 3", "x + 3")
    after = editor.tried["edit 1"]
    before, changed = (
        {n: (t, d) for n, t, d in (*b["facts"], *next(iter(b["programs"].values())))}
        for b in (entry_summary(session, entry), entry_summary(after, after.compilations[0].id))
    )
    for name in ("Traced graph", "ATen graph", "Kernels"):
        assert before[name][0] == changed[name][0]
        assert before[name][1] != changed[name][1]
    assert before["Breaks"] == changed["Breaks"]


@pytest.mark.thorough
def test_inputs_and_options_are_edited(session: engine.Session) -> None:
    """Panes are compared with those recorded; a fault has its line; Python makes the call."""
    editor = StageEditor(session)
    entry = session.compilations[0].id
    found = apply(editor, entry, "call", "float32[4, 8]", "float64[3, 16]")
    assert found["trial"]["ok"], found["trial"]
    changed = {d["title"]: d["rows"] for d in found["trial"]["differences"]}
    assert any("16" in text for _, text in changed["Kernel k0 (triton)"])
    assert "x = torch.randn((3, 16), dtype=torch.float64)" in found["code"]
    assert "There is no edit to keep" in editor.answer("keep", entry, "call", "")["said"]
    again = apply(editor, entry, "call", "dynamic: None", "dynamic: True")
    assert "dynamic=True" in again["code"]
    assert any("height, width" in text for d in again["trial"]["differences"] for _, text in d["rows"])
    for old, new, line, sentence in (
        ("dynamic: True", "dynamic: perhaps", 4, "dynamic is True or False"),
        ("target: None", "target: cuda:1", 6, "There is no target"),
        ("float64[3, 16]", "float64(3)", 2, "write a tensor as"),
    ):
        trial = apply(editor, entry, "call", old, new)["trial"]
        assert sentence in trial["sentence"]
        assert trial["line"] == line + (old[0] != "f")
        editor.answer("undo", entry, "call", "")
    empty = apply(editor, entry, "call", "float64[3, 16]", "float64[-3, 16]")["trial"]
    assert empty["sentence"].startswith("Line 2: x:")


def test_the_next_trial_is_prepared_until_a_cell_runs(session: engine.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial sees the values that the notebook has; each uses a process of its own."""
    cells = [1]
    monkeypatch.setattr("notebook_ext.replay.edit_stages._count_of_cells", lambda: cells[0])
    editor = StageEditor(session)
    entry = session.compilations[0].id
    editor.prepare(entry, "")
    prepared = editor._prepared_trial(entry)
    assert prepared is not None
    editor.prepare(entry, "")
    assert editor._prepared_trial(entry) is prepared
    assert editor._prepared_trial(session.compilations[1].id) is None
    assert apply(editor, entry, "fx", "x * 3", "x * 4")["trial"]["differences"]
    assert not prepared.is_ready
    editor.prepare(entry, "")
    assert editor._prepared_trial(entry) is not None
    cells[0] += 1
    assert editor._prepared_trial(entry) is None
    assert apply(editor, entry, "fx", "x * 4", "3 * x")["trial"]["ok"]


def test_a_listing_that_only_one_side_compiled_is_no_difference(session: engine.Session) -> None:
    """An edited call is not compiled for a GPU further: its PTX did not change to nothing."""
    listing = Listing("ptx", "ret;\n")
    compilation = session.compilations[0]
    compiled = with_kernels(compilation, lambda k: replace(k, targets=(TargetRecord("cuda:90", (listing,)),)))
    other = with_kernels(
        compilation, lambda k: replace(k, targets=(TargetRecord("cuda:90", (replace(listing, text="exit;\n"),)),))
    )
    plain = with_kernels(compilation, lambda k: replace(k, targets=()))
    assert stage_differences(compiled, plain) == stage_differences(plain, compiled) == []
    assert {d["title"].partition(" of ")[0] for d in stage_differences(compiled, other)} == {"PTX"}
    assert any(d["title"].startswith("PTX") for d in stage_differences(None, compiled))
