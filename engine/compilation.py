"""One compilation: its state between stages, and its record in the session."""

from __future__ import annotations

import contextlib
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from engine import session_jobs
from engine.graph.to_records import graph_record
from engine.interrupts.deferred_interrupts import deliver_interrupts
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.current_session import current_session
from engine.ir.guards.base import Guard
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.pass_set import PassSet
from engine.ir.traced_frame import TracedGraph
from engine.ir.user_code_files import is_library_file, source_file
from engine.options import Options
from engine.records.graph import PassRecord
from engine.records.runtime import StageFailure, Timing
from engine.records.session import CompilationRecord, Session


class RecordUpdater:
    """Updates the record of a compilation that has ended, if the session still exists.

    The reference to the session is weak, because compiled code may outlive it.
    """

    def __init__(self, session: Session | None, compilation: str) -> None:
        self.compilation = compilation
        self._session = None if session is None else weakref.ref(session)

    @property
    def session(self) -> Session | None:
        """The session that was recording when the compilation started, if it still exists."""
        return None if self._session is None else self._session()

    def update(self, change: Callable[[CompilationRecord], CompilationRecord]) -> None:
        """Replace the record by a changed one."""
        session = self.session
        if session is not None:
            session.update_compilation(self.compilation, change)

    def add_launch_mode(self, stage: str, sentence: str) -> None:
        """Add how a graph's kernels are launched to its record, known after a few calls."""
        field = "backward_lowering" if stage == "backward" else "lowering"

        def add(record: CompilationRecord) -> CompilationRecord:
            lowering = getattr(record, field)
            if lowering is None:
                return record
            launch_mode = " ".join(filter(None, (lowering.launch_mode, sentence)))
            return replace(record, **{field: replace(lowering, launch_mode=launch_mode)})

        self.update(add)


class Compilation:
    """State of one compilation; a backward that is compiled later continues it."""

    def __init__(self, record: CompilationRecord, session: Session | None = None) -> None:
        self.id = record.id
        self.record = record
        self.later = RecordUpdater(session, record.id)
        self.failures: list[StageFailure] = []
        self.program: LoweredProgram | None = None
        self.cpu_program: LoweredProgram | None = None
        self.graph: AotGraph | None = None
        self.inputs: tuple[Any, ...] = ()
        """Detached inputs of the call that is compiled, to verify kernels on."""
        self.guards: tuple[Guard, ...] = ()
        """Guards added by the stages after tracing."""
        self.options = Options()
        self.passes = PassSet()
        """Passes that the user registered, for this compilation and its backward."""
        self._timings: list[Timing] = []
        self._open_stages: list[str] = []

    @property
    def session(self) -> Session | None:
        """The session that was recording when the compilation started, if it still exists."""
        return self.later.session

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage, nested as the stages are entered; do nothing without a session."""
        deliver_interrupts()
        session = self.session
        if session is None:
            yield
            return
        parent = self._open_stages[-1] if self._open_stages else ""
        self._open_stages.append(name)
        session.set_stage(f"{name} {self.id}")
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self._open_stages.pop()
            self._timings.append(Timing(name, start - session.started, end - start, parent))
            session.set_stage(f"{parent} {self.id}" if parent else "")

    @property
    def is_cancelled(self) -> bool:
        """True if the user cancelled compilation."""
        return self.session is not None and self.session.is_cancelled

    @contextlib.contextmanager
    def end_if_cancelled(self) -> Iterator[None]:
        """End the block, without an error, if the user interrupts it to cancel compilation."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.is_cancelled:
                raise

    def update_record(self, **fields: Any) -> None:
        """Update fields of the compilation's record."""
        if self.session is not None:
            self.record = replace(self.record, **fields)

    def record_failure(self, stage: str, error: BaseException, fallback: str) -> StageFailure:
        """Record an internal error of a stage, and return its record."""
        first_line = (str(error).strip().splitlines() or [""])[0]
        sentence = f"{stage} failed: {type(error).__name__}: {first_line}".rstrip(": ")
        self.failures.append(StageFailure(stage, sentence, fallback, "".join(traceback.format_exception(error))))
        return self.failures[-1]

    def record_undone_passes(self, passes: Iterable[PassRecord]) -> None:
        """Record a stage failure for each user pass that raised or broke the graph."""
        for undone in (p for p in passes if p.failure):
            self.failures.append(StageFailure("pass", undone.failure, "the graph is as it was before", undone.detail))

    def record_fx_graph(self, traced: TracedGraph) -> None:
        """Record the graph as traced, where no later stage records its own."""
        if self.session is not None and not self.record.graphs:
            self.update_record(graphs=(graph_record(traced.graph, "fx", self.id, "FX graph"),))

    def add_to(self, session: Session, backend: str) -> None:
        """Add the finished record to a session, and start the jobs on its kernels."""
        if self.record.trace is not None:
            for file in {i.file for i in self.record.trace.inlined if not is_library_file(i.file)}:
                session.add_file(source_file(file))
        timings = tuple(sorted(self._timings, key=lambda t: t.start))
        session.put_compilation(replace(self.record, backend=backend, failures=tuple(self.failures), timings=timings))
        for program in (self.program, self.cpu_program):
            if program is not None and self.graph is not None:
                lowered = session_jobs.LoweredGraph(program, self.graph, self.inputs, self.options)
                session_jobs.add_lowered_graph(session, self.id, lowered, target=program.target)
        self.inputs = ()  # The call's tensors: a backward that is compiled later must not retain them.


@contextlib.contextmanager
def record_compilation(record: CompilationRecord, backend: str) -> Iterator[Compilation]:
    """Open one compilation; at the end, or after an error, the current session has its record."""
    session = current_session()
    work = Compilation(record, session)
    try:
        with work.stage("compile"):
            yield work
    finally:
        if session is not None:
            work.add_to(session, backend)
