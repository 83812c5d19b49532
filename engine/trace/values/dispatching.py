"""Rules for ``functools`` and ``operator``: callables made of other callables."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import heapq
import operator
import reprlib
import types
from typing import TYPE_CHECKING, Any

from engine.ir import exact
from engine.ir.origin import Attr, Fixed, Item, Origin
from engine.ir.value_guard import IsObject, ReducesTo
from engine.trace import operations
from engine.trace.signals import Skip, Unsupported
from engine.trace.values.base import NONE, Const, Value, force, is_none, type_name
from engine.trace.values.classes import MADE_BY, class_origin, imported_first
from engine.trace.values.functions import RealFunction
from engine.trace.values.methods import BoundMethod
from engine.trace.values.objects import ObjectValue
from engine.trace.values.partials import partial_of
from engine.trace.values.rules import BY_CODE, special
from engine.trace.values.sequences import ListValue, TupleValue, sequence_items
from engine.trace.values.wrap import wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


# operator.itemgetter, attrgetter, methodcaller.


class Getter(Value):
    """``operator.itemgetter``, ``attrgetter`` or ``methodcaller``: what it was made of."""

    def __init__(self, cls: type, args: Args, kwargs: Words, origin: Origin | None = None) -> None:
        self.cls = cls
        self.kind: type = imported_first(cls) or cls
        self.args = args
        self.kwargs = kwargs
        self.origin = origin

    def type(self) -> type:
        return self.cls

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return self

    def python(self, tx: Tracer) -> Any:
        words = dict(zip(self.kwargs, tx.constants(self.kwargs.values()), strict=True))
        return self.cls(*tx.constants(self.args), **words)

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        of = force(tx, args[0])
        if not args or len(args) > 1 or kwargs:
            tx.fold(operator.itemgetter(0), *[None] * len(args), **dict.fromkeys(kwargs))
        if self.kind is operator.methodcaller:
            name = str(force(tx, self.args[0]).python(tx))
            return force(tx, of.get_attr(tx, name)).call(tx, list(self.args[1:]), self.kwargs)
        found = [self._one(tx, of, force(tx, a)) for a in self.args]
        return found[0] if len(found) == 1 else TupleValue(found)

    def _one(self, tx: Tracer, of: Value, wanted: Value) -> Value:
        if self.kind is operator.itemgetter:
            return of.get_item(tx, wanted)
        for part in str(wanted.python(tx)).split("."):
            of = force(tx, of.get_attr(tx, part))
        return of

    def children(self) -> list[Value]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(self.cls))
        cg.load_all(self.children())
        cg.call_keywords(len(self.args), tuple(self.kwargs))


def _made_getter(tx: Tracer, cls: Any, args: Args, kwargs: Words) -> Value:
    by_name = (imported_first(cls) or cls) is not operator.itemgetter
    known = [force(tx, a).python(tx) if tx.is_constant(a) else None for a in args] if by_name else [None] * len(args)
    tx.fold(lambda: cls(*known, **dict.fromkeys(kwargs)) and None)
    return Getter(cls, list(args), kwargs)


_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
for _cls in _GETTERS:
    MADE_BY[_cls] = _made_getter


@wraps_if(21, lambda real: type(real) in _GETTERS or imported_first(type(real)) in _GETTERS)
def _getter(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was called")
    args, pairs = parts = exact.parts_of(real)
    words = dict(pairs)
    if all(type(a) in (int, str, bool, type(None)) for a in (*args, *words.values())):
        tx.guard(ReducesTo(origin, parts, cause=tx.cause("it was called")))
    else:
        tx.guard_object(real, origin, "it was called")
    values = [tx.from_python(a) for a in args]
    return Getter(type(real), values, {k: tx.from_python(v) for k, v in words.items()}, origin)


# functools.


def _recursive_repr(tx: Tracer, of: RealFunction, args: Args, kwargs: Words) -> Value:
    """What an object shows of itself inside of itself is a few dots."""
    cells = dict(zip(of.code.co_freevars, of.cells(tx), strict=True))
    fill = cells["fillvalue"].content if "fillvalue" in cells else None
    shown = (id(of.code), id(force(tx, args[0])))
    if shown in tx.showing:
        return fill or Const("...")
    function = cells["user_function"].content
    assert function is not None
    tx.showing.add(shown)
    try:
        return force(tx, function).call(tx, args, kwargs)
    finally:
        tx.showing.discard(shown)


_WRAPPERS: tuple[tuple[Any, Any], ...] = (
    (reprlib.recursive_repr()(repr), _recursive_repr),
    # dataclasses had one of its own before 3.12.
    *((wrap(repr), _recursive_repr) for name, wrap in vars(dataclasses).items() if name == "_recursive_repr"),
)
for _wrapper, _rule in _WRAPPERS:
    BY_CODE[id(_wrapper.__code__)] = (_wrapper.__code__, _rule)


def bound_partial(tx: Tracer, found: Any, instance: Value, owner: type, name: str) -> Value:
    """A ``functools.partialmethod`` of the class ``owner``, read through an instance."""
    place = Item(Attr(class_origin(owner), "__dict__"), name)
    tx.guard(IsObject(place, found, cause=tx.cause(f"the method {name!r} was used")))
    origin = Fixed(found, name)
    inner = force(tx, tx.wrap(found.func, Attr(origin, "func")))
    if not isinstance(inner, RealFunction):
        raise Unsupported("unsupported-operation", "a partialmethod of anything but a function")
    args = [tx.lazy(a, Item(Attr(origin, "args"), n)) for n, a in enumerate(found.args)]
    words = {k: tx.lazy(v, Item(Attr(origin, "keywords"), k)) for k, v in found.keywords.items()}
    return partial_of(BoundMethod(instance, inner), list(args), dict(words))


class ComparedBy(ObjectValue):
    """What ``functools.cmp_to_key(compare)`` makes of an item."""

    def __init__(self, compare: Value, item: Value) -> None:
        super().__init__(type(functools.cmp_to_key(max)(1)), None, NotImplemented)
        self.compare = compare
        self.item = item

    def method(self, tx: Tracer, name: str) -> Value | None:
        symbol = _SYMBOLS.get(name)
        return None if symbol is None else _Comparison(self, symbol)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return self.item if name == "obj" else super().get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        if name != "obj":
            super().set_attr(tx, name, value)
        tx.mutating(self)
        self.item = value

    def children(self) -> list[Value]:
        return [self.compare, self.item]

    def reconstruct(self, cg: Codegen) -> None:
        def make_key() -> None:
            cg.out.callable(lambda: cg.const(functools.cmp_to_key))
            cg.load(self.compare)
            cg.out.call(1)

        cg.out.callable(make_key)
        cg.load(self.item)
        cg.out.call(1)


_SYMBOLS = {method: symbol for symbol, (_, method, _) in operations.COMPARE.items()}


class _Comparison(Value):
    """``key < other`` of such keys, bound to the left one."""

    def __init__(self, of: ComparedBy, symbol: str) -> None:
        self.of = of
        self.symbol = symbol

    def type(self) -> type:
        return type(len)

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        other = force(tx, args[0])
        if not isinstance(other, ComparedBy):
            return Const(NotImplemented)
        number = force(tx, self.of.compare).call(tx, [self.of.item, other.item], {})
        return operations.compare(tx, self.symbol, number, Const(0))


class _ToKey(Value):
    """``functools.cmp_to_key(compare)``."""

    def __init__(self, compare: Value) -> None:
        self.compare = compare

    def type(self) -> type:
        return type(functools.cmp_to_key(max))

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        if len(args) + len(kwargs) != 1 or not (args or "obj" in kwargs):
            tx.fold(functools.cmp_to_key(max), *[None] * len(args), **dict.fromkeys(kwargs))
        return ComparedBy(self.compare, args[0] if args else kwargs["obj"])

    def children(self) -> list[Value]:
        return [self.compare]

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(functools.cmp_to_key))
        cg.load(self.compare)
        cg.out.call(1)


@special(functools.cmp_to_key)
def _cmp_to_key(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if len(args) + len(kwargs) != 1 or not (args or "mycmp" in kwargs):
        tx.fold(functools.cmp_to_key, *[None] * len(args), **dict.fromkeys(kwargs))
    return _ToKey(args[0] if args else kwargs["mycmp"])


# Sequences, by operator's functions.


def _occurrences(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return Const(
        sum(operations.same_or_equal(tx, force(tx, i), force(tx, args[1])) for i in sequence_items(tx, args[0]))
    )


def _position(tx: Tracer, args: Args, kwargs: Words) -> Value:
    for n, item in enumerate(sequence_items(tx, args[0])):
        if operations.same_or_equal(tx, force(tx, item), force(tx, args[1])):
            return Const(n)
    return tx.raise_error(ValueError, "sequence.index(x): x not in sequence")  # type: ignore[no-any-return]


def _concatenated(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return operations.binary(tx, "+", args[0], args[1])


def _deleted(tx: Tracer, args: Args, kwargs: Words) -> Value:
    force(tx, args[0]).del_item(tx, force(tx, args[1]))
    return Const(None)


def _called(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return force(tx, args[0]).call(tx, list(args[1:]), kwargs)


special(operator.call)(_called)
special(operator.countOf)(_occurrences)
special(operator.indexOf)(_position)
special(operator.concat)(_concatenated)
special(operator.delitem)(_deleted)


@special(types.MethodType)
def _method(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return BoundMethod(args[1], force(tx, args[0]))


# heapq and bisect: the real algorithms, on items whose comparisons are traced.


class _Item:
    """One item of a heap or of a sorted list: compares by running traced code."""

    def __init__(self, tx: Tracer, value: Value, of: ListValue | None = None) -> None:
        self.tx = tx
        self.value = value
        self.of = of

    def __lt__(self, other: _Item) -> bool:
        before = None if self.of is None else list(self.of.items)
        is_less = force(self.tx, operations.compare(self.tx, "<", self.value, other.value)).truth(self.tx)
        if self.of is not None and (
            len(before or ()) != len(self.of.items) or any(map(operator.is_not, before or (), self.of.items))
        ):
            raise Skip("unsupported-operation", "comparing items of a heap changes the heap")
        return is_less


def _heap_rule(function: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        heap = force(tx, args[0])
        if not issubclass(heap.type(), list):
            return tx.fold(function, type(type_name(heap.type()), (), {})(), *[None] * len(args[1:]))
        if not isinstance(heap, ListValue) or heap.cls is not list:
            raise heap.refuse(f"{function.__name__}()")
        items = [_Item(tx, force(tx, i), heap) for i in heap.items]
        rest = [_Item(tx, force(tx, a), heap) for a in args[1:]]
        try:
            found = function(items, *rest)
        except IndexError as error:
            raise tx.user_exception(error) from error
        tx.mutating(heap)
        heap.items[:] = [i.value for i in items]
        return Const(None) if found is None else found.value

    return rule


for _heap_name in "heapify heappush heappop heappushpop heapreplace _heapify_max _heappop_max _heapreplace_max".split():
    if hasattr(heapq, _heap_name):
        special(getattr(heapq, _heap_name))(_heap_rule(getattr(heapq, _heap_name)))


def _bisection_rule(function: Any, *, inserts: bool) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        if len(args) < 2:
            raise Unsupported("unknown-call", f"{function.__name__}() with names for what it searches")
        into = force(tx, args[0])
        if not isinstance(into, (ListValue, TupleValue)) or into.type() is not (list if inserts else into.type()):
            raise into.refuse(f"{function.__name__}()")
        bounds = tx.constants(args[2:])
        words: dict[str, Any] = {k: force(tx, v).python(tx) for k, v in kwargs.items() if k != "key"}
        key = force(tx, kwargs.get("key", NONE))
        if not is_none(key):
            words["key"] = lambda item: _Item(tx, force(tx, key.call(tx, [item.value], {})))
        items = [_Item(tx, force(tx, i)) for i in sequence_items(tx, into)]
        try:
            found = function(items, _Item(tx, force(tx, args[1])), *bounds, **words)
        except (TypeError, ValueError) as error:
            raise tx.user_exception(error) from error
        if not inserts:
            return Const(found)
        assert isinstance(into, ListValue)
        tx.mutating(into)
        into.items[:] = [i.value for i in items]
        return NONE

    return rule


for _bisection in (bisect.bisect_left, bisect.bisect_right, bisect.insort_left, bisect.insort_right):
    special(_bisection)(_bisection_rule(_bisection, inserts=_bisection.__name__.startswith("insort")))


def _best_rule(largest: bool) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        count = max(0, int(force(tx, args[0]).python(tx)))
        how: Words = {"reverse": Const(largest)}
        key = args[2] if len(args) > 2 else kwargs.get("key")
        if key is not None:
            how["key"] = key
        return ListValue(operations.sorted_items(tx, list(sequence_items(tx, args[1])), how)[:count])

    return rule


special(heapq.nlargest)(_best_rule(True))
special(heapq.nsmallest)(_best_rule(False))
