"""Fix verification: rerun recompiling calls with and without a suggested fix, in a fork.

The forked process calls the user's function as it is now, on new tensors of the recorded shapes. Its
output is discarded. Effects beyond the process (written files, connections, other processes) are blocked;
the fix is then "not verifiable" for that reason.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch

from engine.forked_run import graphs_use_gpu, run_in_fork
from engine.ir.compiler_protocol import Compiler
from engine.ir.wrapped_parameters import name_arguments, with_named, wrapped_parameters
from engine.records.findings import joint_fixes
from engine.records.guards import Fix, GuardFailure
from engine.records.runtime import CallRecord
from engine.records.session import Session
from engine.runtime.dispatch.code_cache import cache_of_code
from engine.runtime.dispatch.codegen import signature_of
from engine.runtime.dispatch.dispatcher import DispatcherState, make_dispatcher
from engine.runtime.dispatch.recorded_arguments import (
    RecordedCall,
    ValueUnavailable,
    live_frame,
    make_argument,
    resolve_argument,
)

DYNAMIC_FIX = "f = engine.compile(f, dynamic=True)"
"""The fix that changes compile options instead of the call's arguments."""

MakeCompiler = Callable[[bool | None], Compiler]


@dataclass(frozen=True)
class FixTrial:
    """Result of a trial: compile count and last miss reason, or the problem that prevented it."""

    compile_count: int = 0
    problem: str = ""
    cause: str = ""


def try_fixes(session: Session, compiler: MakeCompiler) -> int:
    """Try the fixes of every guard failure of a live session; return how many are verified.

    Only fixes that are code can be tried. Their records then have the result.
    """
    verified = 0
    for call in session.calls:
        for rejection in call.guard_failures:
            if not any(f.code and not f.verified and not f.unverified_reason for f in rejection.fixes):
                continue
            compiled = (c for c in session.compilations if c.id == call.entry)
            joint = replace(rejection, fixes=joint_fixes(session, rejection, compiled))
            fixes = _sort_fixes(_try_fixes_of(session, call, joint, compiler))
            verified += sum(bool(f.verified) for f in fixes)
            session.update_call(call.index, _with_fixes(rejection.entry, fixes))
    return verified


def _with_fixes(entry: str, fixes: tuple[Fix, ...]) -> Callable[[CallRecord], CallRecord]:
    def change(call: CallRecord) -> CallRecord:
        failures = tuple(replace(r, fixes=fixes) if r.entry == entry else r for r in call.guard_failures)
        return replace(call, guard_failures=failures)

    return change


def _sort_fixes(fixes: Sequence[Fix]) -> tuple[Fix, ...]:
    """Sort verified fixes first and fixes that did not help last; the sort is stable."""
    return tuple(sorted(fixes, key=lambda f: (not f.verified, f.unverified_reason.startswith("re-run"))))


def _try_fixes_of(session: Session, call: CallRecord, rejection: GuardFailure, compiler: MakeCompiler) -> list[Fix]:
    try:
        dispatch, calls = _failing_calls(session, call, rejection)
        run = functools.partial(_run_with_fix, dispatch, calls, compiler=compiler, uses_gpu=graphs_use_gpu(session))
        before = run("")
    except ValueUnavailable as error:
        return [_not_verifiable(f, str(error)) for f in rejection.fixes]
    if not before.problem and before.compile_count < len(calls):
        before = FixTrial(problem="the cause is outside of the arguments, and a re-run of the calls does not show it")
    if before.problem:
        return [_not_verifiable(f, before.problem) for f in rejection.fixes]
    return [_try(run, f, before) for f in rejection.fixes]


def _try(run: Callable[[str], FixTrial], fix: Fix, before: FixTrial) -> Fix:
    if not fix.code:
        return fix
    if fix.code.startswith("with "):
        return _not_verifiable(fix, "the fix changes the code around the call, and a re-run contains only the call")
    return _with_verdict(fix, run(fix.code), before)


def _not_verifiable(fix: Fix, why: str) -> Fix:
    return replace(fix, unverified_reason=f"not verifiable: {why}") if fix.code else fix


def _with_verdict(fix: Fix, after: FixTrial, before: FixTrial) -> Fix:
    if after.problem:
        return _not_verifiable(fix, after.problem)
    counts = f"{after.compile_count} compile{'s' if after.compile_count != 1 else ''} instead of {before.compile_count}"
    if after.compile_count < before.compile_count:
        return replace(fix, verified=f"re-run on inputs of the recorded shapes: {counts}")
    if after.cause != before.cause:
        return replace(
            fix,
            verified=f"re-run on inputs of the recorded shapes: this cause is gone, another one remains: {after.cause}",
        )
    return replace(fix, unverified_reason=f"re-run on inputs of the recorded shapes: no effect, {counts}")


def _failing_calls(
    session: Session, call: CallRecord, rejection: GuardFailure
) -> tuple[DispatcherState, list[RecordedCall]]:
    """Return the call that the entry was compiled for, and the call that failed its guards."""
    dispatch, frame = live_frame(session, call.frame)
    if dispatch.cache.frame.role == "resume":
        raise ValueUnavailable("a resume function cannot be re-run alone")
    first = next((c for c in frame.calls if c.entry == rejection.entry), None)
    second = next((c for c in frame.calls if c.index == call.index), None)
    if first is None or second is None:
        raise ValueUnavailable("the arguments of the calls were not recorded")
    return dispatch, [first, second]


def _run_with_fix(
    dispatch: DispatcherState, calls: Sequence[RecordedCall], code: str, compiler: MakeCompiler, *, uses_gpu: bool
) -> FixTrial:
    """Run calls in a forked process, each after ``code``, and count the compiles.

    Raises:
        ValueUnavailable: an argument is no longer available.
    """
    arguments = [{n: resolve_argument(v) for n, v in c.arguments.items()} for c in calls]
    counts = run_in_fork(lambda: astuple(_count_compiles(dispatch, arguments, code, compiler)), uses_gpu=uses_gpu)
    return FixTrial(problem=counts.problem) if counts.problem else FixTrial(*counts.value)


def _count_compiles(
    dispatch: DispatcherState, arguments: Sequence[Mapping[str, Any]], code: str, compiler: MakeCompiler
) -> FixTrial:
    """Count, in the forked process, the compiles of the frame for these calls."""
    private = compiler(True if code == DYNAMIC_FIX else None)
    function = dispatch.function
    compiled = make_dispatcher(function, private)
    item_names = wrapped_parameters(function)
    for call in arguments:
        values = {n: make_argument(v) for n, v in call.items()}
        if code and code != DYNAMIC_FIX:
            space = {"engine": sys.modules["engine"], "torch": torch, **values, **name_arguments(values, item_names)}
            try:
                exec(code, space)
            except Exception as error:
                return FixTrial(
                    problem=f"the fix does not apply to the recorded call ({type(error).__name__}: {error})"
                )
            values = with_named(values, space, item_names)
        try:
            signature_of(function.__code__).call_positional(compiled, *values.values())
        except Exception as error:
            return FixTrial(problem=f"the function raises {type(error).__name__} on fresh inputs: {error}")
    cache = cache_of_code(private, function.__code__, function.__globals__)
    return FixTrial() if cache is None else FixTrial(cache.compile_count, "", cache.last_cause)
