"""Calls of Python functions traced as part of their caller: binding arguments, frames, generators."""

from __future__ import annotations

import inspect
from types import CodeType
from typing import TYPE_CHECKING, Any

from engine.bytecode.opcodes import VERSION
from engine.options import config
from engine.records.trace import InlinedCall
from engine.trace.signals import Unsupported, UserException
from engine.trace.table import YIELD
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.mappings import DictValue
from engine.trace.values.refusals import raise_binding_error
from engine.trace.values.sequences import TupleValue

if TYPE_CHECKING:
    from engine.trace.state import Frame, Tracer
    from engine.trace.values.functions import FunctionValue
    from engine.trace.values.generators import GeneratorValue


def inline_call(tx: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Trace the function's body now.

    Raises:
        Unsupported: calls are nested too deeply, or it is a coroutine.
    """
    from engine.trace.loop import run
    from engine.trace.state import Frame
    from engine.trace.values.generators import GeneratorValue

    code = function.code
    if len(tx.frames) > tx.room():
        tx.raise_error(RecursionError, "maximum recursion depth exceeded")
    if len(tx.frames) > config.inline_depth:
        raise Unsupported("depth", f"{function.describe()} would be call number {len(tx.frames)} on the stack")
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        raise Unsupported("unsupported-opcode", f"{function.describe()} is asynchronous")
    parent = tx.frames[-1]
    frame = Frame(code, function.namespace, parent, parent.spans())
    frame.locals = bind(tx, function, args, kwargs)
    frame.function = function
    frame.is_direct, tx.direct = tx.direct is function, None
    frame.operations = tx.graph.operations
    for name, cell in zip(code.co_freevars, function.cells(tx), strict=True):
        frame.cells[name] = cell
    if code.co_flags & inspect.CO_GENERATOR:
        made = GeneratorValue(frame, tx.root_executed, (function, args, kwargs))
        made.names = {name: function.get_attr(tx, name) for name in ("__name__", "__qualname__")}
        return made
    _note(tx, code, frame)
    tx.frames.append(frame)
    try:
        run(tx, frame)
    finally:
        tx.frames.pop()
    assert frame.result is not None
    for generator in tx.open_generators:
        if generator.used_by is frame:
            generator.used_by = parent
    return frame.result


def run_class_body(tx: Tracer, body: FunctionValue) -> dict[str, Value]:
    """Trace the body of a class statement; its names in order."""
    from engine.trace.loop import run
    from engine.trace.state import Frame

    parent = tx.frames[-1]
    frame = Frame(body.code, body.namespace, parent, parent.spans())
    frame.function = body
    for name, cell in zip(body.code.co_freevars, body.cells(tx), strict=True):
        frame.cells[name] = cell
    tx.frames.append(frame)
    try:
        run(tx, frame)
    finally:
        tx.frames.pop()
    return frame.locals


def _note(tx: Tracer, code: CodeType, frame: Frame) -> None:
    if frame.trusted:
        return
    caller = frame.caller_stack[-1] if frame.caller_stack else None
    key = (code.co_filename, code.co_firstlineno, caller)
    if key not in tx.inlined:
        tx.inlined[key] = InlinedCall(code.co_qualname, caller, code.co_filename, code.co_firstlineno)


def resume_generator(tx: Tracer, generator: GeneratorValue, sent: Value) -> Value | None:
    """Run a generator's body to its next ``yield``; None when it returned."""
    frame = generator.frame
    if frame.finished:
        return None
    if not generator.is_started and not _is_none(tx, sent):
        tx.raise_type_error("can't send non-None value to a just-started generator")
    if generator.is_running:
        tx.raise_error(ValueError, "generator already executing")
    generator.begins_step(tx)
    if generator.is_started:
        frame.push(sent)
    elif any(frame.decoded.handlers):
        tx.open_generators.append(generator)
    generator.is_started = True
    generator.used_by = tx.frames[-1]
    frame.caller_stack = tx.frames[-1].spans()
    return _to_next_yield(tx, generator)


def _to_next_yield(tx: Tracer, generator: GeneratorValue) -> Value | None:
    from engine.trace.loop import run

    frame = generator.frame
    generator.is_running = True
    tx.frames.append(frame)
    try:
        outcome = run(tx, frame)
    except UserException as error:
        _end(frame)
        raise _left(tx, error) from None
    finally:
        generator.is_running = False
        tx.frames.pop()
    if outcome is YIELD:
        assert frame.result is not None
        return frame.result
    frame.finished = True
    return None


def _end(frame: Frame) -> None:
    """The body was left by an exception: later ends have no value."""
    frame.finished, frame.result = True, None


def _left(tx: Tracer, error: UserException) -> UserException:
    """What a generator's caller gets when an exception leaves its body: a StopIteration becomes a RuntimeError (PEP 479)."""
    if not issubclass(error.value.type(), StopIteration):
        return error
    made = tx.user_exception(RuntimeError("generator raised StopIteration"))
    for name in ("__cause__", "__context__"):
        made.value.set_attr(tx, name, error.value)
    made.value.set_attr(tx, "__suppress_context__", Const(True))
    return made


def throw_into_generator(tx: Tracer, generator: GeneratorValue, args: list[Value]) -> Value:
    """``generator.throw(...)``."""
    from engine.trace.handlers.exceptions import exception_of
    from engine.trace.loop import chain, find_handler

    _refuse_thrown(tx, args)
    error = exception_of(tx, _thrown(tx, args))
    frame = generator.frame
    if frame.finished or not generator.is_started:
        _end(frame)
        raise UserException(error)
    if generator.is_running:
        tx.raise_error(ValueError, "generator already executing")
    generator.begins_step(tx)
    frame.caller_stack = tx.frames[-1].spans()
    generator.is_running = True
    try:
        item, raised = _throw_into_delegate(tx, frame, error)
    finally:
        generator.is_running = False
    if item is not None:
        return item
    if raised is not None and frame.handled:
        tx.frames.append(frame)
        chain(tx, raised)
        tx.frames.pop()
    if raised is not None:
        frame.push(NONE)  # CPython resumes the body with it, and handlers of ``yield from`` count on it
        if not find_handler(tx, frame, raised):
            _end(frame)
            raise _left(tx, UserException(raised))
    item = _to_next_yield(tx, generator)
    return generator.stop(tx) if item is None else item


def _refuse_thrown(tx: Tracer, args: list[Value]) -> None:
    """Raise the user's TypeError where ``throw`` is given the wrong number of arguments, or no exception first."""
    from engine.trace.values.refusals import stand_in

    first = force(tx, args[0]) if args else None
    real: Any = None if first is None else first.real()
    is_class = isinstance(real, type) and issubclass(real, BaseException)
    if first is None or len(args) > 3 or not (is_class or issubclass(first.type(), BaseException)):
        stands = object() if first is None or issubclass(first.type(), type) else stand_in(first)
        none: Any = (n for n in range(0))
        tx.fold(lambda: none.throw(*[real if isinstance(real, type) else stands] * len(args)))


def _thrown(tx: Tracer, args: list[Value]) -> Value:
    """What ``throw`` is given: an exception, its class, or a class and what an instance is made of."""
    kind, given = force(tx, args[0]), [] if len(args) < 2 or _is_none(tx, args[1]) else [force(tx, args[1])]
    real = kind.real()
    if not given or not (isinstance(real, type) and issubclass(real, BaseException)):
        return given[0] if given and isinstance(real, type) else kind
    if issubclass(given[0].type(), real):
        return given[0]
    return force(tx, kind.call(tx, tx.sequence(given[0]) if given[0].type() is tuple else given, {}))


def _throw_into_delegate(tx: Tracer, frame: Frame, error: Value) -> tuple[Value | None, Value | None]:
    """Where a body waits in ``yield from``, its iterator gets the exception first.

    What that yields; else what is raised in the body itself, None where the iterator returned and the body goes on.
    """
    from engine.trace.values.generators import GeneratorValue

    send = frame.decoded.ops[frame.op.index - 1] if frame.op.index else frame.op
    if send.opname != "SEND" or frame.op.opname != "YIELD_VALUE":
        return None, error
    inner = force(tx, frame.stack[-1])
    try:
        if issubclass(error.type(), GeneratorExit):
            if isinstance(inner, GeneratorValue):
                close_generator(tx, inner)
            elif not inner.lacks("close"):
                inner.call_method(tx, "close", [], {})
            return None, error
        if isinstance(inner, GeneratorValue):
            return throw_into_generator(tx, inner, [error]), None
        if inner.lacks("throw"):
            return None, error
        return inner.call_method(tx, "throw", [error], {}), None
    except UserException as raised:
        if not issubclass(raised.value.type(), StopIteration):
            return None, raised.value
        if VERSION == (3, 11):
            frame.stack.pop()
        frame.push(raised.value.get_attr(tx, "value"))
        frame.index = send.target
        return None, None


def close_generator(tx: Tracer, generator: GeneratorValue) -> None:
    """``generator.close()``: GeneratorExit is raised where the body waits, so that its handlers run."""
    hears = generator.delegate() is not None or any(generator.frame.decoded.handlers)
    if not generator.is_started or generator.frame.finished or not hears:
        generator.frame.finished = True
        return
    try:
        throw_into_generator(tx, generator, [tx.user_exception(GeneratorExit()).value])
    except UserException as error:
        if not issubclass(error.value.type(), (GeneratorExit, StopIteration)):
            raise
        return
    tx.raise_error(RuntimeError, "generator ignored GeneratorExit")


def _is_none(tx: Tracer, value: Value) -> bool:
    forced = force(tx, value)
    return isinstance(forced, Const) and forced.value is None


def bind(tx: Tracer, function: FunctionValue, args: list[Value], kwargs: dict[str, Value]) -> dict[str, Value]:
    """Arguments to local variables as a call does it; raises the user's TypeError where Python would."""
    code = function.code
    count, only = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    positional, keyword_only = names[:count], names[count : count + only]
    bound: dict[str, Value] = dict(zip(positional, args, strict=False))
    left = dict(kwargs)
    for name in (*positional[code.co_posonlyargcount :], *keyword_only):
        if name in left:
            if name in bound:
                raise_binding_error(tx, function, args, kwargs)
            bound[name] = left.pop(name)
    _fill_defaults(tx, function, positional, keyword_only, bound)
    if len(bound) < count + only:
        raise_binding_error(tx, function, args, kwargs)
    next_name = count + only
    if code.co_flags & inspect.CO_VARARGS:
        bound[names[next_name]] = TupleValue(list(args[count:]))
        next_name += 1
    elif len(args) > count:
        raise_binding_error(tx, function, args, kwargs)
    if code.co_flags & inspect.CO_VARKEYWORDS:
        bound[names[next_name]] = DictValue.of(left)
    elif left:
        raise_binding_error(tx, function, args, kwargs)
    return bound


def _fill_defaults(
    tx: Tracer,
    function: FunctionValue,
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
