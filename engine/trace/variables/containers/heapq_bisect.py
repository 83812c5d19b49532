"""heapq and bisect in traced code."""

from __future__ import annotations

import bisect
import heapq
import operator
from typing import Any

from engine.trace.annotations import Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, is_none, realize, type_name
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.containers.sequences import ListVariable, SequenceVariable, sequence_items


class _ComparableItem:
    """An item of a heap or of a sorted list; its ``__lt__`` runs traced code."""

    def __init__(self, tx: Tracer, value: Variable, of: SequenceVariable | None = None) -> None:
        self.tx = tx
        self.value = value
        self.heap = of

    def __lt__(self, other: _ComparableItem) -> bool:
        before = None if self.heap is None else list(self.heap.items)
        is_less = realize(self.tx, arithmetic.compare_op(self.tx, "<", self.value, other.value)).is_truthy(self.tx)
        if self.heap is not None and (
            len(before or ()) != len(self.heap.items) or any(map(operator.is_not, before or (), self.heap.items))
        ):
            raise SkipFrame("mutated-while-iterating", "comparing items of a heap changes the heap")
        return is_less


def _heap_rule(function: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        given = realize(tx, args[0])
        if not issubclass(given.python_type(), list):
            return tx.fold_constant(function, type(type_name(given.python_type()), (), {})(), *[None] * len(args[1:]))
        heap = given.sequence_contents
        if heap is None or given.python_type() is not list:
            raise given.unsupported(f"{function.__name__}()", "builtin-arguments")
        items = [_ComparableItem(tx, realize(tx, i), heap) for i in heap.items]
        rest = [_ComparableItem(tx, realize(tx, a), heap) for a in args[1:]]
        try:
            found = function(items, *rest)
        except IndexError as error:
            raise tx.make_user_exception(error) from error
        tx.side_effects.record_mutation(heap)
        heap.items[:] = [i.value for i in items]
        return ConstantVariable(None) if found is None else found.value

    return rule


for _heap_name in "heapify heappush heappop heappushpop heapreplace _heapify_max _heappop_max _heapreplace_max".split():
    if hasattr(heapq, _heap_name):
        register_rule(getattr(heapq, _heap_name))(_heap_rule(getattr(heapq, _heap_name)))


def _bisect_rule(function: Any, *, inserts: bool) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if len(args) < 2:
            raise Unsupported("builtin-arguments", f"{function.__name__}() with keyword arguments")
        given = realize(tx, args[0])
        into = given.sequence_contents
        if into is None or into is not given or (inserts and into.python_type() is not list):
            raise given.unsupported(f"{function.__name__}()", "builtin-arguments")
        bounds = tx.as_python_constants(args[2:])
        words: dict[str, Any] = {k: realize(tx, v).as_python_constant(tx) for k, v in kwargs.items() if k != "key"}
        key = realize(tx, kwargs.get("key", NONE))
        if not is_none(key):
            words["key"] = lambda item: _ComparableItem(tx, realize(tx, key.call(tx, [item.value], {})))
        items = [_ComparableItem(tx, realize(tx, i)) for i in sequence_items(tx, into)]
        try:
            found = function(items, _ComparableItem(tx, realize(tx, args[1])), *bounds, **words)
        except (TypeError, ValueError) as error:
            raise tx.make_user_exception(error) from error
        if not inserts:
            return ConstantVariable(found)
        tx.side_effects.record_mutation(into)
        into.items[:] = [i.value for i in items]
        return NONE

    return rule


for _bisection in (bisect.bisect_left, bisect.bisect_right, bisect.insort_left, bisect.insort_right):
    register_rule(_bisection)(_bisect_rule(_bisection, inserts=_bisection.__name__.startswith("insort")))


def _nlargest_rule(largest: bool) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        count = max(0, int(realize(tx, args[0]).as_python_constant(tx)))
        how: Kwargs = {"reverse": ConstantVariable(largest)}
        key = args[2] if len(args) > 2 else kwargs.get("key")
        if key is not None:
            how["key"] = key
        return ListVariable(arithmetic.sort_items(tx, list(sequence_items(tx, args[1])), how)[:count])

    return rule


register_rule(heapq.nlargest)(_nlargest_rule(True))


register_rule(heapq.nsmallest)(_nlargest_rule(False))
