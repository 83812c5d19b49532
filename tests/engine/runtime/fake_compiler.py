"""A fake compiler that guards a frame's arguments and runs the user's own code."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import torch

from engine.bytecode.intercept_calls import intercept_calls
from engine.guards.codegen import compile_check
from engine.guards.entry_queries import EntryGuardQueries
from engine.ir.compiler_protocol import CacheEntry, CompileRequest
from engine.ir.current_session import current_session
from engine.ir.guards.base import Guard
from engine.ir.guards.python_values import EqualsMatch, TypeMatch
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ClosureSource, LocalSource
from engine.options import Options
from engine.records.session import CompilationRecord
from engine.runtime.dispatch.codegen import Parameters
from engine.runtime.dispatch.dispatch_callees import make_callee
from tests.engine.guards.sample_guards import current_global_state_guards, tensor_match


class FakeCompiler:
    """Implement ``ir.compiler_protocol.Compiler`` without compiling anything.

    ``requests`` holds the frames to compile; ``code_of`` makes the code that runs instead.
    """

    def __init__(self, *, fullgraph: bool = False, code_of: Callable[[CodeType], CodeType] | None = None) -> None:
        self.options = Options(fullgraph=fullgraph)
        self.requests: list[CompileRequest] = []
        self.dispatch_callee = make_callee(self)
        self.dispatch_callee_at_break = self.dispatch_callee.at_break
        self.guard_queries = EntryGuardQueries()
        self.root_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
        self.code_of = code_of or (lambda code: code)
        self.before: Callable[[CompileRequest], None] = lambda request: None

    def compile_frame(self, request: CompileRequest) -> CacheEntry:
        """Guard the arguments, closure cells included."""
        self.requests.append(request)
        self.before(request)
        check = compile_check(guards_for(request), Parameters.of(request.function.__code__).names)
        session = current_session()
        id = f"{request.frame_id}/{request.entry_index}"
        if session is not None:
            session.put_compilation(CompilationRecord(id, request.frame_id, request.miss_reason))
        code = self.code_of(request.function.__code__)
        return CacheEntry(id, code, check.guards, check.check, check.text)

    @property
    def names(self) -> list[str]:
        """Names of the frames compiled, in order."""
        return [r.function.__name__ for r in self.requests]


class InterceptingCompiler(FakeCompiler):
    """Every frame runs as Python with its calls dispatched, as after a graph break."""

    def __init__(self) -> None:
        super().__init__(code_of=lambda code: intercept_calls(code, self.dispatch_callee))


def guards_for(request: CompileRequest) -> list[Guard]:
    """Guards on all that a frame was given."""
    guards: list[Guard] = list(current_global_state_guards())
    for name, value in request.arguments.items():
        guards.append(_guard(LocalSource(name), value, request))
    for index, name in enumerate(request.function.__code__.co_freevars):
        assert request.function.__closure__ is not None
        cell = request.function.__closure__[index]
        guards.append(_guard(ClosureSource(name, index), cell.cell_contents, request))
    return guards


def _guard(origin: Source, value: Any, request: CompileRequest) -> Guard:
    dynamic = request.dynamic_dims.get(origin.expr, frozenset())
    if isinstance(value, torch.Tensor):
        return tensor_match(origin, value, tuple(dynamic))
    if type(value) in (int, float, bool, str) and -1 not in dynamic:
        return EqualsMatch(origin, value)
    return TypeMatch(origin, type(value))
