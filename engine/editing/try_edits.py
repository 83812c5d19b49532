"""Edit trials: replay recorded calls with edited graphs in a forked process."""

from __future__ import annotations

import functools
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from engine import api, session_jobs
from engine.editing.edit_calls import CALL, UnreadableCall, call_code, call_text, read_call
from engine.editing.edit_graphs import STAGES, GraphEdit, graph_text
from engine.errors import PassUndone
from engine.find_compilation import find_compilation
from engine.forked_run import WaitingRun, graphs_use_gpu, run_in_fork
from engine.graph.user_passes.read_graph import read_statements
from engine.ir.graph_callable import Run
from engine.ir.pass_set import UserPass
from engine.kernels.gpu_targets import default_target
from engine.options import Options
from engine.pipeline import Pipeline
from engine.records.base import from_jsonable
from engine.records.session import CompilationRecord, Session, SessionData
from engine.runtime.dispatch.codegen import signature_of
from engine.runtime.dispatch.dispatcher import DispatcherState, make_dispatcher
from engine.runtime.dispatch.recorded_arguments import (
    RecordedCall,
    ValueUnavailable,
    live_frame,
    make_argument,
    resolve_argument,
)
from engine.runtime.verify.first_call import difference_of_calls
from engine.runtime.workers.fork import NO_BACKWARD_IN_FORK, is_fork_backward_error

TIMED_SECONDS = 0.1
"""Seconds that timing may take."""
TIMED_RUNS = 15
SEED = 0


@dataclass(frozen=True)
class EditTrial:
    """Result of a trial.

    ``before`` and ``after`` are sessions of the replayed calls without and with the edits. ``difference`` is the
    first one from eager, empty if the results agree. ``problem`` says why there is no result; ``edit`` and ``line``
    are then the text at fault and its line, from 1. ``seconds`` are median times of a call, before
    and after; empty without a result.
    """

    before: Session | None = None
    after: Session | None = None
    entry: str = ""
    """Compilation of the edits in both sessions; empty in a replay, whose ids are other ones."""
    difference: str = ""
    problem: str = ""
    edit: str = ""
    line: int = 0
    unused: tuple[str, ...] = ()
    not_run: tuple[str, ...] = ()
    """Sentences on edits of kernels that were left out."""
    seconds: tuple[float, ...] = ()
    reference: str = "ATen"
    """Reference that a kernel's values were compared with."""

    @property
    def sentence(self) -> str:
        """The result as one sentence: a problem, an unused edit, or what differs from eager."""
        if self.problem:
            return self.problem
        if self.unused:
            return self.unused[0]
        if self.entry:  # The difference begins with a node's name.
            outcome = (
                f"{self.difference}." if self.difference else f"The kernel's results are those of {self.reference}."
            )
            return " ".join((outcome, *self.not_run))
        text = f"{self.difference[:1].upper()}{self.difference[1:]}"
        return (
            f"{text}."
            if text
            else "Results, mutations and gradients agree with eager, within the tolerance of the dtype."
        )

    def compilations(self, session: Session, compilation: str) -> tuple[CompilationRecord | None, ...]:
        """Return the counterparts of a recorded compilation before and after the edits."""
        sides = (self.before, self.after)
        if self.before is session:
            after = None if self.after is None else matching_compilation(session, compilation, self.after)
            return session.compilation(compilation), after
        if self.entry:
            return tuple(None if side is None else side.compilation(self.entry) for side in sides)
        return tuple(None if side is None else matching_compilation(session, compilation, side) for side in sides)


def try_edits(
    session: Session, compilation: str, texts: Mapping[str, str], prepared: WaitingRun | None = None
) -> EditTrial:
    """Replay the calls of a compilation's frame with edited graphs, in a forked process.

    Inputs are new tensors of the recorded shapes. The results, mutations and gradients of the last call are
    compared with eager.

    Args:
        session: recorded in this process.
        compilation: id of the compilation ("0/0").
        texts: edited texts of ``graph_text`` by name.
        prepared: what ``prepare_trial`` started for this compilation.

    Raises:
        BadArgument: a text does not begin with the comment of ``graph_text``, or there is no such compilation.
    """
    for name, text in texts.items():  # here, because the other process first compiles
        GraphEdit(text, f"<edit {name}>")
    graphs = next((c.graphs for c in session.compilations if c.id == compilation), ())
    own = {n.text for g in graphs for n in g.nodes}
    for name, text in texts.items():
        if problem := read_statements(text, own)[1]:
            return EditTrial(problem=f"Line {problem[0]}: {problem[1]}.", edit=name, line=problem[0])
    try:
        result = (prepared or prepare_trial(session, compilation)).ask(dict(texts))
    except ValueUnavailable as error:
        return EditTrial(problem=f"The call cannot be replayed: {error}.")
    if result.problem:
        return EditTrial(problem=f"The edited call has no result: {result.problem}.")
    fields = dict(result.value)
    for side in fields.keys() & {"before", "after"}:
        fields[side] = Session.from_data(from_jsonable(SessionData, fields[side], side))
    fields["unused"], fields["seconds"] = tuple(fields["unused"]), tuple(fields["seconds"])
    return EditTrial(**fields)


def prepare_trial(session: Session, compilation: str) -> WaitingRun:
    """Compile the calls of a frame in a forked process that then waits for edits.

    Raises:
        BadArgument: there is no such compilation.
        ValueUnavailable: the calls cannot be replayed.
    """
    dispatch, calls = calls_of(session, compilation)
    arguments = [{n: resolve_argument(v) for n, v in c.arguments.items()} for c in calls]
    trial = Trial(dispatch, calls[-1], arguments, with_target(dispatch.compiler.options))
    return WaitingRun(trial.prepare, uses_gpu=graphs_use_gpu(session))


def editable_call(session: Session, compilation: str) -> str:
    """Return the call that led to a compilation as text; empty if it was not recorded.

    Raises:
        BadArgument: there is no such compilation.
    """
    try:
        dispatch, calls = calls_of(session, compilation)
    except ValueUnavailable:
        return ""
    return call_text(dispatch.function.__name__, calls[-1].arguments, dispatch.compiler.options)


def code_of_call(session: Session, compilation: str, text: str) -> str:
    """Return Python that makes an edited call; empty if it cannot be read."""
    try:
        dispatch, calls = calls_of(session, compilation)
        edited = read_call(text, calls[-1].arguments, dispatch.compiler.options)
    except (ValueUnavailable, UnreadableCall):
        return ""
    return call_code(dispatch.function.__name__, edited.arguments, edited.options)


def try_call(session: Session, compilation: str, text: str, prepared: WaitingRun | None = None) -> EditTrial:
    """Compile the function of a compilation for an edited call, in a forked process.

    The trial's ``before`` is the session itself.

    Args:
        session: recorded in this process.
        compilation: id of the compilation ("0/0").
        text: edited text of ``editable_call``.
        prepared: what ``prepare_trial`` started for this compilation.

    Raises:
        BadArgument: there is no such compilation.
    """
    try:
        dispatch, calls = calls_of(session, compilation)
        edited = read_call(text, calls[-1].arguments, dispatch.compiler.options)
        argument_sets = [*(c.arguments for c in calls[:-1]), edited.arguments]
        arguments = [{n: resolve_argument(v) for n, v in one.items()} for one in argument_sets]
    except UnreadableCall as error:
        return EditTrial(problem=f"Line {error.line}: {error}.", edit=CALL, line=error.line)
    except ValueUnavailable as error:
        return EditTrial(problem=f"The call cannot be replayed: {error}.")
    trial = Trial(dispatch, calls[-1], arguments, with_target(edited.options))
    if prepared is None:
        result = run_in_fork(trial.run_call, uses_gpu=graphs_use_gpu(session))
    else:
        result = prepared.ask({CALL: text, "target": trial.options.target})
    if result.problem:
        line = edited.lines.get("fullgraph", 0) if result.error == "GraphBreak" else 0
        reason = result.problem.partition("\n")[0].rstrip(".")
        return EditTrial(problem=f"The edited call has no result: {reason}.", edit=CALL, line=line)
    if "problem" in result.value:
        return EditTrial(problem=result.value["problem"])
    after = Session.from_data(from_jsonable(SessionData, result.value["after"], "after"))
    return EditTrial(session, after, difference=result.value["difference"])


def editable_graphs(session: Session, compilation: CompilationRecord) -> dict[str, str]:
    """Return the texts of a compilation's graphs that can be edited, by stage."""
    stages = [g.stage for g in compilation.graphs if g.stage in STAGES and g.nodes]
    return {stage: graph_text(session, compilation.id, stage) for stage in stages}


def matching_compilation(session: Session, compilation: str, other: Session) -> CompilationRecord | None:
    """Return the compilation of a replay that corresponds to a recorded one."""
    frames = {f.id: f for f in session.frames}
    frame = frames[session.compilation(compilation).frame]
    same = [
        f.id
        for f in other.frames
        if (f.name, f.file, f.first_line, f.resumes_after)
        == (frame.name, frame.file, frame.first_line, frame.resumes_after)
    ]
    candidates = [c for c in other.compilations if c.frame in same]
    return candidates[-1] if candidates else None


def calls_of(session: Session, compilation: str) -> tuple[DispatcherState, list[RecordedCall]]:
    """Return the calls of the root function that led to a compilation, up to its own.

    Raises:
        ValueUnavailable: there is none that can be replayed.
        BadArgument: there is no such compilation.
    """
    record = find_compilation(session, compilation)
    frames = {f.id: f for f in session.frames}
    frame, entry = frames.get(record.frame), record.id
    while frame is not None and frame.role == "resume":
        frame, entry = frames.get(frame.parent), ""
    dispatch, recorded = live_frame(session, "" if frame is None else frame.id)
    last = next((n for n, c in enumerate(recorded.calls) if c.entry == entry), len(recorded.calls) - 1)
    if last < 0:
        raise ValueUnavailable("the arguments of the calls were not recorded")
    return dispatch, recorded.calls[: last + 1]


def with_target(options: Options) -> Options:
    """Return the options with the target that this process chooses.

    A forked process cannot ask the GPU.
    """
    return replace(options, target=options.target or default_target())


class _PlainCalls(NamedTuple):
    """The function compiled without edits; its session before and after a backward."""

    run: Run
    forward: dict[str, Any]
    with_backward: dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """Calls to replay, in the forked process."""

    dispatch: DispatcherState
    call: RecordedCall
    arguments: Sequence[Mapping[str, Any]]
    options: Options

    def prepare(self) -> Callable[[dict[str, str]], dict[str, Any]]:
        """Compile the calls without edits; return the function that tries edits."""
        try:
            run_edits = functools.partial(self._run_edits, self._compile_plain())
        except Exception as error:  # an edited call may not raise it
            run_edits = functools.partial(_raise, error)

        def answer(texts: dict[str, str]) -> dict[str, Any]:
            if CALL in texts:
                return self._with_call(texts[CALL], texts["target"]).run_call()
            return run_edits([GraphEdit(text, f"<edit {name}>") for name, text in texts.items()])

        return answer

    def _with_call(self, text: str, target: str) -> Trial:
        edited = read_call(text, self.call.arguments, self.dispatch.compiler.options)
        last = {n: resolve_argument(v) for n, v in edited.arguments.items()}
        return replace(
            self, arguments=[*self.arguments[:-1], last], options=replace(edited.options, target=target or None)
        )

    def run_call(self) -> dict[str, Any]:
        """Compile for the calls and compare the last one with eager; return JSON values."""
        return self.run_wrapped(lambda function: function)

    def run_wrapped(self, wrap: Callable[[Run], Any]) -> dict[str, Any]:
        """Compile what ``wrap`` makes of the function; compare with eager; return JSON values."""
        function = self._callable(self.dispatch.function)
        try:
            with self.call.modes.active():
                function(*self._inputs())
        except Exception as error:
            return {"problem": f"In eager this call raises {type(error).__name__}: {str(error).rstrip('.')}."}
        after, edited = self._compile((), wrap(self.dispatch.function))
        with self.call.modes.active():
            difference = difference_of_calls(function, self._callable(edited), self._inputs, list(self.arguments[-1]))
        return {"after": after.to_dict(), "difference": difference}

    def _compile_plain(self) -> _PlainCalls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before, run = self._compile(())
            forward = before.to_dict()
            with self.call.modes.active():  # a gradient compiles the backward
                difference_of_calls(self._callable(run), self._callable(run), self._inputs)
        return _PlainCalls(run, forward, before.to_dict())

    def _run_edits(self, plain: _PlainCalls, edits: Sequence[GraphEdit]) -> dict[str, Any]:
        """Compile with the edits; return the fields of the trial as JSON values."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            after, edited = self._compile(tuple(e.as_pass() for e in edits))
        outcome: dict[str, Any] = {"after": after.to_dict(), "unused": [e.unused for e in edits if e.unused]}
        undone = next((w for w in caught if w.category is PassUndone), None)
        if undone is not None and is_fork_backward_error(undone.message):
            return outcome | {"problem": f"The edited call has no result: {NO_BACKWARD_IN_FORK}.", "seconds": []}
        if undone is not None:
            name = undone.filename.removeprefix("<edit ").removesuffix(">")
            return outcome | {"problem": _problem(undone), "edit": name, "line": undone.lineno, "seconds": []}
        with self.call.modes.active():
            eager, names = self._callable(self.dispatch.function), list(self.arguments[-1])
            difference = difference_of_calls(eager, self._callable(edited), self._inputs, names)
            seconds = _interleaved_times([self._callable(plain.run), self._callable(edited)], self._inputs)
        has_backward = (after_backward := after.to_dict()) != outcome["after"]  # the comparison compiled it
        sides = {"before": plain.with_backward if has_backward else plain.forward, "after": after_backward}
        return outcome | {"difference": difference, "seconds": seconds} | sides

    def _compile(self, edits: tuple[UserPass, ...], function: Any = None) -> tuple[Session, Run]:
        """Record a compilation of the calls; kernels for a GPU are not compiled further."""
        pipeline = Pipeline(self.options)
        pipeline.edits = edits
        compiled = make_dispatcher(function or self.dispatch.function, pipeline)
        with api.record() as session, self.call.modes.active():
            session_jobs.stop_event_of(session).set()
            for number in range(len(self.arguments)):
                self._callable(compiled)(*self._inputs(number))
        session_jobs.compile_cpu_kernels_here(session)
        return session, compiled

    def _callable(self, function: Run) -> Run:
        signature = signature_of(self.dispatch.function.__code__)
        return lambda *values: signature.call_positional(function, *values)

    def _inputs(self, number: int = -1) -> list[Any]:
        torch.manual_seed(SEED)
        return [make_argument(v) for v in self.arguments[number].values()]


def _raise(error: Exception, _edits: Sequence[GraphEdit]) -> dict[str, Any]:
    raise error


def _problem(undone: warnings.WarningMessage) -> str:
    """Return why an edit was undone, without the name of its pass and of its text."""
    reason = str(undone.message).partition(" was undone: ")[2].rpartition(" (")[0]
    return f"Line {undone.lineno}: {reason}."


def _interleaved_times(runs: Sequence[Run], make_inputs: Callable[[], Sequence[Any]]) -> list[float]:
    """Return the median seconds of each function, called in turns."""
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + TIMED_SECONDS
    while not times[0] or (len(times[0]) < TIMED_RUNS and time.perf_counter() < end):
        for run, seconds in zip(runs, times, strict=True):
            inputs = make_inputs()
            start = time.perf_counter()
            run(*inputs)
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]
