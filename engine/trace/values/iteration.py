"""Rules for ``itertools``: each iterator draws from those beneath only when it is asked for an item, as Python's do."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from engine.trace import operations
from engine.trace.signals import Unsupported, UserException
from engine.trace.support import advanced, stepped, teed
from engine.trace.values import iterators
from engine.trace.values.base import NONE, Const, Value, force, is_none
from engine.trace.values.iterators import IteratorValue, SequenceIterator, iterator_of
from engine.trace.values.rules import BY_NAME, special
from engine.trace.values.sequences import ListValue, TupleValue, sequence_items

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]
State = dict[str, Any]


class CallOf(Value):
    """What a call of a fixed callable gives, as an expression of generated code: for rebuilding."""

    def __init__(self, function: Any, args: Args, kwargs: Words | None = None) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs or {}

    def type(self) -> type:
        return object

    def children(self) -> list[Value]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(self.function))
        cg.load_all(self.children())
        cg.call_keywords(len(self.args), tuple(self.kwargs))


class LazyIterator(IteratorValue):
    """``advance`` makes the next item out of ``state``, which alone changes; ``rest`` is an expression of what is still to come."""

    def __init__(
        self,
        cls: type,
        state: State,
        advance: Callable[[Tracer, State], Value | None],
        rest: Callable[[State], Value | None],
    ) -> None:
        self.cls = cls
        self.state = state
        self.advance = advance
        self.rest = rest

    def type(self) -> type:
        return self.cls

    def step(self, tx: Tracer) -> Value | None:
        if self.state.get("over"):
            return None
        tx.mutating(self)
        return self.advance(tx, self.state)

    def _rest(self) -> Value:
        found = SequenceIterator([], type(iter(()))) if self.state.get("over") else self.rest(self.state)
        if found is None:
            raise Unsupported("side-effect", f"continuing a half-used {self.cls.__name__} after the graph")
        return found

    def children(self) -> list[Value]:
        try:
            return [self._rest()]
        except Unsupported:
            return []

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self._rest())


def _over(state: State) -> Value | None:
    """Nothing more will come."""
    state["over"] = True
    return None


# Chains.


def _advance_chain(tx: Tracer, state: State) -> Value | None:
    while True:
        if state["current"] is None:
            outer = state["outer"].step(tx)
            if outer is None:
                return _over(state)
            state["current"] = iterator_of(tx, outer)
        item: Value | None = state["current"].step(tx)
        if item is not None:
            return item
        state["current"] = None


def _chain_rest(state: State) -> Value:
    outer = state["outer"]
    if state["current"] is not None:
        outer = CallOf(itertools.chain, [TupleValue([state["current"]]), outer])
    return CallOf(itertools.chain.from_iterable, [outer])


@special(itertools.chain)
def _chain(tx: Tracer, args: Args, kwargs: Words) -> Value:
    outer = SequenceIterator(list(args), type(iter(())))
    return LazyIterator(itertools.chain, {"outer": outer, "current": None}, _advance_chain, _chain_rest)


def _chain_from(tx: Tracer, args: Args, kwargs: Words) -> Value:
    outer = iterator_of(tx, args[0])
    return LazyIterator(itertools.chain, {"outer": outer, "current": None}, _advance_chain, _chain_rest)


BY_NAME["chain", "from_iterable"] = _chain_from


# Endless ones.


@special(itertools.count)
def _count(tx: Tracer, args: Args, kwargs: Words) -> Value:
    start = force(tx, args[0] if args else kwargs.get("start", Const(0))).python(tx)
    step = force(tx, args[1] if len(args) > 1 else kwargs.get("step", Const(1))).python(tx)
    tx.fold(lambda: len([itertools.count(start, step)]))
    return iterators.CountIterator(start, step)


@special(itertools.cycle)
def _cycle(tx: Tracer, args: Args, kwargs: Words) -> Value:
    def advance(tx: Tracer, state: State) -> Value | None:
        if not state["round"]:
            item: Value | None = inner.step(tx)
            if item is not None:
                state["saved"] = (*state["saved"], item)
                return item
            if not state["saved"]:
                return _over(state)
            state["round"] = True
        found: Value = state["saved"][state["at"]]
        state["at"] = (state["at"] + 1) % len(state["saved"])
        return found

    def rest(state: State) -> Value | None:
        if not state["round"]:
            return CallOf(itertools.cycle, [inner]) if not state["saved"] else None
        saved = list(state["saved"])
        return CallOf(itertools.cycle, [TupleValue([*saved[state["at"] :], *saved[: state["at"]]])])

    inner = iterator_of(tx, args[0])
    return LazyIterator(itertools.cycle, {"round": False, "saved": (), "at": 0}, advance, rest)


@special(itertools.repeat)
def _repeat(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = args[0] if args else kwargs["object"]
    if len(args) < 2 and "times" not in kwargs:
        return LazyIterator(itertools.repeat, {}, lambda tx, state: of, lambda state: CallOf(itertools.repeat, [of]))
    number = args[1] if len(args) > 1 else kwargs["times"]
    times = operations.fold_call(tx, operator.index, [number], {}, "repeat() of a number that is not known").python(tx)

    def advance(tx: Tracer, state: State) -> Value | None:
        if not state["left"]:
            return None
        state["left"] -= 1
        return of

    def rest(state: State) -> Value:
        return CallOf(itertools.repeat, [of, Const(state["left"])])

    return LazyIterator(itertools.repeat, {"left": max(0, times)}, advance, rest)


# Selecting.


@special(itertools.islice)
def _islice(tx: Tracer, args: Args, kwargs: Words) -> Value:
    bounds = slice(*tx.constants(args[1:]))
    start, stop, step = bounds.start or 0, bounds.stop, 1 if bounds.step is None else bounds.step
    for bound in (start, stop, step):
        if (bound is not None and (not isinstance(bound, int) or bound < 0)) or step == 0:
            tx.fold(itertools.islice, (), *tx.constants(args[1:]))
            raise Unsupported("unknown-call", "itertools.islice() with unusual bounds is called")
    inner = iterator_of(tx, args[0])

    def advance(tx: Tracer, state: State) -> Value | None:
        wanted = state["next"]
        if stop is not None and wanted >= stop:
            wanted, ends = stop, True
        else:
            ends = False
        while state["seen"] < wanted:
            state["seen"] += 1
            if inner.step(tx) is None:
                return _over(state)
        if ends:
            return _over(state)
        item: Value | None = inner.step(tx)
        if item is None:
            return _over(state)
        state["seen"] += 1
        state["next"] = wanted + step
        return item

    def rest(state: State) -> Value:
        left = None if stop is None else max(0, stop - state["seen"])
        return CallOf(itertools.islice, [inner, Const(state["next"] - state["seen"]), Const(left), Const(step)])

    return LazyIterator(itertools.islice, {"seen": 0, "next": start}, advance, rest)


@special(itertools.takewhile)
def _takewhile(tx: Tracer, args: Args, kwargs: Words) -> Value:
    inner = iterator_of(tx, args[1])

    def advance(tx: Tracer, state: State) -> Value | None:
        item: Value | None = inner.step(tx)
        if item is None or not force(tx, force(tx, args[0]).call(tx, [item], {})).truth(tx):
            return _over(state)
        return item

    return LazyIterator(itertools.takewhile, {}, advance, lambda state: CallOf(itertools.takewhile, [args[0], inner]))


@special(itertools.dropwhile)
def _dropwhile(tx: Tracer, args: Args, kwargs: Words) -> Value:
    inner = iterator_of(tx, args[1])

    def advance(tx: Tracer, state: State) -> Value | None:
        while (item := inner.step(tx)) is not None:
            if not state["drops"] or not force(tx, force(tx, args[0]).call(tx, [item], {})).truth(tx):
                state["drops"] = False
                return item
        return _over(state)

    def rest(state: State) -> Value:
        return CallOf(itertools.dropwhile, [args[0], inner]) if state["drops"] else inner

    return LazyIterator(itertools.dropwhile, {"drops": True}, advance, rest)


@special(itertools.filterfalse)
def _filterfalse(tx: Tracer, args: Args, kwargs: Words) -> Value:
    inner = iterator_of(tx, args[1])

    def advance(tx: Tracer, state: State) -> Value | None:
        chooses = force(tx, args[0])
        while (item := inner.step(tx)) is not None:
            answer = item if is_none(chooses) else chooses.call(tx, [item], {})
            if not force(tx, answer).truth(tx):
                return item
        return _over(state)

    return LazyIterator(
        itertools.filterfalse, {}, advance, lambda state: CallOf(itertools.filterfalse, [args[0], inner])
    )


@special(itertools.compress)
def _compress(tx: Tracer, args: Args, kwargs: Words) -> Value:
    data, chosen = (
        iterator_of(tx, args[0] if args else kwargs["data"]),
        iterator_of(tx, args[1] if len(args) > 1 else kwargs["selectors"]),
    )

    def advance(tx: Tracer, state: State) -> Value | None:
        while (item := data.step(tx)) is not None and (choice := chosen.step(tx)) is not None:
            if force(tx, choice).truth(tx):
                return item
        return _over(state)

    return LazyIterator(itertools.compress, {}, advance, lambda state: CallOf(itertools.compress, [data, chosen]))


# Combining.


@special(itertools.starmap)
def _starmap(tx: Tracer, args: Args, kwargs: Words) -> Value:
    inner = iterator_of(tx, args[1])

    def advance(tx: Tracer, state: State) -> Value | None:
        row = inner.step(tx)
        if row is None:
            return _over(state)
        return force(tx, args[0]).call(tx, list(sequence_items(tx, row)), {})

    return LazyIterator(itertools.starmap, {}, advance, lambda state: CallOf(itertools.starmap, [args[0], inner]))


@special(itertools.accumulate)
def _accumulate(tx: Tracer, args: Args, kwargs: Words) -> Value:
    function = args[1] if len(args) > 1 else kwargs.get("func", NONE)
    first = kwargs.get("initial", NONE)
    inner = iterator_of(tx, args[0] if args else kwargs["iterable"])

    def advance(tx: Tracer, state: State) -> Value | None:
        if state["total"] is None and not is_none(force(tx, first)):
            state["total"] = first
            return first
        item: Value | None = inner.step(tx)
        if item is None:
            return _over(state)
        chosen = force(tx, function)
        if state["total"] is None:
            state["total"] = item
        elif is_none(chosen):
            state["total"] = operations.binary(tx, "+", state["total"], item)
        else:
            state["total"] = chosen.call(tx, [state["total"], item], {})
        found: Value = state["total"]
        return found

    def rest(state: State) -> Value:
        if state["total"] is None:
            return CallOf(itertools.accumulate, [inner, function], {"initial": first})
        total = CallOf(iter, [TupleValue([state["total"]])])  # as ``initial``, None would be none
        again = CallOf(itertools.accumulate, [CallOf(itertools.chain, [total, inner]), function])
        return CallOf(itertools.islice, [again, Const(1), NONE])

    return LazyIterator(itertools.accumulate, {"total": None}, advance, rest)


@special(itertools.pairwise)
def _pairwise(tx: Tracer, args: Args, kwargs: Words) -> Value:
    inner = iterator_of(tx, args[0])

    def advance(tx: Tracer, state: State) -> Value | None:
        if state["last"] is None:
            state["last"] = inner.step(tx)
        item = inner.step(tx) if state["last"] is not None else None
        if item is None:
            return _over(state)
        pair = TupleValue([state["last"], item])
        state["last"] = item
        return pair

    def rest(state: State) -> Value:
        last = state["last"]
        over = inner if last is None else CallOf(itertools.chain, [TupleValue([last]), inner])
        return CallOf(itertools.pairwise, [over])

    return LazyIterator(itertools.pairwise, {"last": None}, advance, rest)


@special(itertools.zip_longest)
def _zip_longest(tx: Tracer, args: Args, kwargs: Words) -> Value:
    fill = kwargs.get("fillvalue", NONE)
    inner = [iterator_of(tx, a) for a in args]

    def advance(tx: Tracer, state: State) -> Value | None:
        row: list[Value] = []
        for n, iterator in enumerate(inner):
            item = None if n in state["ended"] else iterator.step(tx)
            if item is None:
                state["ended"] = state["ended"] | {n}
                if len(state["ended"]) == len(inner):
                    return _over(state)
            row.append(fill if item is None else item)
        return TupleValue(row) if row else _over(state)

    def rest(state: State) -> Value:
        left: list[Value] = [TupleValue([]) if n in state["ended"] else i for n, i in enumerate(inner)]
        return CallOf(itertools.zip_longest, left, {"fillvalue": fill})

    return LazyIterator(itertools.zip_longest, {"ended": frozenset()}, advance, rest)


@special(itertools.tee)
def _tee(tx: Tracer, args: Args, kwargs: Words) -> Value:
    count = int(force(tx, args[1] if len(args) > 1 else kwargs.get("n", Const(2))).python(tx))
    inner = iterator_of(tx, args[0])
    seen: list[Value] = []

    def advance(tx: Tracer, state: State) -> Value | None:
        if state["at"] == len(seen):
            item = inner.step(tx)
            if item is None:
                return None
            seen.append(item)
        state["at"] += 1
        found: Value = seen[state["at"] - 1]
        return found

    def rest(state: State) -> Value | None:
        if not isinstance(inner, SequenceIterator) or isinstance(inner.source, ListValue):
            return None
        left = SequenceIterator([*seen[state["at"] :], *inner.items[inner.position :]], type(iter(())))
        return CallOf(teed, [left])

    kind: type = type(itertools.tee(())[0])
    return TupleValue([LazyIterator(kind, {"at": 0}, advance, rest) for _ in range(count)])


@special(itertools.groupby)
def _groupby(tx: Tracer, args: Args, kwargs: Words) -> Value:
    inner = iterator_of(tx, args[0] if args else kwargs["iterable"])
    by = args[1] if len(args) > 1 else kwargs.get("key", NONE)

    def draw(tx: Tracer) -> None:
        shared["item"] = inner.step(tx)
        if shared["item"] is not None:
            chosen = force(tx, by)
            shared["key"] = force(tx, shared["item"] if is_none(chosen) else chosen.call(tx, [shared["item"]], {}))

    def same(tx: Tracer, key: Any) -> bool:
        return key is not None and operations.same_or_equal(tx, shared["key"], key)

    def advance(tx: Tracer, state: State) -> Value | None:
        if not shared["started"]:
            shared["started"] = True
            draw(tx)
        while shared["item"] is not None and same(tx, shared["group"]):
            draw(tx)
        if shared["item"] is None:
            return _over(state)
        shared["group"] = shared["key"]
        shared["number"] += 1
        mine = {"number": shared["number"]}
        return TupleValue([shared["key"], LazyIterator(itertools._grouper, mine, within, rest)])  # type: ignore[attr-defined]

    def within(tx: Tracer, state: State) -> Value | None:
        if state["number"] != shared["number"] or shared["item"] is None or not same(tx, shared["group"]):
            return _over(state)
        item: Value = shared["item"]
        draw(tx)
        return item

    def rest(state: State) -> Value | None:
        return CallOf(itertools.groupby, [inner, by]) if not shared["started"] and "number" not in state else None

    shared: State = {"item": None, "key": None, "group": None, "started": False, "number": 0}
    return LazyIterator(itertools.groupby, shared, advance, rest)


def _by_index(fn: Any) -> Any:
    """Combinatoric iterators choose items by position alone: run them over positions."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        pools: list[list[Value]] = []
        rest_of: list[Any] = []
        for n, arg in enumerate(args):
            if fn is itertools.product or n == 0:
                pools.append(list(sequence_items(tx, arg)))
            else:
                rest_of.append(force(tx, arg).python(tx))
        words = {k: force(tx, v).python(tx) for k, v in kwargs.items()}
        tx.fold(lambda: fn(*[()] * len(pools), *rest_of, **words) and None)
        chosen = fn(*([range(len(p)) for p in pools]), *rest_of, **words)
        many = fn is itertools.product
        items: list[Value] = [
            TupleValue([pools[p % len(pools) if many else 0][i] for p, i in enumerate(indices)]) for indices in chosen
        ]

        def advance(tx: Tracer, state: State) -> Value | None:
            if state["at"] == len(items):
                return None
            state["at"] += 1
            found: Value = items[state["at"] - 1]
            return found

        def rest(state: State) -> Value:
            whole = CallOf(
                fn,
                [*(TupleValue(p) for p in pools), *map(Const, rest_of)],
                {name: Const(value) for name, value in words.items()},
            )
            return CallOf(stepped, [whole, Const(state["at"])])

        return LazyIterator(fn, {"at": 0}, advance, rest)

    return rule


for _fn in (
    itertools.product,
    itertools.permutations,
    itertools.combinations,
    itertools.combinations_with_replacement,
):
    special(_fn)(_by_index(_fn))


def until(tx: Tracer, function: Value, sentinel: Value) -> Value:
    """``iter(function, sentinel)``."""

    def advance(tx: Tracer, state: State) -> Value | None:
        item = force(tx, force(tx, function).call(tx, [], {}))
        return _over(state) if operations.same_or_equal(tx, item, sentinel) else item

    return LazyIterator(_UNTIL, {}, advance, lambda state: CallOf(iter, [function, sentinel]))


_UNTIL = type(iter(int, 1))


def by_index(of: Value) -> Value:
    """An iterator over an object that has ``__getitem__`` only."""

    def advance(tx: Tracer, state: State) -> Value | None:
        try:
            found = of.get_item(tx, Const(state["at"]))
        except UserException as error:
            if issubclass(error.value.type(), (IndexError, StopIteration)):
                return _over(state)
            raise
        state["at"] += 1
        return found

    return LazyIterator(_BY_INDEX, {"at": 0}, advance, lambda state: CallOf(advanced, [of, Const(state["at"])]))


class _Indexed:
    def __getitem__(self, index: int) -> int:
        raise IndexError(index)


_BY_INDEX = type(iter(_Indexed()))
