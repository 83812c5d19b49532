"""Edited texts of kernels run in a worker, each access checked, faults at their line."""

from __future__ import annotations

import pathlib
import re
import runpy
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

import engine
from engine.editing import try_kernel_edits as trials
from engine.editing.edit_kernels import KernelTextEdit
from engine.editing.edited_kernel_worker import EditedRun
from engine.editing.try_edits import EditTrial
from engine.editing.try_kernel_edits import try_kernel_edits
from engine.records.kernels import KernelRecord
from engine.runtime.workers.process_pool import WorkerPool


def scaled(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((x + b) * 2).sum(-1)


@pytest.fixture(scope="module")
def session() -> Iterator[engine.Session]:
    """One recorded call with a kernel for the CPU, and one for a GPU."""
    engine.reset()
    with engine.record() as made:
        engine.compile(scaled)(torch.randn(6, 64), torch.randn(64))
    trials.start_workers()
    yield made
    engine.reset()


def kernel_text(session: engine.Session, language: str) -> str:
    compilation = session.compilations[0]
    kernels = {k.language: k.id for k in (*compilation.cpu_kernels, *compilation.kernels)}
    return engine.graph_text(session, compilation.id, kernels[language])


def edit(session: engine.Session, language: str, old: str, new: str) -> EditTrial:
    text = kernel_text(session, language)
    assert old in text
    return try_kernel_edits(session, session.compilations[0].id, {"k": text.replace(old, new)})


@pytest.mark.thorough
def test_a_right_edit_of_each_language_shows_its_listings(session: engine.Session) -> None:
    """Values are compared with ATen's; machine code differs; a CPU kernel is timed."""
    found = re.search(r"fmul (<\d+ x float>) %add, splat \(float 0x4000000000000000\)", kernel_text(session, "llvm"))
    assert found is not None
    cpu = edit(session, "llvm", found[0], f"fadd {found[1]} %add, %add")
    assert cpu.sentence == "The kernel's results are those of ATen."
    assert len(cpu.seconds) == 2
    gpu = edit(session, "triton", "add * 2.0", "add + add")
    assert gpu.sentence == cpu.sentence
    before, after = gpu.compilations(session, session.compilations[0].id)
    assert before is not None
    assert after is not None
    assert "add + add" in after.kernels[0].text
    assert "ptx" in [listing.stage for listing in after.kernels[0].targets[0].listings]
    assert "add + add" not in before.kernels[0].text


def test_wrong_values_are_told(session: engine.Session) -> None:
    """The first element that differs from ATen's is named."""
    for language, old, new in (("llvm", "0x4000000000000000", "0x4008000000000000"), ("triton", "2.0", "3.0")):
        found = edit(session, language, old, new)
        assert "in ATen" in found.difference, language
        assert not found.problem


@pytest.mark.parametrize(
    ("language", "old", "new", "sentence"),
    [
        ("llvm", "ret i32", "return i32", "syntax error"),
        ("llvm", "i64 %end) #0", "i64 %end, i64 %more) #0", "must have the type i32 (ptr, i64, i64)"),
        ("llvm", "ptr %sum_ptr, i64 %i0", "ptr %sum_ptr, i64 500", "bytes past the end of sum"),
        ("llvm", "ptr %sum_ptr, i64 %i0", "ptr %b_ptr, i64 %i0", "it writes to b, which it should only read"),
        ("triton", "2.0", "2.0)", "syntax error"),
        ("triton", "add * 2.0", "added * 2.0", "'added' is not defined"),
        ("triton", "b_ptr + col", "b_ptr + col + 1", "it reads past the end of b"),
        ("triton", "sum_ptr + row, ", "sum_ptr + row - 1, ", "it writes 4 bytes before the start of sum"),
        ("triton", "b_ptr, sum_ptr", "sum_ptr, b_ptr", "the kernel is launched with these parameters"),
    ],
)
def test_a_fault_is_one_sentence_at_its_line(
    session: engine.Session, language: str, old: str, new: str, sentence: str
) -> None:
    """The process goes on; the line is the edited one, or the access that follows."""
    found = edit(session, language, old, new)
    assert sentence in found.problem
    assert found.problem.startswith(f"Line {found.line}: ")
    text = kernel_text(session, language).replace(old, new).splitlines()
    edited = next(n for n, line in enumerate(text, 1) if new in line)
    assert edited <= found.line <= edited + 1


@pytest.mark.parametrize(("language", "old"), [("llvm", "ret i32"), ("triton", "def ")])
def test_text_that_does_not_parse_starts_no_process(
    session: engine.Session, language: str, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is named before the kernel's inputs are computed."""
    monkeypatch.setattr(trials, "_call", None)
    monkeypatch.setattr(trials, "_launch_of", None)
    assert "syntax error" in edit(session, language, old, f"wrong {old}").problem


def test_a_store_past_the_only_argument_is_no_read() -> None:
    """A kernel all of whose arguments may be written reads nothing."""
    with engine.record() as filled:
        engine.compile(lambda: torch.full((64,), 2.0))()
    problem = edit(filled, "triton", "_ptr + at", "_ptr + 9999 + at").problem
    assert "it writes " in problem
    assert "bytes past the end of full" in problem


def test_a_kernel_without_values_of_aten_is_compared_with_itself() -> None:
    """The parts of a sum have no node: the kernel before the edit computes them."""
    with engine.record() as split:
        engine.compile(F.cross_entropy)(torch.randn(4, 2), torch.tensor([0, 1, 1, 0]))
    id = split.compilations[0].id
    for kernel in ("c0", "k0"):
        text = engine.graph_text(split, id, kernel)
        same = try_kernel_edits(split, id, {"k": text})
        assert same.sentence == "The kernel's results are those of the kernel before the edit."
        changed = re.sub("fsub|tl.log", lambda found: {"fsub": "fadd"}.get(found[0], "tl.exp"), text)
        assert changed != text
        assert try_kernel_edits(split, id, {"k": changed}).difference.endswith(" before the edit")


def test_what_is_not_written_is_told(session: engine.Session) -> None:
    """An element that still holds the fill of uninitialized memory is no result."""
    store = next(line for line in kernel_text(session, "triton").splitlines() if "tl.store" in line)
    assert "is not written, but " in edit(session, "triton", store, "    pass").difference


@pytest.mark.thorough
def test_an_endless_loop_ends_at_its_line(session: engine.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit stops the worker, in both languages; the next edit runs."""
    monkeypatch.setattr(trials, "SECONDS", 1.0)
    loop = ("    while True:", "        row += 0")
    with_loop = "\n".join([*loop, "    mul ="])
    trial = edit(session, "triton", "    mul =", with_loop)
    assert trial.problem.endswith("the kernel does not end within 1 s.")
    lines = kernel_text(session, "triton").replace("    mul =", with_loop).splitlines()
    assert lines[trial.line - 1] in loop
    endless = edit(session, "llvm", "%i0.next = add i64 %i0, 1", "%i0.next = add i64 %i0, 0")
    assert "does not end within 1 s" in endless.problem
    assert endless.line > 1
    monkeypatch.setattr(trials, "SECONDS", 30.0)
    assert "those of ATen" in edit(session, "triton", "2.0", "(0.75 + 1.25)").sentence


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks a process with threads safely")
def test_the_first_trial_waits_for_no_worker(session: engine.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork runs a CPU kernel until the worker is ready, with the same faults and limits."""
    pool = WorkerPool(1, {})
    monkeypatch.setattr(trials, "_pool", pool)
    monkeypatch.setattr(trials, "_call", None)
    trials.prepare_launch(session, session.compilations[0].id, kernel_text(session, "llvm"))
    right = edit(session, "llvm", "ret i32 %result", "ret i32 %result ; forked")
    assert right.sentence == "The kernel's results are those of ATen."
    assert len(right.seconds) == 2
    after = right.compilations(session, session.compilations[0].id)[1]
    assert after is not None
    assert [x.stage for x in after.cpu_kernels[0].targets[0].listings] == ["llopt", "asm"]
    assert "in ATen" in edit(session, "llvm", "0x4000000000000000", "0x4008000000000000").difference
    past_end = edit(session, "llvm", "ptr %sum_ptr, i64 %i0", "ptr %sum_ptr, i64 500")
    assert "bytes past the end of sum" in past_end.problem
    assert past_end.line > 1
    monkeypatch.setattr(trials, "SECONDS", 1.0)
    endless = edit(session, "llvm", "%i0.next = add i64 %i0, 1", "%i0.next = add i64 %i0, 0")
    assert "does not end within 1 s" in endless.problem
    assert not pool.has_idle_process


def test_a_kept_kernel_runs_after_a_restart(session: engine.Session, tmp_path: pathlib.Path) -> None:
    """The file compiles with the edited kernel; one that is not found is told."""
    text = kernel_text(session, "llvm").replace("0x4000000000000000", "0x4008000000000000")
    engine.edited(scaled, {"three": text}).keep(tmp_path / "kept.py")
    run = runpy.run_path(str(tmp_path / "kept.py"))["apply"](scaled)
    x, b = torch.randn(6, 64), torch.randn(64)
    torch.testing.assert_close(run(x, b), scaled(x, b) * 1.5)
    assert run.unused == ()
    other = engine.edited(scaled, {"three": text.replace("of 0/0", "of 1/0").replace(": ", ": 0", 1)})
    torch.testing.assert_close(other(x, b), scaled(x, b))
    assert "Compiled without your edit" in other.unused[0]


@pytest.mark.thorough
def test_only_the_kernel_that_changed_runs_again(session: engine.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits stack: an edit that did not change keeps its result, and the other kernel runs."""
    ran: list[str] = []
    run = trials._run_uncached

    def counted(launch: trials._Launch, edit: KernelTextEdit) -> EditedRun:
        ran.append(edit.kernel)
        return run(launch, edit)

    monkeypatch.setattr(trials, "_run_uncached", counted)
    cpu, gpu = (kernel_text(session, language) for language in ("llvm", "triton"))
    edits = {"cpu": cpu.replace("; sum", "; once"), "gpu": gpu.replace("2.0", "(1.25 + 0.75)")}
    for texts in (edits, edits | {"gpu": gpu.replace("2.0", "(0.25 + 1.75)")}):
        found = try_kernel_edits(session, session.compilations[0].id, texts)
        assert found.sentence == "The kernel's results are those of ATen."
    assert [kernel[0] for kernel in ran] == ["c", "k", "k"]
    for _ in range(2):  # a wrong kernel runs again: its sentence names a line
        past_end = cpu.replace("ptr %sum_ptr, i64 %i0", "ptr %sum_ptr, i64 500")
        wrong = try_kernel_edits(session, session.compilations[0].id, {"cpu": past_end})
        assert wrong.line
    assert len(ran) == 5


@pytest.mark.thorough
def test_a_kernel_that_cannot_run_alone_stops_no_other_trial(
    session: engine.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its edit is left out and named; the other kernel's result is there."""
    launch_of = trials._launch_of

    def without_triton(made: engine.Session, compilation: str, record: KernelRecord) -> object:
        if record.language == "triton":
            raise ValueError("no ATen node computes its result")
        return launch_of(made, compilation, record)

    monkeypatch.setattr(trials, "_launch_of", without_triton)
    other = kernel_text(session, "triton").replace("add * 2.0", "add * 2")
    own = kernel_text(session, "llvm") + "\n; a comment"
    both = try_kernel_edits(session, session.compilations[0].id, {"t": other, "k": own})
    reason = "cannot be run alone: no ATen node computes its result."
    assert both.problem == ""
    assert both.sentence.startswith("The kernel's results are those of ATen. Kernel ")
    assert both.sentence.endswith(reason)
    alone = try_kernel_edits(session, session.compilations[0].id, {"t": other})
    assert alone.problem.endswith(reason)
    assert alone.edit == "t"
