"""Handlers of ``match`` statements."""

from __future__ import annotations

from typing import Any

from engine.trace.annotations import DecodedInstruction, Frame, Tracer
from engine.trace.exc import UserException
from engine.trace.opcode_registry import handles
from engine.trace.operators.arithmetic import identical_or_equal
from engine.trace.variables.base import NONE, NULL, ConstantVariable, Variable, realize
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.objects.attribute_builtins import read_attribute
from engine.trace.variables.objects.class_builtins import is_instance

_PATTERN_FLAGS = {"MATCH_SEQUENCE": 1 << 5, "MATCH_MAPPING": 1 << 6}
"""Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING: type flags that patterns read."""
_SELF_MATCHING_TYPES = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


@handles(*_PATTERN_FLAGS)
def _match_kind(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    type_flags = realize(tx, frame.stack[-1]).python_type().__flags__
    frame.push(ConstantVariable(bool(type_flags & _PATTERN_FLAGS[op.opname])))


@handles("MATCH_KEYS")
def _keys(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    of, keys = realize(tx, frame.stack[-2]), sequence_items(tx, frame.stack[-1])
    values: list[Variable] = []
    keys_read: list[Variable] = []
    for key in keys:
        if any(identical_or_equal(tx, realize(tx, key), other) for other in keys_read):
            tx.raise_error(
                ValueError, f"mapping pattern checks duplicate key ({realize(tx, key).as_python_constant(tx)!r})"
            )
        keys_read.append(realize(tx, key))
        if not of.contains(tx, realize(tx, key)):
            frame.push(NONE)
            return
        values.append(of.get_item(tx, realize(tx, key)))
    frame.push(TupleVariable(values))


@handles("MATCH_CLASS")
def _class(tx: Tracer, frame: Frame, op: DecodedInstruction) -> None:
    names = sequence_items(tx, frame.stack.pop())
    cls, of = realize(tx, frame.stack.pop()), realize(tx, frame.stack.pop())
    if not is_instance(tx, of, cls):
        frame.push(NONE)
        return
    positional = _positional_names(tx, cls, op.arg)
    matched: list[Variable] = [of] if positional is None else []
    result: set[str] = set()
    for name in (*(positional or ()), *names):
        attribute = str(realize(tx, name).as_python_constant(tx))
        if attribute in result:
            name_of_class = cls.as_python_object().__name__
            tx.raise_type_error(f"{name_of_class}() got multiple sub-patterns for attribute {attribute!r}")
        result.add(attribute)
        value = read_attribute(tx, of, attribute, NULL)
        if value is NULL:
            frame.push(NONE)
            return
        matched.append(value)
    frame.push(TupleVariable(matched))


def _positional_names(tx: Tracer, cls: Variable, count: int) -> list[Variable] | None:
    """Return the attributes that positional patterns match.

    Return None if the single pattern matches the value itself, as for ``int(x)``.
    """
    real: Any = cls.as_python_object()
    if not count:
        return []
    try:
        names = sequence_items(tx, cls.get_attr(tx, "__match_args__"))
        kind = realize(tx, cls.get_attr(tx, "__match_args__")).python_type()
        if not issubclass(kind, tuple):
            tx.raise_type_error(f"{real.__name__}.__match_args__ must be a tuple (got {kind.__name__})")
    except UserException as error:
        if not issubclass(error.exception.python_type(), AttributeError):
            raise
        names = []
        if any(base in _SELF_MATCHING_TYPES for base in real.__mro__):
            if count == 1:
                return None
            tx.raise_type_error(f"{real.__name__}() accepts 1 positional sub-pattern ({count} given)")
    if count > len(names):
        plural = "" if len(names) == 1 else "s"
        tx.raise_type_error(f"{real.__name__}() accepts {len(names)} positional sub-pattern{plural} ({count} given)")
    for name in names[:count]:
        if (kind := realize(tx, name).python_type()) is not str:
            tx.raise_type_error(f"__match_args__ elements must be strings (got {kind.__name__})")
    return names[:count]
