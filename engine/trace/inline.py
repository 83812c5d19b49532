"""Inlining of Python calls: argument binding, frames and generators."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import Any, NoReturn

from engine.bytecode.to_records import instruction_records
from engine.ir.current_session import current_session
from engine.options import config
from engine.records.trace import InlinedCall
from engine.trace.annotations import FunctionVariable, Tracer
from engine.trace.exc import Unsupported
from engine.trace.frame import Frame
from engine.trace.variables.base import Args, Kwargs, Variable
from engine.trace.variables.callables.generators import GeneratorVariable
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import TupleVariable


def inline_call(tx: Tracer, function: FunctionVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace the body of a function as part of its caller.

    Raises:
        Unsupported: calls are nested too deeply, or the function is a coroutine.
    """
    code = function.code
    if len(tx.call_stack.frames) > tx.call_stack.remaining_depth():
        tx.raise_error(RecursionError, "maximum recursion depth exceeded")
    if len(tx.call_stack.frames) > config.inline_depth:
        raise Unsupported("depth", f"{function.describe()} would be inlined at depth {len(tx.call_stack.frames)}")
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise Unsupported("async-call", f"{function.describe()} is asynchronous")
    parent = tx.frame
    frame = parent.callee(code, function.namespace)
    frame.locals = bind_arguments(tx, function, args, kwargs)
    frame.function = function
    frame.returns_to_call, tx.call_stack.direct_callee = tx.call_stack.direct_callee is function, None
    frame.ops_at_entry = tx.graph.op_count
    for name, cell in zip(code.co_freevars, function.cells(tx), strict=True):
        frame.cells[name] = cell
    if code.co_flags & inspect.CO_GENERATOR:
        generator = GeneratorVariable(frame, tx.instruction_counter.root_instruction_number, (function, args, kwargs))
        generator.names = {name: function.get_attr(tx, name) for name in ("__name__", "__qualname__")}
        return generator
    _record_inlined_call(tx, code, frame)
    tx.call_stack.frames.append(frame)
    try:
        tx.run_frame(frame)
    finally:
        tx.call_stack.frames.pop()
    assert frame.result is not None
    for generator in tx.call_stack.open_generators:
        if generator.innermost_user_frame is frame:
            generator.innermost_user_frame = parent
    return frame.result


def _record_inlined_call(tx: Tracer, code: CodeType, frame: Frame) -> None:
    if frame.is_trusted:
        return
    caller = frame.caller_stack[-1] if frame.caller_stack else None
    key = (code.co_filename, code.co_firstlineno, caller)
    inlined_calls = tx.call_stack.inlined_calls
    if key in inlined_calls:
        return
    is_first = not any(k[:2] == key[:2] for k in inlined_calls)
    instructions = instruction_records(code) if is_first and current_session() is not None else ()
    inlined_calls[key] = InlinedCall(code.co_qualname, caller, code.co_filename, code.co_firstlineno, instructions)


def bind_arguments(tx: Tracer, function: FunctionVariable, args: Args, kwargs: Kwargs) -> dict[str, Variable]:
    """Bind arguments to local variables; raise TypeError in the traced code as Python would."""
    code = function.code
    count, only = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    positional, keyword_only = names[:count], names[count : count + only]
    bound: dict[str, Variable] = dict(zip(positional, args, strict=False))
    keywords_left = dict(kwargs)
    for name in (*positional[code.co_posonlyargcount :], *keyword_only):
        if name in keywords_left:
            if name in bound:
                _raise_binding_error(tx, function, f"got multiple values for argument '{name}'")
            bound[name] = keywords_left.pop(name)
    _fill_defaults(tx, function, positional, keyword_only, bound)
    next_name = count + only
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[next_name]] = TupleVariable(list(args[count:]))
        next_name += 1
    elif len(args) > count:
        _raise_binding_error(
            tx, function, f"takes {count} positional argument{'s' * (count != 1)} but {len(args)} were given"
        )
    if code.co_flags & inspect.CO_VARKEYWORDS:
        bound[names[next_name]] = DictVariable.from_str_keys(keywords_left)
    elif keywords_left:
        _raise_binding_error(tx, function, f"got an unexpected keyword argument '{next(iter(keywords_left))}'")
    if missing := [repr(n) for n in (*positional, *keyword_only) if n not in bound]:
        plural = "s" if len(missing) > 1 else ""
        _raise_binding_error(tx, function, f"missing {len(missing)} required argument{plural}: {', '.join(missing)}")
    return bound


def _raise_binding_error(tx: Tracer, function: FunctionVariable, text: str) -> NoReturn:
    tx.raise_error(TypeError, f"{function.code.co_qualname}() {text}", is_exact=False)


def _fill_defaults(
    tx: Tracer,
    function: FunctionVariable,
    positional: tuple[str, ...],
    keyword_only: tuple[str, ...],
    bound: dict[str, Any],
) -> None:
    if any(name not in bound for name in positional):
        defaults = function.defaults(tx)
        with_default = positional[len(positional) - len(defaults) :] if defaults else ()
        for name, value in zip(with_default, defaults, strict=True):
            bound.setdefault(name, value)
    if any(name not in bound for name in keyword_only):
        for name, value in function.keyword_defaults(tx).items():
            if name in keyword_only:
                bound.setdefault(name, value)
