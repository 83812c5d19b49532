"""Methods that subclasses of dict inherit: which of them run methods that Python code overrides, and what class their results have."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.classes import class_origin
from engine.trace.values.iterators import iterator_of
from engine.trace.values.mappings import DictValue, Entry, has_keys, reduced

if TYPE_CHECKING:
    from engine.trace.state import Tracer
    from engine.trace.values.container_objects import ContainerObject

Args = list[Value]
Words = dict[str, Value]


def inherited(tx: Tracer, of: ContainerObject, name: str, args: Args, kwargs: Words) -> Value | None:
    """What a method that a subclass has from ``dict``, ``OrderedDict`` or ``defaultdict`` does; None where it is done to the contents alone."""
    by_base: dict[str, Any] = {}
    if issubclass(of.cls, collections.OrderedDict):
        by_base = _OF_ORDERED
    elif issubclass(of.cls, collections.defaultdict):
        by_base = _OF_DEFAULT
    method = by_base.get(name) or _OF_ALL.get(name)
    made: Value | None = None if method is None else method(tx, of, args, kwargs)
    return made


def past_the_order(tx: Tracer, owner: type, of: Value, name: str, args: Args, kwargs: Words) -> Value | None:
    """A method of ``dict`` called past the one that the OrderedDict has, which leaves the dict's order behind; None where it has no other.

    Raises:
        Unsupported: the order of the dict and that of its OrderedDict may differ.
    """
    if owner is not dict or not issubclass(of.type(), collections.OrderedDict) or name not in _PAST_THE_ORDER:
        return None
    contents = contents_of(of)
    if name == "__setitem__" and contents is not None and len(args) == 2 and contents.contains(tx, force(tx, args[0])):
        return None
    if contents is None or contents.origin is not None or contents.is_reordered or name in ("__repr__", "__init__"):
        raise Unsupported("unsupported-operation", f"dict.{name} on an OrderedDict, which does not see to its order")
    if name in ("keys", "values", "items"):
        return contents.call_method(tx, name, args, kwargs)
    plain = DictValue(dict(contents.entries))
    if name in ("__or__", "__ror__"):
        return _or(tx, plain, force(tx, args[0])) if name == "__or__" else _or(tx, force(tx, args[0]), plain)
    result = plain.call_method(tx, name, args, kwargs)
    if plain.entries.keys() != contents.entries.keys():
        contents.is_stale = True
    if plain.moves or name in ("__ior__", "update", "setdefault"):
        tx.mutating(contents)
        contents.moves += 1
        contents.entries = plain.entries
    return of if result is plain else result


_PAST_THE_ORDER = frozenset(
    "__setitem__ __delitem__ __eq__ __ne__ __ior__ __or__ __ror__ __iter__ __reversed__ __repr__ pop popitem setdefault update clear "
    "copy keys values items __init__".split()
)


def contents_of(value: Value) -> DictValue | None:
    """What a dict or an instance of a subclass holds; None for anything else."""
    inner = getattr(value, "inner", value)
    return inner if isinstance(inner, DictValue) else None


def from_keys(tx: Tracer, cls: type, args: Args, kwargs: Words) -> Value:
    """``Class.fromkeys(...)`` of a subclass: makes an instance, and sets its items one by one."""
    ordered = issubclass(cls, collections.OrderedDict)
    by_name = kwargs.keys() <= {"iterable", "value"} if ordered else not kwargs
    given = dict(zip(("iterable", "value"), args, strict=False)) | (kwargs if by_name else {})
    if not by_name or len(args) > 2 or "iterable" not in given:
        base = collections.OrderedDict if ordered else dict
        tx.fold(base.fromkeys, *[()] * len(args), **dict.fromkeys(kwargs))
    made = force(tx, _class(tx, cls).call(tx, [], {}))
    items = iterator_of(tx, given["iterable"])
    while (key := items.step(tx)) is not None:
        made.set_item(tx, force(tx, key), given.get("value", NONE))
    return made


def _class(tx: Tracer, cls: type) -> Value:
    return tx.wrap(cls, class_origin(cls))


def pairs_in_order(tx: Tracer, other: Value) -> Iterator[Entry]:
    """(key, value) pairs as an OrderedDict reads them of what it is updated with."""
    if isinstance(other, DictValue) and other.cls is dict:
        yield from list(other.entries.values())
    elif hasattr(other.type(), "keys") or has_keys(tx, other):
        keys = iterator_of(tx, other.call_method(tx, "keys", [], {}))
        while (key := keys.step(tx)) is not None:
            yield key, other.get_item(tx, force(tx, key))
    else:
        of_other = other.call_method(tx, "items", [], {}) if hasattr(other.type(), "items") else other
        pairs = iterator_of(tx, of_other)
        while (pair := pairs.step(tx)) is not None:
            yield _two(tx, pair)


def _two(tx: Tracer, pair: Value) -> Entry:
    parts = iterator_of(tx, pair)
    found: list[Value] = []
    while len(found) < 3 and (part := parts.step(tx)) is not None:
        found.append(part)
    if len(found) < 2:
        tx.raise_error(ValueError, f"need more than {len(found)} value{'s' * (len(found) != 1)} to unpack")
    if len(found) > 2:
        tx.raise_error(ValueError, "too many values to unpack (expected 2)")
    return found[0], found[1]


def update_in_order(tx: Tracer, of: Value, name: str, args: Args, kwargs: Words) -> None:
    """``OrderedDict.update`` and ``OrderedDict.__init__``: set each item, by what the class defines for that."""
    if len(args) > 1:
        tx.fold(getattr(collections.OrderedDict, name), collections.OrderedDict(), *[()] * len(args))
    for other in args:
        for key, value in pairs_in_order(tx, force(tx, other)):
            of.set_item(tx, force(tx, key), value)
    for word, value in kwargs.items():
        of.set_item(tx, Const(word), value)


# OrderedDict.


def _ordered_init(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value:
    update_in_order(tx, of, "__init__", args, kwargs)
    return NONE


def _ordered_update(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value:
    update_in_order(tx, of, "update", args, kwargs)
    return NONE


def _ordered_setdefault(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value | None:
    given = dict(zip(("key", "default"), args, strict=False)) | kwargs
    if "key" not in given or len(args) + len(kwargs) > 2 or not given.keys() <= {"key", "default"}:
        return None
    key, default = force(tx, given["key"]), given.get("default", NONE)
    if of.contains(tx, key):
        return of.get_item(tx, key)
    of.set_item(tx, key, default)
    return default


def _ordered_copy(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value | None:
    if args or kwargs:
        return None
    made = force(tx, _class(tx, of.cls).call(tx, [], {}))
    for key, _ in list(contents_of(of).entries.values()):  # type: ignore[union-attr]
        key = force(tx, key)
        made.set_item(tx, key, of.get_item(tx, key))
    return made


def _ordered_or(tx: Tracer, left: Value, right: Value) -> Value:
    if contents_of(left) is None or contents_of(right) is None:
        return Const(NotImplemented)
    cls = left.type() if issubclass(left.type(), collections.OrderedDict) else right.type()
    made = force(tx, _class(tx, cls).call(tx, [left], {}))
    update_in_order(tx, made, "update", [right], {})
    return made


def _ordered_reduce(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value | None:
    if args or kwargs or of.cls.__dictoffset__ == 0:
        return None
    state = of.get_attr(tx, "__dict__")
    return reduced(tx, of, state if state.truth(tx) else NONE)


def _ordered_ior(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value:
    update_in_order(tx, of, "update", args, {})
    return of


# defaultdict.


def _default_copy(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value | None:
    if args or kwargs:
        return None
    return _class(tx, of.cls).call(tx, [contents_of(of).factory or NONE, of], {})  # type: ignore[union-attr]


def _default_or(tx: Tracer, left: Value, right: Value) -> Value:
    if contents_of(left) is None or contents_of(right) is None:
        return Const(NotImplemented)
    of = left if issubclass(left.type(), collections.defaultdict) else right
    made = force(tx, _class(tx, of.type()).call(tx, [contents_of(of).factory or NONE, left], {}))  # type: ignore[union-attr]
    contents = contents_of(made)
    if contents is None:
        raise made.refuse("merging into what the class made")
    contents.update(tx, right)
    return made


def _default_missing(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value:
    contents = contents_of(of)
    assert contents is not None
    return contents.make_missing(tx, force(tx, args[0]), of)


# All.


def _copy(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value | None:
    if args or kwargs:
        return None
    return DictValue(dict(contents_of(of).entries))  # type: ignore[union-attr]


def _or(tx: Tracer, left: Value, right: Value) -> Value:
    of = contents_of(left)
    if of is None or contents_of(right) is None:
        return Const(NotImplemented)
    made = DictValue(dict(of.entries))
    made.update(tx, right)
    return made


def _merged(how: Any, *, reflected: bool) -> Any:
    def method(tx: Tracer, of: ContainerObject, args: Args, kwargs: Words) -> Value | None:
        if len(args) != 1 or kwargs:
            return None
        other = force(tx, args[0])
        made: Value = how(tx, other, of) if reflected else how(tx, of, other)
        return made

    return method


def _both(how: Any) -> dict[str, Any]:
    return {"__or__": _merged(how, reflected=False), "__ror__": _merged(how, reflected=True)}


_OF_ALL: dict[str, Any] = {"copy": _copy, **_both(_or)}
_OF_DEFAULT: dict[str, Any] = {
    "copy": _default_copy,
    "__copy__": _default_copy,
    "__missing__": _default_missing,
    **_both(_default_or),
}
_OF_ORDERED: dict[str, Any] = {
    "__init__": _ordered_init,
    "update": _ordered_update,
    "setdefault": _ordered_setdefault,
    "copy": _ordered_copy,
    "__reduce__": _ordered_reduce,
    "__ior__": _ordered_ior,
    **_both(_ordered_or),
}
