"""Raising, catching, and ``with``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.trace.signals import Unsupported, UserException
from engine.trace.table import handles
from engine.trace.values.base import NONE, Const, NotConstant, Value, force, is_none
from engine.trace.values.classes import ClassValue
from engine.trace.values.exception_groups import GroupValue, caught_part, left_to_raise
from engine.trace.values.exceptions import ExceptionValue, Handling, guard_not_handling, handled, traceback_of
from engine.trace.values.objects import ObjectValue
from engine.trace.values.sequences import sequence_items

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


def exception_of(tx: Tracer, value: Value) -> ExceptionValue:
    """What ``raise value`` raises."""
    if isinstance(value, ClassValue) and issubclass(value.held, BaseException):
        cls, value = value.held, force(tx, value.call(tx, [], {}))
        if not issubclass(value.type(), BaseException):
            tx.raise_type_error(
                f"calling {cls!r} should have returned an instance of BaseException, not {value.type()!r}"
            )
    if issubclass(value.type(), BaseException) and (not isinstance(value, ExceptionValue) or value.origin is not None):
        raise Unsupported("unsupported-operation", f"raising a {value.describe()} that came from outside")
    if not isinstance(value, ExceptionValue):
        return tx.raise_type_error("exceptions must derive from BaseException")  # type: ignore[no-any-return]
    return value


def _cause(tx: Tracer, value: Value) -> Value:
    """What ``raise ... from value`` names as the cause: any exception, one that came from outside too."""
    if isinstance(value, ClassValue) and issubclass(value.held, BaseException):
        value = force(tx, value.call(tx, [], {}))
    if not is_none(value) and not issubclass(value.type(), BaseException):
        tx.raise_type_error("exception causes must derive from BaseException")
    return value


@handles("RAISE_VARARGS")
def _raise(tx: Tracer, frame: Frame, op: Op) -> None:
    if op.arg == 0:
        current = handled(tx)
        if current is None:
            guard_not_handling(tx)
            tx.raise_error(RuntimeError, "No active exception to reraise")
        assert current is not None
        raise UserException(current)
    cause = force(tx, frame.stack.pop()) if op.arg == 2 else None
    error = exception_of(tx, force(tx, frame.stack.pop()))
    if isinstance(error, GroupValue):
        error.stem = error
    if cause is not None:
        error.set_attr(tx, "__cause__", _cause(tx, cause))
        error.set_attr(tx, "__suppress_context__", Const(True))
    raise UserException(error)


@handles("RERAISE")
def _reraise(tx: Tracer, frame: Frame, op: Op) -> None:
    raise UserException(frame.stack.pop())


@handles("PUSH_EXC_INFO")
def _push_exc_info(tx: Tracer, frame: Frame, op: Op) -> None:
    error = frame.stack.pop()
    frame.push(Handling(error))
    frame.push(error)
    frame.handled.append(error)


@handles("POP_EXCEPT")
def _pop_except(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.stack.pop()
    frame.handled.pop()


@handles("CHECK_EXC_MATCH")
def _check_match(tx: Tracer, frame: Frame, op: Op) -> None:
    try:
        wanted = force(tx, frame.stack.pop()).python(tx)
    except NotConstant:
        raise Unsupported("unsupported-operation", "except with a class that is not known while tracing") from None
    every = wanted if isinstance(wanted, tuple) else (wanted,)
    if not all(isinstance(c, type) and issubclass(c, BaseException) for c in every):
        tx.raise_type_error("catching classes that do not inherit from BaseException is not allowed")
    frame.push(Const(issubclass(force(tx, frame.stack[-1]).type(), wanted)))


@handles("CHECK_EG_MATCH")
def _check_group_match(tx: Tracer, frame: Frame, op: Op) -> None:
    wanted, error = force(tx, frame.stack.pop()), force(tx, frame.stack.pop())
    found, rest = caught_part(tx, error, wanted)
    frame.push(rest)
    frame.push(found)
    if not is_none(found):
        frame.handled[-1] = found


@handles("PREP_RERAISE_STAR")
def _prepare_reraise(tx: Tracer, frame: Frame, op: Op) -> None:
    raised, whole = frame.stack.pop(), force(tx, frame.stack.pop())
    frame.push(left_to_raise(tx, whole, list(sequence_items(tx, raised))))


@handles("BEFORE_WITH")
def _before_with(tx: Tracer, frame: Frame, op: Op) -> None:
    manager = force(tx, frame.stack.pop())
    if isinstance(manager, ObjectValue):
        _check_manager(tx, manager)
    elif manager.type().__module__ == "builtins" and manager.lacks("__enter__"):
        tx.raise_type_error(f"'{manager.type().__name__}' object does not support the context manager protocol")
    leave = manager.get_attr(tx, "__exit__")
    entered = manager.call_method(tx, "__enter__", [], {})
    frame.push(leave)
    frame.push(entered)


def _check_manager(tx: Tracer, manager: ObjectValue) -> None:
    """Raise Python's TypeError where a class lacks one of the two methods."""
    text = f"'{manager.type().__name__}' object does not support the context manager protocol"
    if manager.method(tx, "__enter__") is None:
        tx.raise_type_error(text)
    if manager.method(tx, "__exit__") is None:
        tx.raise_type_error(f"{text} (missed __exit__ method)")


@handles("WITH_EXCEPT_START")
def _with_except(tx: Tracer, frame: Frame, op: Op) -> None:
    leave, error = force(tx, frame.stack[-4]), force(tx, frame.stack[-1])
    frame.push(leave.call(tx, [tx.fixed(error.type()), error, traceback_of(error)], {}))


@handles("CLEANUP_THROW")
def _cleanup_throw(tx: Tracer, frame: Frame, op: Op) -> None:
    error = force(tx, frame.popn(3)[-1])
    if not issubclass(error.type(), StopIteration):
        raise UserException(error)
    frame.push(NONE)
    frame.push(force(tx, error).get_attr(tx, "value"))
