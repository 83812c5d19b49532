"""Rules for len, iter, next, reversed, sum, min, max, sorted.

Also any, all, ``functools.reduce`` and ``operator.length_hint``.
"""

from __future__ import annotations

import collections
import functools
import heapq
import operator
from typing import Any

import torch

from engine.ir.register_once import register_each, register_table
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.graph_breaks.reasons import unknown_call_kind
from engine.trace.operators import arithmetic
from engine.trace.variables.base import (
    NONE,
    Args,
    ConstantVariable,
    Kwargs,
    UserErrors,
    Variable,
    are_plain_constants,
    is_none,
    raise_missing_method,
    realize,
)
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.containers import iterators
from engine.trace.variables.containers.dict_views import DictViewVariable
from engine.trace.variables.containers.itertools_module import make_iterator
from engine.trace.variables.containers.ranges_and_slices import RangeVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.variables.objects.class_lookup import find_in_class
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

register_bound_rule(len)(lambda tx, of: of.length(tx))


@register_rule(operator.length_hint)
def _length_hint(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    if isinstance(of, iterators.IteratorVariable) and hasattr(of.python_type(), "__length_hint__"):
        return ConstantVariable(of.length_hint(tx))
    return arithmetic.fold_constant_call(tx, operator.length_hint, args, kwargs)


@register_rule(iter)
def _iter(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) != 1:
        if realize(tx, args[0]).lacks_methods("__call__"):
            tx.raise_error(TypeError, "iter(v, w): v must be callable", is_exact=False)
        return make_iterator(tx, iter, args, kwargs)
    return realize(tx, args[0]).get_iterator(tx)


@register_bound_rule(next)
def _next(tx: Tracer, of: Variable, *default: Variable) -> Variable:
    if of.is_user_object and of.lookup_special_method(tx, "__next__") is None:
        raise_missing_method(tx, of.python_type(), "__next__")
    if not default and not of.lacks_methods("__next__"):
        return of.call_method(tx, "__next__", [], {})
    item = of.next_item(tx)
    if item is None and not default:
        raise tx.make_stop_iteration()
    return default[0] if item is None else item


@register_bound_rule(reversed)
def _reversed(tx: Tracer, of: Variable) -> Variable:
    entry = find_in_class(of.python_type(), "__reversed__")
    if entry is not None and entry.raw is None:
        raise_missing_method(tx, of.python_type(), "__reversed__")
    reversed_iterator = of.call_user_method(tx, "__reversed__", [])
    if reversed_iterator is not None:
        return reversed_iterator
    if of.lacks_methods("__reversed__") and (of.lacks_methods("__len__") or of.lacks_methods("__getitem__")):
        raise_missing_method(tx, of.python_type(), "__reversed__")
    return _reverse(of, tx)


@functools.singledispatch
def _reverse(of: Variable, tx: Tracer) -> Variable:
    """Return the iterator of ``reversed(of)``."""
    cls: Any = of.python_type()
    kind = type(reversed(cls())) if cls in (dict, collections.OrderedDict, collections.deque) else reversed
    return iterators.SequenceIteratorVariable(list(reversed(sequence_items(tx, of))), kind)


@_reverse.register(DictViewVariable)
def _reverse_view(of: DictViewVariable, tx: Tracer) -> Variable:
    sample: Any = collections.OrderedDict() if of.dict_variable.is_ordered else {}
    kind = type(reversed(getattr(sample, of.view_kind)()))
    return iterators.SequenceIteratorVariable(list(reversed(of.items())), kind)


@_reverse.register(RangeVariable)
def _reverse_range(of: RangeVariable, tx: Tracer) -> Variable:
    return iterators.RangeIteratorVariable(RangeVariable.of(of.as_python_constant(tx)[::-1]))


@_reverse.register(UserDefinedObjectVariable)
@_reverse.register(ConstantVariable)
@_reverse.register(TupleVariable)
@_reverse.register(ListVariable)
def _reverse_sequence(of: Variable, tx: Tracer) -> Variable:
    if not of.is_user_object and issubclass(of.python_type(), collections.deque):
        kind = type(reversed(of.python_type()()))
        return iterators.SequenceIteratorVariable(list(reversed(sequence_items(tx, of))), kind)
    kind = type(reversed([])) if of.python_type() is list else reversed
    return iterators.ReversedIteratorVariable(kind, of, of.length(tx).as_python_constant(tx) - 1)


@register_rule(sum)
def _sum(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    total = realize(tx, args[1] if len(args) > 1 else kwargs.get("start", ConstantVariable(0)))
    if issubclass(total.python_type(), (str, bytes, bytearray)):
        tx.fold_constant(
            sum, (), next(kind() for kind in (str, bytes, bytearray) if issubclass(total.python_type(), kind))
        )
    items = list(sequence_items(tx, args[0]))
    if are_plain_constants([total, *items]):
        return tx.fold_constant(sum, [v.resolved.constant for v in items], total.constant)
    count = _count_compensated(total, items)
    if count:
        if any(realize(tx, number).is_symbolic for number in (total, *items[:count])):
            raise Unsupported("non-constant-arguments", "sum() of floats that vary between calls")
        total = tx.fold_constant(sum, tx.as_python_constants(items[:count]), total.as_python_constant(tx))
    for item in items[count:]:
        total = arithmetic.binary_op(tx, "+", total, item)
    return total


_COMPENSATED_TYPES = tuple(kind for kind in (float, complex) if sum([kind(0.1)] * 10) == 1)
"""Numbers that ``sum`` adds accurately: floats since Python 3.12, complex since 3.14."""


def _count_compensated(start: Variable, items: list[Variable]) -> int:
    """Return how many leading numbers ``sum`` adds more accurately than ``+`` does.

    Two additions that follow the first float are the fewest that differ.
    """
    types = [start.python_type()]
    for item in items:
        kind = item.python_type()
        if not (kind in (float, complex) or issubclass(kind, int)):
            break
        types.append(kind)
    first = next((n for n, kind in enumerate(types) if kind in _COMPENSATED_TYPES), len(types))
    return len(types) - 1 if first + 2 < len(types) and (types[0] in (bool, int, float, complex)) else 0


def _have_same_number_type(numbers: tuple[Variable, Variable]) -> bool:
    """Return True if both numbers are ints or both are floats.

    Then min and max have this type too, also when the graph compares symbols.
    """
    return numbers[0].python_type() is numbers[1].python_type() and numbers[0].python_type() in (int, float)


@register_table(register_rule, {min: "<", max: ">"})
def _min_or_max(fn: Any, symbol: str, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    items = sequence_items(tx, args[0]) if len(args) == 1 else args
    if not items:
        if "default" in kwargs:
            return kwargs["default"]
        tx.raise_error(ValueError, f"{fn.__name__}() arg is an empty sequence")
    key = realize(tx, kwargs["key"]) if "key" in kwargs else NONE
    plain = is_none(key)
    best = realize(tx, items[0])
    best_key = best if plain else realize(tx, key.call(tx, [best], {}))
    for item in items[1:]:
        item_key = realize(tx, item if plain else key.call(tx, [item], {}))
        numbers = (best_key, item_key)
        if plain and any(k.is_symbolic for k in numbers) and _have_same_number_type(numbers):
            best = best_key = emit_node(
                tx, "call_function", torch.sym_min if fn is min else torch.sym_max, [best, item_key]
            )
        elif realize(tx, arithmetic.compare_op(tx, symbol, item_key, best_key)).is_truthy(tx):
            best, best_key = realize(tx, item), item_key
    return best


@register_table(register_rule, {any: True, all: False})
def _any_or_all(fn: Any, deciding_truth: bool, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``any`` or ``all``: look for an item with the wanted truth."""
    iterator = iterators.iterator_of(tx, args[0])
    while (item := iterator.next_item(tx)) is not None:
        if realize(tx, item).is_truthy(tx) is deciding_truth:
            return ConstantVariable(deciding_truth)
    return ConstantVariable(not deciding_truth)


@register_rule(sorted)
def _sorted(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return ListVariable(arithmetic.sort_items(tx, list(sequence_items(tx, args[0])), kwargs))


@register_each(register_rule, *{f for f in vars(heapq).values() if getattr(f, "__module__", "") == "_heapq"})
def _call_heapq_function(function: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Call a C function of ``heapq`` with the items of a list; their comparisons are traced."""
    heap, *others = (realize(tx, a) for a in args)
    if heap.python_type() is not list or heap.sequence_contents is not heap:
        raise Unsupported(unknown_call_kind(function), f"heapq.{function.__name__} of {heap.describe()} is called")

    def compare(a: Variable, b: Variable) -> int:  # heaps call only ``<``
        return -realize(tx, arithmetic.compare_op(tx, "<", realize(tx, a), realize(tx, b))).is_truthy(tx)

    ordered: Any = functools.cmp_to_key(compare)
    tx.side_effects.record_mutation(heap)
    items = [ordered(item) for item in heap.items]
    try:
        with UserErrors(tx, IndexError), tx.side_effects.recording_mutations() as changed:
            result = function(items, *map(ordered, others))
    finally:
        heap.items[:] = [item.obj for item in items]
    if any(value is heap for value in changed):
        raise Unsupported(unknown_call_kind(function), f"a comparison of heapq.{function.__name__} mutates the heap")
    return NONE if result is None else result.obj


@register_bound_rule(functools.reduce)
def _reduce(tx: Tracer, function: Variable, iterable: Variable, initial: Variable | None = None) -> Variable:
    items = list(sequence_items(tx, iterable))
    if initial is None and not items:
        tx.raise_type_error("reduce() of empty iterable with no initial value")
    total = items.pop(0) if initial is None else initial
    for item in items:
        total = function.call(tx, [total, item], {})
    return total
