"""Link traced code: put compiled graph, resume functions and helpers into its slots."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from engine.frame_code.codegen_runtime.resume_calls import ResumeCall
from engine.ir.compiler_protocol import Compiler
from engine.ir.traced_frame import CALLEE_SLOT, ConstSlot, ResumeFunctionSlot, TracedFrame
from engine.runtime.dispatch.dispatcher import ResumeDispatcherFactory


def link_frame(
    traced: TracedFrame, run: Callable[..., Any] | None, compiler: Compiler, frame_id: str
) -> tuple[types.CodeType, tuple[Any, ...]]:
    """Return the traced code with an object in each slot, and the dispatchers that it calls.

    ``run`` is the compiled graph.

    Raises:
        KeyError: a slot has no object.
    """
    assert traced.code is not None
    objects: dict[ConstSlot, Any] = {CALLEE_SLOT: compiler.dispatch_callee_at_break, **traced.slot_values}
    if traced.graph is not None:
        objects[traced.graph.slot] = run
    called: list[Any] = []
    for resume in traced.resume_functions:
        objects[resume.slot] = existing = _resume_dispatcher(resume, compiler, frame_id)
        if not resume.makes_closure:
            called.append(existing)
            objects[resume.slot] = ResumeCall(existing)
    return fill_slots(traced.code, objects), tuple(called)


def _resume_dispatcher(resume: ResumeFunctionSlot, compiler: Compiler, frame_id: str) -> Any:
    make = ResumeDispatcherFactory(compiler, frame_id, resume.break_span, resume.dynamic_dims)
    if resume.makes_closure:
        return make
    return make.dispatcher(types.FunctionType(resume.code, resume.globals, resume.code.co_name))


def fill_slots(code: types.CodeType, objects: dict[ConstSlot, Any]) -> types.CodeType:
    """Replace each slot among the constants of ``code`` by its object.

    Raises:
        KeyError: a slot has no object.
    """
    return code.replace(co_consts=tuple(objects[c] if isinstance(c, ConstSlot) else c for c in code.co_consts))
