"""Itertools, zip, map, filter and enumerate: the real iterator runs over proxies.

Operations on the proxies are traced.
"""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.frame_code.codegen_runtime.iterators import make_advanced_iterator, make_tee, skip_items
from engine.ir.sources.base import Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.iterators import iterator_state_source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, UserErrors, Variable, is_none, realize
from engine.trace.variables.callable_registry import RULES_BY_NAME, CallRule, register_rule
from engine.trace.variables.callables.reconstruct_calls import CallExpressionVariable
from engine.trace.variables.containers.iterators import (
    IteratorVariable,
    SequenceIteratorVariable,
    item_or_end,
    iterator_of,
)
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.slotted_type import SlottedType, fresh, state


class _VariableProxy:
    """Stands for a variable in C code; operations on it are traced."""

    __slots__ = ("iterator", "real", "tx", "variable")

    def __init__(self, tx: Tracer, variable: Variable) -> None:
        self.tx = tx
        self.variable = variable
        self.real: Any = self
        """The argument that C code gets: the proxy or a constant."""
        self.iterator: Any = None
        """The iterator over the variable, once C code has called ``iter``."""

    @property
    def remaining(self) -> Variable:
        """The variable; once it is iterated over, the iterator over its remaining items."""
        variable: Variable = (self.iterator or self).variable
        return variable

    def __iter__(self) -> _IteratorProxy:
        proxy = self.iterator = _IteratorProxy(self.tx, iterator_of(self.tx, self.variable))
        return proxy

    def __call__(self, *args: _VariableProxy) -> _VariableProxy:
        function = realize(self.tx, self.variable)
        return _VariableProxy(self.tx, function.call(self.tx, [arg.variable for arg in args], {}))

    def __bool__(self) -> bool:
        return realize(self.tx, self.variable).is_truthy(self.tx)

    def __add__(self, other: _VariableProxy) -> _VariableProxy:
        return _VariableProxy(self.tx, arithmetic.binary_op(self.tx, "+", self.variable, other.variable))

    def __eq__(self, other: _VariableProxy) -> bool:  # type: ignore[override]
        left, right = realize(self.tx, self.variable), realize(self.tx, other.variable)
        return arithmetic.identical_or_equal(self.tx, left, right)

    __hash__ = None  # type: ignore[assignment]


class _IteratorProxy(metaclass=SlottedType):
    """Stands for an iterator in C code; ``items`` are those that it has yielded."""

    tx: Tracer
    variable: Variable
    items: list[Variable] = fresh(list)
    last: _VariableProxy | None = state(None)
    is_exhausted: bool = state(False)

    def __iter__(self) -> _IteratorProxy:
        return self

    def __next__(self) -> _VariableProxy:
        item = self.variable.next_item(self.tx)
        if item is None:
            self.is_exhausted = True
            raise StopIteration
        self.items.append(item)
        self.last = _VariableProxy(self.tx, item)
        return self.last


class _SequenceProxy(metaclass=SlottedType):
    """Stands for an object that only defines ``__getitem__``."""

    tx: Tracer
    variable: Variable

    def __getitem__(self, index: int) -> _VariableProxy:
        item = item_or_end(self.tx, self.variable, index)
        if item is None:
            raise IndexError
        return _VariableProxy(self.tx, item)


class _IteratorErrors(UserErrors):
    """Raises the errors of C code in the traced code, but no error of the tracer beneath it."""

    __slots__ = ()

    def __exit__(self, kind: object, error: BaseException | None, trace: Any) -> None:  # noqa: PYI036 - as in the base class
        if trace is not None and trace.tb_next is None:
            super().__exit__(kind, error, trace)


class ItertoolsIteratorVariable(IteratorVariable):
    """An iterator of C code over proxies: ``function(*args, **kwargs)`` created ``iterator``."""

    iterator: Iterator[Any]
    function: Any
    args: list[_VariableProxy]
    kwargs: dict[str, _VariableProxy]
    is_exhausted: bool = state(False)
    yielded_count: int = state(0)
    last_item: Variable = state(NONE)

    def python_type(self) -> type:
        return type(self.iterator)

    def next_item(self, tx: Tracer) -> Variable | None:
        tx.side_effects.record_mutation(self)
        try:
            with _IteratorErrors(tx, ValueError):  # of ``strict=True``
                item = next(self.iterator)
        except StopIteration:
            self.is_exhausted = True
            return None
        self.yielded_count += 1
        self.last_item = _as_variable(item)
        return self.last_item

    @property
    def known_items_left(self) -> int:
        if self.python_type() not in (enumerate, map, zip):
            return 0
        return min((a.remaining.resolved.known_items_left for a in self.args if a.iterator is not None), default=0)

    def position_sources(self, source: Source) -> tuple[Source, ...]:
        arguments = GetItemSource(iterator_state_source(source), 1)
        kind = self.python_type()
        count = 1 if kind is enumerate else len(self.args) if kind is zip else 0
        inner = enumerate(a.remaining.resolved for a in self.args[:count])
        return tuple(p for n, part in inner for p in part.position_sources(GetItemSource(arguments, n)))

    def call_again(self) -> Variable:
        """Return the call that created the iterator, over the remaining items of its arguments."""
        keywords = {name: value.remaining for name, value in self.kwargs.items()}
        return CallExpressionVariable(self.function, [value.remaining for value in self.args], keywords)

    def _remaining(self) -> Variable:
        signature = _SIGNATURES.get(self.function)
        if self.is_exhausted and not (signature and signature.counts_items):
            return SequenceIteratorVariable([], type(iter(())))
        expression = None if signature is None else signature.remaining(self)
        if expression is None:
            name = self.python_type().__name__
            raise Unsupported("iterator-state", f"continuing a partly consumed {name} after the graph")
        return expression

    def child_variables(self) -> list[Variable]:
        try:
            return [self._remaining()]
        except Unsupported:
            return []

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self._remaining())


def _as_variable(yielded: Any) -> Variable:
    return _YIELDED_TYPES.get(yielded.__class__, ConstantVariable)(yielded)


_YIELDED_TYPES: dict[type, Callable[[Any], Variable]] = {
    _VariableProxy: lambda proxy: proxy.variable,
    tuple: lambda parts: TupleVariable([_as_variable(part) for part in parts]),
    itertools._grouper: lambda group: ItertoolsIteratorVariable(group, itertools._grouper, [], {}),  # type: ignore[attr-defined]
}
"""Makers of the variable of an item of the real iterator, by type; others are constants."""


Converter = Callable[[_VariableProxy], Any]
Remaining = Callable[[ItertoolsIteratorVariable], Variable | None]


def _optional(arg: _VariableProxy) -> Any:
    """Convert an argument that may be None; others add no guard until they are used."""
    may_be_none = arg.variable.python_type() is types.NoneType
    return None if may_be_none and is_none(realize(arg.tx, arg.variable)) else arg


def _constant(arg: _VariableProxy) -> Any:
    return realize(arg.tx, arg.variable).as_python_constant(arg.tx)


def _is_true(arg: _VariableProxy) -> Any:
    return realize(arg.tx, arg.variable).is_truthy(arg.tx)


def _index(what: str) -> Converter:
    """Return the converter of a number; ``what`` describes one without a known value."""

    def convert(arg: _VariableProxy) -> Any:
        reason = f"{what} that is not known while tracing"
        return arithmetic.fold_constant_call(arg.tx, operator.index, [arg.variable], {}, reason).constant

    return convert


@dataclass(frozen=True, slots=True)
class _Signature:
    """Arguments of a function that creates an iterator, and how the iterator is rebuilt.

    ``remaining`` returns an expression for an iterator over the remaining items, or None.
    """

    names: str = ""
    converters: Mapping[str, Converter] = field(default_factory=dict)
    """Converters of arguments that are not simply represented by a proxy."""
    remaining: Remaining = ItertoolsIteratorVariable.call_again
    counts_items: bool = False
    """True if ``remaining`` also rebuilds an exhausted iterator."""

    def create(self, tx: Tracer, function: Any, args: Args, kwargs: Kwargs) -> Variable:
        """Call the real function; return the variable of its iterator, or of all of them."""
        names = itertools.chain(self.names.split(), itertools.repeat(""))
        converted = [self._convert(tx, name, arg) for name, arg in zip(names, args, strict=False)]
        keywords = {name: self._convert(tx, name, arg) for name, arg in kwargs.items()}
        with _IteratorErrors(tx, TypeError, ValueError):
            iterator = function(*(arg.real for arg in converted), **{name: arg.real for name, arg in keywords.items()})
        if function is not itertools.tee:
            return ItertoolsIteratorVariable(iterator, function, converted, keywords)
        return TupleVariable([ItertoolsIteratorVariable(part, function, converted, keywords) for part in iterator])

    def _convert(self, tx: Tracer, name: str, arg: Variable) -> _VariableProxy:
        proxy = _VariableProxy(tx, arg)
        if name in self.converters:
            proxy.real = self.converters[name](proxy)
        return proxy


def _chain_remaining(of: ItertoolsIteratorVariable) -> Variable:
    outer = of.args[0].iterator
    current = None if outer.last is None else outer.last.iterator
    remaining = outer.variable
    if current is not None and not current.is_exhausted:
        remaining = CallExpressionVariable(itertools.chain, [TupleVariable([current.variable]), remaining])
    return CallExpressionVariable(itertools.chain.from_iterable, [remaining])


def _cycle_remaining(of: ItertoolsIteratorVariable) -> Variable | None:
    inner = of.args[0].iterator
    if not inner.is_exhausted:
        return None if inner.items else of.call_again()
    start = of.yielded_count % len(inner.items)
    return CallExpressionVariable(itertools.cycle, [TupleVariable([*inner.items[start:], *inner.items[:start]])])


def _repeat_remaining(of: ItertoolsIteratorVariable) -> Variable:
    value, times = _bind(of, "object", "times")
    left = [] if times is None else [ConstantVariable(max(0, times.real) - of.yielded_count)]
    return CallExpressionVariable(itertools.repeat, [value.variable, *left])


def _islice_remaining(of: ItertoolsIteratorVariable) -> Variable:
    inner, bounds = of.args[0].iterator, slice(*(arg.real for arg in of.args[1:]))
    step, num_consumed = 1 if bounds.step is None else bounds.step, len(inner.items)
    start = (bounds.start or 0) + of.yielded_count * step - num_consumed
    left = None if bounds.stop is None else max(0, bounds.stop - num_consumed)
    return CallExpressionVariable(itertools.islice, [inner.variable, *map(ConstantVariable, (start, left, step))])


def _dropwhile_remaining(of: ItertoolsIteratorVariable) -> Variable:
    return of.args[1].remaining if of.yielded_count else of.call_again()


def _accumulate_remaining(of: ItertoolsIteratorVariable) -> Variable:
    if not of.yielded_count:
        return of.call_again()
    inner, function = _bind(of, "iterable", "func")
    # itertools treats ``initial=None`` as no initial value
    items = CallExpressionVariable(itertools.chain, [TupleVariable([of.last_item]), inner.remaining])
    accumulated = CallExpressionVariable(itertools.accumulate, [items, NONE if function is None else function.variable])
    return CallExpressionVariable(itertools.islice, [accumulated, ConstantVariable(1), NONE])


def _pairwise_remaining(of: ItertoolsIteratorVariable) -> Variable:
    yielded: list[Variable] = of.args[0].iterator.items
    if not yielded:
        return of.call_again()
    items = CallExpressionVariable(itertools.chain, [TupleVariable(yielded[-1:]), of.args[0].remaining])
    return CallExpressionVariable(itertools.pairwise, [items])


def _zip_longest_remaining(of: ItertoolsIteratorVariable) -> Variable:
    left = [TupleVariable([]) if arg.iterator.is_exhausted else arg.remaining for arg in of.args]
    return CallExpressionVariable(itertools.zip_longest, left, {k: v.remaining for k, v in of.kwargs.items()})


def _groupby_remaining(of: ItertoolsIteratorVariable) -> Variable | None:
    inner = _bind(of, "iterable")[0].iterator
    return None if inner.items or inner.is_exhausted else of.call_again()


def _tee_remaining(of: ItertoolsIteratorVariable) -> Variable | None:
    buffered, inner = of.args[0].iterator.items, of.args[0].remaining
    if not isinstance(inner, SequenceIteratorVariable) or inner.list_it_reads() is not None:
        return None
    left = [*buffered[of.yielded_count :], *inner.items[inner.position :]]
    return CallExpressionVariable(make_tee, [SequenceIteratorVariable(left, type(iter(())))])


def _combinatoric_remaining(of: ItertoolsIteratorVariable) -> Variable:
    keywords = {name: _whole_pool(value) for name, value in of.kwargs.items()}
    from_start = CallExpressionVariable(of.function, [_whole_pool(value) for value in of.args], keywords)
    return CallExpressionVariable(skip_items, [from_start, ConstantVariable(of.yielded_count)])


def _whole_pool(arg: _VariableProxy) -> Variable:
    return arg.variable if arg.iterator is None else TupleVariable(arg.iterator.items)


def _getitem_remaining(of: ItertoolsIteratorVariable) -> Variable:
    return CallExpressionVariable(make_advanced_iterator, [of.args[0].variable, ConstantVariable(of.yielded_count)])


def _enumerate_remaining(of: ItertoolsIteratorVariable) -> Variable:
    inner, start = _bind(of, "iterable", "start")
    number = (0 if start is None else start.real) + of.yielded_count
    return CallExpressionVariable(enumerate, [inner.remaining, ConstantVariable(number)])


def _count_remaining(of: ItertoolsIteratorVariable) -> Variable:
    if not of.yielded_count:
        return of.call_again()
    step = _bind(of, "start", "step")[1]
    increment = 1 if step is None else step.real
    numbers = map(ConstantVariable, (of.last_item.constant + increment, increment))
    return CallExpressionVariable(itertools.count, list(numbers))


def _bind(of: ItertoolsIteratorVariable, *names: str) -> list[Any]:
    """Return arguments by name; None for those that were not given."""
    arguments = dict(zip(_SIGNATURES[of.function].names.split(), of.args, strict=False)) | of.kwargs
    return [arguments.get(name) for name in names]


_COMBINATORIC = _Signature("iterable r", {"r": _constant}, _combinatoric_remaining, counts_items=True)
_SIGNATURES: dict[Any, _Signature] = {
    itertools.chain.from_iterable: _Signature(remaining=_chain_remaining),
    itertools.count: _Signature("start step", dict.fromkeys(("start", "step"), _constant), _count_remaining),
    itertools.cycle: _Signature(remaining=_cycle_remaining),
    itertools.repeat: _Signature(
        "object times", {"times": _index("repeat() of a number")}, _repeat_remaining, counts_items=True
    ),
    itertools.islice: _Signature(
        "iterable start stop step", dict.fromkeys(("start", "stop", "step"), _constant), _islice_remaining
    ),
    itertools.takewhile: _Signature(),
    itertools.dropwhile: _Signature(remaining=_dropwhile_remaining),
    itertools.filterfalse: _Signature("predicate", {"predicate": _optional}),
    itertools.compress: _Signature(),
    itertools.starmap: _Signature(),
    itertools.accumulate: _Signature("iterable func", {"func": _optional, "initial": _optional}, _accumulate_remaining),
    itertools.pairwise: _Signature(remaining=_pairwise_remaining),
    itertools.zip_longest: _Signature(remaining=_zip_longest_remaining),
    itertools.tee: _Signature("iterable n", {"n": _constant}, _tee_remaining, counts_items=True),
    itertools.groupby: _Signature("iterable key", {"key": _optional}, _groupby_remaining),
    itertools.product: _Signature("", {"repeat": _constant}, _combinatoric_remaining, counts_items=True),
    itertools.permutations: _COMBINATORIC,
    itertools.combinations: _COMBINATORIC,
    itertools.combinations_with_replacement: _COMBINATORIC,
    iter: _Signature(),
    enumerate: _Signature(
        "iterable start", {"start": _index("enumerate() with a start")}, _enumerate_remaining, counts_items=True
    ),
    zip: _Signature("", {"strict": _is_true}, counts_items=True),
    map: _Signature("", {"strict": _is_true}, counts_items=True),
    filter: _Signature("function", {"function": _optional}, counts_items=True),
    make_advanced_iterator: _Signature(remaining=_getitem_remaining),
}
"""Iterators by the function that creates them; the groups of ``groupby`` have none."""
if hasattr(itertools, "batched"):  # from Python 3.12 on
    _SIGNATURES[itertools.batched] = _Signature(
        "iterable n", {"n": _index("batched() with a size"), "strict": _is_true}, counts_items=True
    )


def make_iterator(tx: Tracer, function: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Call a function that creates an iterator, such as ``zip`` or ``itertools.tee``."""
    return _SIGNATURES[function].create(tx, function, args, kwargs)


def _rule_of(function: Any) -> CallRule:
    return lambda tx, args, kwargs: make_iterator(tx, function, args, kwargs)


for _function in _SIGNATURES.keys() - {itertools.chain.from_iterable, iter, make_advanced_iterator}:
    register_rule(_function)(_rule_of(_function))
RULES_BY_NAME["chain", "from_iterable"] = _rule_of(itertools.chain.from_iterable)


@register_rule(itertools.chain)
def _chain(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if kwargs:
        tx.fold_constant(itertools.chain, **dict.fromkeys(kwargs))
    outer = SequenceIteratorVariable(list(args), type(iter(())))
    return make_iterator(tx, itertools.chain.from_iterable, [outer], {})


def make_getitem_iterator(tx: Tracer, of: Variable) -> Variable:
    """Create an iterator over an object that only defines ``__getitem__``."""
    iterator = iter(_SequenceProxy(tx, of))
    return ItertoolsIteratorVariable(iterator, make_advanced_iterator, [_VariableProxy(tx, of)], {})
