"""Calls and the making of functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.bytecode.opcodes import VERSION
from engine.trace.table import handles
from engine.trace.values.base import NULL, Value, force
from engine.trace.values.cells import CellValue
from engine.trace.values.functions import MadeFunction
from engine.trace.values.mappings import DictValue, entries_of
from engine.trace.values.refusals import called_name, has_method, is_iterable
from engine.trace.values.sequences import TupleValue, sequence_items

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


def callable_and_arguments(frame: Frame, count: int) -> tuple[Value, list[Value]]:
    """Pop what a call takes: the callable, and its positional arguments (``self`` first, where it lies beside)."""
    args = frame.popn(count)
    above, below = frame.stack.pop(), frame.stack.pop()
    if VERSION >= (3, 13):
        return (below, args) if above is NULL else (below, [above, *args])
    return (above, args) if below is NULL else (below, [above, *args])


@handles("CALL")
def _call(tx: Tracer, frame: Frame, op: Op) -> None:
    names, frame.kw_names = frame.kw_names, ()
    fn, args = callable_and_arguments(frame, op.arg)
    _invoke(tx, frame, fn, args, names)


@handles("CALL_KW")
def _call_kw(tx: Tracer, frame: Frame, op: Op) -> None:
    names = force(tx, frame.stack.pop()).python(tx)
    fn, args = callable_and_arguments(frame, op.arg)
    _invoke(tx, frame, fn, args, names)


def _invoke(tx: Tracer, frame: Frame, fn: Value, args: list[Value], names: tuple[str, ...]) -> None:
    split = len(args) - len(names)
    kwargs = dict(zip(names, args[split:], strict=True))
    tx.direct = callee = force(tx, fn)
    frame.push(callee.call(tx, args[:split], kwargs))


@handles("CALL_FUNCTION_EX")
def _call_ex(tx: Tracer, frame: Frame, op: Op) -> None:
    kwargs: dict[str, Value] = {}
    if op.arg & 1:
        words = force(tx, frame.stack.pop())
        if not has_method(words.type(), "keys"):
            name = called_name(tx, force(tx, frame.stack[-2 if VERSION < (3, 13) else -3]))
            tx.raise_type_error(f"{name} argument after ** must be a mapping, not {words.type().__name__}")
        for key, value in entries_of(tx, words):
            name = force(tx, key).python(tx)
            if not isinstance(name, str):
                tx.raise_type_error("keywords must be strings")
            kwargs[name] = value
    given = force(tx, frame.stack.pop())
    if not is_iterable(given):
        name = called_name(tx, force(tx, frame.stack[-1 if VERSION < (3, 13) else -2]))
        tx.raise_type_error(f"{name} argument after * must be an iterable, not {given.type().__name__}")
    args = list(sequence_items(tx, given))
    above, below = frame.stack.pop(), frame.stack.pop()
    fn = below if VERSION >= (3, 13) else above
    tx.direct = callee = force(tx, fn)
    frame.push(callee.call(tx, args, kwargs))


@handles("MAKE_FUNCTION")
def _make_function(tx: Tracer, frame: Frame, op: Op) -> None:
    code = force(tx, frame.stack.pop()).python(tx)
    made = MadeFunction(code, frame.globals, code.co_name)
    if VERSION < (3, 13):
        for flag in (8, 4, 2, 1):
            if op.arg & flag:
                _attribute(tx, made, flag, force(tx, frame.stack.pop()))
    frame.push(made)


@handles("SET_FUNCTION_ATTRIBUTE")
def _set_function_attribute(tx: Tracer, frame: Frame, op: Op) -> None:
    made = force(tx, frame.stack.pop())
    value = force(tx, frame.stack.pop())
    assert isinstance(made, MadeFunction)
    _attribute(tx, made, op.arg, value)
    frame.push(made)


def _attribute(tx: Tracer, made: MadeFunction, flag: int, value: Value) -> None:
    """Set what MAKE_FUNCTION's flag says: 1 defaults, 2 keyword defaults, 4 annotations, 8 closure."""
    match flag:
        case 4:
            parts = list(sequence_items(tx, value))
            made.annotations = {str(force(tx, n).python(tx)): v for n, v in zip(parts[::2], parts[1::2], strict=True)}
        case 1:
            made.default_values = list(sequence_items(tx, value))
        case 2:
            assert isinstance(value, DictValue)
            made.keyword_default_values = {str(force(tx, k).python(tx)): v for k, v in value.entries.values()}
        case 8:
            assert isinstance(value, TupleValue)
            made.cell_values = [c for c in value.items if isinstance(c, CellValue)]
