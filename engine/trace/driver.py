"""Tracing one frame: attempts, breaks, skips, and the record of what happened."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import linecache
import logging
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from bytecode.instr import InstrLocation
from torch._guards import TracingContext, tracing

from engine import errors
from engine.bytecode.decode import Op
from engine.bytecode.resume import resumed
from engine.bytecode.spans import instructions, span_of
from engine.ir.context import current_session
from engine.ir.files import innermost_of_user, is_library_file
from engine.ir.frame import FrameRequest, TracedFrame
from engine.ir.global_state import are_looked_into, function_modes, without_modes, without_transforms
from engine.ir.guard import Guard
from engine.ir.origin import Closure, Fixed, FunctionMode, Local, Namespace
from engine.ir.state_guard import GlobalState
from engine.options import Options, config
from engine.records.bytecode import Span
from engine.records.trace import AttemptRecord, BreakRecord, TraceRecord
from engine.trace.asking import asks_autograd
from engine.trace.breaks import break_record
from engine.trace.codegen import Codegen
from engine.trace.loop import advance, in_words
from engine.trace.nested_breaks import NestedResumption, broken_first, holds_tensor, looks_at_frame
from engine.trace.open_generators import close_dead
from engine.trace.resumption import Resumption
from engine.trace.shapes import assumed_since, shape_guards, symbol_story
from engine.trace.side_effects import (
    changed_inputs,
    changes_inputs,
    guard_distinct,
    pending_values,
    replay,
    reshapes_a_leaf,
    shares_new_history,
)
from engine.trace.signals import Finished, Restart, Skip, TraceSignal, Unsupported, UserException
from engine.trace.state import Frame, Tracer
from engine.trace.steps import StepLog
from engine.trace.support import switch_modes
from engine.trace.values.autograd_functions import check_backwards
from engine.trace.values.base import Value, force
from engine.trace.values.cells import CellValue
from engine.trace.values.classes import WRITTEN
from engine.trace.values.contexts import leave_in_graph
from engine.trace.values.torch_functions import guard_state

for _family in (
    "handlers",
    "values.autograd_functions",
    "values.attribute_functions",
    "values.class_functions",
    "values.container_functions",
    "values.interpreter_limits",
    "values.iteration_functions",
    "values.number_functions",
    "values.operator_functions",
    "values.text_functions",
    "values.caches",
    "values.checkpoints",
    "values.collectives",
    "values.compiler_api",
    "values.distributed_tensors",
    "values.constants",
    "values.container_objects",
    "values.contexts",
    "values.flexible_attention",
    "values.foreach",
    "values.forward_gradients",
    "values.graph_contexts",
    "values.higher_order",
    "values.inner_gradients",
    "values.library",
    "values.hook_handles",
    "values.locks",
    "values.lying_in_rows",
    "values.modules",
    "values.parameters",
    "values.operators",
    "values.packed_sequences",
    "values.properties",
    "values.plain_data",
    "values.attention",
    "values.random_state",
    "values.real_contexts",
    "values.storages",
    "values.tensor_subclasses",
    "values.torch_functions",
    "values.torch_state",
    "values.transforms",
    "values.triton_kernels",
):
    importlib.import_module(f"engine.trace.{_family}")  # each fills in its part of the tables

if importlib.util.find_spec("numpy") is not None:
    importlib.import_module("engine.trace.values.numpy_arrays")

_MAX_RESTARTS = 8
_FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")
"""Logs the user's own errors, with a traceback of torch's, before Python shows them."""


def trace_frame(request: FrameRequest, options: Options, *, steps: bool = False) -> TracedFrame:
    """Trace one call of a function into a graph, guards and new code; whatever cannot be traced is a break or a skip with its reason.

    Raises:
        errors.GraphBreak: under ``options.fullgraph``, the frame does not trace into one graph.
    """
    code = request.function.__code__
    refused = _refuse(code)
    if refused is not None:
        return _skipped(request, options, refused, ())
    restart: Restart | None = None
    restarts = 0
    given_up: list[AttemptRecord] = []
    while restarts < _MAX_RESTARTS:
        attempt = _Attempt(request, options, restart, steps, tuple(given_up))
        try:
            with without_modes(), without_transforms(), _environment(attempt.tx):
                return _told(attempt, given_up)
        except Finished as finished:
            return finished.traced
        except Restart as again:
            _drop_frames(again, again.reason)
            again.as_eager = again.as_eager or not attempt.tx.is_compiling
            again.draws = again.draws or attempt.tx.draws
            restart = again
            restarts += again.executed > 0
        except Skip as skip:
            _drop_frames(skip)
            guards = attempt.tx.guards.all() if skip.kind in ("raises", "global-state", "fake-tensor") else ()
            return _skipped(request, options, skip, attempt.record_parts(), guards)
        except errors.GraphBreak:
            raise
        except TraceSignal as signal:
            return _skipped(
                request, options, Skip("internal", f"{type(signal).__name__}: {signal}"), attempt.record_parts()
            )
        except Exception as error:  # a defect of ours must never reach the user's program
            return _skipped(request, options, _internal(error), attempt.record_parts())
        finally:
            attempt.let_go()
    return _skipped(request, options, Skip("internal", "tracing did not settle"), ())


def _drop_frames(*errors: TraceSignal) -> None:
    """Let go of the frames that these passed: they would keep the call's arguments until garbage is collected next."""
    for error in errors:
        error.__traceback__ = error.__cause__ = error.__context__ = None


def _told(attempt: _Attempt, given_up: list[AttemptRecord]) -> TracedFrame:
    """Run an attempt; where it is given up, tell what is thrown away with it, while torch still stands as it left it."""
    try:
        return attempt.run()
    except Restart as again:
        given_up.append(attempt.given_up(again))
        raise


def _internal(error: Exception) -> Skip:
    return Skip("internal", in_words(error))


def _refuse(code: types.CodeType) -> Skip | None:
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return Skip("async-frame", f"{code.co_qualname} is asynchronous")
    if code.co_flags & inspect.CO_GENERATOR:
        return Skip("generator-frame", f"{code.co_qualname} is a generator")
    return None


@contextlib.contextmanager
def _environment(tx: Tracer) -> Iterator[None]:
    """torch's state while tracing: what traced code switches is switched back, whatever happens."""
    WRITTEN.clear()
    was_disabled, _FAKE_LOG.disabled = _FAKE_LOG.disabled, True
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 20_000))
    try:
        with tracing(TracingContext(tx.fake_mode)):
            yield
    finally:
        WRITTEN.clear()
        sys.setrecursionlimit(limit)
        _FAKE_LOG.disabled = was_disabled
        for context in reversed(tx.undo_at_end):
            context.__exit__(None, None, None)
        tx.torch_before.restore()


class _Attempt:
    """One run of the tracer over the frame, breaking where an earlier run found that it must."""

    def __init__(
        self,
        request: FrameRequest,
        options: Options,
        restart: Restart | None,
        steps: bool,
        before: tuple[AttemptRecord, ...] = (),
    ) -> None:
        self.before = before
        self.request = request
        self.options = options
        self.restart = restart
        self.tx = Tracer(request, options)
        modes = function_modes()
        is_asked = not torch._C._is_torch_function_all_disabled()
        self.modes = modes if is_asked and are_looked_into(modes) else ()
        self.tx.is_compiling = restart is None or not restart.as_eager
        self.tx.draws = "" if restart is None else restart.draws
        self.log = StepLog(self.tx) if steps else None
        self.executed = 0
        self.cut = None if restart is None else restart.cut
        if self.cut is not None:
            self.tx.cut_at, self.tx.cut = self.cut.executed, self._break_inside
        if self.log is not None:
            self.tx.watch = self.log.watch

    def run(self) -> TracedFrame:
        """Trace to the end, or to the first break."""
        frame = self._root_frame()
        self.tx.frames.append(frame)
        self._check_global_state()
        self._enter_modes()
        broken = broken_first(frame.code, frame.decoded)
        while True:
            stack = list(frame.stack)
            kw_names = frame.kw_names
            before = (self.tx.graph.operations, self.tx.changes)
            self.executed += 1
            self.tx.root_executed = self.executed
            begun = self.tx.executed
            if frame.index == broken:
                told_already = Unsupported("asked", "the caller's graph ended here")
                return self._break(frame, frame.decoded.ops[broken], stack, told_already, is_told=True)
            if self.restart is not None and self.cut is None and self.executed == self.restart.executed:
                return self._break(frame, frame.decoded.ops[frame.index], stack, self.restart.reason)
            try:
                outcome = advance(self.tx, frame)
            except Unsupported as reason:
                reason.stack = reason.stack or self.tx.spans()
                self._unwind(frame)
                self._guess_draws(reason)
                if reason.kind == "budget" and self.tx.executed - begun < config.instruction_budget // 2:
                    # Its own loops are long, not one call's: what follows a break here would meet the budget again.
                    raise self._skip(reason, reason.stack, "its own loops are too long to unroll") from reason
                if 0 < reason.born < self.executed:
                    raise Restart(reason.born, reason) from reason
                if reason.cut is not None and self.cut is None and self._may_break_inside(frame, reason):
                    raise Restart(self.executed, reason, cut=reason.cut) from reason
                if reason.kind == "internal" or before != (self.tx.graph.operations, self.tx.changes):
                    raise Restart(self.executed, reason) from reason
                frame.kw_names = kw_names
                return self._break(frame, frame.op, stack, reason)
            except Skip as skip:
                skip.stack = skip.stack or self.tx.spans()
                if skip.kind == "raises":
                    self._ask_as_eager(skip.what)
                is_caught = frame.decoded.handlers[frame.op.index] is not None
                if skip.kind != "raises" or not (is_caught or self._is_worth_keeping()):
                    raise
                # Python raises it, where the user's own handler may catch it; or does not, as real tensors are not fakes.
                raised = Unsupported("raises", skip.what)
                raised.stack = skip.stack
                self._unwind(frame)
                if before != (self.tx.graph.operations, self.tx.changes):
                    raise Restart(self.executed, raised) from skip
                frame.kw_names = kw_names
                return self._break(frame, frame.op, stack, raised)
            except UserException as error:
                uncaught = Skip("raises", f"{error.value.describe()} is raised")
                uncaught.stack = self.tx.spans()
                self._ask_as_eager(uncaught.what)
                raise uncaught from error
            if outcome is not None:
                assert frame.result is not None
                return self._return(frame, frame.result)

    def _is_worth_keeping(self) -> bool:
        """Whether there is a graph before an operation that raises, and it may end here."""
        return bool(self.tx.graph.operations) and not self.options.fullgraph

    def _ask_as_eager(self, what: str) -> None:
        """Where code that has asked whether it is compiled raises, trace it again as plain Python would answer it: there it may not raise."""
        if self.tx.asked_for_compiler and self.tx.is_compiling:
            raise Restart(0, Unsupported("asked", f"what compiled code does here raises: {what}"), as_eager=True)

    def _guess_draws(self, reason: Unsupported) -> None:
        """Where Python needs to know what is drawn, know it, for the states in which the generators are: once, and in a frame without tensors.

        Code with tensors that draws is run many times, in many states: there what is drawn stays unknown.
        """
        tx = self.tx
        if tx.draws == "known":
            self._check_draws(reason)
        elif not tx.draws and (tx.drawn or tx.asked_for_draws) and not tx.tensors_seen and not self.request.entry:
            raise Restart(0, reason, draws="known")

    def _check_draws(self, reason: Unsupported) -> None:
        if self.tx.draws == "known" and self.tx.tensors_seen:
            raise Restart(0, reason, draws="inputs")

    def _check_global_state(self) -> None:
        """Leave frames that run under modes of torch's dispatcher to Python."""
        modes = self.tx.entry_state["dispatch_modes"]
        if modes:
            guard_state(self.tx, "dispatch_modes", modes)
            raise Skip("global-state", "dispatch modes of torch are active")

    def _enter_modes(self) -> None:
        """Torch-function modes in force are asked while tracing, as those that the traced code enters."""
        self.tx.modes_outside = [
            force(self.tx, self.tx.wrap(mode, FunctionMode(n))) for n, mode in enumerate(self.modes)
        ]
        self.tx.function_modes = list(self.tx.modes_outside)

    def _unwind(self, frame: Frame) -> None:
        del self.tx.frames[1:]
        assert self.tx.frames == [frame]

    def _root_frame(self) -> Frame:
        function = self.request.function
        tx = self.tx
        namespace = Namespace(function.__globals__, str(function.__globals__.get("__name__", "")))
        frame = Frame(function.__code__, namespace, None, ())
        frame.trusted = False
        for name, real in self.request.arguments.items():
            frame.locals[name] = tx.lazy(real, Local(name))
        for n, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)):
            origin = Closure(name, n)
            try:
                content: Value | None = tx.lazy(cell.cell_contents, origin)
            except ValueError:
                content = None
            value = CellValue(content, origin, cell, root_name=name)
            frame.cells[name] = value
            tx.known[id(cell)] = (value, cell)
        return frame

    def let_go(self) -> None:
        """Forget the values of the frame: some hold one another, and would keep the call's arguments until garbage is collected next."""
        for frame in self.tx.frames:
            for cell in frame.cells.values():
                if isinstance(cell, CellValue):
                    cell.content = None
            frame.forget()
        self.tx.forget()

    def given_up(self, again: Restart) -> AttemptRecord:
        """What is thrown away with this attempt. It has a tracer of its own: nothing of it is left but torch's state, which is put back."""
        tx, reason = self.tx, again.reason
        return AttemptRecord(
            reason.kind,
            reason.what,
            innermost_of_user(reason.stack),
            reason.stack,
            tx.graph.operations,
            len(tx.guards),
            tuple(v.describe() for v in tx.mutated.values()) + tuple(words for _, words in tx.effects),
            tx.torch_before.switched(),
        )

    # Endings.

    def _return(self, frame: Frame, value: Value) -> TracedFrame:
        tx = self.tx
        try:
            close_dead(tx, frame, [value], is_over=True)
        except Unsupported as error:
            raise Skip("side-effect", error.what) from error
        self._check_draws(Unsupported("asked", "tensors depend on random numbers"))
        is_idle = not tx.graph.operations and not tx.tensors_seen and not self.options.fullgraph
        if tx.asked_for_compiler and tx.is_compiling and is_idle:
            raise Restart(0, Unsupported("asked", "nothing here is compiled"), as_eager=True)
        cg = Codegen(self.tx, frame.code, _location(frame))
        self._check_sharing()
        try:
            cg.prepare(
                [
                    value,
                    *self.tx.function_modes,
                    *pending_values(self.tx),
                    *(c for c in frame.cells.values() if isinstance(c, CellValue)),
                ]
            )
            _enter_after_graph(self.tx, cg)
            cg.load(value)
            cg.flush()
            told = replay(self.tx, cg)
            if cg.uses_cells:
                self._store_cells(frame, cg)
        except Unsupported as error:
            if 0 < error.born < self.executed:
                raise Restart(error.born, error) from error
            raise Skip("side-effect", error.what) from error
        cg.restore_grad_mode()
        cg.out.returns()
        return self._finish(frame, cg, told, (), ())

    def _store_cells(self, frame: Frame, cg: Codegen) -> None:
        for name in frame.code.co_cellvars:
            cell: Any = frame.cells.get(name)
            if cell is not None:
                cg.fill_root_cell(name, cell)

    def _check_sharing(self) -> None:
        for kept in self.tx.kept.values():
            if kept.is_written_to():
                raise Restart(kept.born, kept.refused("is changed in place"))
        check_backwards(self.tx)
        if self.tx.protocol_off:
            raise Skip("side-effect", "__torch_function__ is switched off where the graph ends")
        if self.tx.checks and changes_inputs(self.tx) and changed_inputs(self.tx) is None:
            executed = self.tx.checks[0][2]
            raise Restart(
                executed, Unsupported("tensor-jump", "a check of a tensor's value before an argument is changed")
            )
        if self.tx.is_caught and changes_inputs(self.tx) and changed_inputs(self.tx) is None:
            raise Skip("side-effect", "an argument is changed in place where the code handles exceptions")
        if reshapes_a_leaf(self.tx):
            raise Skip("side-effect", "an argument that requires grad is given other sizes in place")
        if shares_new_history(self.tx):
            raise Skip("side-effect", "an argument that shares memory with another one comes to require gradients")

    def _may_break_inside(self, frame: Frame, reason: Unsupported) -> bool:
        """Whether to break in the midst of the calls of the root's instruction, not before it."""
        if self.options.fullgraph or reason.is_error or reason.kind in ("budget", "depth") or looks_at_frame(frame):
            return False
        return not frame.handled and not self._is_skipped(frame)

    def _break_inside(self, innermost: Frame) -> None:
        """End the graph here, inside calls; where that cannot be, break before the root's instruction after all.

        Raises:
            Finished: the graph ended here.
            Restart: it cannot.
        """
        tx, restart, cut = self.tx, self.restart, self.cut
        assert restart is not None
        assert cut is not None
        if len(tx.frames) != cut.depth + 1 or (innermost.code, innermost.op.offset) != (cut.code, cut.offset):
            return
        if innermost.handled:
            self._ask_as_eager(innermost.handled[-1].describe())
        reason, root = restart.reason, tx.frames[0]
        cg = Codegen(tx, root.code, _location(root))
        cg.at_break = True
        told: list[str] = []
        try:
            self._check_sharing()
            resumption = NestedResumption(tx, cg, tx.frames)
            cg.prepare([*resumption.values(), *tx.function_modes, *pending_values(tx)])
            _enter_after_graph(tx, cg)

            def emit_effects() -> None:
                told.extend(replay(tx, cg))
                cg.restore_grad_mode()

            resumption.emit(emit_effects)
            record = break_record(reason.kind, reason.what, reason.stack, skipped=False)
            traced = self._finish(root, cg, tuple(told), (record,), tuple(resumption.slots))
        except (Unsupported, Skip) as error:
            raise Restart(tx.root_executed, reason) from error
        raise Finished(traced)

    def _break(
        self, frame: Frame, op: Op, stack: list[Value], reason: Unsupported, *, is_told: bool = False
    ) -> TracedFrame:
        spans = reason.stack or self.tx.spans()
        if self.options.fullgraph or (reason.is_error and not is_told):
            self._raise_break(break_record(reason.kind, reason.what, spans, skipped=False))
        frame.op = op
        if frame.handled:
            self._ask_as_eager(frame.handled[-1].describe())
        self._check_sharing()
        if looks_at_frame(frame, stack):
            raise self._skip(
                reason, spans, "it looks at its own frame, which the rest of a function cut in two does not have"
            )
        if self._is_skipped(frame):
            raise self._skip(reason, spans, "before any tensor operation")
        cg = Codegen(self.tx, frame.code, _location(frame))
        cg.at_break = True
        resumption = Resumption(self.tx, cg, frame, op, stack)
        told: list[str] = []
        try:
            cg.prepare([*resumption.values(), *self.tx.function_modes, *pending_values(self.tx)])
            _enter_after_graph(self.tx, cg)

            def emit_effects() -> None:
                told.extend(replay(self.tx, cg))
                cg.restore_grad_mode()

            resumption.emit(emit_effects)
        except Unsupported as error:
            if 0 < error.born < self.executed:
                what = f"{error.what.removeprefix('rebuilding ').removesuffix(' after the graph')} is half-way at a later break: {reason.what}"
                raise Restart(error.born, Unsupported("still-running", what)) from error
            raise self._skip(reason, spans, error.what) from error
        records = () if is_told else (break_record(reason.kind, reason.what, spans, skipped=False),)
        return self._finish(frame, cg, tuple(told), records, tuple(resumption.slots))

    def _is_skipped(self, frame: Frame) -> bool:
        """Whether a break is no use: there is no tensor in sight."""
        return (
            not self.tx.graph.operations
            and not self.tx.tensors_seen
            and resumed(frame.code) is None
            and not self._holds_tensors()
            and not self._names_torch(frame)
        )

    def _names_torch(self, frame: Frame) -> bool:
        """Whether a function of the user's may make tensors later, or calls a module."""
        if frame.trusted or is_library_file(frame.code.co_filename):
            return False
        named = (frame.globals.values.get(name) for name in frame.code.co_names)
        return any(v is torch or isinstance(v, (torch.Tensor, torch.nn.Module)) for v in named)

    def _skip(self, reason: Unsupported, spans: tuple[Span, ...], where: str) -> Skip:
        skip = Skip(reason.kind, f"{reason.what}; the whole function is left to Python ({where})")
        skip.stack = spans
        return skip

    def _holds_tensors(self) -> bool:
        return any(holds_tensor(v, 3) for v in self.request.arguments.values())

    def _raise_break(self, record: BreakRecord) -> None:
        text = "".join(linecache.getlines(record.span.file)) if record.span is not None else ""
        raise errors.GraphBreak(record, errors.pointed(text, record.span))

    def _finish(
        self,
        frame: Frame,
        cg: Codegen,
        told: tuple[str, ...],
        breaks: tuple[BreakRecord, ...],
        resumes: tuple[Any, ...],
    ) -> TracedFrame:
        try:
            code, graph = cg.finish()
        except Unsupported as error:
            raise Skip("side-effect", error.what) from error
        guard_distinct(self.tx)
        self.tx.shape_env.pending_fresh_unbacked_symbols.clear()
        if graph is not None:
            self._guard_global_state()
        shape_guards(self.tx)
        guards = self.tx.guards.all()
        if graph is not None:
            graph = replace(graph, assumed=functools.partial(assumed_since, self.tx, len(guards)))
            if breaks:
                frames = [frame, *self.tx.frames]
                graph = replace(graph, asking=next((asks for f in frames if (asks := asks_autograd(f))), ""))
        inlined, steps = self.record_parts()
        wanted = current_session() is not None or self.log is not None
        record = TraceRecord(
            instructions(frame.code) if wanted else (),
            instructions(code) if wanted else (),
            inlined,
            breaks,
            told,
            steps,
            symbol_story(self.tx) if wanted else (),
            self.before,
        )
        return TracedFrame(code, guards, record, graph, resumes, cg.constants, cg.handed)

    def _guard_global_state(self) -> None:
        origin = Fixed(torch, "torch")
        why = "the graph was recorded in this state of torch"
        for state, value in self.tx.entry_state.items():
            self.tx.guard(GlobalState(origin, state, value, cause=self.tx.cause(why)))

    def record_parts(self) -> tuple[Any, Any]:
        """Inlined calls and steps so far."""
        return tuple(self.tx.inlined.values()), self.log.steps() if self.log is not None else ()


def _enter_after_graph(tx: Tracer, cg: Codegen) -> None:
    """Contexts that outlive the graph are entered in Python, outermost first."""
    leave_in_graph(tx)
    kept = sum(a is b for a, b in zip(tx.modes_outside, tx.function_modes, strict=False))
    if (left := len(tx.modes_outside) - kept) or tx.function_modes[kept:]:
        cg.helper(switch_modes, 0)
        cg.const(left)
        cg.load_all(tx.function_modes[kept:])
        cg.out.call(1 + len(tx.function_modes[kept:]))
        cg.out.emit("POP_TOP")
    for context, _ in tx.entered:
        cg.load(context)
        cg.out.emit("POP_TOP")


def _location(frame: Frame) -> InstrLocation | None:
    span = span_of(frame.code, frame.op.offset)
    if span.line < 1:
        return None
    return InstrLocation(span.line, None, None, None)


def _skipped(
    request: FrameRequest, options: Options, skip: Skip, parts: Any, guards: tuple[Guard, ...] = ()
) -> TracedFrame:
    """The frame is left to Python, as long as ``guards`` hold."""
    code = request.function.__code__
    stack = skip.stack or (span_of(code, 0),)
    record = break_record(skip.kind, skip.what, stack, skipped=True)
    if options.fullgraph and skip.kind != "raises":
        text = "".join(linecache.getlines(record.span.file)) if record.span is not None else ""
        raise errors.GraphBreak(record, errors.pointed(text, record.span))
    inlined, steps = parts or ((), ())
    wanted = current_session() is not None
    told = TraceRecord(instructions(code) if wanted else (), (), inlined, (record,), (), steps)
    return TracedFrame(None, guards, told)
