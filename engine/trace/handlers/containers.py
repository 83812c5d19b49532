"""Building and unpacking containers, and formatting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.bytecode.opcodes import VERSION
from engine.trace.signals import Unsupported
from engine.trace.table import handles
from engine.trace.values.base import Const, LazyText, Value, force
from engine.trace.values.mappings import DictValue, entries_of
from engine.trace.values.objects import ObjectValue
from engine.trace.values.refusals import called_name, has_method, is_iterable
from engine.trace.values.rules import special_of
from engine.trace.values.sequences import ListValue, SliceValue, TupleValue, sequence_items
from engine.trace.values.sets import SetValue
from engine.trace.values.symbolic import SymValue

if TYPE_CHECKING:
    from engine.bytecode.decode import Op
    from engine.trace.state import Frame, Tracer


@handles("BUILD_TUPLE")
def _tuple(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(TupleValue(frame.popn(op.arg)))


@handles("BUILD_LIST")
def _list(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(ListValue(frame.popn(op.arg)))


@handles("BUILD_SET")
def _set(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(SetValue.of(tx, frame.popn(op.arg)))


@handles("BUILD_MAP")
def _map(tx: Tracer, frame: Frame, op: Op) -> None:
    parts = frame.popn(2 * op.arg)
    made = DictValue({})
    for key, value in zip(parts[::2], parts[1::2], strict=True):
        made.set_item(tx, force(tx, key), value)
    frame.push(made)


@handles("BUILD_CONST_KEY_MAP")
def _const_key_map(tx: Tracer, frame: Frame, op: Op) -> None:
    keys = force(tx, frame.stack.pop())
    assert isinstance(keys, TupleValue)
    made = DictValue({})
    for key, value in zip(keys.items, frame.popn(op.arg), strict=True):
        made.set_item(tx, force(tx, key), value)
    frame.push(made)


@handles("BUILD_SLICE")
def _slice(tx: Tracer, frame: Frame, op: Op) -> None:
    parts = frame.popn(op.arg)
    frame.push(SliceValue([*parts, *[Const(None)] * (3 - len(parts))]))


@handles("BUILD_STRING")
def _string(tx: Tracer, frame: Frame, op: Op) -> None:
    parts = frame.popn(op.arg)
    if not any(isinstance(p, LazyText) and p.known is None for p in parts):
        frame.push(Const("".join(str(v) for v in tx.constants(parts))))
        return
    joined: list[str | tuple[Value, int, str]] = []
    for part in parts:
        joined += part.parts if isinstance(part, LazyText) else [str(force(tx, part).python(tx))]
    frame.push(LazyText(joined))


@handles("LIST_APPEND")
def _append(tx: Tracer, frame: Frame, op: Op) -> None:
    value = frame.stack.pop()
    target = force(tx, frame.stack[-op.arg])
    assert isinstance(target, ListValue)
    target.append(tx, value)


@handles("LIST_EXTEND")
def _extend(tx: Tracer, frame: Frame, op: Op) -> None:
    given = force(tx, frame.stack[-1])
    if not is_iterable(given):
        tx.raise_type_error(f"Value after * must be an iterable, not {given.type().__name__}")
    items = list(sequence_items(tx, given))
    target = force(tx, frame.stack[-op.arg - 1])
    assert isinstance(target, ListValue)
    frame.stack.pop()
    tx.mutating(target)
    target.items.extend(items)


@handles("LIST_TO_TUPLE")
def _to_tuple(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(TupleValue(list(sequence_items(tx, frame.stack.pop()))))


@handles("SET_ADD")
def _add(tx: Tracer, frame: Frame, op: Op) -> None:
    value = force(tx, frame.stack.pop())
    force(tx, frame.stack[-op.arg]).call_method(tx, "add", [value], {})


@handles("SET_UPDATE")
def _update_set(tx: Tracer, frame: Frame, op: Op) -> None:
    value = frame.stack.pop()
    force(tx, frame.stack[-op.arg]).call_method(tx, "update", [value], {})


@handles("MAP_ADD")
def _map_add(tx: Tracer, frame: Frame, op: Op) -> None:
    key, value = frame.popn(2)
    force(tx, frame.stack[-op.arg]).set_item(tx, force(tx, key), value)


@handles("DICT_UPDATE")
def _update(tx: Tracer, frame: Frame, op: Op) -> None:
    other = force(tx, frame.stack.pop())
    target = force(tx, frame.stack[-op.arg])
    assert isinstance(target, DictValue)
    target.update(tx, other)


@handles("DICT_MERGE")
def _merge(tx: Tracer, frame: Frame, op: Op) -> None:
    other = force(tx, frame.stack.pop())
    target = force(tx, frame.stack[-op.arg])
    assert isinstance(target, DictValue)
    function = force(tx, frame.stack[-op.arg - (2 if VERSION < (3, 13) else 3)])
    if not has_method(other.type(), "keys"):
        kind = other.type().__name__
        tx.raise_type_error(f"{called_name(tx, function)} argument after ** must be a mapping, not {kind}")
    for key, value in entries_of(tx, other):
        forced = force(tx, key)
        if forced.key(tx) in target.entries:
            word = forced.python(tx)
            tx.raise_type_error(f"{called_name(tx, function)} got multiple values for keyword argument '{word}'")
        target.set_item(tx, forced, value)


def _unpacked(tx: Tracer, value: Value) -> list[Value]:
    value = force(tx, value)
    if not is_iterable(value):
        tx.raise_type_error(f"cannot unpack non-iterable {value.type().__name__} object")
    return list(sequence_items(tx, value))


@handles("UNPACK_SEQUENCE")
def _unpack(tx: Tracer, frame: Frame, op: Op) -> None:
    items = _unpacked(tx, frame.stack.pop())
    if len(items) != op.arg:
        few = f"not enough values to unpack (expected {op.arg}, got {len(items)})"
        tx.raise_error(ValueError, few if len(items) < op.arg else f"too many values to unpack (expected {op.arg})")
    frame.stack.extend(reversed(items))


@handles("UNPACK_EX")
def _unpack_star(tx: Tracer, frame: Frame, op: Op) -> None:
    items = _unpacked(tx, frame.stack.pop())
    before, after = op.arg & 0xFF, op.arg >> 8
    if len(items) < before + after:
        tx.raise_error(
            ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    split = len(items) - after
    parts: list[Value] = [*items[:before], ListValue(items[before:split]), *items[split:]]
    frame.stack.extend(reversed(parts))


def formatted(tx: Tracer, value: Value, conversion: int, spec: str) -> Value:
    """One part of an f-string. ``conversion``: 0 none, 1 str, 2 repr, 3 ascii."""
    value = force(tx, value)
    if isinstance(value, SymValue):
        return LazyText([(value, conversion, spec)])
    if not conversion and isinstance(value, ObjectValue) and value.method(tx, "__format__") is not None:
        return value.call_special(tx, "__format__", [Const(spec)])
    if conversion or not isinstance(value, Const):
        fn = (str, str, repr, ascii)[conversion]
        if spec and not conversion and tx.is_constant(value):
            return tx.fold(format, value.python(tx), spec)
        if spec and not conversion:
            raise Unsupported("unsupported-operation", f"formatting a {value.describe()}")
        rule = special_of(fn)
        value = force(tx, rule(tx, [value], {}) if rule is not None else tx.fold(fn, value.python(tx)))
    return tx.fold(format, value.python(tx), spec)


@handles("FORMAT_VALUE")
def _format(tx: Tracer, frame: Frame, op: Op) -> None:
    spec = str(force(tx, frame.stack.pop()).python(tx)) if op.arg & 4 else ""
    frame.push(formatted(tx, frame.stack.pop(), op.arg & 3, spec))


@handles("FORMAT_SIMPLE")
def _format_simple(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(formatted(tx, frame.stack.pop(), 0, ""))


@handles("FORMAT_WITH_SPEC")
def _format_spec(tx: Tracer, frame: Frame, op: Op) -> None:
    spec = str(force(tx, frame.stack.pop()).python(tx))
    frame.push(formatted(tx, frame.stack.pop(), 0, spec))


@handles("CONVERT_VALUE")
def _convert(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(formatted(tx, frame.stack.pop(), op.arg, ""))


@handles("GET_LEN")
def _get_len(tx: Tracer, frame: Frame, op: Op) -> None:
    frame.push(force(tx, frame.stack[-1]).length(tx))
