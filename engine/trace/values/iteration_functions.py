"""Rules for the builtin functions that step through iterables, fold them into one value or say how long they are."""

from __future__ import annotations

import collections
import functools
import operator
from typing import TYPE_CHECKING, Any

import torch

from engine.trace import operations
from engine.trace.graph_builder import emit
from engine.trace.signals import UserException
from engine.trace.values import iterators
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.classes import find_in_class
from engine.trace.values.iteration import until
from engine.trace.values.mappings import DictView
from engine.trace.values.objects import ObjectValue
from engine.trace.values.refusals import has_method, raise_missing
from engine.trace.values.rules import special
from engine.trace.values.sequences import (
    ListValue,
    RangeValue,
    TupleValue,
    sequence_items,
)
from engine.trace.values.symbolic import SymValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


@special(len)
def _len(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return force(tx, args[0]).length(tx)


@special(operator.length_hint)
def _length_hint(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, iterators.IteratorValue) and hasattr(of.type(), "__length_hint__"):
        return Const(of.hint(tx))
    return operations.fold_call(tx, operator.length_hint, args, kwargs, f"operator.length_hint() of {of.describe()}")


@special(iter)
def _iter(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if len(args) != 1:
        if force(tx, args[0]).lacks("__call__"):
            wrong: Any = None
            try:
                iter(wrong, None)
            except TypeError as error:  # whose words differ between versions of Python
                tx.raise_type_error(str(error))
        return until(tx, args[0], force(tx, args[1]))
    return force(tx, args[0]).iterate(tx)


@special(next)
def _next(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, ObjectValue) and of.method(tx, "__next__") is None:
        raise_missing(tx, of.type(), "__next__")
    if len(args) == 1 and isinstance(of, (ObjectValue, iterators.IteratorValue)):
        return of.call_method(tx, "__next__", [], {})
    found = of.step(tx)
    if found is not None:
        return found
    if len(args) > 1:
        return args[1]
    raise tx.stop_iteration()


@special(enumerate)
def _enumerate(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("iterable", "start"), args, strict=False)) | kwargs
    start = operations.fold_call(
        tx, operator.index, [given.get("start", Const(0))], {}, "enumerate() from what is not known"
    )
    return iterators.make_enumerate(tx, given["iterable"], start.python(tx))


@special(zip)
def _zip(tx: Tracer, args: Args, kwargs: Words) -> Value:
    strict = force(tx, kwargs["strict"]).truth(tx) if "strict" in kwargs else False
    return iterators.make_zip(tx, args, strict=strict)


@special(map)
def _map(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return iterators.make_map(tx, args[0], args[1:])


@special(filter)
def _filter(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return iterators.make_filter(tx, args[0], args[1])


def _size(tx: Tracer, of: Value) -> int:
    return int(of.length(tx).python(tx))


def _item_or_end(tx: Tracer, of: Value, index: int) -> Value | None:
    """An item of a user's sequence; None where it says that there is none."""
    try:
        return of.get_item(tx, Const(index))
    except UserException as error:
        if issubclass(error.value.type(), (IndexError, StopIteration)):
            return None
        raise


@special(reversed)
def _reversed(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, RangeValue):
        return iterators.RangeIterator(of.value[::-1])
    own = find_in_class(of.type(), "__reversed__")
    if own is not None and own[1] is None:
        raise_missing(tx, of.type(), "__reversed__")
    if isinstance(of, ObjectValue) and of.method(tx, "__reversed__") is not None:
        return of.call_special(tx, "__reversed__", [])
    if not has_method(of.type(), "__reversed__") and not (
        has_method(of.type(), "__len__") and has_method(of.type(), "__getitem__")
    ):
        raise_missing(tx, of.type(), "__reversed__")
    if isinstance(of, ObjectValue):
        count = _size(tx, of)
        return iterators.ReversedIterator(
            reversed, of, count, lambda tx: _size(tx, of), lambda n: _item_or_end(tx, of, n)
        )
    if isinstance(of, (TupleValue, Const)) or (isinstance(of, ListValue) and of.cls is list):
        items = sequence_items(tx, of)
        kind: type = type(reversed([])) if isinstance(of, ListValue) else reversed
        return iterators.ReversedIterator(
            kind, of, len(items), lambda tx: len(items), lambda n: items[n] if n < len(items) else None
        )
    return iterators.SequenceIterator(list(reversed(sequence_items(tx, of))), _reversed_kind(of))


def _reversed_kind(of: Value) -> type:
    """The class of ``reversed`` of a dict, one of its views, or a deque."""
    if isinstance(of, DictView):
        return type(reversed(getattr(of.of.type()() if of.of.is_ordered else {}, of.kind)()))
    made: Any = of.type()
    return type(reversed(made())) if made in (dict, collections.OrderedDict, collections.deque) else reversed


@special(sum)
def _sum(tx: Tracer, args: Args, kwargs: Words) -> Value:
    total = force(tx, args[1] if len(args) > 1 else kwargs.get("start", Const(0)))
    if issubclass(total.type(), (str, bytes, bytearray)):
        tx.fold(sum, (), b"" if total.type() is bytes else "" if issubclass(total.type(), str) else bytearray())
    for item in sequence_items(tx, args[0]):
        total = operations.binary(tx, "+", total, item)
    return total


def _are_alike(numbers: tuple[Value, Value]) -> bool:
    """Whether the greater of two numbers has the type of both, as it has where symbols are compared in the graph."""
    return numbers[0].type() is numbers[1].type() and numbers[0].type() in (int, float)


def _extreme(fn: Any, symbol: str) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        items = sequence_items(tx, args[0]) if len(args) == 1 else args
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            tx.raise_error(ValueError, f"{fn.__name__}() arg is an empty sequence")
        key = force(tx, kwargs["key"]) if "key" in kwargs else NONE
        plain = isinstance(key, Const) and key.value is None
        best = force(tx, items[0])
        best_key = best if plain else force(tx, key.call(tx, [best], {}))
        for item in items[1:]:
            item_key = force(tx, item if plain else key.call(tx, [item], {}))
            numbers = (best_key, item_key)
            if plain and any(isinstance(k, SymValue) for k in numbers) and _are_alike(numbers):
                best = best_key = emit(
                    tx, "call_function", torch.sym_min if fn is min else torch.sym_max, [best, item_key]
                )
            elif force(tx, operations.compare(tx, symbol, item_key, best_key)).truth(tx):
                best, best_key = force(tx, item), item_key
        return best

    return rule


special(min)(_extreme(min, "<"))
special(max)(_extreme(max, ">"))


@special(any)
def _any(tx: Tracer, args: Args, kwargs: Words) -> Value:
    iterator = iterators.iterator_of(tx, args[0])
    while (item := iterator.step(tx)) is not None:
        if force(tx, item).truth(tx):
            return Const(True)
    return Const(False)


@special(all)
def _all(tx: Tracer, args: Args, kwargs: Words) -> Value:
    iterator = iterators.iterator_of(tx, args[0])
    while (item := iterator.step(tx)) is not None:
        if not force(tx, item).truth(tx):
            return Const(False)
    return Const(True)


@special(sorted)
def _sorted(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return ListValue(operations.sorted_items(tx, list(sequence_items(tx, args[0])), kwargs))


@special(functools.reduce)
def _reduce(tx: Tracer, args: Args, kwargs: Words) -> Value:
    items = list(sequence_items(tx, args[1]))
    if len(args) < 3 and not items:
        tx.raise_type_error("reduce() of empty iterable with no initial value")
    total = args[2] if len(args) > 2 else items.pop(0)
    for item in items:
        total = force(tx, args[0]).call(tx, [total, item], {})
    return total
