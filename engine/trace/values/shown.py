"""Values inside text: ``%``, ``str.format`` and ``format`` run by Python itself, which asks traced code for each part."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
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
    with _stand_ins(tx) as known:
        return _stand_in(tx, force(tx, value), known)


def _stand_in(tx: Tracer, value: Value, known: dict[int, Any]) -> Any:
    if id(value) in known:
        return known[id(value)]
    made = _container(tx, value, known)
    if made is not None:
        return made
    try:
        return value.python(tx)
    except NotConstant:
        return Shown(tx, value)


@contextlib.contextmanager
def _stand_ins(tx: Tracer) -> Iterator[dict[int, Any]]:
    """What stands for containers, by the ids of their values, while one is shown."""
    if tx.stand_ins is not None:
        yield tx.stand_ins
        return
    tx.stand_ins = {}
    try:
        yield tx.stand_ins
    finally:
        tx.stand_ins = None


def _container(tx: Tracer, value: Value, known: dict[int, Any]) -> Any:
    """A container like a builtin one, of what stands for its parts; None where no container of this kind can be made.

    A container that is reached from itself is one: Python sees so, and shows dots.
    """
    from engine.trace.values.mappings import DictValue, DictView
    from engine.trace.values.sequences import ListValue, TupleValue
    from engine.trace.values.sets import SetValue

    made: Any
    if isinstance(value, ListValue) and value.cls in (list, collections.deque):
        made = known[id(value)] = value.cls() if value.cls is list else collections.deque(maxlen=value.maxlen)
        made.extend(shown(tx, item) for item in value.items)
        return made
    if isinstance(value, TupleValue) and value.cls is tuple:
        known[id(value)] = _Text("(...)")
        try:
            return tuple(shown(tx, item) for item in value.items)
        finally:
            del known[id(value)]
    if isinstance(value, DictValue) and value.cls in (dict, collections.OrderedDict, collections.defaultdict):
        made = value.cls()
        if value.cls is collections.defaultdict:
            made.default_factory = shown(tx, value.factory) if value.factory is not None else None
        known[id(value)] = made
        made.update((_as_key(shown(tx, key)), shown(tx, item)) for key, item in value.entries.values())
        return made
    if isinstance(value, DictView):
        like: Any = collections.OrderedDict() if issubclass(value.of.cls, collections.OrderedDict) else {}
        made = known[id(value)] = getattr(like, value.kind)()
        like.update((_as_key(shown(tx, key)), shown(tx, item)) for key, item in value.of.entries.values())
        return made
    if isinstance(value, SetValue) and value.cls in (set, frozenset) and len(value.elements) == 1:
        made = value.cls()
        if value.cls is set:
            known[id(value)] = made
        parts = [_as_key(shown(tx, item)) for item in value.elements.values()]
        if value.cls is set:
            made.update(parts)
        return made if value.cls is set else frozenset(parts)
    return None


def _as_key(of: Any) -> Any:
    """An object that shows what another does, and can be a key."""
    try:
        hash(of)
    except TypeError:
        return _Text(repr(of))
    return of


class _Text:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def container_text(tx: Tracer, value: Value) -> str | None:
    """``repr`` of a builtin container; None where it holds what has no text that is known."""
    with _stand_ins(tx) as known:
        made = known[id(value)] if id(value) in known else _container(tx, value, known)
        return None if made is None else repr(made)
