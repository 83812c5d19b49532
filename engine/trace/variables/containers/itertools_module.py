"""Itertools iterators, which read their inputs only when an item is requested."""

from __future__ import annotations

import inspect
import itertools
import operator
from collections.abc import Callable
from typing import Any

from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.codegen_runtime.iterators import make_advanced_iterator, make_tee, skip_items
from engine.trace.exc import Unsupported, UserException
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, is_none, realize
from engine.trace.variables.callable_registry import RULES_BY_NAME, register_rule
from engine.trace.variables.callables.reconstruct_calls import CallExpressionVariable
from engine.trace.variables.containers import iterators
from engine.trace.variables.containers.iterators import IteratorVariable, SequenceIteratorVariable, iterator_of
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items

State = dict[str, Any]


class ItertoolsIteratorVariable(IteratorVariable):
    """An itertools iterator: ``advance`` computes the next item and updates ``state``.

    Only ``state`` changes. ``remaining_expression`` returns an expression for the remaining items.
    """

    __slots__ = ("advance", "cls", "remaining_expression", "state")

    def __init__(
        self,
        cls: type,
        state: State,
        advance: Callable[[Tracer, State], Variable | None],
        rest: Callable[[State], Variable | None],
    ) -> None:
        self.cls = cls
        self.state = state
        self.advance = advance
        self.remaining_expression = rest

    def python_type(self) -> type:
        return self.cls

    def next_item(self, tx: Tracer) -> Variable | None:
        if self.state.get("over"):
            return None
        tx.side_effects.record_mutation(self)
        return self.advance(tx, self.state)

    def _remaining(self) -> Variable:
        found = (
            SequenceIteratorVariable([], type(iter(())))
            if self.state.get("over")
            else self.remaining_expression(self.state)
        )
        if found is None:
            raise Unsupported("iterator-state", f"continuing a partly consumed {self.cls.__name__} after the graph")
        return found

    def child_variables(self) -> list[Variable]:
        try:
            return [self._remaining()]
        except Unsupported:
            return []

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self._remaining())


def _exhaust(state: State) -> Variable | None:
    """Mark the iterator as exhausted and return None."""
    state["over"] = True
    return None


Advance = Callable[["Tracer", State], Variable | None]
Rest = Callable[[State], Args]


def _lazy_iterator(cls: Any) -> Callable[[Callable[..., tuple[State, Advance, Rest]]], None]:
    """Register the rule of an iterator class.

    The decorated function has the parameters of the class. It returns the first state, ``advance``, and a function
    of the state that returns the arguments of a new iterator over the remaining items.
    """

    def register(make: Callable[..., tuple[State, Advance, Rest]]) -> None:
        parameters = inspect.signature(make)

        def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
            try:
                parameters.bind(tx, *args, **kwargs)
            except TypeError:  # Python words the error
                return tx.fold_constant(cls, *[()] * len(args), **dict.fromkeys(kwargs, ()))
            state, advance, rest = make(tx, *args, **kwargs)
            return ItertoolsIteratorVariable(cls, state, advance, lambda now: CallExpressionVariable(cls, rest(now)))

        register_rule(cls)(rule)

    return register


# Chains.


def _advance_chain(tx: Tracer, state: State) -> Variable | None:
    while True:
        if state["current"] is None:
            outer = state["outer"].next_item(tx)
            if outer is None:
                return _exhaust(state)
            state["current"] = iterator_of(tx, outer)
        item: Variable | None = state["current"].next_item(tx)
        if item is not None:
            return item
        state["current"] = None


def _chain_rest(state: State) -> Variable:
    outer = state["outer"]
    if state["current"] is not None:
        outer = CallExpressionVariable(itertools.chain, [TupleVariable([state["current"]]), outer])
    return CallExpressionVariable(itertools.chain.from_iterable, [outer])


@register_rule(itertools.chain)
def _chain(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    outer = SequenceIteratorVariable(list(args), type(iter(())))
    return ItertoolsIteratorVariable(itertools.chain, {"outer": outer, "current": None}, _advance_chain, _chain_rest)


def _chain_from_iterable(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    outer = iterator_of(tx, args[0])
    return ItertoolsIteratorVariable(itertools.chain, {"outer": outer, "current": None}, _advance_chain, _chain_rest)


RULES_BY_NAME["chain", "from_iterable"] = _chain_from_iterable


# Infinite iterators.


@register_rule(itertools.count)
def _count(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    start = realize(tx, args[0] if args else kwargs.get("start", ConstantVariable(0))).as_python_constant(tx)
    step = realize(tx, args[1] if len(args) > 1 else kwargs.get("step", ConstantVariable(1))).as_python_constant(tx)
    tx.fold_constant(lambda: len([itertools.count(start, step)]))
    return iterators.CountIteratorVariable(start, step)


@register_rule(itertools.cycle)
def _cycle(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    def advance(tx: Tracer, state: State) -> Variable | None:
        if not state["round"]:
            item: Variable | None = inner.next_item(tx)
            if item is not None:
                state["saved"] = (*state["saved"], item)
                return item
            if not state["saved"]:
                return _exhaust(state)
            state["round"] = True
        found: Variable = state["saved"][state["at"]]
        state["at"] = (state["at"] + 1) % len(state["saved"])
        return found

    def rest(state: State) -> Variable | None:
        if not state["round"]:
            return CallExpressionVariable(itertools.cycle, [inner]) if not state["saved"] else None
        saved = list(state["saved"])
        return CallExpressionVariable(itertools.cycle, [TupleVariable([*saved[state["at"] :], *saved[: state["at"]]])])

    inner = iterator_of(tx, args[0])
    return ItertoolsIteratorVariable(itertools.cycle, {"round": False, "saved": (), "at": 0}, advance, rest)


@register_rule(itertools.repeat)
def _repeat(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = args[0] if args else kwargs["object"]
    if len(args) < 2 and "times" not in kwargs:
        return ItertoolsIteratorVariable(
            itertools.repeat, {}, lambda tx, state: of, lambda state: CallExpressionVariable(itertools.repeat, [of])
        )
    number = args[1] if len(args) > 1 else kwargs["times"]
    times = arithmetic.fold_constant_call(
        tx, operator.index, [number], {}, "repeat() of a number that is not known while tracing"
    ).as_python_constant(tx)

    def advance(tx: Tracer, state: State) -> Variable | None:
        if not state["left"]:
            return None
        state["left"] -= 1
        return of

    def rest(state: State) -> Variable:
        return CallExpressionVariable(itertools.repeat, [of, ConstantVariable(state["left"])])

    return ItertoolsIteratorVariable(itertools.repeat, {"left": max(0, times)}, advance, rest)


# Selection.


@_lazy_iterator(itertools.islice)
def _islice(tx: Tracer, iterable: Variable, /, *parts: Variable) -> tuple[State, Advance, Rest]:
    numbers = tx.as_python_constants(list(parts))
    tx.fold_constant(lambda: len([itertools.islice((), *numbers)]))  # raises for wrong bounds
    bounds = slice(*numbers)
    start, stop, step = bounds.start or 0, bounds.stop, 1 if bounds.step is None else bounds.step
    inner = iterator_of(tx, iterable)

    def advance(tx: Tracer, state: State) -> Variable | None:
        ends = stop is not None and state["next"] >= stop
        wanted = stop if ends else state["next"]
        while state["seen"] < wanted:
            state["seen"] += 1
            if inner.next_item(tx) is None:
                return _exhaust(state)
        item: Variable | None = None if ends else inner.next_item(tx)
        if item is None:
            return _exhaust(state)
        state["seen"] += 1
        state["next"] = wanted + step
        return item

    def rest(state: State) -> Args:
        left = None if stop is None else max(0, stop - state["seen"])
        return [inner, *map(ConstantVariable, (state["next"] - state["seen"], left, step))]

    return {"seen": 0, "next": start}, advance, rest


@_lazy_iterator(itertools.takewhile)
def _takewhile(tx: Tracer, predicate: Variable, iterable: Variable, /) -> tuple[State, Advance, Rest]:
    inner = iterator_of(tx, iterable)

    def advance(tx: Tracer, state: State) -> Variable | None:
        item: Variable | None = inner.next_item(tx)
        return item if item is not None and _holds(tx, predicate, item) else _exhaust(state)

    return {}, advance, lambda state: [predicate, inner]


def _holds(tx: Tracer, predicate: Variable, item: Variable) -> bool:
    """Return the truth of ``predicate(item)``."""
    return realize(tx, realize(tx, predicate).call(tx, [item], {})).is_truthy(tx)


@register_rule(itertools.dropwhile)
def _dropwhile(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    inner = iterator_of(tx, args[1])

    def advance(tx: Tracer, state: State) -> Variable | None:
        while (item := inner.next_item(tx)) is not None:
            if not state["drops"] or not _holds(tx, args[0], item):
                state["drops"] = False
                return item
        return _exhaust(state)

    def rest(state: State) -> Variable:
        return CallExpressionVariable(itertools.dropwhile, [args[0], inner]) if state["drops"] else inner

    return ItertoolsIteratorVariable(itertools.dropwhile, {"drops": True}, advance, rest)


@_lazy_iterator(itertools.filterfalse)
def _filterfalse(tx: Tracer, predicate: Variable, iterable: Variable, /) -> tuple[State, Advance, Rest]:
    inner = iterator_of(tx, iterable)

    def advance(tx: Tracer, state: State) -> Variable | None:
        plain = is_none(realize(tx, predicate))
        while (item := inner.next_item(tx)) is not None:
            if not (realize(tx, item).is_truthy(tx) if plain else _holds(tx, predicate, item)):
                return item
        return _exhaust(state)

    return {}, advance, lambda state: [predicate, inner]


@_lazy_iterator(itertools.compress)
def _compress(tx: Tracer, data: Variable, selectors: Variable) -> tuple[State, Advance, Rest]:
    items, chosen = iterator_of(tx, data), iterator_of(tx, selectors)

    def advance(tx: Tracer, state: State) -> Variable | None:
        while (item := items.next_item(tx)) is not None and (choice := chosen.next_item(tx)) is not None:
            if realize(tx, choice).is_truthy(tx):
                return item
        return _exhaust(state)

    return {}, advance, lambda state: [items, chosen]


# Combination.


@_lazy_iterator(itertools.starmap)
def _starmap(tx: Tracer, function: Variable, iterable: Variable, /) -> tuple[State, Advance, Rest]:
    inner = iterator_of(tx, iterable)

    def advance(tx: Tracer, state: State) -> Variable | None:
        row = inner.next_item(tx)
        if row is None:
            return _exhaust(state)
        return realize(tx, function).call(tx, list(sequence_items(tx, row)), {})

    return {}, advance, lambda state: [function, inner]


@register_rule(itertools.accumulate)
def _accumulate(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    function = args[1] if len(args) > 1 else kwargs.get("func", NONE)
    first = kwargs.get("initial", NONE)
    inner = iterator_of(tx, args[0] if args else kwargs["iterable"])

    def advance(tx: Tracer, state: State) -> Variable | None:
        if state["total"] is None and not is_none(realize(tx, first)):
            state["total"] = first
            return first
        item: Variable | None = inner.next_item(tx)
        if item is None:
            return _exhaust(state)
        chosen = realize(tx, function)
        if state["total"] is None:
            state["total"] = item
        elif is_none(chosen):
            state["total"] = arithmetic.binary_op(tx, "+", state["total"], item)
        else:
            state["total"] = chosen.call(tx, [state["total"], item], {})
        found: Variable = state["total"]
        return found

    def rest(state: State) -> Variable:
        if state["total"] is None:
            return CallExpressionVariable(itertools.accumulate, [inner, function], {"initial": first})
        total = CallExpressionVariable(
            iter, [TupleVariable([state["total"]])]
        )  # itertools treats ``initial=None`` as no initial value
        again = CallExpressionVariable(
            itertools.accumulate, [CallExpressionVariable(itertools.chain, [total, inner]), function]
        )
        return CallExpressionVariable(itertools.islice, [again, ConstantVariable(1), NONE])

    return ItertoolsIteratorVariable(itertools.accumulate, {"total": None}, advance, rest)


@_lazy_iterator(itertools.pairwise)
def _pairwise(tx: Tracer, iterable: Variable, /) -> tuple[State, Advance, Rest]:
    inner = iterator_of(tx, iterable)

    def advance(tx: Tracer, state: State) -> Variable | None:
        if state["last"] is None:
            state["last"] = inner.next_item(tx)
        item = inner.next_item(tx) if state["last"] is not None else None
        if item is None:
            return _exhaust(state)
        pair = TupleVariable([state["last"], item])
        state["last"] = item
        return pair

    def rest(state: State) -> Args:
        last = state["last"]
        return [inner if last is None else CallExpressionVariable(itertools.chain, [TupleVariable([last]), inner])]

    return {"last": None}, advance, rest


@register_rule(itertools.zip_longest)
def _zip_longest(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    fill = kwargs.get("fillvalue", NONE)
    inner = [iterator_of(tx, a) for a in args]

    def advance(tx: Tracer, state: State) -> Variable | None:
        row: list[Variable] = []
        for n, iterator in enumerate(inner):
            item = None if n in state["ended"] else iterator.next_item(tx)
            if item is None:
                state["ended"] = state["ended"] | {n}
                if len(state["ended"]) == len(inner):
                    return _exhaust(state)
            row.append(fill if item is None else item)
        return TupleVariable(row) if row else _exhaust(state)

    def rest(state: State) -> Variable:
        left: list[Variable] = [TupleVariable([]) if n in state["ended"] else i for n, i in enumerate(inner)]
        return CallExpressionVariable(itertools.zip_longest, left, {"fillvalue": fill})

    return ItertoolsIteratorVariable(itertools.zip_longest, {"ended": frozenset()}, advance, rest)


@register_rule(itertools.tee)
def _tee(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    count = int(realize(tx, args[1] if len(args) > 1 else kwargs.get("n", ConstantVariable(2))).as_python_constant(tx))
    inner = iterator_of(tx, args[0])
    seen: list[Variable] = []

    def advance(tx: Tracer, state: State) -> Variable | None:
        if state["at"] == len(seen):
            item = inner.next_item(tx)
            if item is None:
                return None
            seen.append(item)
        state["at"] += 1
        found: Variable = seen[state["at"] - 1]
        return found

    def rest(state: State) -> Variable | None:
        if not isinstance(inner, SequenceIteratorVariable) or isinstance(inner.iterable, ListVariable):
            return None
        left = SequenceIteratorVariable([*seen[state["at"] :], *inner.items[inner.position :]], type(iter(())))
        return CallExpressionVariable(make_tee, [left])

    kind: type = type(itertools.tee(())[0])
    return TupleVariable([ItertoolsIteratorVariable(kind, {"at": 0}, advance, rest) for _ in range(count)])


@register_rule(itertools.groupby)
def _groupby(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    inner = iterator_of(tx, args[0] if args else kwargs["iterable"])
    by = args[1] if len(args) > 1 else kwargs.get("key", NONE)

    def draw(tx: Tracer) -> None:
        shared["item"] = inner.next_item(tx)
        if shared["item"] is not None:
            chosen = realize(tx, by)
            shared["key"] = realize(tx, shared["item"] if is_none(chosen) else chosen.call(tx, [shared["item"]], {}))

    def same(tx: Tracer, key: Any) -> bool:
        return key is not None and arithmetic.identical_or_equal(tx, shared["key"], key)

    def advance(tx: Tracer, state: State) -> Variable | None:
        if not shared["started"]:
            shared["started"] = True
            draw(tx)
        while shared["item"] is not None and same(tx, shared["group"]):
            draw(tx)
        if shared["item"] is None:
            return _exhaust(state)
        shared["group"] = shared["key"]
        shared["number"] += 1
        mine = {"number": shared["number"]}
        return TupleVariable([shared["key"], ItertoolsIteratorVariable(itertools._grouper, mine, within, rest)])  # type: ignore[attr-defined]

    def within(tx: Tracer, state: State) -> Variable | None:
        if state["number"] != shared["number"] or shared["item"] is None or not same(tx, shared["group"]):
            return _exhaust(state)
        item: Variable = shared["item"]
        draw(tx)
        return item

    def rest(state: State) -> Variable | None:
        return (
            CallExpressionVariable(itertools.groupby, [inner, by])
            if not shared["started"] and "number" not in state
            else None
        )

    shared: State = {"item": None, "key": None, "group": None, "started": False, "number": 0}
    return ItertoolsIteratorVariable(itertools.groupby, shared, advance, rest)


def _combinatoric_rule(fn: Any) -> Any:
    """Build the rule of a combinatoric iterator.

    It chooses items by position alone, so it runs on the indices of its pools.
    """

    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        pools: list[list[Variable]] = []
        rest_of: list[Any] = []
        for n, arg in enumerate(args):
            if fn is itertools.product or n == 0:
                pools.append(list(sequence_items(tx, arg)))
            else:
                rest_of.append(realize(tx, arg).as_python_constant(tx))
        words = {k: realize(tx, v).as_python_constant(tx) for k, v in kwargs.items()}
        tx.fold_constant(lambda: fn(*[()] * len(pools), *rest_of, **words) and None)
        chosen = fn(*([range(len(p)) for p in pools]), *rest_of, **words)
        many = fn is itertools.product
        items: list[Variable] = [
            TupleVariable([pools[p % len(pools) if many else 0][i] for p, i in enumerate(indices)])
            for indices in chosen
        ]

        def advance(tx: Tracer, state: State) -> Variable | None:
            if state["at"] == len(items):
                return None
            state["at"] += 1
            found: Variable = items[state["at"] - 1]
            return found

        def rest(state: State) -> Variable:
            whole = CallExpressionVariable(
                fn,
                [*(TupleVariable(p) for p in pools), *map(ConstantVariable, rest_of)],
                {name: ConstantVariable(value) for name, value in words.items()},
            )
            return CallExpressionVariable(skip_items, [whole, ConstantVariable(state["at"])])

        return ItertoolsIteratorVariable(fn, {"at": 0}, advance, rest)

    return rule


for _fn in (
    itertools.product,
    itertools.permutations,
    itertools.combinations,
    itertools.combinations_with_replacement,
):
    register_rule(_fn)(_combinatoric_rule(_fn))


def make_callable_iterator(tx: Tracer, function: Variable, sentinel: Variable) -> Variable:
    """Create the iterator of ``iter(function, sentinel)``."""

    def advance(tx: Tracer, state: State) -> Variable | None:
        item = realize(tx, realize(tx, function).call(tx, [], {}))
        return _exhaust(state) if arithmetic.identical_or_equal(tx, item, sentinel) else item

    return ItertoolsIteratorVariable(
        _CALLABLE_ITERATOR_TYPE, {}, advance, lambda state: CallExpressionVariable(iter, [function, sentinel])
    )


_CALLABLE_ITERATOR_TYPE = type(iter(int, 1))


def make_getitem_iterator(of: Variable) -> Variable:
    """Create an iterator over an object that only defines ``__getitem__``."""

    def advance(tx: Tracer, state: State) -> Variable | None:
        try:
            found = of.get_item(tx, ConstantVariable(state["at"]))
        except UserException as error:
            if issubclass(error.exception.python_type(), (IndexError, StopIteration)):
                return _exhaust(state)
            raise
        state["at"] += 1
        return found

    return ItertoolsIteratorVariable(
        _GETITEM_ITERATOR_TYPE,
        {"at": 0},
        advance,
        lambda state: CallExpressionVariable(make_advanced_iterator, [of, ConstantVariable(state["at"])]),
    )


class _GetItemOnly:
    def __getitem__(self, index: int) -> int:
        raise IndexError(index)


_GETITEM_ITERATOR_TYPE = type(iter(_GetItemOnly()))
