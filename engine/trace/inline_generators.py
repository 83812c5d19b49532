"""Resume, throw into and close generators whose bodies are traced."""

from __future__ import annotations

from engine.bytecode.opcodes import RULES
from engine.trace.annotations import Frame, GeneratorVariable, Tracer
from engine.trace.exc import UserException
from engine.trace.exception_handlers import jump_to_handler, set_exception_context
from engine.trace.opcode_registry import YIELD
from engine.trace.variables.base import NONE, Args, ConstantVariable, Variable, is_none, realize
from engine.trace.variables.exceptions.exceptions import to_exception


def resume_generator(tx: Tracer, generator: GeneratorVariable, sent: Variable) -> Variable | None:
    """Run a generator's body to its next ``yield``; return None if the body returned."""
    frame = generator.frame
    if frame.is_finished:
        return None
    if not generator.is_started and not is_none(realize(tx, sent)):
        tx.raise_type_error("can't send non-None value to a just-started generator")
    if generator.is_running:
        tx.raise_error(ValueError, "generator already executing")
    generator.before_step(tx)
    if generator.is_started:
        frame.push(sent)
    elif any(frame.decoded.handlers):
        tx.call_stack.open_generators.append(generator)
    generator.is_started = True
    generator.innermost_user_frame = tx.frame
    frame.caller_stack = tx.frame.user_stack()
    return _run_to_next_yield(tx, generator)


def _run_to_next_yield(tx: Tracer, generator: GeneratorVariable) -> Variable | None:
    frame = generator.frame
    generator.is_running = True
    tx.call_stack.frames.append(frame)
    try:
        outcome = tx.run_frame(frame)
    except UserException as error:
        _mark_finished(frame)
        raise _convert_stop_iteration(tx, error) from None
    finally:
        generator.is_running = False
        tx.call_stack.frames.pop()
    if outcome is YIELD:
        assert frame.result is not None
        return frame.result
    frame.is_finished = True
    return None


def _mark_finished(frame: Frame) -> None:
    """Mark a body as finished by an exception: it has no return value."""
    frame.is_finished, frame.result = True, None


def _convert_stop_iteration(tx: Tracer, error: UserException) -> UserException:
    """Return the exception that the generator's caller sees.

    StopIteration becomes RuntimeError (PEP 479).
    """
    if not issubclass(error.exception.python_type(), StopIteration):
        return error
    runtime_error = tx.make_user_exception(RuntimeError("generator raised StopIteration"))
    for name in ("__cause__", "__context__"):
        runtime_error.exception.set_attr(tx, name, error.exception)
    runtime_error.exception.set_attr(tx, "__suppress_context__", ConstantVariable(True))
    return runtime_error


def throw_into_generator(tx: Tracer, generator: GeneratorVariable, args: Args) -> Variable:
    """Trace ``generator.throw(...)``."""
    _check_throw_arguments(tx, args)
    error = to_exception(tx, _exception_to_throw(tx, args))
    frame = generator.frame
    if frame.is_finished or not generator.is_started:
        _mark_finished(frame)
        raise UserException(error)
    if generator.is_running:
        tx.raise_error(ValueError, "generator already executing")
    generator.before_step(tx)
    frame.caller_stack = tx.frame.user_stack()
    generator.is_running = True
    try:
        item, raised = _throw_into_delegate(tx, frame, error)
    finally:
        generator.is_running = False
    if item is not None:
        return item
    if raised is not None and frame.exc_stack:
        tx.call_stack.frames.append(frame)
        set_exception_context(tx, raised)
        tx.call_stack.frames.pop()
    if raised is not None:
        frame.push(NONE)  # CPython pushes it too; handlers of ``yield from`` expect it
        if not jump_to_handler(frame, raised):
            _mark_finished(frame)
            raise _convert_stop_iteration(tx, UserException(raised))
    item = _run_to_next_yield(tx, generator)
    return generator.raise_stop_iteration(tx) if item is None else item


def _check_throw_arguments(tx: Tracer, args: Args) -> None:
    """Raise TypeError in the traced code for invalid arguments of ``throw``.

    These are a wrong number of arguments, or a first argument that is no exception.
    """
    first = realize(tx, args[0]) if args else None
    real = None if first is None else first.as_class()
    is_class = real is not None and issubclass(real, BaseException)
    if first is None or len(args) > 3 or not (is_class or issubclass(first.python_type(), BaseException)):
        tx.raise_error(TypeError, "throw() takes an exception, and at most a value and a traceback", is_exact=False)


def _exception_to_throw(tx: Tracer, args: Args) -> Variable:
    """Return the exception to throw: an instance or class, or an instance of class and value."""
    kind, value = realize(tx, args[0]), realize(tx, args[1]) if len(args) > 1 else NONE
    real = kind.as_class()
    if real is None or is_none(value):
        return kind
    if not issubclass(real, BaseException) or issubclass(value.python_type(), real):
        return value
    return realize(tx, kind.call(tx, tx.unpack_iterable(value) if value.python_type() is tuple else [value], {}))


def _throw_into_delegate(tx: Tracer, frame: Frame, error: Variable) -> tuple[Variable | None, Variable | None]:
    """Throw into the iterator of ``yield from`` first, if the body is suspended there.

    Return the item that it yields, or None and the exception to raise in the body. The exception is None too
    if the iterator returned and the body continues.
    """
    send = frame.decoded.ops[frame.op.index - 1] if frame.op.index else frame.op
    if send.opname != "SEND" or frame.op.opname != "YIELD_VALUE":
        return None, error
    inner = realize(tx, frame.stack[-1])
    try:
        if issubclass(error.python_type(), GeneratorExit):
            if not inner.lacks_methods("close"):
                inner.call_method(tx, "close", [], {})
            return None, error
        if inner.lacks_methods("throw"):
            return None, error
        return inner.call_method(tx, "throw", [error], {}), None
    except UserException as raised:
        if not issubclass(raised.exception.python_type(), StopIteration):
            return None, raised.exception
        if not RULES.send_keeps_iterator:
            frame.stack.pop()
        frame.push(raised.exception.get_attr(tx, "value"))
        frame.next_index = send.target
        return None, None


def close_generator(tx: Tracer, generator: GeneratorVariable) -> Variable:
    """Trace ``generator.close()``: raise GeneratorExit where the body is suspended.

    The handlers of the body run. Return the result of the call.
    """
    has_handlers = generator.yield_from_iterator() is not None or any(generator.frame.decoded.handlers)
    if not generator.is_started or generator.frame.is_finished or not has_handlers:
        generator.frame.is_finished = True
        return NONE
    try:
        throw_into_generator(tx, generator, [tx.make_user_exception(GeneratorExit()).exception])
    except UserException as error:
        if not issubclass(error.exception.python_type(), (GeneratorExit, StopIteration)):
            raise
        is_returned = RULES.close_returns_value and issubclass(error.exception.python_type(), StopIteration)
        return error.exception.get_attr(tx, "value") if is_returned else NONE
    return tx.raise_error(RuntimeError, "generator ignored GeneratorExit")
