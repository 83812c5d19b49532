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
from engine.bytecode.decode import DecodedInstruction
from engine.bytecode.resume import resume_info
from engine.bytecode.spans import instruction_records, span_of
from engine.ir.context import current_session
from engine.ir.files import innermost_user_span, is_library_file
from engine.ir.frame import CompileRequest, TracedFrame
from engine.ir.global_state import (
    are_traced_modes,
    torch_function_modes,
    without_functorch_transforms,
    without_torch_function_modes,
)
from engine.ir.guard import Guard
from engine.ir.origin import ClosureSource, ConstantSource, GlobalsNamespace, LocalSource, TorchFunctionModeSource
from engine.ir.state_guard import GlobalStateMatch
from engine.options import Options, config
from engine.records.bytecode import Span
from engine.records.trace import BreakRecord, DiscardedAttempt, TraceRecord
from engine.trace.asking import find_autograd_use
from engine.trace.breaks import make_break_record
from engine.trace.codegen import PyCodegen
from engine.trace.loop import describe_internal_error, run_instruction
from engine.trace.nested_breaks import NestedBreakCodegen, broken_instruction_index, holds_tensor, may_read_own_frame
from engine.trace.open_generators import close_unreachable_generators
from engine.trace.resumption import BreakCodegen
from engine.trace.shapes import add_shape_guards, shape_guards_since, symbol_records
from engine.trace.side_effects import (
    add_aliasing_guards,
    alias_gains_requires_grad,
    emit_side_effects,
    mutates_inputs,
    resizes_leaf_input,
    restorable_mutated_inputs,
    side_effect_variables,
)
from engine.trace.signals import RestartTracing, SkipFrame, TracerException, TracingFinished, Unsupported, UserException
from engine.trace.state import Frame, Tracer
from engine.trace.steps import StepRecorder
from engine.trace.support import switch_function_modes
from engine.trace.values.autograd_functions import check_traced_backwards
from engine.trace.values.base import Variable, realize
from engine.trace.values.cells import CellVariable
from engine.trace.values.classes import CLASS_ATTR_WRITES
from engine.trace.values.contexts import emit_context_exits
from engine.trace.values.torch_functions import guard_global_state

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
_FAKE_TENSOR_LOGGER = logging.getLogger("torch._subclasses.fake_tensor")
"""Logs the user's own errors, with a traceback of torch's, before Python shows them."""


def trace_frame(request: CompileRequest, options: Options, *, steps: bool = False) -> TracedFrame:
    """Trace one call of a function into a graph, guards and new code; whatever cannot be traced is a break or a skip with its reason.

    Raises:
        errors.GraphBreak: under ``options.fullgraph``, the frame does not trace into one graph.
    """
    code = request.function.__code__
    refused = _skip_for_code_flags(code)
    if refused is not None:
        return _make_skipped_frame(request, options, refused, ())
    restart: RestartTracing | None = None
    restarts = 0
    given_up: list[DiscardedAttempt] = []
    while restarts < _MAX_RESTARTS:
        attempt = TraceAttempt(request, options, restart, steps, tuple(given_up))
        try:
            with without_torch_function_modes(), without_functorch_transforms(), _tracing_environment(attempt.tx):
                return _run_attempt(attempt, given_up)
        except TracingFinished as finished:
            return finished.traced
        except RestartTracing as again:
            _clear_tracebacks(again, again.reason)
            again.hide_compiler = again.hide_compiler or not attempt.tx.is_compiling
            again.rng_mode = again.rng_mode or attempt.tx.rng_mode
            restart = again
            restarts += again.break_before > 0
        except SkipFrame as skip:
            _clear_tracebacks(skip)
            guards = attempt.tx.guards.all() if skip.kind in ("raises", "global-state", "fake-tensor") else ()
            return _make_skipped_frame(request, options, skip, attempt.inlined_calls_and_steps(), guards)
        except errors.GraphBreak:
            raise
        except TracerException as signal:
            return _make_skipped_frame(
                request,
                options,
                SkipFrame("internal", f"{type(signal).__name__}: {signal}"),
                attempt.inlined_calls_and_steps(),
            )
        except Exception as error:  # a defect of ours must never reach the user's program
            return _make_skipped_frame(
                request, options, _skip_for_internal_error(error), attempt.inlined_calls_and_steps()
            )
        finally:
            attempt.release()
    return _make_skipped_frame(request, options, SkipFrame("internal", "tracing did not settle"), ())


def _clear_tracebacks(*errors: TracerException) -> None:
    """Let go of the frames that these passed: they would keep the call's arguments until garbage is collected next."""
    for error in errors:
        error.__traceback__ = error.__cause__ = error.__context__ = None


def _run_attempt(attempt: TraceAttempt, given_up: list[DiscardedAttempt]) -> TracedFrame:
    """Run an attempt; where it is given up, tell what is thrown away with it, while torch still stands as it left it."""
    try:
        return attempt.run()
    except RestartTracing as again:
        given_up.append(attempt.attempt_record(again))
        raise


def _skip_for_internal_error(error: Exception) -> SkipFrame:
    return SkipFrame("internal", describe_internal_error(error))


def _skip_for_code_flags(code: types.CodeType) -> SkipFrame | None:
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return SkipFrame("async-frame", f"{code.co_qualname} is asynchronous")
    if code.co_flags & inspect.CO_GENERATOR:
        return SkipFrame("generator-frame", f"{code.co_qualname} is a generator")
    return None


@contextlib.contextmanager
def _tracing_environment(tx: Tracer) -> Iterator[None]:
    """torch's state while tracing: what traced code switches is switched back, whatever happens."""
    CLASS_ATTR_WRITES.clear()
    was_disabled, _FAKE_TENSOR_LOGGER.disabled = _FAKE_TENSOR_LOGGER.disabled, True
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 20_000))
    try:
        with tracing(TracingContext(tx.fake_mode)):
            yield
    finally:
        CLASS_ATTR_WRITES.clear()
        sys.setrecursionlimit(limit)
        _FAKE_TENSOR_LOGGER.disabled = was_disabled
        for context in reversed(tx.contexts_to_exit):
            context.__exit__(None, None, None)
        tx.torch_state_snapshot.restore()


class TraceAttempt:
    """One run of the tracer over the frame, breaking where an earlier run found that it must."""

    def __init__(
        self,
        request: CompileRequest,
        options: Options,
        restart: RestartTracing | None,
        steps: bool,
        before: tuple[DiscardedAttempt, ...] = (),
    ) -> None:
        self.previous_attempts = before
        self.request = request
        self.options = options
        self.restart = restart
        self.tx = Tracer(request, options)
        modes = torch_function_modes()
        is_asked = not torch._C._is_torch_function_all_disabled()
        self.function_modes = modes if is_asked and are_traced_modes(modes) else ()
        self.tx.is_compiling = restart is None or not restart.hide_compiler
        self.tx.rng_mode = "" if restart is None else restart.rng_mode
        self.step_recorder = StepRecorder(self.tx) if steps else None
        self.root_instruction_number = 0
        self.inlined_breakpoint = None if restart is None else restart.inlined_breakpoint
        if self.inlined_breakpoint is not None:
            self.tx.breakpoint_at, self.tx.on_breakpoint = (
                self.inlined_breakpoint.instruction_number,
                self.break_in_inlined_frame,
            )
        if self.step_recorder is not None:
            self.tx.instruction_hook = self.step_recorder.record_instruction

    def run(self) -> TracedFrame:
        """Trace to the end, or to the first break."""
        frame = self._make_root_frame()
        self.tx.frames.append(frame)
        self._skip_under_dispatch_modes()
        self._enter_function_modes()
        broken = broken_instruction_index(frame.code, frame.decoded)
        while True:
            stack = list(frame.stack)
            kw_names = frame.kw_names
            before = (self.tx.graph.op_count, self.tx.mutation_count)
            self.root_instruction_number += 1
            self.tx.root_instruction_number = self.root_instruction_number
            begun = self.tx.instruction_count
            if frame.next_index == broken:
                told_already = Unsupported("asked", "the caller's graph ended here")
                return self._finish_at_break(frame, frame.decoded.ops[broken], stack, told_already, is_told=True)
            if (
                self.restart is not None
                and self.inlined_breakpoint is None
                and self.root_instruction_number == self.restart.break_before
            ):
                return self._finish_at_break(frame, frame.decoded.ops[frame.next_index], stack, self.restart.reason)
            try:
                outcome = run_instruction(self.tx, frame)
            except Unsupported as reason:
                reason.stack = reason.stack or self.tx.user_stack()
                self._pop_inlined_frames(frame)
                self._retrace_with_known_rng(reason)
                if reason.kind == "budget" and self.tx.instruction_count - begun < config.instruction_budget // 2:
                    # Its own loops are long, not one call's: what follows a break here would meet the budget again.
                    raise self._make_skip(reason, reason.stack, "its own loops are too long to unroll") from reason
                if 0 < reason.created_at < self.root_instruction_number:
                    raise RestartTracing(reason.created_at, reason) from reason
                if (
                    reason.inlined_breakpoint is not None
                    and self.inlined_breakpoint is None
                    and self._can_break_in_inlined_frame(frame, reason)
                ):
                    raise RestartTracing(
                        self.root_instruction_number, reason, cut=reason.inlined_breakpoint
                    ) from reason
                if reason.kind == "internal" or before != (self.tx.graph.op_count, self.tx.mutation_count):
                    raise RestartTracing(self.root_instruction_number, reason) from reason
                frame.kw_names = kw_names
                return self._finish_at_break(frame, frame.op, stack, reason)
            except SkipFrame as skip:
                skip.stack = skip.stack or self.tx.user_stack()
                if skip.kind == "raises":
                    self._retrace_as_uncompiled(skip.what)
                is_caught = frame.decoded.handlers[frame.op.index] is not None
                if skip.kind != "raises" or not (is_caught or self._has_graph_before()):
                    raise
                # Python raises it, where the user's own handler may catch it; or does not, as real tensors are not fakes.
                raised = Unsupported("raises", skip.what)
                raised.stack = skip.stack
                self._pop_inlined_frames(frame)
                if before != (self.tx.graph.op_count, self.tx.mutation_count):
                    raise RestartTracing(self.root_instruction_number, raised) from skip
                frame.kw_names = kw_names
                return self._finish_at_break(frame, frame.op, stack, raised)
            except UserException as error:
                uncaught = SkipFrame("raises", f"{error.exception.describe()} is raised")
                uncaught.stack = self.tx.user_stack()
                self._retrace_as_uncompiled(uncaught.what)
                raise uncaught from error
            if outcome is not None:
                assert frame.result is not None
                return self._finish_at_return(frame, frame.result)

    def _has_graph_before(self) -> bool:
        """Whether there is a graph before an operation that raises, and it may end here."""
        return bool(self.tx.graph.op_count) and not self.options.fullgraph

    def _retrace_as_uncompiled(self, what: str) -> None:
        """Where code that has asked whether it is compiled raises, trace it again as plain Python would answer it: there it may not raise."""
        if self.tx.read_is_compiling and self.tx.is_compiling:
            raise RestartTracing(0, Unsupported("asked", f"what compiled code does here raises: {what}"), as_eager=True)

    def _retrace_with_known_rng(self, reason: Unsupported) -> None:
        """Where Python needs to know what is drawn, know it, for the states in which the generators are: once, and in a frame without tensors.

        Code with tensors that draws is run many times, in many states: there what is drawn stays unknown.
        """
        tx = self.tx
        if tx.rng_mode == "known":
            self._retrace_with_rng_inputs(reason)
        elif (
            not tx.rng_mode
            and (tx.rng_input_count or tx.rng_used_in_python)
            and not tx.saw_tensor
            and not self.request.entry_index
        ):
            raise RestartTracing(0, reason, draws="known")

    def _retrace_with_rng_inputs(self, reason: Unsupported) -> None:
        if self.tx.rng_mode == "known" and self.tx.saw_tensor:
            raise RestartTracing(0, reason, draws="inputs")

    def _skip_under_dispatch_modes(self) -> None:
        """Leave frames that run under modes of torch's dispatcher to Python."""
        modes = self.tx.entry_global_state["dispatch_modes"]
        if modes:
            guard_global_state(self.tx, "dispatch_modes", modes)
            raise SkipFrame("global-state", "dispatch modes of torch are active")

    def _enter_function_modes(self) -> None:
        """Torch-function modes in force are asked while tracing, as those that the traced code enters."""
        self.tx.entry_function_modes = [
            realize(self.tx, self.tx.wrap(mode, TorchFunctionModeSource(n)))
            for n, mode in enumerate(self.function_modes)
        ]
        self.tx.function_modes = list(self.tx.entry_function_modes)

    def _pop_inlined_frames(self, frame: Frame) -> None:
        del self.tx.frames[1:]
        assert self.tx.frames == [frame]

    def _make_root_frame(self) -> Frame:
        function = self.request.function
        tx = self.tx
        namespace = GlobalsNamespace(function.__globals__, str(function.__globals__.get("__name__", "")))
        frame = Frame(function.__code__, namespace, None, ())
        frame.is_trusted = False
        for name, real in self.request.arguments.items():
            frame.locals[name] = tx.make_lazy(real, LocalSource(name))
        for n, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)):
            origin = ClosureSource(name, n)
            try:
                content: Variable | None = tx.make_lazy(cell.cell_contents, origin)
            except ValueError:
                content = None
            value = CellVariable(content, origin, cell, root_name=name)
            frame.cells[name] = value
            tx.variables_by_id[id(cell)] = (value, cell)
        return frame

    def release(self) -> None:
        """Forget the values of the frame: some hold one another, and would keep the call's arguments until garbage is collected next."""
        for frame in self.tx.frames:
            for cell in frame.cells.values():
                if isinstance(cell, CellVariable):
                    cell.content = None
            frame.clear()
        self.tx.release()

    def attempt_record(self, again: RestartTracing) -> DiscardedAttempt:
        """What is thrown away with this attempt. It has a tracer of its own: nothing of it is left but torch's state, which is put back."""
        tx, reason = self.tx, again.reason
        return DiscardedAttempt(
            reason.kind,
            reason.what,
            innermost_user_span(reason.stack),
            reason.stack,
            tx.graph.op_count,
            len(tx.guards),
            tuple(v.describe() for v in tx.mutated_variables.values())
            + tuple(words for _, words in tx.side_effect_calls),
            tx.torch_state_snapshot.changed_settings(),
        )

    # Endings.

    def _finish_at_return(self, frame: Frame, value: Variable) -> TracedFrame:
        tx = self.tx
        try:
            close_unreachable_generators(tx, frame, [value], is_over=True)
        except Unsupported as error:
            raise SkipFrame("side-effect", error.what) from error
        self._retrace_with_rng_inputs(Unsupported("asked", "tensors depend on random numbers"))
        is_idle = not tx.graph.op_count and not tx.saw_tensor and not self.options.fullgraph
        if tx.read_is_compiling and tx.is_compiling and is_idle:
            raise RestartTracing(0, Unsupported("asked", "nothing here is compiled"), as_eager=True)
        cg = PyCodegen(self.tx, frame.code, _instr_location(frame))
        self._check_unsupported_mutations()
        try:
            cg.find_cycles_and_shared(
                [
                    value,
                    *self.tx.function_modes,
                    *side_effect_variables(self.tx),
                    *(c for c in frame.cells.values() if isinstance(c, CellVariable)),
                ]
            )
            _emit_open_contexts(self.tx, cg)
            cg.load(value)
            cg.fill_deferred()
            told = emit_side_effects(self.tx, cg)
            if cg.writes_root_cells:
                self._store_cells(frame, cg)
        except Unsupported as error:
            if 0 < error.created_at < self.root_instruction_number:
                raise RestartTracing(error.created_at, error) from error
            raise SkipFrame("side-effect", error.what) from error
        cg.restore_grad_mode()
        cg.body.return_value()
        return self._make_traced_frame(frame, cg, told, (), ())

    def _store_cells(self, frame: Frame, cg: PyCodegen) -> None:
        for name in frame.code.co_cellvars:
            cell: Any = frame.cells.get(name)
            if cell is not None:
                cg.store_root_cell(name, cell)

    def _check_unsupported_mutations(self) -> None:
        for kept in self.tx.externally_cached.values():
            if kept.is_mutated():
                raise RestartTracing(kept.created_at, kept.unsupported("is changed in place"))
        check_traced_backwards(self.tx)
        if self.tx.torch_function_disabled_depth:
            raise SkipFrame("side-effect", "__torch_function__ is switched off where the graph ends")
        if self.tx.assumed_conditions and mutates_inputs(self.tx) and restorable_mutated_inputs(self.tx) is None:
            executed = self.tx.assumed_conditions[0][2]
            raise RestartTracing(
                executed, Unsupported("tensor-jump", "a check of a tensor's value before an argument is changed")
            )
        if self.tx.op_in_try_block and mutates_inputs(self.tx) and restorable_mutated_inputs(self.tx) is None:
            raise SkipFrame("side-effect", "an argument is changed in place where the code handles exceptions")
        if resizes_leaf_input(self.tx):
            raise SkipFrame("side-effect", "an argument that requires grad is given other sizes in place")
        if alias_gains_requires_grad(self.tx):
            raise SkipFrame("side-effect", "an argument that shares memory with another one comes to require gradients")

    def _can_break_in_inlined_frame(self, frame: Frame, reason: Unsupported) -> bool:
        """Whether to break in the midst of the calls of the root's instruction, not before it."""
        if (
            self.options.fullgraph
            or reason.error_on_graph_break
            or reason.kind in ("budget", "depth")
            or may_read_own_frame(frame)
        ):
            return False
        return not frame.exc_stack and not self._should_skip_frame(frame)

    def break_in_inlined_frame(self, innermost: Frame) -> None:
        """End the graph here, inside calls; where that cannot be, break before the root's instruction after all.

        Raises:
            Finished: the graph ended here.
            Restart: it cannot.
        """
        tx, restart, cut = self.tx, self.restart, self.inlined_breakpoint
        assert restart is not None
        assert cut is not None
        if len(tx.frames) != cut.depth + 1 or (innermost.code, innermost.op.offset) != (cut.code, cut.offset):
            return
        if innermost.exc_stack:
            self._retrace_as_uncompiled(innermost.exc_stack[-1].describe())
        reason, root = restart.reason, tx.frames[0]
        cg = PyCodegen(tx, root.code, _instr_location(root))
        cg.continues_after = True
        told: list[str] = []
        try:
            self._check_unsupported_mutations()
            resumption = NestedBreakCodegen(tx, cg, tx.frames)
            cg.find_cycles_and_shared([*resumption.variables_to_load(), *tx.function_modes, *side_effect_variables(tx)])
            _emit_open_contexts(tx, cg)

            def emit_effects() -> None:
                told.extend(emit_side_effects(tx, cg))
                cg.restore_grad_mode()

            resumption.emit(emit_effects)
            record = make_break_record(reason.kind, reason.what, reason.stack, skipped=False)
            traced = self._make_traced_frame(root, cg, tuple(told), (record,), tuple(resumption.resume_slots))
        except (Unsupported, SkipFrame) as error:
            raise RestartTracing(tx.root_instruction_number, reason) from error
        raise TracingFinished(traced)

    def _finish_at_break(
        self, frame: Frame, op: DecodedInstruction, stack: list[Variable], reason: Unsupported, *, is_told: bool = False
    ) -> TracedFrame:
        spans = reason.stack or self.tx.user_stack()
        if self.options.fullgraph or (reason.error_on_graph_break and not is_told):
            self._raise_graph_break(make_break_record(reason.kind, reason.what, spans, skipped=False))
        frame.op = op
        if frame.exc_stack:
            self._retrace_as_uncompiled(frame.exc_stack[-1].describe())
        self._check_unsupported_mutations()
        if may_read_own_frame(frame, stack):
            raise self._make_skip(
                reason, spans, "it looks at its own frame, which the rest of a function cut in two does not have"
            )
        if self._should_skip_frame(frame):
            raise self._make_skip(reason, spans, "before any tensor operation")
        cg = PyCodegen(self.tx, frame.code, _instr_location(frame))
        cg.continues_after = True
        resumption = BreakCodegen(self.tx, cg, frame, op, stack)
        told: list[str] = []
        try:
            cg.find_cycles_and_shared(
                [*resumption.variables_to_load(), *self.tx.function_modes, *side_effect_variables(self.tx)]
            )
            _emit_open_contexts(self.tx, cg)

            def emit_effects() -> None:
                told.extend(emit_side_effects(self.tx, cg))
                cg.restore_grad_mode()

            resumption.emit(emit_effects)
        except Unsupported as error:
            if 0 < error.created_at < self.root_instruction_number:
                what = f"{error.what.removeprefix('rebuilding ').removesuffix(' after the graph')} is half-way at a later break: {reason.what}"
                raise RestartTracing(error.created_at, Unsupported("still-running", what)) from error
            raise self._make_skip(reason, spans, error.what) from error
        records = () if is_told else (make_break_record(reason.kind, reason.what, spans, skipped=False),)
        return self._make_traced_frame(frame, cg, tuple(told), records, tuple(resumption.resume_slots))

    def _should_skip_frame(self, frame: Frame) -> bool:
        """Whether a break is no use: there is no tensor in sight."""
        return (
            not self.tx.graph.op_count
            and not self.tx.saw_tensor
            and resume_info(frame.code) is None
            and not self._arguments_reach_tensors()
            and not self._references_torch(frame)
        )

    def _references_torch(self, frame: Frame) -> bool:
        """Whether a function of the user's may make tensors later, or calls a module."""
        if frame.is_trusted or is_library_file(frame.code.co_filename):
            return False
        named = (frame.globals.values.get(name) for name in frame.code.co_names)
        return any(v is torch or isinstance(v, (torch.Tensor, torch.nn.Module)) for v in named)

    def _make_skip(self, reason: Unsupported, spans: tuple[Span, ...], where: str) -> SkipFrame:
        skip = SkipFrame(reason.kind, f"{reason.what}; the whole function is left to Python ({where})")
        skip.stack = spans
        return skip

    def _arguments_reach_tensors(self) -> bool:
        return any(holds_tensor(v, 3) for v in self.request.arguments.values())

    def _raise_graph_break(self, record: BreakRecord) -> None:
        text = "".join(linecache.getlines(record.span.file)) if record.span is not None else ""
        raise errors.GraphBreak(record, errors.source_with_caret(text, record.span))

    def _make_traced_frame(
        self,
        frame: Frame,
        cg: PyCodegen,
        told: tuple[str, ...],
        breaks: tuple[BreakRecord, ...],
        resumes: tuple[Any, ...],
    ) -> TracedFrame:
        try:
            code, graph = cg.finish()
        except Unsupported as error:
            raise SkipFrame("side-effect", error.what) from error
        add_aliasing_guards(self.tx)
        self.tx.shape_env.pending_fresh_unbacked_symbols.clear()
        if graph is not None:
            self._guard_global_state()
        add_shape_guards(self.tx)
        guards = self.tx.guards.all()
        if graph is not None:
            graph = replace(graph, late_shape_guards=functools.partial(shape_guards_since, self.tx, len(guards)))
            if breaks:
                frames = [frame, *self.tx.frames]
                graph = replace(
                    graph, autograd_uses_after_break=next((asks for f in frames if (asks := find_autograd_use(f))), "")
                )
        inlined, steps = self.inlined_calls_and_steps()
        wanted = current_session() is not None or self.step_recorder is not None
        record = TraceRecord(
            instruction_records(frame.code) if wanted else (),
            instruction_records(code) if wanted else (),
            inlined,
            breaks,
            told,
            steps,
            symbol_records(self.tx) if wanted else (),
            self.previous_attempts,
        )
        return TracedFrame(code, guards, record, graph, resumes, cg.constants, cg.prefetched_params)

    def _guard_global_state(self) -> None:
        origin = ConstantSource(torch, "torch")
        why = "the graph was recorded in this state of torch"
        for state, value in self.tx.entry_global_state.items():
            self.tx.add_guard(GlobalStateMatch(origin, state, value, cause=self.tx.guard_cause(why)))

    def inlined_calls_and_steps(self) -> tuple[Any, Any]:
        """Inlined calls and steps so far."""
        return tuple(
            self.tx.inlined_calls.values()
        ), self.step_recorder.step_records() if self.step_recorder is not None else ()


def _emit_open_contexts(tx: Tracer, cg: PyCodegen) -> None:
    """Contexts that outlive the graph are entered in Python, outermost first."""
    emit_context_exits(tx)
    kept = sum(a is b for a, b in zip(tx.entry_function_modes, tx.function_modes, strict=False))
    if (left := len(tx.entry_function_modes) - kept) or tx.function_modes[kept:]:
        cg.load_helper(switch_function_modes, 0)
        cg.load_const(left)
        cg.load_all(tx.function_modes[kept:])
        cg.body.call(1 + len(tx.function_modes[kept:]))
        cg.body.emit("POP_TOP")
    for context, _ in tx.open_graph_contexts:
        cg.load(context)
        cg.body.emit("POP_TOP")


def _instr_location(frame: Frame) -> InstrLocation | None:
    span = span_of(frame.code, frame.op.offset)
    if span.line < 1:
        return None
    return InstrLocation(span.line, None, None, None)


def _make_skipped_frame(
    request: CompileRequest, options: Options, skip: SkipFrame, parts: Any, guards: tuple[Guard, ...] = ()
) -> TracedFrame:
    """The frame is left to Python, as long as ``guards`` hold."""
    code = request.function.__code__
    stack = skip.stack or (span_of(code, 0),)
    record = make_break_record(skip.kind, skip.what, stack, skipped=True)
    if options.fullgraph and skip.kind != "raises":
        text = "".join(linecache.getlines(record.span.file)) if record.span is not None else ""
        raise errors.GraphBreak(record, errors.source_with_caret(text, record.span))
    inlined, steps = parts or ((), ())
    wanted = current_session() is not None
    told = TraceRecord(instruction_records(code) if wanted else (), (), inlined, (record,), (), steps)
    return TracedFrame(None, guards, told)
