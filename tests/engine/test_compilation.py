"""The record of one compilation: what stages add, and what is added after it has ended."""

from __future__ import annotations

import gc

import pytest

import engine
from engine.compilation import Compilation, record_compilation
from engine.ir.current_session import set_current_session
from engine.records.lowering import LoweringRecord
from engine.records.session import CompilationRecord, Session


def record_of(session: Session) -> CompilationRecord:
    """The one compilation of a session."""
    (record,) = session.compilations
    return record


def test_stages_nest_and_failures_are_recorded() -> None:
    """The session gets timings with parents, and failures with their first error line."""
    session = engine.Session()
    with set_current_session(session), record_compilation(CompilationRecord("0/0", "0", "first"), "triton") as work:
        with work.stage("aot"), work.stage("lowering"):
            assert session.stage == "lowering 0/0"
        work.record_failure("lowering", ValueError("no\nmore"), "ATen runs the graph")
    record = record_of(session)
    assert record.backend == "triton"
    assert [(t.stage, t.parent) for t in record.timings] == [("compile", ""), ("aot", "compile"), ("lowering", "aot")]
    assert [f.sentence for f in record.failures] == ["lowering failed: ValueError: no"]


def test_an_error_leaves_a_record() -> None:
    """A compilation that raises is in the session with what it has until then."""
    session = engine.Session()

    def compile_and_fail() -> None:
        with set_current_session(session), record_compilation(CompilationRecord("0/0", "0", "first"), "eager") as work:
            work.update_record(cause="another")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_and_fail()
    assert record_of(session).cause == "another"


def test_an_interrupt_ends_a_cancelled_compilation_only() -> None:
    """``end_if_cancelled`` passes on an interrupt unless the user cancelled."""
    session = engine.Session()
    work = Compilation(CompilationRecord("0/0", "0", "first"), session)
    with pytest.raises(KeyboardInterrupt), work.end_if_cancelled():
        raise KeyboardInterrupt
    session.is_cancelled = True
    with work.end_if_cancelled():
        raise KeyboardInterrupt
    assert work.is_cancelled


@pytest.mark.parametrize(("stage", "field"), [("forward", "lowering"), ("backward", "backward_lowering")])
def test_launch_modes_are_added_to_the_graph_they_belong_to(stage: str, field: str) -> None:
    """A launch mode is added to its own lowering record, and ignored before lowering.

    Covers the forward and the backward.
    """
    session = engine.Session()
    lowered = CompilationRecord("0/0", "0", "first", **{field: LoweringRecord("cuda:90")})  # type: ignore[arg-type]
    session.put_compilation(lowered)
    session.put_compilation(CompilationRecord("0/1", "0", "second"))
    for id in ("0/0", "0/1"):
        updater = Compilation(CompilationRecord(id, "0", "first"), session).later
        updater.add_launch_mode(stage, "CUDA graph.")
        updater.add_launch_mode(stage, "Again.")
    first, second = session.compilations
    assert getattr(first, field).launch_mode == "CUDA graph. Again."
    assert getattr(second, field) is None


def test_a_compilation_does_not_retain_its_session() -> None:
    """Compiled code holds a compilation; the session it was recorded in can go."""
    session = engine.Session()
    work = Compilation(CompilationRecord("0/0", "0", "first"), session)
    del session
    gc.collect()
    work.later.add_launch_mode("forward", "CUDA graph.")
    assert work.session is None
