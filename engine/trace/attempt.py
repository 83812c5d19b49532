"""One attempt to trace a frame, up to a return, a graph break or a restart."""

from __future__ import annotations

import functools
import linecache
import operator
from dataclasses import replace
from typing import Any, NoReturn

import torch
from bytecode.instr import InstrLocation

from engine import errors
from engine.bytecode.decode import DecodedInstruction
from engine.bytecode.resume_functions import broken_instruction_index, resume_info
from engine.bytecode.source_positions import span_of
from engine.bytecode.to_records import instruction_records
from engine.frame_code.codegen_runtime.torch_contexts import switch_function_modes
from engine.ir.compiler_protocol import CompileRequest
from engine.ir.current_session import current_session
from engine.ir.guards.base import Cause
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.introspection.torch_global_state import are_traced_modes, torch_function_modes
from engine.ir.sources.base import GlobalsNamespace
from engine.ir.sources.roots import ClosureSource, ConstantSource, LocalSource, TorchFunctionModeSource
from engine.ir.traced_frame import TracedFrame
from engine.ir.user_code_files import innermost_user_span, is_library_file
from engine.ir.wrapped_parameters import referent_name
from engine.options import Options, config
from engine.records.bytecode import Span
from engine.records.trace import BreakRecord, DiscardedAttempt, TraceRecord
from engine.torch_private.torch_function import DisableTorchFunctionSubclass, is_torch_function_all_disabled
from engine.trace.codegen import PyCodegen
from engine.trace.exc import RestartTracing, SkipFrame, TracingFinished, Unsupported, UserException
from engine.trace.fake_tensors.shared_inputs import IDENTITY_READ, SharedInputs
from engine.trace.finalize_generators import close_unreachable_generators
from engine.trace.frame import Frame
from engine.trace.graph_breaks.autograd_uses import find_autograd_use
from engine.trace.graph_breaks.break_codegen import BreakCodegen
from engine.trace.graph_breaks.frame_readers import may_read_own_frame
from engine.trace.graph_breaks.inlined_breakpoints import holds_tensor, reaches_suspended_generator
from engine.trace.graph_breaks.nested_breaks import NestedBreakCodegen
from engine.trace.graph_breaks.reasons import make_break_record
from engine.trace.graph_breaks.varying_values import BROKEN_RESULT, varying_dims_of_result
from engine.trace.interpreter_loop import run_instruction
from engine.trace.side_effects.aliasing_guards import add_aliasing_guards
from engine.trace.side_effects.codegen import emit_side_effects, side_effect_variables
from engine.trace.side_effects.input_mutations import (
    alias_gains_requires_grad,
    depends_on_aliasing,
    mutates_inputs,
    resizes_leaf_input,
    restorable_mutated_inputs,
)
from engine.trace.step_recorder import StepRecorder
from engine.trace.symbols.marked_dims import check_marked_dims
from engine.trace.symbols.shape_guards import ShapeInputs
from engine.trace.symbols.symbol_records import symbol_records
from engine.trace.tracer import Tracer
from engine.trace.variables.base import Variable, realize
from engine.trace.variables.callables.cells import CellVariable
from engine.trace.variables.torch_api.torch_functions import guard_global_state


class _InstructionStart:
    """State before an instruction of the root frame, to which a graph break returns."""

    def __init__(self, tx: Tracer, frame: Frame) -> None:
        self.stack = list(frame.stack)
        self.kw_names = frame.kw_names
        self.instruction_count = tx.instruction_counter.instruction_count
        self._effects = (tx.graph.op_count, tx.side_effects.mutation_count)

    def has_effects_since(self, tx: Tracer) -> bool:
        """Return True if the graph grew or something was mutated."""
        return self._effects != (tx.graph.op_count, tx.side_effects.mutation_count)


class TraceAttempt:
    """One run of the tracer over the frame.

    It breaks where an earlier attempt found that it must.
    """

    def __init__(
        self,
        request: CompileRequest,
        options: Options,
        restart: RestartTracing | None,
        steps: bool,
        previous_attempts: tuple[DiscardedAttempt, ...] = (),
    ) -> None:
        self.previous_attempts = previous_attempts
        self.request = request
        self.options = options
        self.restart = restart
        self.tx = Tracer(request, options)
        modes = torch_function_modes()
        are_modes_called = not is_torch_function_all_disabled()
        self.function_modes = modes if are_modes_called and are_traced_modes(modes) else ()
        self.tx.torch_state.is_compiling = restart is None or not restart.hide_compiler
        self.tx.random_state.mode = "" if restart is None else restart.rng_mode
        if any(True for a in previous_attempts if a.kind == IDENTITY_READ):
            self.tx.state_of(SharedInputs).is_disabled = True
        self.step_recorder = StepRecorder(self.tx) if steps else None
        self.root_instruction_number = 0
        self.inlined_breakpoint = None if restart is None else restart.inlined_breakpoint
        counter = self.tx.instruction_counter
        if self.inlined_breakpoint is not None:
            counter.breakpoint_at = self.inlined_breakpoint.instruction_number
            counter.on_breakpoint = self.break_in_inlined_frame
        if self.step_recorder is not None:
            counter.instruction_hook = self.step_recorder.record_instruction

    def run(self) -> TracedFrame:
        """Trace to the end of the frame, or to the first graph break."""
        tx, frame = self.tx, self._make_root_frame()
        tx.call_stack.frames.append(frame)
        self._skip_under_dispatch_modes()
        if self.function_modes:
            self._enter_function_modes()
        broken = broken_instruction_index(frame.code, frame.decoded)
        while True:
            start = _InstructionStart(tx, frame)
            self.root_instruction_number += 1
            tx.instruction_counter.root_instruction_number = self.root_instruction_number
            if frame.next_index == broken:
                caller_break = Unsupported("explicit-break", "the caller's graph ended here")
                return self._finish_at_break(
                    frame, frame.decoded.ops[broken], start.stack, caller_break, is_recorded=True
                )
            if (
                self.restart is not None
                and self.inlined_breakpoint is None
                and self.root_instruction_number == self.restart.break_before
            ):
                op = frame.decoded.ops[frame.next_index]
                return self._finish_at_break(frame, op, start.stack, self.restart.reason)
            try:
                outcome = run_instruction(tx, frame)
            except Unsupported as reason:
                return self._break_for_unsupported(frame, start, reason)
            except SkipFrame as skip:
                return self._break_before_raising(frame, start, skip)
            except UserException as error:
                raised = error.exception.as_exception()
                what = raised.text if raised else error.exception.describe()
                self._retrace_as_uncompiled(what)
                raise SkipFrame("raises", what, stack=tx.user_stack()) from error
            if outcome is not None:
                assert frame.result is not None
                return self._finish_at_return(frame, frame.result)

    def _break_for_unsupported(self, frame: Frame, start: _InstructionStart, reason: Unsupported) -> TracedFrame:
        """Break at an instruction that cannot be traced.

        Raises:
            RestartTracing: the break belongs before or inside this instruction, or elsewhere.
            SkipFrame: a break does not help.
        """
        tx = self.tx
        reason.stack = reason.stack or tx.user_stack()
        self._pop_inlined_frames(frame)
        self._retrace_with_known_rng(reason)
        count = tx.instruction_counter.instruction_count - start.instruction_count
        if tx.instruction_counter.instruction_count > config.instruction_budget > 2 * count:
            # The long loops are the frame's own, not one call's.
            # Code after a break here would exceed the budget again.
            raise self._make_skip(reason, reason.stack, "its loops are too long to unroll") from reason
        self._restart_at_creation(reason, reason)
        is_here = reason.created_at == self.root_instruction_number
        breakpoint = (reason.created_inside if is_here else None) or reason.inlined_breakpoint
        if breakpoint and not self.inlined_breakpoint and self._can_break_in_inlined_frame(frame, reason):
            raise RestartTracing(self.root_instruction_number, reason, inlined_breakpoint=breakpoint) from reason
        if reason.kind == "internal" or start.has_effects_since(tx):
            raise RestartTracing(self.root_instruction_number, reason) from reason
        frame.kw_names = start.kw_names
        return self._finish_at_break(frame, frame.op, start.stack, reason)

    def _break_before_raising(self, frame: Frame, start: _InstructionStart, skip: SkipFrame) -> TracedFrame:
        """Break at an instruction that raises, if a handler or a graph comes before it.

        Python raises, and a user handler may catch the exception. Or Python does not raise: real tensors may
        differ from fakes. A suspended generator on the stack runs its ``finally`` before the user's handler, so
        Python runs such a frame.
        """
        skip.stack = skip.stack or self.tx.user_stack()
        if skip.kind == "raises":
            self._retrace_as_uncompiled(skip.what)
        is_caught = frame.decoded.handlers[frame.op.index] is not None
        stacks = [v for f in self.tx.call_stack.frames for v in f.stack] + start.stack
        runs_finally = any(reaches_suspended_generator(v, 3) for v in stacks)
        if skip.kind != "raises" or runs_finally or not (is_caught or self._has_graph_before()):
            raise skip
        raised = Unsupported("raises", skip.what, stack=skip.stack)
        self._pop_inlined_frames(frame)
        if start.has_effects_since(self.tx):
            raise RestartTracing(self.root_instruction_number, raised) from skip
        frame.kw_names = start.kw_names
        return self._finish_at_break(frame, frame.op, start.stack, raised)

    def _has_graph_before(self) -> bool:
        """Return True if the graph has nodes and may end before an operation that raises."""
        return bool(self.tx.graph.op_count) and not self.options.fullgraph

    def _retrace_as_uncompiled(self, what: str) -> None:
        """Retrace with ``is_compiling()`` False if code that read it raises.

        Uncompiled code may not raise there.
        """
        if self.tx.torch_state.read_is_compiling and self.tx.torch_state.is_compiling:
            raise RestartTracing(0, Unsupported("retrace", f"compiled code raises here: {what}"), hide_compiler=True)

    def _retrace_with_known_rng(self, reason: Unsupported) -> None:
        """Retrace with concrete random numbers if Python needs to know one.

        The RNG states are guarded. This happens once, and only in a frame without tensors: code with tensors runs
        many times in many states, so its random numbers stay unknown.
        """
        tx = self.tx
        if self._needs_rng_inputs:
            raise RestartTracing(0, reason, rng_mode="inputs")
        if (
            not tx.random_state.mode
            and tx.random_state.is_used
            and not tx.inputs.saw_tensor
            and not self.request.entry_index
        ):
            raise RestartTracing(0, reason, rng_mode="known")

    @property
    def _needs_rng_inputs(self) -> bool:
        """True if the trace used concrete random numbers, but met a tensor."""
        return self.tx.random_state.mode == "known" and self.tx.inputs.saw_tensor

    def _skip_under_dispatch_modes(self) -> None:
        """Skip frames that run under dispatch modes (``TorchDispatchMode``)."""
        modes = self.tx.torch_state.entry_global_state["dispatch_modes"]
        if modes:
            guard_global_state(self.tx, "dispatch_modes", modes)
            raise SkipFrame("global-state", "torch dispatch modes are active")

    def _enter_function_modes(self) -> None:
        """Register the active torch-function modes, so that traced operations call them.

        They behave like modes that traced code enters.
        """
        self.tx.torch_state.entry_function_modes = [
            realize(self.tx, self.tx.wrap(mode, TorchFunctionModeSource(n)))
            for n, mode in enumerate(self.function_modes)
        ]
        self.tx.torch_state.function_modes = list(self.tx.torch_state.entry_function_modes)

    def _pop_inlined_frames(self, frame: Frame) -> None:
        del self.tx.call_stack.frames[1:]
        assert self.tx.call_stack.frames == [frame]

    def _make_root_frame(self) -> Frame:
        function = self.request.function
        tx = self.tx
        namespace = GlobalsNamespace(function.__globals__, str(function.__globals__.get("__name__", "")))
        frame = Frame(function.__code__, namespace)
        frame.is_trusted = False
        for name, real in self.request.arguments.items():
            frame.locals[name] = tx.make_lazy(real, LocalSource(name, self.request.item_names.get(name, {})))
        for n, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)):
            source = ClosureSource(name, n, referent_name(function, cell))
            try:
                content: Variable | None = tx.make_lazy(cell.cell_contents, source)
            except ValueError:
                content = None
            value = CellVariable(content, source, cell, root_frame_name=name)
            frame.cells[name] = value
            tx.objects.variables_by_id[id(cell)] = (value, cell)
        return frame

    def release(self) -> None:
        """Release the variables of the attempt.

        Some are in reference cycles and would hold the call's arguments until the next garbage collection.
        """
        for frame in self.tx.call_stack.frames:
            for cell in frame.cells.values():
                cell.content = None
            frame.clear()
        self.tx.release()

    def attempt_record(self, restart: RestartTracing) -> DiscardedAttempt:
        """Return the record of what is discarded with this attempt.

        Each attempt has its own tracer. Only torch's global state outlives it, and that is restored.
        """
        tx, reason = self.tx, restart.reason
        return DiscardedAttempt(
            reason.kind,
            reason.what,
            innermost_user_span(reason.stack),
            reason.stack,
            tx.graph.op_count,
            len(tx.guards),
            tx.side_effects.describe(),
            tx.torch_state.snapshot.changed_settings(),
        )

    # Endings.

    def _finish_at_return(self, frame: Frame, value: Variable) -> TracedFrame:
        tx = self.tx
        if tx.call_stack.open_generators:
            try:
                close_unreachable_generators(tx, frame, [value], is_over=True)
            except Unsupported as error:
                raise SkipFrame(error.kind, error.what) from error
        if self._needs_rng_inputs:
            reason = Unsupported("retrace", "tensors depend on random numbers")
            raise RestartTracing(0, reason, rng_mode="inputs")
        is_idle = not tx.graph.op_count and not tx.inputs.saw_tensor and not self.options.fullgraph
        if tx.torch_state.read_is_compiling and tx.torch_state.is_compiling and is_idle:
            reason = Unsupported("retrace", "there is no tensor operation to compile")
            raise RestartTracing(0, reason, hide_compiler=True)
        cg = PyCodegen(self.tx, frame.code, _instr_location(frame))
        self._check_unsupported_mutations()
        try:
            _begin_code(self.tx, cg, [value, *frame.cells.values()])
            cg.load(value)
            cg.fill_deferred()
            effects = emit_side_effects(tx, cg) if tx.side_effects.has_effects else ()
            if cg.writes_root_cells:
                cg.store_root_cells(frame)
        except Unsupported as error:
            self._restart_at_creation(error, error)
            raise SkipFrame(error.kind, error.what) from error
        cg.restore_grad_mode()
        cg.body.return_value()
        return self._make_traced_frame(frame, cg, effects, (), ())

    def _restart_at_creation(self, error: Unsupported, reason: Unsupported) -> None:
        """Break where Python can create the object that prevents resuming, if that is earlier."""
        if 0 < error.created_at < self.root_instruction_number:
            raise RestartTracing(error.created_at, reason) from error

    def _check_unsupported_mutations(self) -> None:
        for cached in self.tx.side_effects.externally_cached.values():
            if cached.is_mutated():
                raise RestartTracing(cached.created_at, cached.graph_break("is mutated"))
        for check in self.tx.side_effects.checks_at_end:
            check(self.tx)
        if self.tx.torch_state.torch_function_disabled_depth:
            raise SkipFrame("torch-function-mode", "__torch_function__ is disabled at the graph break")
        with DisableTorchFunctionSubclass():  # the real tensors are read, not a user's attributes
            self._check_mutated_inputs()

    def _check_mutated_inputs(self) -> None:
        needed_at = self.tx.fallback.needed_at
        if needed_at is not None and mutates_inputs(self.tx) and restorable_mutated_inputs(self.tx) is None:
            if self.tx.fallback.assumed_conditions:
                reason = Unsupported("argument-mutation", "a tensor's value is checked before an argument is mutated")
                raise RestartTracing(needed_at, reason)
            if not self.tx.fallback.has_operation_before:  # Nothing would be captured before the graph break.
                raise SkipFrame("argument-mutation", "an argument is mutated inside a try block")
            raise RestartTracing(
                needed_at, Unsupported("argument-mutation", "an argument is mutated in a function with a try block")
            )
        if resizes_leaf_input(self.tx):
            raise SkipFrame(
                "argument-mutation", "an in-place operation changes the shape of an argument that requires grad"
            )
        if alias_gains_requires_grad(self.tx):
            raise SkipFrame(
                "argument-aliasing", "an argument that shares memory with another one starts to require gradients"
            )

    def _can_break_in_inlined_frame(self, frame: Frame, reason: Unsupported) -> bool:
        """Return True if the graph may break inside the inlined calls of the root's instruction.

        Otherwise it breaks before that instruction.
        """
        if (
            self.options.fullgraph
            or reason.error_on_graph_break
            or reason.kind in ("budget", "depth")
            or may_read_own_frame(frame)
        ):
            return False
        return not frame.exc_stack and not self._should_skip_frame(frame)

    def break_in_inlined_frame(self, innermost: Frame) -> None:
        """End the graph here, inside inlined calls.

        If that is impossible, break before the root frame's instruction.

        Raises:
            TracingFinished: the graph ended here.
            RestartTracing: the graph cannot end here.
        """
        tx, restart, breakpoint = self.tx, self.restart, self.inlined_breakpoint
        assert restart is not None
        assert breakpoint is not None
        is_here = (innermost.code, innermost.op.offset) == (breakpoint.code, breakpoint.offset)
        if not is_here or len(tx.call_stack.frames) != breakpoint.depth + 1:
            return
        if innermost.exc_stack:
            self._retrace_as_uncompiled(innermost.exc_stack[-1].describe())
        reason, root = restart.reason, tx.call_stack.frames[0]
        cg = PyCodegen(tx, root.code, _instr_location(root))
        cg.continues_after = True
        try:
            self._check_unsupported_mutations()
            resumption = NestedBreakCodegen(cg, tx.call_stack.frames, varying_dims_of_result(reason))
            effects = _emit_break(self.tx, cg, resumption)
            record = make_break_record(reason.kind, reason.what, reason.stack, skipped=False)
            traced = self._make_traced_frame(root, cg, effects, (record,), tuple(resumption.resume_slots))
        except (Unsupported, SkipFrame) as error:
            raise RestartTracing(tx.instruction_counter.root_instruction_number, reason) from error
        raise TracingFinished(traced)

    def _finish_at_break(
        self,
        frame: Frame,
        op: DecodedInstruction,
        stack: list[Variable],
        reason: Unsupported,
        *,
        is_recorded: bool = False,
    ) -> TracedFrame:
        spans = reason.stack or self.tx.user_stack()
        if self.options.fullgraph or (reason.error_on_graph_break and not is_recorded):
            raise_graph_break(make_break_record(reason.kind, reason.what, spans, skipped=False))
        frame.op = op
        if frame.exc_stack:
            self._retrace_as_uncompiled(frame.exc_stack[-1].describe())
        self._check_unsupported_mutations()
        if may_read_own_frame(frame, stack):
            raise self._make_skip(reason, spans, "it inspects its own frame, and a resume function has another frame")
        if self._should_skip_frame(frame):
            raise self._make_skip(reason, spans, "before any tensor operation")
        cg = PyCodegen(self.tx, frame.code, _instr_location(frame))
        cg.continues_after = True
        recorded_dims = self.tx.request.dynamic_dims.get(BROKEN_RESULT, frozenset())
        result_dims = recorded_dims if is_recorded else varying_dims_of_result(reason)
        resumption = BreakCodegen(cg, frame, op, stack, result_dims=result_dims)
        try:
            effects = _emit_break(self.tx, cg, resumption)
        except Unsupported as error:
            self._restart_at_creation(error, _reason_at_later_break(error, reason))
            raise self._make_skip(reason, spans, error.what, error.kind) from error
        records = () if is_recorded else (make_break_record(reason.kind, reason.what, spans, skipped=False),)
        return self._make_traced_frame(frame, cg, effects, records, tuple(resumption.resume_slots))

    def _should_skip_frame(self, frame: Frame) -> bool:
        """Return True if a graph break would be useless: no tensor is in reach, so skip the frame."""
        return (
            not self.tx.graph.op_count
            and not self.tx.inputs.saw_tensor
            and resume_info(frame.code) is None
            and not any(holds_tensor(v, 3) for v in self.request.arguments.values())
            and not self._references_torch(frame)
        )

    def _references_torch(self, frame: Frame) -> bool:
        """Return True if user code may create tensors later or calls a module."""
        if frame.is_trusted or is_library_file(frame.code.co_filename):
            return False
        named = (frame.globals.values.get(name) for name in frame.code.co_names)
        return any(v is torch or isinstance(v, (torch.Tensor, torch.nn.Module)) for v in named)

    def _make_skip(self, reason: Unsupported, spans: tuple[Span, ...], where: str, also: str = "") -> SkipFrame:
        what = f"{reason.what}; the whole function runs as plain Python ({where})"
        return SkipFrame(reason.kind, what, also, stack=spans)

    def _make_traced_frame(
        self,
        frame: Frame,
        cg: PyCodegen,
        effects: tuple[str, ...],
        breaks: tuple[BreakRecord, ...],
        resumes: tuple[Any, ...],
    ) -> TracedFrame:
        try:
            code, graph = cg.finish()
        except Unsupported as error:
            raise SkipFrame(error.kind, error.what) from error
        with DisableTorchFunctionSubclass():
            if depends_on_aliasing(self.tx):
                add_aliasing_guards(self.tx)
        self.tx.symbols.shape_env.pending_fresh_unbacked_symbols.clear()
        if graph is not None:
            self._guard_global_state()
        self.tx.guards.add_library_functions()
        shapes = ShapeInputs.of(self.tx)
        shapes.add_guards(self.tx.guards)
        if self.options.dynamic_ranges or self.tx.inputs.may_be_marked:
            check_marked_dims(self.tx)
        shapes.env.end_trace()
        guards = self.tx.guards.all()
        if graph is not None:
            graph = replace(graph, late_shape_guards=functools.partial(shapes.guards_added_since, guards))
            if breaks:
                frames = [frame, *self.tx.call_stack.frames]
                graph = replace(
                    graph, autograd_uses_after_break=next((use for f in frames if (use := find_autograd_use(f))), "")
                )
        inlined_calls, steps = self.inlined_calls_and_steps()
        records_trace = current_session() is not None or self.step_recorder is not None
        record = TraceRecord(
            instruction_records(frame.code) if records_trace else (),
            instruction_records(code) if records_trace else (),
            inlined_calls,
            breaks,
            effects,
            steps,
            symbol_records(self.tx) if records_trace else (),
            self.previous_attempts,
        )
        return TracedFrame(code, guards, record, graph, resumes, cg.constants.slot_values, cg.prefetched_params)

    def _guard_global_state(self) -> None:
        source = ConstantSource(torch, "torch")
        cause = Cause(reason="the graph was traced with this global state of torch")  # no line reads it
        for state, value in self.tx.torch_state.entry_global_state.items():
            self.tx.guards.add(GlobalStateMatch(source, state, value, cause=cause))

    def inlined_calls_and_steps(self) -> tuple[Any, Any]:
        """Return the inlined calls and the steps recorded so far."""
        steps = () if self.step_recorder is None else self.step_recorder.step_records()
        return tuple(self.tx.call_stack.inlined_calls.values()), steps


def raise_graph_break(record: BreakRecord) -> NoReturn:
    """Raise the error that a graph break is under ``fullgraph``, with its source line."""
    text = "".join(linecache.getlines(record.span.file)) if record.span is not None else ""
    raise errors.GraphBreak(record, errors.source_with_caret(text, record.span))


def _reason_at_later_break(error: Unsupported, later: Unsupported) -> Unsupported:
    """Return the reason to break where a value is created.

    It cannot be rebuilt at the graph break ``later``.
    """
    what = error.what.removeprefix("rebuilding ").removesuffix(" after the graph")
    if error.kind == "generator-state":
        return Unsupported("still-running", f"{what} is suspended at a later graph break: {later.what}")
    return Unsupported(error.kind, f"{what}, at a later graph break: {later.what}")


def _begin_code(tx: Tracer, cg: PyCodegen, loaded: list[Variable]) -> None:
    """Begin the code after the graph, which loads these variables."""
    effects = side_effect_variables(tx) if tx.side_effects.has_effects else ()
    cg.find_cycles_and_shared((*loaded, *tx.torch_state.function_modes, *effects))
    _emit_open_contexts(tx, cg)


def _emit_break(tx: Tracer, cg: PyCodegen, resumption: BreakCodegen | NestedBreakCodegen) -> tuple[str, ...]:
    """Emit the code after the graph at a break; return the descriptions of the side effects."""
    _begin_code(tx, cg, resumption.variables_to_load())
    effects: list[str] = []

    def emit_effects() -> None:
        effects.extend(emit_side_effects(tx, cg))
        cg.restore_grad_mode()

    resumption.emit(emit_effects)
    return tuple(effects)


def _emit_open_contexts(tx: Tracer, cg: PyCodegen) -> None:
    """Exit the open contexts at the end of the graph.

    Code after the graph enters them again, outermost first.
    """
    for context, entered in reversed(tx.torch_state.open_graph_contexts):
        context.emit_exit(tx, entered)
    entry, modes = tx.torch_state.entry_function_modes, tx.torch_state.function_modes
    num_common = sum(map(operator.is_, entry, modes))
    if (num_to_exit := len(entry) - num_common) or modes[num_common:]:
        cg.call(switch_function_modes, num_to_exit, *modes[num_common:])
        cg.body.emit("POP_TOP")
    for context, _ in tx.torch_state.open_graph_contexts:
        cg.load(context)
        cg.body.emit("POP_TOP")


def _instr_location(frame: Frame) -> InstrLocation | None:
    span = span_of(frame.code, frame.op.offset)
    if span.line < 1:
        return None
    return InstrLocation(span.line, None, None, None)
