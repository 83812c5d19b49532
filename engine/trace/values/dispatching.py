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
from engine.ir.origin import AttrSource, ConstantSource, GetItemSource, Source
from engine.ir.value_guard import IdMatch, OperatorArgsMatch
from engine.trace import operations
from engine.trace.signals import SkipFrame, Unsupported
from engine.trace.values.base import NONE, ConstantVariable, Variable, is_none, realize, type_name
from engine.trace.values.classes import C_CLASS_CONSTRUCTORS, class_source, first_import_of_class
from engine.trace.values.functions import UserFunctionVariable
from engine.trace.values.methods import BoundMethodVariable
from engine.trace.values.objects import UserDefinedObjectVariable
from engine.trace.values.partials import make_partial
from engine.trace.values.rules import RULES_BY_CODE, register_rule
from engine.trace.values.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.values.wrap import register_builder_if

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.state import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]


# operator.itemgetter, attrgetter, methodcaller.


class OperatorGetterVariable(Variable):
    """``operator.itemgetter``, ``attrgetter`` or ``methodcaller``: what it was made of."""

    def __init__(self, cls: type, args: Args, kwargs: Kwargs, source: Source | None = None) -> None:
        self.cls = cls
        self.first_import_cls: type = first_import_of_class(cls) or cls
        self.args = args
        self.kwargs = kwargs
        self.source = source

    def python_type(self) -> type:
        return self.cls

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def hash_key(self, tx: Tracer) -> Any:
        return self

    def as_python_constant(self, tx: Tracer) -> Any:
        words = dict(zip(self.kwargs, tx.as_python_constants(self.kwargs.values()), strict=True))
        return self.cls(*tx.as_python_constants(self.args), **words)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0])
        if not args or len(args) > 1 or kwargs:
            tx.fold_constant(operator.itemgetter(0), *[None] * len(args), **dict.fromkeys(kwargs))
        if self.first_import_cls is operator.methodcaller:
            name = str(realize(tx, self.args[0]).as_python_constant(tx))
            return realize(tx, of.get_attr(tx, name)).call(tx, list(self.args[1:]), self.kwargs)
        found = [self._get_one(tx, of, realize(tx, a)) for a in self.args]
        return found[0] if len(found) == 1 else TupleVariable(found)

    def _get_one(self, tx: Tracer, of: Variable, wanted: Variable) -> Variable:
        if self.first_import_cls is operator.itemgetter:
            return of.get_item(tx, wanted)
        for part in str(wanted.as_python_constant(tx)).split("."):
            of = realize(tx, of.get_attr(tx, part))
        return of

    def child_variables(self) -> list[Variable]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.load_const(self.cls))
        cg.load_all(self.child_variables())
        cg.call_with_keywords(len(self.args), tuple(self.kwargs))


def _construct_getter(tx: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Variable:
    by_name = (first_import_of_class(cls) or cls) is not operator.itemgetter
    known = (
        [realize(tx, a).as_python_constant(tx) if tx.is_python_constant(a) else None for a in args]
        if by_name
        else [None] * len(args)
    )
    tx.fold_constant(lambda: cls(*known, **dict.fromkeys(kwargs)) and None)
    return OperatorGetterVariable(cls, list(args), kwargs)


_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)
for _cls in _GETTERS:
    C_CLASS_CONSTRUCTORS[_cls] = _construct_getter


@register_builder_if(21, lambda real: type(real) in _GETTERS or first_import_of_class(type(real)) in _GETTERS)
def _getter(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it was called")
    args, pairs = parts = exact.operator_callable_args(real)
    words = dict(pairs)
    if all(type(a) in (int, str, bool, type(None)) for a in (*args, *words.values())):
        tx.add_guard(OperatorArgsMatch(origin, parts, cause=tx.guard_cause("it was called")))
    else:
        tx.guard_identity(real, origin, "it was called")
    values = [tx.from_python(a) for a in args]
    return OperatorGetterVariable(type(real), values, {k: tx.from_python(v) for k, v in words.items()}, origin)


# functools.


def _recursive_repr(tx: Tracer, of: UserFunctionVariable, args: Args, kwargs: Kwargs) -> Variable:
    """What an object shows of itself inside of itself is a few dots."""
    cells = dict(zip(of.code.co_freevars, of.cells(tx), strict=True))
    fill = cells["fillvalue"].content if "fillvalue" in cells else None
    shown = (id(of.code), id(realize(tx, args[0])))
    if shown in tx.repr_in_progress:
        return fill or ConstantVariable("...")
    function = cells["user_function"].content
    assert function is not None
    tx.repr_in_progress.add(shown)
    try:
        return realize(tx, function).call(tx, args, kwargs)
    finally:
        tx.repr_in_progress.discard(shown)


_RECURSIVE_REPR_WRAPPERS: tuple[tuple[Any, Any], ...] = (
    (reprlib.recursive_repr()(repr), _recursive_repr),
    # dataclasses had one of its own before 3.12.
    *((wrap(repr), _recursive_repr) for name, wrap in vars(dataclasses).items() if name == "_recursive_repr"),
)
for _wrapper, _rule in _RECURSIVE_REPR_WRAPPERS:
    RULES_BY_CODE[id(_wrapper.__code__)] = (_wrapper.__code__, _rule)


def bind_partialmethod(tx: Tracer, found: Any, instance: Variable, owner: type, name: str) -> Variable:
    """A ``functools.partialmethod`` of the class ``owner``, read through an instance."""
    place = GetItemSource(AttrSource(class_source(owner), "__dict__"), name)
    tx.add_guard(IdMatch(place, found, cause=tx.guard_cause(f"the method {name!r} was used")))
    origin = ConstantSource(found, name)
    inner = realize(tx, tx.wrap(found.func, AttrSource(origin, "func")))
    if not isinstance(inner, UserFunctionVariable):
        raise Unsupported("unsupported-operation", "a partialmethod of anything but a function")
    args = [tx.make_lazy(a, GetItemSource(AttrSource(origin, "args"), n)) for n, a in enumerate(found.args)]
    words = {k: tx.make_lazy(v, GetItemSource(AttrSource(origin, "keywords"), k)) for k, v in found.keywords.items()}
    return make_partial(BoundMethodVariable(instance, inner), list(args), dict(words))


class CmpKeyVariable(UserDefinedObjectVariable):
    """What ``functools.cmp_to_key(compare)`` makes of an item."""

    def __init__(self, compare: Variable, item: Variable) -> None:
        super().__init__(type(functools.cmp_to_key(max)(1)), None, NotImplemented)
        self.cmp_function = compare
        self.item = item

    def lookup_special_method(self, tx: Tracer, name: str) -> Variable | None:
        symbol = _COMPARE_SYMBOLS.get(name)
        return None if symbol is None else _CmpKeyMethodVariable(self, symbol)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return self.item if name == "obj" else super().get_attr(tx, name)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        if name != "obj":
            super().set_attr(tx, name, value)
        tx.record_mutation(self)
        self.item = value

    def child_variables(self) -> list[Variable]:
        return [self.cmp_function, self.item]

    def reconstruct(self, cg: PyCodegen) -> None:
        def make_key() -> None:
            cg.body.callable(lambda: cg.load_const(functools.cmp_to_key))
            cg.load(self.cmp_function)
            cg.body.call(1)

        cg.body.callable(make_key)
        cg.load(self.item)
        cg.body.call(1)


_COMPARE_SYMBOLS = {method: symbol for symbol, (_, method, _) in operations.COMPARE.items()}


class _CmpKeyMethodVariable(Variable):
    """``key < other`` of such keys, bound to the left one."""

    def __init__(self, of: CmpKeyVariable, symbol: str) -> None:
        self.key_variable = of
        self.symbol = symbol

    def python_type(self) -> type:
        return type(len)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        other = realize(tx, args[0])
        if not isinstance(other, CmpKeyVariable):
            return ConstantVariable(NotImplemented)
        number = realize(tx, self.key_variable.cmp_function).call(tx, [self.key_variable.item, other.item], {})
        return operations.compare_op(tx, self.symbol, number, ConstantVariable(0))


class _CmpToKeyVariable(Variable):
    """``functools.cmp_to_key(compare)``."""

    def __init__(self, compare: Variable) -> None:
        self.cmp_function = compare

    def python_type(self) -> type:
        return type(functools.cmp_to_key(max))

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if len(args) + len(kwargs) != 1 or not (args or "obj" in kwargs):
            tx.fold_constant(functools.cmp_to_key(max), *[None] * len(args), **dict.fromkeys(kwargs))
        return CmpKeyVariable(self.cmp_function, args[0] if args else kwargs["obj"])

    def child_variables(self) -> list[Variable]:
        return [self.cmp_function]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.load_const(functools.cmp_to_key))
        cg.load(self.cmp_function)
        cg.body.call(1)


@register_rule(functools.cmp_to_key)
def _cmp_to_key(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) + len(kwargs) != 1 or not (args or "mycmp" in kwargs):
        tx.fold_constant(functools.cmp_to_key, *[None] * len(args), **dict.fromkeys(kwargs))
    return _CmpToKeyVariable(args[0] if args else kwargs["mycmp"])


# Sequences, by operator's functions.


def _count_of(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return ConstantVariable(
        sum(
            operations.identical_or_equal(tx, realize(tx, i), realize(tx, args[1])) for i in sequence_items(tx, args[0])
        )
    )


def _index_of(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    for n, item in enumerate(sequence_items(tx, args[0])):
        if operations.identical_or_equal(tx, realize(tx, item), realize(tx, args[1])):
            return ConstantVariable(n)
    return tx.raise_error(ValueError, "sequence.index(x): x not in sequence")  # type: ignore[no-any-return]


def _concat(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return operations.binary_op(tx, "+", args[0], args[1])


def _delitem(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    realize(tx, args[0]).del_item(tx, realize(tx, args[1]))
    return ConstantVariable(None)


def _call(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return realize(tx, args[0]).call(tx, list(args[1:]), kwargs)


register_rule(operator.call)(_call)
register_rule(operator.countOf)(_count_of)
register_rule(operator.indexOf)(_index_of)
register_rule(operator.concat)(_concat)
register_rule(operator.delitem)(_delitem)


@register_rule(types.MethodType)
def _method(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return BoundMethodVariable(args[1], realize(tx, args[0]))


# heapq and bisect: the real algorithms, on items whose comparisons are traced.


class _ComparableItem:
    """One item of a heap or of a sorted list: compares by running traced code."""

    def __init__(self, tx: Tracer, value: Variable, of: ListVariable | None = None) -> None:
        self.tx = tx
        self.value = value
        self.heap = of

    def __lt__(self, other: _ComparableItem) -> bool:
        before = None if self.heap is None else list(self.heap.items)
        is_less = realize(self.tx, operations.compare_op(self.tx, "<", self.value, other.value)).is_truthy(self.tx)
        if self.heap is not None and (
            len(before or ()) != len(self.heap.items) or any(map(operator.is_not, before or (), self.heap.items))
        ):
            raise SkipFrame("unsupported-operation", "comparing items of a heap changes the heap")
        return is_less


def _heap_rule(function: Any) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        heap = realize(tx, args[0])
        if not issubclass(heap.python_type(), list):
            return tx.fold_constant(function, type(type_name(heap.python_type()), (), {})(), *[None] * len(args[1:]))
        if not isinstance(heap, ListVariable) or heap.cls is not list:
            raise heap.unsupported(f"{function.__name__}()")
        items = [_ComparableItem(tx, realize(tx, i), heap) for i in heap.items]
        rest = [_ComparableItem(tx, realize(tx, a), heap) for a in args[1:]]
        try:
            found = function(items, *rest)
        except IndexError as error:
            raise tx.make_user_exception(error) from error
        tx.record_mutation(heap)
        heap.items[:] = [i.value for i in items]
        return ConstantVariable(None) if found is None else found.value

    return rule


for _heap_name in "heapify heappush heappop heappushpop heapreplace _heapify_max _heappop_max _heapreplace_max".split():
    if hasattr(heapq, _heap_name):
        register_rule(getattr(heapq, _heap_name))(_heap_rule(getattr(heapq, _heap_name)))


def _bisect_rule(function: Any, *, inserts: bool) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if len(args) < 2:
            raise Unsupported("unknown-call", f"{function.__name__}() with names for what it searches")
        into = realize(tx, args[0])
        if not isinstance(into, (ListVariable, TupleVariable)) or into.python_type() is not (
            list if inserts else into.python_type()
        ):
            raise into.unsupported(f"{function.__name__}()")
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
        assert isinstance(into, ListVariable)
        tx.record_mutation(into)
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
        return ListVariable(operations.sort_items(tx, list(sequence_items(tx, args[1])), how)[:count])

    return rule


register_rule(heapq.nlargest)(_nlargest_rule(True))
register_rule(heapq.nsmallest)(_nlargest_rule(False))
