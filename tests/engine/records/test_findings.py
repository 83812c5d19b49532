"""Findings of sessions: kinds, order, causes, lines, fixes and gains."""

from __future__ import annotations

import torch

import engine
from engine.records.bytecode import Span
from engine.records.counts import nearest_guard_failure
from engine.records.findings import WARM_UP_HITS, Finding, find_problems, span_text, useful_fixes
from engine.records.guards import STORM, Fix, GuardFailure, GuardResult, separate_entries
from engine.records.kernels import KernelRecord, VerifyRecord
from engine.records.lowering import AutotuneChoice, ExternCall, LoweringRecord
from engine.records.runtime import CallRecord, DiskCacheRecord, SkippedRecord, StageFailure, Timing
from engine.records.session import CompilationRecord, FrameRecord, Session


def kinds(session: Session) -> list[str]:
    """Return the kinds of a session's findings, most important first."""
    return [f.kind for f in find_problems(session)]


def first(session: Session, kind: str) -> Finding:
    """Return the first finding of a kind."""
    return next(f for f in find_problems(session) if f.kind == kind)


def test_a_break_in_a_loop_has_its_line_and_its_runs() -> None:
    """A graph break that ran in each call is counted by calls, with its line and hints."""
    engine.reset()

    @engine.compile(backend="eager")
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        print("here")
        return y * 2

    with engine.record() as session:
        for _ in range(5):
            f(torch.ones(3))
    found = first(session, "graph-break")
    assert found.severity == "warning"
    assert found.count == 5
    assert "ran 5 times" in found.title
    assert found.fixes
    assert span_text(session, found.span).startswith("test_findings.py:")
    assert "5 returns to Python" in found.gain


def test_recompiles_of_one_reason_are_one_finding() -> None:
    """Recompiles because of one number are one warning, which sums their times."""
    engine.reset()

    @engine.compile(backend="eager", dynamic=False)
    def f(x: torch.Tensor, flag: str) -> torch.Tensor:
        return x + len(flag)

    with engine.record() as session:
        for n in range(5):
            f(torch.ones(3), "a" * (n + 1))
    found = first(session, "recompiles")
    assert found.count == 4
    assert found.severity == "warning"
    assert found.seconds > 0
    assert "flag" in found.cause
    assert found.view.startswith("recompiles|")


def test_one_recompile_is_only_advice() -> None:
    """A single recompile because of a size is advice, with a fix that is code."""
    engine.reset()

    @engine.compile(backend="eager")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with engine.record() as session:
        f(torch.ones(3))
        f(torch.ones(4))
    found = first(session, "recompiles")
    assert found.severity == "advice"
    assert found.count == 1
    assert any("mark_dynamic" in fix.code for fix in found.fixes)


def test_another_module_is_not_a_value_to_fix() -> None:
    """Two models of one class share a code object: the second is no change of the first."""
    engine.reset()
    models = [torch.nn.Sequential(torch.nn.Linear(4, 4), layer) for layer in (torch.nn.ReLU(), torch.nn.Tanh())]
    with engine.record() as session:
        for model in models:
            engine.compile(model, backend="eager")(torch.ones(2, 4))
    found = first(session, "recompiles")
    assert found.cause.startswith("self is another Sequential than the one before: self[1]")
    assert [f.text for f in found.fixes] == ["No fix needed: another module may need a cache entry of its own."]
    assert (found.severity, found.gain) == ("advice", "")
    engine.reset()
    with engine.record() as session:
        compiled = engine.compile(models[0], backend="eager")
        compiled(torch.ones(2, 4))
        models[0][1] = torch.nn.Tanh()
        compiled(torch.ones(2, 4))
    assert "another Sequential" not in first(session, "recompiles").cause


def test_a_module_of_another_class_is_no_other_one_of_its_class() -> None:
    """Where the type of an argument changes, the sentence says so, and nothing more."""
    engine.reset()
    apply = engine.compile(lambda module, x: module(x), backend="eager")
    with engine.record() as session:
        for module in (torch.nn.ReLU(), torch.nn.Tanh()):
            apply(module, torch.ones(2))
    found = first(session, "recompiles")
    assert found.cause.startswith("module: type is torch.nn.modules.activation.Tanh")
    assert found.fixes[0].text.startswith("No fix needed")


def test_a_session_without_problems_has_no_findings() -> None:
    """A function with one graph, called twice alike, has no findings."""
    engine.reset()

    @engine.compile(backend="eager")
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with engine.record() as session:
        f(torch.ones(3))
        f(torch.ones(3))
    assert find_problems(session) == ()


def test_nothing_compiled_is_an_error() -> None:
    """An empty session is an error that says so, once, with what was not compiled."""
    session = Session()
    assert [(f.kind, f.severity) for f in find_problems(session)] == [("nothing-compiled", "error")]
    session.add_skipped(SkippedRecord("h", "it is a generator"))
    assert [f.cause for f in find_problems(session)] == ["h: it is a generator"]


def sample() -> Session:
    """Return a session that has a finding of every kind that needs a GPU or a log."""
    session = Session()
    frame = FrameRecord("0", "f", "/home/me/model.py", 3)
    session.add_frame(frame)
    choice = AutotuneChoice(("n",), "extern", "the library was preferred", (("extern", 3e-4), ("template 1", 1e-4)))
    lowering = LoweringRecord(
        "cuda:90",
        externs=(ExternCall("n", "aten.sort", "sort has no lowering", kind="missing", hint="Use topk."),),
        launch_mode="Kernels are launched one by one: the graph mutates an input.",
        autotune_choices=(choice,),
    )
    kernel = KernelRecord("k0", "k0", "", verify=VerifyRecord("different", "ATen", 0.5))
    session.put_compilation(
        CompilationRecord(
            "0/0",
            "0",
            "first call",
            lowering=lowering,
            kernels=(kernel,),
            failures=(StageFailure("aot", "it failed", "ran eagerly"),),
            disk_caches=(DiskCacheRecord("FX graph cache", "bypass", note="custom operator"),),
            timings=(Timing("compile", 0, 2.0),),
        )
    )
    return session


def test_errors_come_first_then_seconds() -> None:
    """Findings are ordered by severity, then by the seconds that their fixes save."""
    session = sample()
    session.add_skipped(SkippedRecord("h", "it is a generator"))
    session.add_skipped(SkippedRecord("g", "g was compiled 8 times, which is the recompile limit", "Raise it."))
    found = find_problems(session)
    assert [f.severity for f in found] == sorted((f.severity for f in found), key=["error", "warning", "advice"].index)
    advice = [f for f in found if f.severity == "advice"]
    assert [f.seconds for f in advice] == sorted((f.seconds for f in advice), reverse=True)
    assert set(kinds(session)) >= {
        "not-compiled", "wrong-kernel", "internal-error", "cuda-graph-skip", "autotune-lost", "aten-fallback", "cache-bypass",
    }  # fmt: skip
    assert first(session, "autotune-lost").gain == "200 µs per call"


def test_a_collective_is_no_operator_to_fuse() -> None:
    """The advice to write a lowering is for operators of one's own, not for collectives."""
    calls = [
        ExternCall(f"n{n}", op, "It runs by itself.")
        for n, op in enumerate(("_c10d_functional.all_reduce.default", "mine.scale.default"))
    ]
    session = sample()
    session.put_compilation(
        CompilationRecord("0/1", "0", "n is 4.", lowering=LoweringRecord("cuda:90", externs=tuple(calls)))
    )
    titles = [f.title for f in find_problems(session) if f.kind == "aten-fallback"]
    assert any("mine.scale" in title for title in titles)
    assert not any("all_reduce" in title for title in titles)


def test_slow_guards_are_found() -> None:
    """Guards that take long in most calls after warming up are a finding, with the median."""
    session = sample()
    for n in range(WARM_UP_HITS):
        session.add_call(CallRecord(n, "0", "hit", "0/0", guard_seconds=3e-2))
    assert "guard-latency" not in kinds(session)
    for n, seconds in enumerate((3e-4, 3e-4, 1e-5, 9e-2)):
        session.add_call(CallRecord(WARM_UP_HITS + n, "0", "hit", "0/0", guard_seconds=seconds))
    assert "300 µs per call" in first(session, "guard-latency").title


def test_findings_are_records() -> None:
    """A finding survives JSON, and its place is the file's name and the line."""
    failure = GuardFailure(
        "0/0", "g0", "L['n']", "equal", "3", "4", "n is 4.", Span("/a/b/model.py", 7), (Fix("Pass n as a tensor"),)
    )
    session = sample()
    session.put_compilation(CompilationRecord("0/1", "0", "n is 4."))
    session.add_call(CallRecord(0, "0", "compiled", "0/1", guard_failures=(failure,)))
    found = first(session, "recompiles")
    assert Finding.from_dict(found.to_dict()) == found
    assert span_text(session, found.span) == "model.py:7"


def test_a_call_fits_the_entry_best_whose_sizes_alone_differ() -> None:
    """A growing cache recompiles for its size; the entry for no cache fails fewer guards."""
    results = tuple(GuardResult(str(n), "fail") for n in range(4))
    grown = GuardFailure("0/1", "4", "L['past']", "shape", "[1, 5]", "[1, 6]", "", results=results)
    absent = GuardFailure("0/0", "1", "L['past']", "id", "None", "list of 2", "", results=results[:1])
    assert nearest_guard_failure((grown, absent)) is grown


def test_a_log_blames_the_newest_entry() -> None:
    """Logs have one failed guard of each entry, of the newest entry first, as torch names it."""
    newest = GuardFailure("0/1", "", "self.seen", "equal", "1", "", "")
    oldest = GuardFailure("0/0", "", "L['x']", "tensor size", "4 in dimension 0", "6", "")
    assert nearest_guard_failure((newest, oldest)) is newest


def test_an_entry_that_passes_more_guards_fits_better() -> None:
    """A flag that was switched back is not blamed: an entry for its present value exists."""
    passed = tuple(GuardResult(str(n), "pass") for n in range(3))
    flag = GuardFailure("0/1", "1", "L['enabled']", "equals", "False", "True", "", results=(GuardResult("1", "fail"),))
    scale = GuardFailure(
        "0/0", "3", "L['scale']", "equals", "1.0", "0.5", "", results=(*passed, GuardResult("3", "fail"))
    )
    assert nearest_guard_failure((flag, scale)) is scale


def test_many_values_need_a_fix() -> None:
    """The advice is "No fix needed" for a few values, and a fix where one saves compiles."""
    advice = separate_entries("n", is_flag=False)
    failure = GuardFailure("0/0", "g", "L['n']", "equals", "1", "2", "n is 2", fixes=(advice,))
    compilations = [CompilationRecord(f"0/{i}", "0", "n is 2") for i in range(STORM)]
    session = Session()
    (few,) = useful_fixes(session, failure, compilations[:-1], lambda _: "")
    assert few.text.startswith("No fix needed for a few values: ")
    (many,) = useful_fixes(session, failure, compilations, lambda _: "")
    assert many.text.startswith("Each value of n needs its own cache entry. If there are many")


def test_inputs_that_changed_dtype_together_are_converted_together() -> None:
    """Converting one of two operands would raise in eager; other dtypes are not named."""
    fix = Fix("Convert x before the call, so that one cache entry is enough", "x = x.to(torch.float32)")
    failure = GuardFailure("0/0", "g", "L['x']", "tensor dtype", "f32", "f64", "", fixes=(fix,))
    before = CompilationRecord("0/0", "0", "first call", {"x": "f32[2, 2]", "y": "f32[2]", "ids": "i64[2]"})
    after = CompilationRecord("0/1", "0", "dtype", {"x": "f64[2, 2]", "y": "f64[2]", "ids": "i64[2]"})
    session = Session()
    for record in (before, after):
        session.put_compilation(record)
    (found,) = useful_fixes(session, failure, [after], lambda _: "")
    assert found.text == "Convert x and y before the call, so that one cache entry is enough"
    assert found.code == "x = x.to(torch.float32)\ny = y.to(torch.float32)"
