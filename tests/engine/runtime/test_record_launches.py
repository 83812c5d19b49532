"""Launches are recorded where a session asks for them, in groups, and nowhere else."""

from __future__ import annotations

import pathlib
import sys

import pytest
import torch

import engine
from engine.ir.kernels.llvm_machine import why_llvm_is_missing
from engine.records.session import FrameRecord
from engine.runtime import program_executor, program_text, record_launches
from engine.runtime.cuda_graphs import CudaGraphReplay
from engine.runtime.workers.process_pool import WorkerPool
from tests.engine.runtime.test_cuda_graphs import Tape
from tests.engine.runtime.test_program_executor import gelu_and_softmax

needs_llvm = pytest.mark.skipif(bool(why_llvm_is_missing()), reason="llvmlite is not installed")


def scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Two kernels forward, two backward."""
    return torch.softmax(x * w, -1)


@needs_llvm
def test_launches_are_grouped_by_shape_and_line(tmp_path: pathlib.Path) -> None:
    """Equal launches of one line are a group with times, which a file keeps."""
    f = engine.compile(scores)
    w = torch.randn(4096, requires_grad=True)
    f(torch.randn(128, 4096), w).sum().backward()  # compiled before the session opens
    with engine.record(launches=True) as session:
        for rows in (128, 128, 128, 256):
            made = f(torch.randn(rows, 4096), w)
        line = sys._getframe().f_lineno - 1
        made.sum().backward()
        f(torch.randn(128, 4096), w)
    forward = [g for g in session.launches if g.kernel == "c1"]  # c0 copies the weight for the backward
    assert [(g.compilation.partition("/")[2], g.arguments["x_ptr"], g.count) for g in forward] == [
        ("0", "f32[128, 4096]", 3),
        ("1", "f32[256, 4096]", 1),
        ("1", "f32[128, 4096]", 1),
    ]
    assert [g.caller.line - line if g.caller else None for g in forward] == [0, 0, 3]
    assert all(g.fastest and g.seconds and 0 < g.fastest <= g.seconds for g in forward)
    assert forward[0].grid == (128,)
    backward = [g for g in session.launches if g.kernel.startswith("b")]
    assert [g.caller.line - line if g.caller else None for g in backward] == [2] * len(backward) != []
    session.save(tmp_path / "s.json")
    assert engine.Session.load(tmp_path / "s.json").launches == session.launches


@needs_llvm
def test_programs_have_no_reports_without_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated Python reports launches only while a session asks."""
    texts: list[str] = []
    written = program_text.ProgramWriter.text

    def text(self: program_text.ProgramWriter, *, checks: bool = True) -> str:
        texts.append(written(self, checks=checks))
        return texts[-1]

    monkeypatch.setattr(program_text.ProgramWriter, "text", text)
    f = engine.compile(scores)
    x, w = torch.randn(8, 64), torch.randn(64)
    with engine.record() as plain:
        f(x, w)
    with engine.record(launches=True) as asked:
        f(x, w)
    f(x, w)
    assert ["report(" in t for t in texts] == [False, True, False]
    assert (len(plain.launches), sum(g.count for g in asked.launches)) == (0, 1)


@needs_llvm
def test_groups_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches beyond the groups that are kept are counted in a note; known groups still grow."""
    monkeypatch.setattr(record_launches, "MAX_GROUPS", 2)
    f = engine.compile(scores, dynamic=True)
    w = torch.randn(64)
    with engine.record(launches=True) as session:
        for rows in (8, 9, 10, 11, 8):
            f(torch.randn(rows, 64), w)
    assert [g.count for g in session.launches] == [2, 1]
    assert "launched 2 times" in str(session.kernels)
    assert session.notes == ("Launches were recorded in 2 groups: 2 further ones are left out.",)


@pytest.mark.skipif(sys.platform != "linux", reason="Triton is for Linux")
@pytest.mark.thorough
def test_interpreted_triton_kernels_report_too(interpreter: WorkerPool) -> None:
    """A Triton launch has shapes, numbers and a grid."""
    groups = interpreter.call(
        "tests.engine.runtime.worker_tasks:run_reporting",
        (gelu_and_softmax(), torch.randn(4, 8), torch.randn(8, 100)),
    )
    assert [g.count for g in groups] == [2] * len(groups) != []
    assert all(g.grid and g.fastest for g in groups)
    assert {"f32[4, 100]"} <= {text for g in groups for text in g.arguments.values()}


@needs_llvm
def test_a_replay_reports_the_launches_of_its_recording() -> None:
    """Each replay counts the launches of its recording, without times."""
    engine.reset()
    found: list[program_executor.ProgramExecutor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_launches, "add_program", found.append)
        patch.setattr(program_executor, "add_program", found.append)
        engine.compile(scores)(torch.randn(8, 64), torch.randn(64))
    (program,) = found
    record_launches.add_program(program)
    replayed = CudaGraphReplay(program, Tape())
    x, w = torch.randn(8, 64), torch.randn(64)
    with engine.record(launches=True) as session:
        session.add_frame(FrameRecord(program._compilation.partition("/")[0], "scores", "", 1))
        for _ in range(6):
            replayed(x, w)
    launched, (captured,) = (
        [g for g in session.launches if not g.is_replay],
        [g for g in session.launches if g.is_replay],
    )
    assert captured.arguments["x_ptr"] == "f32[8, 64]"
    assert captured.seconds is captured.fastest is None
    assert captured.count > 1
    assert launched
    replayed(x, w)
    assert [g for g in session.launches if g.is_replay] == [captured]
