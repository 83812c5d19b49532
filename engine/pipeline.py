"""Compile pipeline: run the stages for one frame, link their results, record them."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import traceback
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
import torch.fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from engine import errors, replay_values, session_jobs
from engine.aot.driver import AotSettings, compile_graph
from engine.aot.layout_mutation import is_layout_mutated, original_fake
from engine.aot.node_properties import may_mutate
from engine.autograd.intercept import without_capture
from engine.bytecode.intercept_calls import intercept_calls
from engine.cache.store import DiskStore, user_cache_dir
from engine.graph.passes.lift_requires_grad import lift_requires_grad, requires_grad_calls
from engine.graph.to_records import graph_record
from engine.guards.codegen import compile_check
from engine.guards.explain import explain
from engine.guards.measure_costs import measure_guard_costs
from engine.guards.recompile_reasons import first_guard_failure
from engine.guards.to_records import guards_record
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.compiler_protocol import CacheEntry, CompileRequest
from engine.ir.current_session import current_session
from engine.ir.guards.base import Guard
from engine.ir.introspection.describe_values import describe_arguments
from engine.ir.introspection.torch_global_state import GLOBAL_STATES, without_torch_function_modes
from engine.ir.kernels.lowered_program import LoweredProgram
from engine.ir.kernels.template_choice import (
    LIBRARY_CHOOSER,
    TEMPLATES_ALWAYS,
    TEMPLATES_MEASURED,
    TEMPLATES_NEVER,
    AlwaysTemplateChooser,
    FewRowsChooser,
    TemplateChooser,
)
from engine.ir.node_metadata import provenance_of
from engine.ir.sources.base import FrameScope
from engine.ir.sources.roots import LocalSource
from engine.ir.traced_frame import CALLEE_SLOT, ConstSlot, GraphInput, ResumeFunctionSlot, TracedFrame, TracedGraph
from engine.ir.user_code_files import is_library_file, source_file
from engine.options import Options, config
from engine.records.bytecode import Span
from engine.records.guards import GuardFailure, GuardResult, GuardsRecord
from engine.records.lowering import LoweringRecord
from engine.records.runtime import StageFailure, Timing
from engine.records.session import CompilationRecord, Session
from engine.records.trace import TraceRecord
from engine.runtime.aten_executor import aten_executor
from engine.runtime.dispatch.dispatch_callees import make_callee
from engine.runtime.dispatch.dispatcher import make_dispatcher
from engine.runtime.verify.first_call import verify_first_call
from engine.runtime.workers.compile_jobs import start_workers
from engine.trace.driver import trace_frame
from engine.trace.external_caches import reset_opaque_caches

_log = logging.getLogger("engine")

Run = Callable[..., Any]

BACKENDS: dict[str, Callable[..., Any] | None] = {"eager": None, "aot_eager": None, "triton": None, "inductor": None}
"""Backends by name: None if built in, else ``(graph_module, example_inputs) -> callable``."""


MAX_KERNEL_BUILD_FAILURES = 8
"""Kernel build failures of one compilation after which ATen runs the whole graph."""
MAX_KEPT_BACKWARD_BYTES = 1 << 27
"""Maximum size in bytes of a first backward's inputs that the session retains."""


class _StageTimer:
    """Stage timings of one compilation, nested as the stages were entered."""

    def __init__(self, session: Session | None, compilation: str) -> None:
        self._session = _weak_session(session)
        self._compilation = compilation
        self._open: list[str] = []
        self.finished: list[Timing] = []

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time one stage; do nothing without a session."""
        session = self._session()
        if session is None:
            yield
            return
        parent = self._open[-1] if self._open else ""
        self._open.append(name)
        session.set_stage(f"{name} {self._compilation}")
        start = time.perf_counter()
        try:
            yield
        finally:
            end = time.perf_counter()
            self._open.pop()
            self.finished.append(Timing(name, start - session.started, end - start, parent))
            session.set_stage(f"{parent} {self._compilation}" if parent else "")


def _weak_session(session: Session | None) -> Callable[[], Session | None]:
    """Return a weak reference to a session: compiled code may outlive it."""
    return (lambda: None) if session is None else weakref.ref(session)


@dataclass
class _CompilationState:
    """State of one compilation; a backward that is compiled later continues it."""

    compilation: str
    recording_session: Callable[[], Session | None]
    timings: _StageTimer
    failures: list[StageFailure]
    record: CompilationRecord
    program: LoweredProgram | None = None
    graph: AotGraph | None = None
    inputs: tuple[Any, ...] = ()
    guards: tuple[Guard, ...] = ()
    """Guards added by the stages after tracing."""

    @property
    def session(self) -> Session | None:
        """The session that was recording when the compilation started, if it still exists."""
        return self.recording_session()

    def update_record(self, **fields: Any) -> None:
        """Update fields of the compilation's record."""
        if self.session is not None:
            self.record = replace(self.record, **fields)

    def was_cancelled(self) -> bool:
        """Return True if the user cancelled compilation."""
        return self.session is not None and self.session.is_cancelled

    def untraced_frame(self) -> TracedFrame:
        """Return an untraced frame, because compilation was cancelled."""
        self.update_record(trace=TraceRecord())
        return TracedFrame(None, (), TraceRecord())

    def record_failure(self, stage: str, error: BaseException, fallback: str) -> None:
        """Record an internal error of a stage."""
        sentence = f"{stage} failed: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}".rstrip(
            ": "
        )
        detail = "".join(traceback.format_exception(error))
        self.failures.append(StageFailure(stage, sentence, fallback, detail))


def _first_user_stack(slot: TracedGraph) -> tuple[Span, ...]:
    """Return the user's stack at the first operation of a graph."""
    return next((found for node in slot.graph.graph.nodes if (found := provenance_of(node).stack)), ())


class Pipeline:
    """Implements ``Compiler`` for one set of options."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.dispatch_callee = make_callee(self)
        self.root_wrapper: Callable[[Run], Run] | None = None
        """Wrapper around each root function that the user compiles."""

    def session(self) -> Session | None:
        """Return the session that records this thread."""
        return current_session()

    def explain(self, entry: CacheEntry, scope: FrameScope) -> tuple[GuardResult, ...]:
        """Evaluate all guards of an entry against one call."""
        return explain(entry.guards, scope)

    def guard_failure(self, entry: CacheEntry, scope: FrameScope) -> GuardFailure | None:
        """Return the guard failure of an entry for a call; None if all guards pass."""
        return first_guard_failure(entry.id, entry.guards, scope)

    def guards_record(self, entry: CacheEntry) -> GuardsRecord:
        """Return an entry's guards as records."""
        return guards_record(entry.guards, entry.check_text)

    def guard_costs(self, entry: CacheEntry, cells: Any, arguments: Mapping[str, Any]) -> tuple[float | None, ...]:
        """Return the cost in nanoseconds of each guard of an entry, for these arguments."""
        return measure_guard_costs(entry.guards, tuple(arguments), cells, tuple(arguments.values()))

    def compile_frame(self, request: CompileRequest) -> CacheEntry:
        """Trace, compile and link one frame; on an internal error, record it and run as Python.

        Raises:
            errors.GraphBreak: under ``fullgraph``, the frame has a graph break.
            errors.BackendError: under ``fullgraph``, the backend failed.
        """
        session = self.session()
        id = f"{request.frame_id}/{request.entry_index}"
        inputs = describe_arguments(request.arguments) if session is not None else None
        record = CompilationRecord(id, request.frame_id, request.miss_reason, inputs)
        work = _CompilationState(id, _weak_session(session), _StageTimer(session, id), [], record)
        try:
            with without_capture(), work.timings.stage("compile"):
                return self._compile(request, work)
        finally:
            if session is not None:
                self._record_compilation(session, work)

    def _record_compilation(self, session: Session, work: _CompilationState) -> None:
        if work.record.trace is not None:
            for file in {i.file for i in work.record.trace.inlined if not is_library_file(i.file)}:
                session.add_file(source_file(file))
        session.put_compilation(
            replace(
                work.record,
                backend=backend_name(self.options.backend),
                failures=tuple(work.failures),
                timings=tuple(sorted(work.timings.finished, key=lambda t: t.start)),
            )
        )
        if work.program is not None and work.graph is not None:
            lowered = session_jobs.LoweredGraph(work.program, work.graph, work.inputs)
            session_jobs.add_lowered_graph(session, work.compilation, lowered, target=work.program.target)
        work.inputs = ()  # The call's tensors: a backward that is compiled later must not retain them.

    def _compile(self, request: CompileRequest, work: _CompilationState) -> CacheEntry:
        with work.timings.stage("trace"):
            traced = self._trace(request, work)
        code = None if traced.code is None else self._link_code(traced, request, work)
        if code is None:
            return self._compile_as_python(request, traced, work)
        with work.timings.stage("guards"):
            guards = (*traced.guards, *work.guards)
            check = compile_check(guards, parameters_of(request.function.__code__), handed=traced.prefetched_params)
        if work.session is not None:
            work.update_record(guards=guards_record(check.guards, check.text))
        return CacheEntry(work.compilation, code, check.guards, check.check, check.text)

    def _trace(self, request: CompileRequest, work: _CompilationState) -> TracedFrame:
        steps = work.session is not None and work.session.level == "steps"
        if work.was_cancelled():
            return work.untraced_frame()
        try:
            traced = trace_frame(request, self.options, steps=steps)
        except KeyboardInterrupt:
            if not work.was_cancelled():
                raise
            return work.untraced_frame()
        except errors.GraphBreak as error:
            work.update_record(trace=TraceRecord(breaks=(error.record,)))
            raise
        work.update_record(trace=traced.record)
        return traced

    def _compile_as_python(self, request: CompileRequest, traced: TracedFrame, work: _CompilationState) -> CacheEntry:
        """Return an entry that runs the frame as Python, with its callees dispatched."""
        code = intercept_calls(request.function.__code__, self.dispatch_callee)
        check = compile_check(traced.guards, parameters_of(code))
        if work.session is not None:
            work.update_record(guards=guards_record(check.guards, check.text))
        return CacheEntry(work.compilation, code, check.guards, check.check, check.text, runs_python=True)

    def _link_code(
        self, traced: TracedFrame, request: CompileRequest, work: _CompilationState
    ) -> types.CodeType | None:
        """Put objects into the slots of traced code; compile the graph and the resume functions."""
        assert traced.code is not None
        objects: dict[ConstSlot, Any] = {CALLEE_SLOT: self.dispatch_callee, **traced.slot_values}
        if traced.graph is not None:
            with without_torch_function_modes():
                objects[traced.graph.slot] = self._compile_graph(traced.graph, work)
        for resume in traced.resume_functions:
            objects[resume.slot] = self._resume_dispatcher(resume, request)
        return fill_slots(traced.code, objects)

    def _resume_dispatcher(self, resume: ResumeFunctionSlot, request: CompileRequest) -> Any:
        name = resume.code.co_name
        make = ResumeDispatcherFactory(self, request.frame_id, resume.break_span)
        if resume.makes_closure:
            return make
        return make(types.FunctionType(resume.code, resume.globals, name))

    def compile_standalone_graph(
        self, module: torch.fx.GraphModule, reals: Sequence[Any], record: CompilationRecord
    ) -> Run:
        """Compile an ATen graph that no frame was traced for; return ``run(*inputs) -> tuple``.

        Inputs are tensors and symbols. The graph runs eagerly if it cannot be compiled, if a call's inputs do not
        pass the guards, or if the graph mutates a tensor and two inputs share storage. ``record`` is completed
        and added to the session.
        """
        session = self.session()
        fakes = [n for n in module.graph.nodes if n.op == "placeholder"]
        inputs = [
            GraphInput(n.name, LocalSource(n.name), n.meta["val"], r, getattr(n.meta["val"], "_version", 0))
            for n, r in zip(fakes, reals, strict=True)
        ]
        slot = TracedGraph(ConstSlot(record.id), module, tuple(inputs))
        work = _CompilationState(record.id, _weak_session(session), _StageTimer(session, record.id), [], record)
        with without_capture(), torch.no_grad(), torch._C._DisableAutocast(), work.timings.stage("compile"):
            run = self._compile_graph(slot, work)
        if session is not None:
            self._record_compilation(session, work)
        if work.guards:
            run = _run_if(compile_check(work.guards, tuple(n.name for n in fakes)).check, run, eager_run(module))
        return _run_if(_share_no_storage, run, eager_run(module)) if any(map(may_mutate, module.graph.nodes)) else run

    # One graph, by backend.

    def _compile_graph(self, slot: TracedGraph, work: _CompilationState) -> Run:
        backend = self.options.backend
        # A functorch transform must see the graph's operators, and a graph without computation needs no compiler.
        if backend != "eager" and (GLOBAL_STATES["functorch"].read() is not None or not slot.has_computation()):
            self._record_fx_graph(slot, work)
            return eager_run(slot.graph)
        try:
            run = self._compile_with_backend(backend, slot, work)
            return (
                self._verify_on_first_call(run, slot, work) if config.verify_correctness and backend != "eager" else run
            )
        except KeyboardInterrupt:
            if not work.was_cancelled():
                raise
            self._record_fx_graph(slot, work)
            return eager_run(slot.graph)
        except Exception as error:
            if self.options.fullgraph and callable(backend_callable(backend)):
                raise errors.BackendError(backend_name(backend), str(error), _first_user_stack(slot)) from error
            work.record_failure(backend_name(backend), error, "this graph runs eagerly, operator by operator")
            self._record_fx_graph(slot, work)
            return eager_run(slot.graph)

    def _verify_on_first_call(self, run: Run, slot: TracedGraph, work: _CompilationState) -> Run:
        """Verify the graph's first call against eager."""
        compilation, name = work.compilation, backend_name(self.options.backend)

        def report(found: str) -> None:
            if not found:
                return
            is_wrong = not found.startswith("not verifiable")
            sentence = f"verification of {compilation} ({name}): {found}"
            if is_wrong:
                warnings.warn(f"{sentence}; the graph runs eagerly from now on.", errors.WrongResult, stacklevel=3)
            fallback = "later calls run eagerly, operator by operator" if is_wrong else "the compiled result is used"
            failure = StageFailure("verification", sentence, fallback)
            session = work.session
            if session is not None:
                session.update_compilation(compilation, lambda c: replace(c, failures=(*c.failures, failure)))

        return verify_first_call(run, slot.graph, eager_run(slot.graph), report)

    def _compile_with_backend(self, backend: str | Run, slot: TracedGraph, work: _CompilationState) -> Run:
        if backend == "eager":
            self._record_fx_graph(slot, work)
            return eager_run(slot.graph)
        lifted = lift_requires_grad(slot.graph)
        if lifted is not None:
            with lifted.inputs_as_in_graph(slot.inputs):
                return lifted.wrap(self._compile_lifted_graph(backend, replace(slot, graph=lifted.graph), work))
        if backend == "inductor" and requires_grad_calls(slot.graph.graph):
            raise NotImplementedError("requires_grad of an input changes between two of its uses")
        return self._compile_lifted_graph(backend, slot, work)

    def _compile_lifted_graph(self, backend: str | Run, slot: TracedGraph, work: _CompilationState) -> Run:
        if backend in ("aot_eager", "triton"):
            return self._compile_with_aot(slot, work)
        run = compile_with_inductor if backend == "inductor" else backend_callable(backend)
        assert run is not None
        self._record_fx_graph(slot, work)
        with work.timings.stage(backend_name(backend)):
            compiled = _compile_with_external(run, slot)
        work.guards = slot.late_shape_guards()
        return compiled

    def _record_fx_graph(self, slot: TracedGraph, work: _CompilationState) -> None:
        if work.session is not None and not work.record.graphs:
            work.update_record(graphs=(graph_record(slot.graph, "fx", work.compilation, "FX graph"),))

    def _compile_with_aot(self, slot: TracedGraph, work: _CompilationState) -> Run:
        on_gpu = any(isinstance(i.example_value, torch.Tensor) and i.example_value.is_cuda for i in slot.inputs)

        def lower(graph: AotGraph) -> Run:
            # The lazy backward holds this closure: it must not refer to the slot, which holds this call's tensors.
            return self._lower(graph, work, on_gpu=on_gpu)

        if self.options.backend == "triton" and work.session is not None:
            start_workers()
        with work.timings.stage("aot"):
            result = compile_graph(
                slot.graph,
                slot.inputs,
                compilation=work.compilation,
                settings=AotSettings(
                    lower,
                    aten_executor,
                    recompute_random=bool(self.options.extra.get("draw_again", False)),
                    cache_dir=user_cache_dir() / "aot" if config.disk_cache else None,
                    take_assumption_guards=slot.late_shape_guards,
                ),
                changes_objects=slot.has_object_side_effects,
                asking=slot.autograd_uses_after_break,
            )
        work.update_record(aot=result.record, graphs=result.graphs)
        if work.session is not None and result.run_with_probe is not None:
            replay_values.remember_call(work.session, work.compilation, result.run_with_probe, slot.inputs)
        work.guards = result.guards
        if work.session is not None and work.program is not None:
            work.inputs = tuple(
                i.example_value.detach() if isinstance(i.example_value, torch.Tensor) else i.example_value
                for i in slot.inputs
            )
        return result.run

    def _lower(self, graph: AotGraph, work: _CompilationState, *, on_gpu: bool) -> Run:
        """Return the executor of one functional graph: kernels on a GPU, else ATen.

        Without a GPU, kernels are only generated for the records.
        """
        if graph.stage == "backward":
            return self._lower_backward(graph, work, on_gpu=on_gpu)
        if self.options.backend == "triton" and (on_gpu or work.session is not None):
            program = self._lower_forward(graph, work, on_gpu=on_gpu)
            if on_gpu and program is not None:
                try:
                    program, run = self._build_executor(program, graph, work)
                except Exception as error:
                    work.record_failure("kernels", error, "ATen runs the graph")
                else:
                    self._record_program(self._note_target_mismatch(program), graph, work)
                    return run
        return aten_executor(graph)

    def _build_executor(
        self, program: LoweredProgram, graph: AotGraph, work: _CompilationState
    ) -> tuple[LoweredProgram, Run]:
        """Return a program and its executor; ATen replaces kernels that cannot be built."""
        refused: dict[str, str] = {}
        while True:
            try:
                return program, self._make_executor(program, graph, work)
            except errors.KernelBuildError as error:
                if len(work.failures) >= MAX_KERNEL_BUILD_FAILURES or refused.keys() >= set(error.nodes):
                    raise
                work.record_failure("kernels", error, "ATen computes the result of this kernel")
                refused |= dict.fromkeys(error.nodes, str(error))
            program = self._lower_to_program(graph, work, refused, on_gpu=True)

    def _make_executor(self, program: LoweredProgram, graph: AotGraph, work: _CompilationState) -> Run:
        """Return the executor of a program on the current GPU, with CUDA graphs if enabled."""
        from engine.runtime.program_executor import program_executor

        run = program_executor(program, is_boxed=graph.is_boxed)
        if not self.options.uses_cuda_graphs:
            return self._with_aten_fallback(run, graph)
        from engine.runtime.cuda_graphs import CudaGraphRecorder, CudaGraphReplay

        told = functools.partial(_record_launching, work.recording_session, work.compilation, graph.stage)
        is_dynamic = bool(program.symbol_sources)
        replayed = CudaGraphReplay(
            run,
            CudaGraphRecorder(),
            is_boxed=graph.is_boxed,
            is_dynamic=is_dynamic,
            visible_outputs=graph.num_user_outputs,
            on_status=told,
        )
        return self._with_aten_fallback(replayed, graph)

    def _note_target_mismatch(self, program: LoweredProgram) -> LoweredProgram:
        """Note in the record if kernels are shown for another target than the GPU they run on."""
        from engine.kernels.targets import default_target

        here = default_target()
        if program.target == here:
            return program
        note = f"The kernels shown are compiled for {program.target}. The kernels that run are compiled for this GPU, {here}."
        return replace(program, record=replace(program.record, launch_mode=note))

    def _with_aten_fallback(self, run: Run, graph: AotGraph) -> Run:
        """Add the fallback to ATen for out of memory and failed kernel launches."""
        from engine.runtime.aten_fallback import with_aten_fallback

        return with_aten_fallback(
            run, functools.partial(aten_executor, graph), _record_fallback, is_boxed=graph.is_boxed
        )

    def _lower_backward(self, graph: AotGraph, work: _CompilationState, *, on_gpu: bool) -> Run:
        """Return the executor of a backward graph, lowered when it is first needed.

        The compilation is over by then, so its record is updated.
        """
        if self.options.backend != "triton" or not (on_gpu or work.session is not None):
            return aten_executor(graph)
        try:
            program, run = self._lower_to_program(graph, work, on_gpu=on_gpu), None
            if on_gpu:
                program, run = self._build_executor(program, graph, work)
        except Exception as error:
            work.record_failure("lowering of the backward", error, "ATen runs the backward graph")
            if work.session is not None:
                failures = tuple(work.failures)
                work.session.update_compilation(work.compilation, lambda c: replace(c, failures=failures))
            return aten_executor(graph)
        run = aten_executor(graph) if run is None else run
        session = work.session
        return run if session is None else _record_backward_program(run, program, graph, session, work.compilation)

    def _chooser(self, work: _CompilationState, *, on_gpu: bool) -> TemplateChooser:
        """Return the policy that chooses between templates and library calls.

        Without a GPU nothing is timed, so the choice is deterministic.
        """
        if self.options.templates == TEMPLATES_ALWAYS:
            return AlwaysTemplateChooser()
        if not on_gpu:
            return LIBRARY_CHOOSER
        if self.options.templates != TEMPLATES_MEASURED:
            return LIBRARY_CHOOSER if self.options.templates == TEMPLATES_NEVER else FewRowsChooser()
        from engine.runtime.autotune import make_autotuner

        told = (lambda sentence: None) if work.session is None else work.session.set_stage
        stop = None if work.session is None else session_jobs.stop_event_of(work.session)
        return make_autotuner(DiskStore(user_cache_dir() / "tuned"), told, stop)

    def _lower_to_program(
        self,
        graph: AotGraph,
        work: _CompilationState,
        refused: Mapping[str, str] = MappingProxyType({}),
        *,
        on_gpu: bool,
    ) -> LoweredProgram:
        from engine.kernels.targets import default_target
        from engine.kernels.triton.block_configs import candidate_blockings
        from engine.kernels.triton.printer import print_triton
        from engine.lowering.driver import lower
        from engine.lowering.program_cache import load_or_lower

        fused_random = bool(self.options.extra.get("fused_random", False))
        target = self.options.target or default_target()
        chooser = self._chooser(work, on_gpu=on_gpu)
        measures = on_gpu and self.options.templates == TEMPLATES_MEASURED
        make = functools.partial(
            lower,
            graph,
            target,
            print_triton,
            fused_random=fused_random,
            forced_fallbacks=refused,
            chooser=chooser,
            candidate_blockings=candidate_blockings if measures else None,
        )
        if not config.disk_cache:
            return make()
        if measures:
            program = make()
            note = (
                "not saved to disk: autotuning selects the kernels, and the disk cache stores its measurements instead"
            )
            return replace(program, record=replace(program.record, cache=note))
        how = (target, type(chooser).__name__, dict(refused), dict(self.options.extra))
        tells = work.session is not None
        return load_or_lower(
            graph, make, DiskStore(user_cache_dir() / "lowered"), how, fused_random=fused_random, with_reference=tells
        )

    def _lower_forward(self, graph: AotGraph, work: _CompilationState, *, on_gpu: bool) -> LoweredProgram | None:
        from engine.kernels.targets import default_target

        target = self.options.target or default_target()
        try:
            with work.timings.stage("lowering"):
                program = self._lower_to_program(graph, work, on_gpu=on_gpu)
        except Exception as error:
            work.record_failure("lowering", error, "ATen runs the graph")
            work.update_record(lowering=LoweringRecord(target, error=work.failures[-1].sentence))
            return None
        self._record_program(program, graph, work)
        return program

    def _record_program(self, program: LoweredProgram, graph: AotGraph, work: _CompilationState) -> None:
        from engine.kernels.to_records import kernel_records

        if program is work.program:
            return
        work.program, work.graph = program, graph
        if work.session is not None:
            work.update_record(lowering=program.record, kernels=kernel_records(program.kernels))


def _record_launching(recording: Callable[[], Session | None], compilation: str, stage: str, sentence: str) -> None:
    """Add how a graph's kernels are launched to its lowering record.

    This is known only after a few calls.
    """
    field = "backward" if stage == "backward" else "lowering"

    def update(record: CompilationRecord) -> CompilationRecord:
        lowering = getattr(record, field)
        if lowering is None:
            return record
        launch_mode = " ".join(filter(None, (lowering.launch_mode, sentence)))
        return replace(record, **{field: replace(lowering, launch_mode=launch_mode)})

    session = recording()
    if session is not None:
        session.update_compilation(compilation, update)


def _record_fallback(error: BaseException, sentence: str, done: str) -> None:
    """Record a GPU failure and its fallback in the current session, and log it."""
    session = current_session()
    instead = done or "the error is raised: the inputs of the backward were already freed"
    _log.warning("%s Fallback: %s.", sentence, instead)
    if session is not None:
        detail = "".join(traceback.format_exception(error))
        session.add_failure(StageFailure("runtime", sentence, instead, detail))


def _record_backward_program(
    run: Run, program: LoweredProgram, graph: AotGraph, session: Session, compilation: str
) -> Run:
    """Add a backward's kernels to its compilation's record.

    The inputs of its first run are retained, to verify the kernels on.
    """
    from engine.kernels.to_records import kernel_records

    def update(record: CompilationRecord) -> CompilationRecord:
        if record.backward_lowering is not None:  # a backward specialized to other undefined tangents
            return record
        kernels = (*record.kernels, *kernel_records(program.kernels))
        return replace(record, backward_lowering=program.record, kernels=kernels)

    session.update_compilation(compilation, update)
    waiting, recording = [True], weakref.ref(session)

    def first(values: list[Any]) -> Any:
        session = recording() if waiting and waiting.pop() else None
        if session is not None:
            kept = tuple(v.detach() if isinstance(v, torch.Tensor) else v for v in values)
            if sum(v.nbytes for v in kept if isinstance(v, torch.Tensor)) <= MAX_KEPT_BACKWARD_BYTES:
                session_jobs.add_lowered_graph(
                    session, compilation, session_jobs.LoweredGraph(program, graph, kept), target=program.target
                )
        return run(values)

    return first


@dataclass(frozen=True)
class ResumeDispatcherFactory:
    """Creates the dispatcher of a resume function, with the cells of the frame that broke.

    One per resume point, called once per graph break.
    """

    compiler: Pipeline
    parent: str
    """Id of the frame with the graph break."""
    after: Span | None
    """Span of the instruction at which the graph broke."""

    def __call__(self, function: types.FunctionType) -> Any:
        """Return the dispatcher for ``function``, whose code is this resume function's."""
        return make_dispatcher(function, self.compiler, role="resume", parent=self.parent, after=self.after)


def parameters_of(code: types.CodeType) -> tuple[str, ...]:
    """Return the parameter names of a code object in ``co_varnames`` order.

    ``*args`` and ``**kwargs`` are included.
    """
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_varnames[:count]


def _share_no_storage(_: tuple[()], *inputs: Any) -> bool:
    """Return True if no two tensors share storage."""
    storages = [i.untyped_storage()._cdata for i in inputs if isinstance(i, torch.Tensor)]
    return len(storages) == len(set(storages))


def _run_if(holds: Callable[..., bool], run: Run, otherwise: Run) -> Run:
    """Return ``run``, or ``otherwise`` for inputs that fail a check (called without cells)."""

    def call(*inputs: Any) -> Any:
        return run(*inputs) if holds((), *inputs) else otherwise(*inputs)

    return call


def fill_slots(code: types.CodeType, objects: dict[ConstSlot, Any]) -> types.CodeType:
    """Replace each slot among the constants of ``code`` by its object.

    Raises:
        KeyError: a slot has no object.
    """
    return code.replace(co_consts=tuple(objects[c] if isinstance(c, ConstSlot) else c for c in code.co_consts))


def eager_run(graph: torch.fx.GraphModule) -> Run:
    """Return the traced graph's forward, without the overhead of ``nn.Module.__call__``."""
    return types.MethodType(type(graph).forward, graph)


def compile_with_inductor(graph: torch.fx.GraphModule, examples: list[Any]) -> Run:
    """Compile the graph with torch's AOTAutograd and Inductor."""
    from torch._inductor.compile_fx import compile_fx

    run: Any = compile_fx(graph, examples)
    compiled: Run = run
    return compiled


def _compile_with_external(run: Callable[..., Run], slot: TracedGraph) -> Run:
    """Compile the graph with an external compiler.

    If sizes are symbols, the compiler gets symbolic fake tensors, as torch passes them: with real tensors it
    would specialize their sizes without a guard. Else it gets the call's inputs.
    """
    mode = next((i.fake.fake_mode for i in slot.inputs if isinstance(i.fake, FakeTensor)), None)
    if not any(_is_symbolic(i.fake) for i in slot.inputs):
        return run(slot.graph, [i.example_value for i in slot.inputs])
    with tracing(TracingContext(mode)):
        return run(slot.graph, [_example_input(mode, i) for i in slot.inputs])


def _example_input(mode: FakeTensorMode | None, i: GraphInput) -> Any:
    """Return an example input: its fake tensor, or a new one if tracing changed its layout."""
    if not isinstance(i.fake, FakeTensor) or mode is None:
        return i.fake
    if i.fake.dtype == i.example_value.dtype and not is_layout_mutated(i.fake, i.example_value):
        return i.fake
    with mode:
        return original_fake(i).requires_grad_(i.example_value.requires_grad)


def _is_symbolic(fake: Any) -> bool:
    if isinstance(fake, torch.Tensor):
        return bool(fake._has_symbolic_sizes_strides)
    return isinstance(fake, (torch.SymInt, torch.SymFloat))


def backend_name(backend: str | Run) -> str:
    """Return the name of a backend."""
    return backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)


def backend_callable(backend: str | Run) -> Run | None:
    """Return the callable of a registered or custom backend; None for built-in ones."""
    return BACKENDS[backend] if isinstance(backend, str) else backend


_pipelines: dict[Any, Pipeline] = {}
_pipelines_lock = threading.Lock()


def pipeline_for(options: Options) -> Pipeline:
    """Return the pipeline for these options; equal options share one, and so its code caches."""
    extra = tuple(sorted(options.extra.items()))
    key = (options.backend, options.fullgraph, options.dynamic, options.target, extra, options.compiled_autograd)
    with _pipelines_lock:
        return _pipelines.setdefault(key, Pipeline(options))


def forget_pipelines() -> None:
    """Drop all pipelines and the tracer's memos.

    Live compiled functions retain their pipeline.
    """
    reset_opaque_caches()
    with _pipelines_lock:
        _pipelines.clear()
