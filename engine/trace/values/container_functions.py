"""Rules for the builtin containers where they are called as functions, and for what fills a ``collections.Counter``."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from engine.trace import operations
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.container_objects import new_container_value
from engine.trace.values.mappings import DictValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import (
    ListValue,
    RangeValue,
    SliceValue,
    TupleValue,
    index_of,
    is_plainly_named,
    sequence_items,
)
from engine.trace.values.sets import SetValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


@special(range)
def _range(tx: Tracer, args: Args, kwargs: Words) -> Value:
    values = [index_of(tx, force(tx, a)) for a in args]
    try:
        return RangeValue(range(*values))
    except (TypeError, ValueError) as error:
        raise tx.user_exception(error) from error


@special(slice)
def _slice(tx: Tracer, args: Args, kwargs: Words) -> Value:
    parts = [NONE, args[0], NONE] if len(args) == 1 else [*args, *[NONE] * (3 - len(args))]
    return SliceValue(list(parts))


@special(list)
def _list(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return ListValue(list(sequence_items(tx, args[0])) if args else [])


@special(tuple)
def _tuple(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if args and isinstance(of := force(tx, args[0]), TupleValue) and of.cls is tuple:
        return of
    return TupleValue(list(sequence_items(tx, args[0])) if args else [])


@special(set)
def _set(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return _new_set(tx, args, set)


def _new_set(tx: Tracer, args: Args, kind: type) -> Value:
    of = force(tx, args[0]) if args else None
    if isinstance(of, SetValue):
        return of.copied(tx, kind)
    if type(of) is DictValue and of.cls is dict:  # whose keys are not hashed again
        return SetValue({k: key for k, (key, _) in of.entries.items()}, None, kind)
    return SetValue.of(tx, [] if of is None else sequence_items(tx, of), kind)


@special(frozenset)
def _frozenset(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if args and isinstance(of := force(tx, args[0]), SetValue) and of.cls is frozenset:
        return of
    return _new_set(tx, args, frozenset)


@special(collections.deque)
def _deque(tx: Tracer, args: Args, kwargs: Words) -> Value:
    bound = force(tx, args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)).python(tx)
    tx.fold(collections.deque, (), bound)
    items = list(sequence_items(tx, args[0])) if args else []
    return ListValue(items if bound is None else items[max(0, len(items) - bound) :], None, collections.deque, bound)


@special(tuple.__new__)
def _tuple_new(tx: Tracer, args: Args, kwargs: Words) -> Value:
    cls = force(tx, args[0]).python(tx)
    items = list(sequence_items(tx, args[1])) if len(args) > 1 else []
    if cls is not tuple and not is_plainly_named(cls):
        return new_container_value(cls, TupleValue(items))
    return TupleValue(items, cls)


def _count_elements(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """What ``collections.Counter`` does with an iterable."""
    counts = force(tx, args[0])
    for item in sequence_items(tx, args[1]):
        key = force(tx, item)
        before = counts.call_method(tx, "get", [key, Const(0)], {})
        counts.set_item(tx, key, operations.binary(tx, "+", before, Const(1)))
    return NONE


special(vars(collections)["_count_elements"])(_count_elements)
