"""Values inside text: ``%``, ``str.format`` and ``format`` run by Python itself, which asks traced code for each part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.trace.values.base import Const, NotConstant, Value, force

if TYPE_CHECKING:
    from engine.trace.state import Tracer


class Shown:
    """A value on its way into text."""

    def __init__(self, tx: Tracer, value: Value) -> None:
        self.__tx = tx
        self.__value = value

    def __text(self, function: Any) -> str:
        return str(force(self.__tx, self.__tx.fixed(function).call(self.__tx, [self.__value], {})).python(self.__tx))

    def __str__(self) -> str:
        return self.__text(str)

    def __repr__(self) -> str:
        return self.__text(repr)

    def __format__(self, spec: str) -> str:
        tx = self.__tx
        return str(force(tx, tx.fixed(format).call(tx, [self.__value, Const(spec)], {})).python(tx))

    def __getattr__(self, name: str) -> Any:
        return shown(self.__tx, self.__value.get_attr(self.__tx, name))

    def __getitem__(self, key: Any) -> Any:
        return shown(self.__tx, self.__value.get_item(self.__tx, Const(key)))


def shown(tx: Tracer, value: Value) -> Any:
    """A Python object that turns into text as the value does."""
    from engine.trace.values.mappings import DictValue
    from engine.trace.values.sequences import TupleValue

    value = force(tx, value)
    try:
        return value.python(tx)
    except NotConstant:
        pass
    if isinstance(value, TupleValue) and value.cls is tuple:
        return tuple(shown(tx, item) for item in value.items)
    if isinstance(value, DictValue) and value.cls is dict:
        return {force(tx, key).python(tx): shown(tx, item) for key, item in value.entries.values()}
    return Shown(tx, value)
