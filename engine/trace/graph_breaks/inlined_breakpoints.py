"""Points inside inlined calls at which the graph can end."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import torch

from engine.ir.user_code_files import is_library_file, is_traceable_torch_module
from engine.trace.annotations import Frame, Tracer
from engine.trace.exc import InlinedBreakpoint
from engine.trace.graph_breaks.frame_readers import may_read_own_frame
from engine.trace.variables.base import Variable


def find_inlined_breakpoint(tx: Tracer) -> InlinedBreakpoint | None:
    """Return the innermost point inside inlined calls where the graph can end now, or None.

    None means the root frame's instruction. All calls down to that point must be resumable. The frame there
    must have added graph operations, or have tensors to continue with.
    """
    frames = tx.call_stack.frames
    if len(frames) < 2 or tx.in_subgraph():
        return None
    depth = 0
    while depth + 1 < len(frames) and _can_split_call(frames[depth], frames[depth + 1]):
        depth += 1
    while depth and not (_is_user_code(frames[depth]) and _frame_has_tensors(tx, frames[depth])):
        depth -= 1
    inlined = frames[1 : depth + 1]
    if not all(_is_user_code(f) or _is_decorator_wrapper(f, g) for f, g in itertools.pairwise(inlined)):
        return None
    if any(reaches_suspended_generator(v, 3) for f in inlined for v in (*f.stack, *f.locals.values())):
        return None  # the root's code would hold the generator until the root returns
    frame = frames[depth]
    return InlinedBreakpoint(frame.instruction_number, depth, frame.code, frame.op.offset) if depth else None


def _can_split_call(caller: Frame, frame: Frame) -> bool:
    """Return True if the call can be split in two and its caller can use what it returns."""
    code = frame.code
    return (
        frame.returns_to_call
        and not caller.exc_stack
        and not code.co_flags & inspect.CO_GENERATOR
        and all(name.isidentifier() for name in code.co_varnames)
        and not may_read_own_frame(caller)
        and not may_read_own_frame(frame)
    )


def _is_user_code(frame: Frame) -> bool:
    """Return True if the function would be compiled if Python called it.

    Library functions are not compiled, except torch functions over tensors.
    """
    module = frame.globals.name
    is_of_torch = is_library_file(frame.code.co_filename)
    return not is_of_torch or module.startswith("torch.nn.modules.") or is_traceable_torch_module(module)


def _is_decorator_wrapper(wrapper: Frame, wrapped: Frame) -> bool:
    """Return True if ``wrapper`` is a decorator's wrapper around the function that it calls."""
    return any(v.resolved is wrapped.function for v in wrapper.cell_contents())


def reaches_suspended_generator(value: Variable, depth: int) -> bool:
    """Return True if a suspended generator with exception handlers is reachable.

    It may run these handlers when it is destroyed.
    """
    children = value.resolved.child_variables()[:20] if depth else ()
    return value.runs_handlers_when_freed() or any(reaches_suspended_generator(v, depth - 1) for v in children)


def _frame_has_tensors(tx: Tracer, frame: Frame) -> bool:
    """Return True if the call added graph operations or can reach tensors or modules."""
    if tx.graph.op_count != frame.ops_at_entry:
        return True
    return any(_reaches_tensor(v, 3) for v in (*frame.locals.values(), *frame.cell_contents()))


def _reaches_tensor(value: Variable, depth: int) -> bool:
    value = value.resolved
    if value.is_lazy:
        return holds_tensor(value.as_python_object(), depth)
    if issubclass(value.python_type(), (torch.Tensor, torch.nn.Module)):
        return True
    return depth > 0 and any(_reaches_tensor(v, depth - 1) for v in value.child_variables()[:20])


def holds_tensor(value: Any, depth: int) -> bool:
    """Return True if a tensor or module is reachable from the object."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return True
    if depth == 0:
        return False
    if isinstance(value, (list, tuple)):
        return any(holds_tensor(v, depth - 1) for v in value[:20])
    if isinstance(value, dict):
        return any(holds_tensor(v, depth - 1) for v in list(value.values())[:20])
    owner = getattr(value, "__self__", None)
    if owner is not None and not inspect.ismodule(owner):
        return holds_tensor(owner, depth - 1)
    return callable(value) and not isinstance(value, type)
