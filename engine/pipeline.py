"""Compile pipeline: the order of the stages that turn one frame into a cache entry.

1. trace (``trace_frame``): bytecode to a graph, guards and side effects.
2. backend (``call_backend``): AOT and lowering to kernels, or the user's own backend.
3. link (``link_frame``): new bytecode that calls the compiled graph and the resume functions.
4. guards (``filter_guards``, ``compile_check``): one check from the guards of tracing and of the backend.

Without a graph to run, ``intercept_calls`` replaces steps 2 and 3: the frame runs as Python, its callees compile.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from engine import errors
from engine.autograd.intercept import without_capture
from engine.backends.call_backend import call_backend
from engine.backends.dynamo_metadata import add_dynamo_metadata
from engine.backends.registry import backend_callable, backend_name
from engine.backends.torch_compile_arguments import find_backend
from engine.bytecode.intercept_calls import intercept_calls
from engine.compilation import Compilation, record_compilation
from engine.guards.codegen import compile_check
from engine.guards.entry_queries import EntryGuardQueries
from engine.guards.filter_guards import filter_guards
from engine.guards.to_records import guards_record
from engine.ir.compiler_protocol import CacheEntry, CompileRequest
from engine.ir.current_session import current_session, note_unrecorded_thread
from engine.ir.graph_callable import Run
from engine.ir.introspection.describe_values import describe_arguments
from engine.ir.introspection.torch_global_state import without_torch_function_modes
from engine.ir.kernels.kernel_edits import KernelEdit
from engine.ir.pass_set import PassSet, UserPass, active_passes
from engine.ir.traced_frame import TracedFrame
from engine.ir.wrapped_parameters import name_arguments
from engine.link_frame import link_frame
from engine.options import Options
from engine.records.session import CompilationRecord
from engine.records.trace import TraceRecord
from engine.runtime.dispatch.dispatch_callees import make_callee
from engine.runtime.verify.first_call import compare_on_copies
from engine.torch_private.global_state import changed_setting
from engine.torch_private.torch_function import DisableTorchFunctionSubclass
from engine.torch_reports import report_entry, report_trace
from engine.trace.driver import trace_frame


class Pipeline:
    """Implementation of ``Compiler`` for one set of options."""

    guard_queries = EntryGuardQueries()

    def __init__(self, options: Options) -> None:
        self.options = options
        self.dispatch_callee = make_callee(self)
        self.dispatch_callee_at_break = self.dispatch_callee.at_break
        self.edits: tuple[UserPass, ...] = ()
        """Edits of graphs, which run after the registered passes."""
        self.kernel_edits: tuple[KernelEdit, ...] = ()
        self.root_wrapper: Callable[[Run], Run] | None = None
        """Wrapper around each root function that the user compiles."""
        self._with_backends: dict[Any, Pipeline] = {}

    def with_backend(self, backend: str | Run) -> Pipeline:
        """Return the pipeline with the same options but for this backend."""
        if backend not in self._with_backends:
            self._with_backends[backend] = Pipeline(replace(self.options, backend=find_backend(backend)))
        return self._with_backends[backend]

    def compile_frame(self, request: CompileRequest) -> CacheEntry:
        """Trace, compile and link one frame, and compile its guards.

        After an internal error the frame runs as Python; the error is recorded.

        Raises:
            errors.GraphBreak: under ``fullgraph``, the frame has a graph break.
            errors.BackendError: a user's backend failed, and its errors are not suppressed.
        """
        id = f"{request.frame_id}/{request.entry_index}"
        inputs = None
        if current_session() is not None:
            inputs = describe_arguments(name_arguments(request.arguments, request.item_names))
        else:
            note_unrecorded_thread(request.function.__qualname__)
        record = CompilationRecord(id, request.frame_id, request.miss_reason, inputs)
        with without_capture(), record_compilation(record, backend_name(self.options.backend)) as work:
            work.passes = PassSet((*active_passes.passes, *self.edits), compare_on_copies, self.kernel_edits)
            with work.stage("trace"):
                traced = self._trace(request, work)
            resume_functions: tuple[Any, ...] = ()
            if traced.code is None:
                code = request.function.__code__
                code = intercept_calls(code, self.dispatch_callee) if traced.compiles_callees else code
            else:
                code, resume_functions = link_frame(traced, self._compile_graph(traced, work), self, request.frame_id)
            with work.stage("guards"):
                guards = (*traced.guards, *work.guards)
                if self.options.guard_filter is not None:
                    guards = filter_guards(guards, self.options.guard_filter, request)
                check = compile_check(guards, tuple(request.arguments), prefetched=traced.prefetched_params)
            if work.session is not None:
                work.update_record(guards=guards_record(check.guards, check.text))
            modules = {n: weakref.ref(m) for n, m in request.arguments.items() if issubclass(type(m), torch.nn.Module)}
            entry = CacheEntry(
                id=id,
                code=code,
                guards=check.guards,
                check=check.check,
                check_text=check.text,
                runs_python=traced.code is None,
                resume_functions=resume_functions,
                modules=modules,
            )
            report_entry(request, entry)
            return entry

    def _trace(self, request: CompileRequest, work: Compilation) -> TracedFrame:
        """Trace the frame; return a frame that runs as Python if the user cancelled compilation."""
        traced = TracedFrame(None, (), TraceRecord())
        try:
            with work.end_if_cancelled():
                if not work.is_cancelled:
                    steps = work.session is not None and work.session.level == "steps"
                    traced = trace_frame(request, self._trace_options(), steps=steps)
        except errors.GraphBreak as error:
            work.update_record(trace=TraceRecord(breaks=(error.record,)))
            raise
        work.update_record(trace=traced.record)
        report_trace(request, traced)
        return traced

    def _trace_options(self) -> Options:
        """Return the options; all sizes are symbols if ``torch._dynamo.config`` requires it."""
        is_dynamic = self.options.dynamic is None and changed_setting("assume_static_by_default") is False
        return replace(self.options, dynamic=True) if is_dynamic else self.options

    def _compile_graph(self, traced: TracedFrame, work: Compilation) -> Run | None:
        if traced.graph is None:
            return None
        if backend_callable(self.options.backend) is not None:
            add_dynamo_metadata(traced.graph.graph.graph, traced.guards)
        with without_torch_function_modes(), DisableTorchFunctionSubclass():
            return call_backend(traced.graph, self.options, work)
