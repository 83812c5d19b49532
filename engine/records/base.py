"""Record base class and JSON serialization, by dataclass fields; evaluates nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from typing import Any, ClassVar, Self

SCHEMA_VERSION = 2
"""Incremented when a session saved by an older version can no longer be read correctly."""


class RecordError(ValueError):
    """Raised if a saved record cannot be read; names the field and what was expected."""


@typing.dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class RecordType(type):
    """Metaclass of records: each class is a frozen dataclass with slots."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        """Create the class; ``dataclass`` calls this again, with the slots."""
        record = super().__new__(cls, name, bases, namespace)
        return record if "__slots__" in namespace else dataclasses.dataclass(frozen=True, slots=True)(record)


class Record(metaclass=RecordType):
    """Base class of all records: frozen dataclasses with slots.

    Fields are str, int, float, bool, None, tuples, dicts with str keys, and records.
    """

    _types_by_name: ClassVar[dict[str, type[Record]]] = {}
    OMITTED_IF_EMPTY: ClassVar[tuple[str, ...]] = ()
    """Fields that most records of the class leave empty; saved sessions leave them out then."""

    @classmethod
    def __init_subclass__(cls, **kwargs: Any) -> None:
        # dataclass(slots=True) creates a second class object, which breaks zero-argument super().
        object.__init_subclass__(**kwargs)
        Record._types_by_name[cls.__name__] = cls

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-serializable values."""
        values = {f.name: to_jsonable(getattr(self, f.name)) for f in dataclasses.fields(self)}
        for name in self.OMITTED_IF_EMPTY:
            if not values[name]:
                del values[name]
        return values

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Create a record from JSON values.

        Unknown fields are ignored (written by a newer minor version); missing fields get their default.

        Raises:
            RecordError: a required field is missing, or a value has the wrong type.
        """
        return typing.cast("Self", from_jsonable(cls, data, cls.__name__))


def to_jsonable(value: Any) -> Any:
    """Convert a record, or a container of records, to values for ``json.dumps``."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, (tuple, list)):
        return [to_jsonable(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    # JSON has no infinity and no NaN, and browsers reject Python's notation.
    return None if isinstance(value, float) and not math.isfinite(value) else value


_hints: dict[type, dict[str, Any]] = {}


def field_types(cls: type) -> dict[str, Any]:
    """Return the annotated type of each field of a record class."""
    if cls not in _hints:
        _hints[cls] = typing.get_type_hints(cls)
    return _hints[cls]


def from_jsonable(expected: Any, data: Any, where: str) -> Any:
    """Convert JSON ``data`` to the annotated type ``expected``; ``where`` is used in errors."""
    if expected is Any:
        return data
    origin = typing.get_origin(expected)
    if origin is typing.Union or origin is types.UnionType:
        return _from_union(typing.get_args(expected), data, where)
    if origin is tuple:
        return _from_tuple(typing.get_args(expected), data, where)
    if origin is dict:
        value_type = typing.get_args(expected)[1]
        items = _check_type(data, dict, "an object", where).items()
        return {k: from_jsonable(value_type, v, f"{where}.{k}") for k, v in items}
    if origin is typing.Literal:
        if data not in typing.get_args(expected):
            raise RecordError(f"{where}: {data!r} is not one of {', '.join(map(repr, typing.get_args(expected)))}")
        return data
    if isinstance(expected, type) and issubclass(expected, Record):
        return _from_record(expected, data, where)
    if expected is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise RecordError(f"{where}: the number is too large") from None
    if expected is type(None):
        if data is not None:
            raise RecordError(f"{where}: expected nothing, found {type(data).__name__}")
        return None
    if not isinstance(data, expected) or (isinstance(data, bool) and expected is not bool):
        raise RecordError(f"{where}: expected {expected.__name__}, found {type(data).__name__}")
    return data


def _from_union(arms: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in arms:
        return None
    problem: RecordError | None = None
    for arm in arms:
        if arm is type(None):
            continue
        try:
            return from_jsonable(arm, data, where)
        except RecordError as error:
            problem = problem or error
    raise problem or RecordError(f"{where}: unexpected {type(data).__name__}")


def _check_type(data: Any, kind: type | tuple[type, ...], word: str, where: str) -> Any:
    if not isinstance(data, kind):
        raise RecordError(f"{where}: expected {word}, found {type(data).__name__}")
    return data


def _from_tuple(args: tuple[Any, ...], data: Any, where: str) -> tuple[Any, ...]:
    _check_type(data, (list, tuple), "a list", where)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(from_jsonable(args[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    if len(args) != len(data):
        raise RecordError(f"{where}: expected {len(args)} items, found {len(data)}")
    return tuple(from_jsonable(a, v, f"{where}[{i}]") for i, (a, v) in enumerate(zip(args, data, strict=True)))


def _from_record(cls: type[Record], data: Any, where: str) -> Record:
    _check_type(data, dict, "an object", where)
    hints = field_types(cls)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name in data:
            values[field.name] = from_jsonable(hints[field.name], data[field.name], f"{where}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{where}: the field {field.name!r} is missing")
    return cls(**values)


def to_json(record: Record) -> str:
    """Serialize a record to compact JSON text."""
    return json.dumps(record.to_dict(), separators=(",", ":"), ensure_ascii=False)
