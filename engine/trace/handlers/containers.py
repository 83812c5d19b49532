"""Handlers that build, unpack and update containers, and that format f-strings."""

from __future__ import annotations

from typing import cast

from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.opcode_registry import handle_by_value, handles
from engine.trace.variables.base import NONE, Variable, realize
from engine.trace.variables.containers.dicts import DictVariable, mapping_entries
from engine.trace.variables.containers.method_table import realize_stored
from engine.trace.variables.containers.ranges_and_slices import SliceVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.variables.containers.sets import SetVariable

handle_by_value("BUILD_TUPLE", None, lambda tx, op, *items: TupleVariable(list(items)))
handle_by_value("BUILD_LIST", None, lambda tx, op, *items: ListVariable(list(items)))
handle_by_value("BUILD_SET", None, lambda tx, op, *items: SetVariable.from_items(tx, list(items)))
handle_by_value("BUILD_SLICE", None, lambda tx, op, *bounds: SliceVariable([*bounds, *[NONE] * (3 - len(bounds))]))
handle_by_value("LIST_TO_TUPLE", 1, lambda tx, op, items: TupleVariable(list(sequence_items(tx, items))))


@handles("BUILD_MAP")
def _map(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    keys_and_values = frame.popn(2 * op.arg)
    frame.push(_build_dict(tx, keys_and_values[::2], keys_and_values[1::2]))


@handles("BUILD_CONST_KEY_MAP")
def _const_key_map(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    keys = tx.unpack_iterable(frame.stack.pop())
    frame.push(_build_dict(tx, keys, frame.popn(op.arg)))


def _build_dict(tx: Tracer, keys: list[Variable], values: list[Variable]) -> Variable:
    mapping = DictVariable({})
    for key, value in zip(keys, values, strict=True):
        mapping.set_item(tx, realize_stored(tx, key), value)
    return mapping


@handles("LIST_APPEND")
def _append(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    value = frame.stack.pop()
    cast("ListVariable", realize(tx, frame.stack[-op.arg])).append(tx, value)


@handles("LIST_EXTEND")
def _extend(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    iterable = realize(tx, frame.stack[-1])
    if iterable.lacks_methods("__iter__", "__getitem__"):
        tx.raise_type_error(f"Value after * must be an iterable, not {iterable.python_type().__name__}")
    items = list(sequence_items(tx, iterable))
    target = cast("ListVariable", realize(tx, frame.stack[-op.arg - 1]))
    frame.stack.pop()
    tx.side_effects.record_mutation(target)
    target.items.extend(items)


@handles("SET_ADD", "SET_UPDATE")
def _extend_set(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    value = frame.stack.pop()
    method = "add" if op.opname == "SET_ADD" else "update"
    realize(tx, frame.stack[-op.arg]).call_method(tx, method, [value], {})


@handles("MAP_ADD")
def _map_add(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    key, value = frame.popn(2)
    realize(tx, frame.stack[-op.arg]).set_item(tx, realize_stored(tx, key), value)


@handles("DICT_UPDATE")
def _update(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    other = realize(tx, frame.stack.pop())
    target = cast("DictVariable", realize(tx, frame.stack[-op.arg]))
    target.update(tx, other)


@handles("DICT_MERGE")
def _merge(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    other = realize(tx, frame.stack.pop())
    target = cast("DictVariable", realize(tx, frame.stack[-op.arg]))
    if other.lacks_methods("keys"):
        kind = other.python_type().__name__
        tx.raise_error(TypeError, f"argument after ** must be a mapping, not {kind}", is_exact=False)
    for key, value in mapping_entries(tx, other):
        forced = realize(tx, key)
        if forced.hash_key(tx) in target.entries:
            keyword = forced.as_python_constant(tx)
            tx.raise_error(TypeError, f"got multiple values for keyword argument '{keyword}'", is_exact=False)
        target.set_item(tx, forced, value)


def _unpack_items(tx: Tracer, value: Variable) -> list[Variable]:
    value = realize(tx, value)
    if value.lacks_methods("__iter__", "__getitem__"):
        tx.raise_type_error(f"cannot unpack non-iterable {value.python_type().__name__} object")
    return list(sequence_items(tx, value))


@handles("UNPACK_SEQUENCE")
def _unpack(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    items = _unpack_items(tx, frame.stack.pop())
    if len(items) < op.arg:
        tx.raise_error(ValueError, f"not enough values to unpack (expected {op.arg}, got {len(items)})")
    if len(items) > op.arg:
        tx.raise_error(ValueError, f"too many values to unpack (expected {op.arg})", is_exact=False)
    frame.stack.extend(reversed(items))


@handles("UNPACK_EX")
def _unpack_star(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    items = _unpack_items(tx, frame.stack.pop())
    before, after = op.arg & 0xFF, op.arg >> 8
    if len(items) < before + after:
        tx.raise_error(
            ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    split = len(items) - after
    parts: list[Variable] = [*items[:before], ListVariable(items[before:split]), *items[split:]]
    frame.stack.extend(reversed(parts))


@handles("GET_LEN")
def _get_len(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    frame.push(realize(tx, frame.stack[-1]).length(tx))
