"""Handlers of raise, except and with."""

from __future__ import annotations

from engine.bytecode.opcodes import EXIT_FROM_TOP, unsupported_reason
from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import BreakGraph, Unsupported, UserException
from engine.trace.handlers.load_store import push_loaded
from engine.trace.opcode_registry import handles
from engine.trace.variables.base import NONE, ConstantVariable, NotPythonConstant, Variable, is_none, realize
from engine.trace.variables.exceptions.exceptions import (
    ExcInfoVariable,
    current_exception,
    guard_not_in_except_block,
    to_exception,
    traceback_of,
)


def _cause(tx: Tracer, value: Variable) -> Variable:
    """Return the cause of ``raise ... from value``: any exception, also an external one."""
    if value.as_class() is not None and issubclass(value.as_class(), BaseException):
        value = realize(tx, value.call(tx, [], {}))
    if not is_none(value) and not issubclass(value.python_type(), BaseException):
        tx.raise_type_error("exception causes must derive from BaseException")
    return value


@handles("RAISE_VARARGS")
def _raise(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    if op.arg == 0:
        current = current_exception(tx)
        if current is None:
            guard_not_in_except_block(tx)
            tx.raise_error(RuntimeError, "No active exception to reraise")
        assert current is not None
        raise UserException(current)
    cause = realize(tx, frame.stack.pop()) if op.arg == 2 else None
    error = to_exception(tx, realize(tx, frame.stack.pop()))
    if cause is not None:
        error.set_attr(tx, "__cause__", _cause(tx, cause))
        error.set_attr(tx, "__suppress_context__", ConstantVariable(True))
    raise UserException(error)


@handles("RERAISE")
def _reraise(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    raise UserException(frame.stack.pop())


@handles("PUSH_EXC_INFO")
def _push_exc_info(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    error = frame.stack.pop()
    frame.push(ExcInfoVariable(error))
    frame.push(error)
    frame.exc_stack.append(error)


@handles("POP_EXCEPT")
def _pop_except(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.stack.pop()
    frame.exc_stack.pop()


@handles("CHECK_EXC_MATCH")
def _check_match(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    what = "an except clause whose class is not known while tracing"
    with BreakGraph("exception-handling", what, NotPythonConstant):
        caught_class = realize(tx, frame.stack.pop()).as_python_constant(tx)
    classes = caught_class if isinstance(caught_class, tuple) else (caught_class,)
    if not all(isinstance(c, type) and issubclass(c, BaseException) for c in classes):
        tx.raise_type_error("catching classes that do not inherit from BaseException is not allowed")
    frame.push(ConstantVariable(issubclass(realize(tx, frame.stack[-1]).python_type(), caught_class)))


@handles("BEFORE_WITH")
def _before_with(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    manager = realize(tx, frame.stack.pop())
    _check_manager(tx, manager, "__enter__")
    _check_manager(tx, manager, "__exit__")
    exit_method = manager.get_attr(tx, "__exit__")
    entered = manager.call_method(tx, "__enter__", [], {})
    frame.push(exit_method)
    frame.push(entered)


@handles("LOAD_SPECIAL")
def _load_special(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    manager = realize(tx, frame.stack.pop())
    name = op.argrepr
    if name not in ("__enter__", "__exit__"):
        raise Unsupported("unsupported-opcode", unsupported_reason("BEFORE_ASYNC_WITH"))
    _check_manager(tx, manager, name)
    push_loaded(frame, manager.get_attr(tx, name), with_null=True)


def _check_manager(tx: Tracer, manager: Variable, name: str) -> None:
    """Raise Python's TypeError if the class of a context manager lacks one of its methods."""
    cls = manager.python_type()
    is_builtin = cls.__module__ == "builtins" and not manager.is_user_object
    if (
        manager.lookup_special_method(tx, name) is None
        if manager.is_user_object
        else is_builtin and manager.lacks_methods(name)
    ):
        text = f"'{cls.__name__}' object does not support the context manager protocol"
        tx.raise_error(TypeError, text, is_exact=False)


@handles("WITH_EXCEPT_START")
def _with_except(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    exit_method, error = realize(tx, frame.stack[EXIT_FROM_TOP]), realize(tx, frame.stack[-1])
    frame.push(exit_method.call(tx, [tx.wrap_static(error.python_type()), error, traceback_of(error)], {}))


@handles("CLEANUP_THROW")
def _cleanup_throw(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    error = realize(tx, frame.popn(3)[-1])
    if not issubclass(error.python_type(), StopIteration):
        raise UserException(error)
    frame.push(NONE)
    frame.push(realize(tx, error).get_attr(tx, "value"))
