"""Raising, catching, and ``with``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.trace.signals import Unsupported, UserException
from engine.trace.table import handles
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.classes import ClassValue
from engine.trace.values.exceptions import ExceptionValue

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


def exception_of(tx: Tracer, value: Value) -> ExceptionValue:
    """What ``raise value`` raises."""
    if isinstance(value, ClassValue) and issubclass(value.held, BaseException):
        value = force(tx, value.call(tx, [], {}))
    if not isinstance(value, ExceptionValue):
        raise Unsupported("unsupported-operation", f"raising a {value.describe()}")
    return value


def _handled(tx: Tracer) -> Value | None:
    for frame in reversed(tx.frames):
        if frame.handled:
            return frame.handled[-1]
    return None


@handles("RAISE_VARARGS")
def _raise(tx: Tracer, frame: Frame, op: Op) -> None:
    if op.arg == 0:
        current = _handled(tx)
        if current is None:
            tx.raise_error(RuntimeError, "No active exception to reraise")
        assert current is not None
        raise UserException(current)
    if op.arg == 2:
        frame.stack.pop()
    raise UserException(exception_of(tx, force(tx, frame.stack.pop())))


@handles("RERAISE")
def _reraise(tx: Tracer, frame: Frame, op: Op) -> None:
    raise UserException(frame.stack.pop())


@handles("PUSH_EXC_INFO")
def _push_exc_info(tx: Tracer, frame: Frame, op: Op) -> None:
    error = frame.stack.pop()
    frame.push(frame.handled[-1] if frame.handled else NONE)
    frame.push(error)
    frame.handled.append(error)


@handles("POP_EXCEPT")
def _pop_except(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.stack.pop()
    frame.handled.pop()


@handles("CHECK_EXC_MATCH")
def _check_match(tx: Tracer, frame: Frame, op: Op) -> None:
    wanted = force(tx, frame.stack.pop()).python(tx)
    frame.push(Const(issubclass(frame.stack[-1].type(), wanted)))


@handles("BEFORE_WITH")
def _before_with(tx: Tracer, frame: Frame, op: Op) -> None:
    manager = force(tx, frame.stack.pop())
    leave = manager.get_attr(tx, "__exit__")
    entered = manager.call_method(tx, "__enter__", [], {})
    frame.push(leave)
    frame.push(entered)


@handles("WITH_EXCEPT_START")
def _with_except(tx: Tracer, frame: Frame, op: Op) -> None:
    leave, error = force(tx, frame.stack[-4]), frame.stack[-1]
    frame.push(leave.call(tx, [tx.fixed(error.type()), error, NONE], {}))


@handles("CLEANUP_THROW")
def _cleanup_throw(tx: Tracer, frame: Frame, op: Op) -> None:
    error = frame.popn(3)[-1]
    if not issubclass(error.type(), StopIteration):
        raise UserException(error)
    frame.push(NONE)
    frame.push(force(tx, error).get_attr(tx, "value"))
