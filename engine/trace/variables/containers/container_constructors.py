"""Constructors of builtin containers; ``Counter`` counting."""

from __future__ import annotations

import collections

from engine.trace.annotations import Tracer
from engine.trace.operators import arithmetic
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, UserErrors, Variable, is_none, realize
from engine.trace.variables.callable_registry import register_rule, register_rule_by_name
from engine.trace.variables.containers.builtin_subclasses import new_builtin_subclass
from engine.trace.variables.containers.dict_subclasses import subclass_fromkeys
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.ranges_and_slices import RangeVariable, SliceVariable
from engine.trace.variables.containers.sequences import (
    ListVariable,
    TupleVariable,
    as_index,
    is_plain_namedtuple,
    lazy_copy,
    sequence_items,
)
from engine.trace.variables.containers.sets import SetVariable
from engine.trace.variables.tensors.sym_node import has_hint, hint


@register_rule(range)
def _range(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    bounds = [realize(tx, a) for a in args]
    symbols = [b if b.is_symbolic and b.python_type() is int and has_hint(b.sym) else None for b in bounds[:2]]
    values = [as_index(tx, b) if n > 1 or symbols[n] is None else hint(b.sym) for n, b in enumerate(bounds)]
    with UserErrors(tx, TypeError, ValueError):
        real = range(*values)
    start, stop = symbols if len(symbols) > 1 else (None, *symbols)
    ends = start or ConstantVariable(real.start), stop or ConstantVariable(real.stop)
    return RangeVariable((*ends, ConstantVariable(real.step)))


@register_rule(slice)
def _slice(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    bounds = [NONE, args[0], NONE] if len(args) == 1 else [*args, *[NONE] * (3 - len(args))]
    return SliceVariable(list(bounds))


@register_rule(list)
def _list(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0]) if args else None
    return ListVariable([]) if of is None else lazy_copy(of) or ListVariable(list(sequence_items(tx, of)))


@register_rule(tuple)
def _tuple(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if args and (of := realize(tx, args[0])).python_type() is tuple:
        return of
    return TupleVariable(list(sequence_items(tx, args[0])) if args else [])


register_rule(set)(lambda tx, args, kwargs: _new_set(tx, args, set))


def _new_set(tx: Tracer, args: Args, kind: type) -> Variable:
    of = realize(tx, args[0]) if args else None
    if of is not None and of.set_contents is not None:
        return of.set_contents.copy_as(tx, kind)
    if type(of) is DictVariable and of.cls is dict:  # copying from a dict does not hash the keys again
        return SetVariable({k: key for k, (key, _) in of.entries.items()}, None, kind)
    return SetVariable.from_items(tx, [] if of is None else sequence_items(tx, of), kind)


@register_rule(frozenset)
def _frozenset(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if args and (of := realize(tx, args[0])).python_type() is frozenset:
        return of
    return _new_set(tx, args, frozenset)


@register_rule(collections.deque)
def _deque(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    bound = realize(tx, args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)).as_python_constant(tx)
    tx.fold_constant(collections.deque, (), bound)
    items = list(sequence_items(tx, args[0])) if args else []
    return ListVariable(items if bound is None else items[max(0, len(items) - bound) :], None, collections.deque, bound)


@register_rule(tuple.__new__)
def _tuple_new(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    cls = realize(tx, args[0]).as_python_constant(tx)
    items = list(sequence_items(tx, args[1])) if len(args) > 1 else []
    if cls is not tuple and not is_plain_namedtuple(cls):
        return new_builtin_subclass(cls, TupleVariable(items))
    return TupleVariable(items, cls)


def _count_elements(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Count the items of an iterable, as ``collections.Counter`` does."""
    counts = realize(tx, args[0])
    for item in sequence_items(tx, args[1]):
        key = realize(tx, item)
        count = counts.call_method(tx, "get", [key, ConstantVariable(0)], {})
        counts.set_item(tx, key, arithmetic.binary_op(tx, "+", count, ConstantVariable(1)))
    return NONE


register_rule(vars(collections)["_count_elements"])(_count_elements)


def _new_dict(tx: Tracer, cls: type, args: Args, kwargs: Kwargs, factory: Variable | None = None) -> Variable:
    new_dict = DictVariable({}, None, cls, factory)
    if args:
        new_dict.update(tx, args[0])
    for name, value in kwargs.items():
        new_dict.set_item(tx, ConstantVariable(name), value)
    return new_dict


register_rule(dict)(lambda tx, args, kwargs: _new_dict(tx, dict, args, kwargs))


@register_rule_by_name(("dict", "fromkeys"))
def _fromkeys(tx: Tracer, args: Args, kwargs: Kwargs) -> DictVariable:
    if not 1 <= len(args) <= 2 or kwargs:
        tx.fold_constant(dict.fromkeys, *[()] * len(args), **dict.fromkeys(kwargs))
    new_dict = DictVariable({})
    for key in sequence_items(tx, args[0]):
        new_dict.set_item(tx, realize(tx, key), args[1] if len(args) > 1 else NONE)
    return new_dict


@register_rule_by_name(("defaultdict", "fromkeys"))
def _default_fromkeys(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    new_dict = _fromkeys(tx, args, kwargs).dict_contents
    assert new_dict is not None
    new_dict.cls, new_dict.default_factory = collections.defaultdict, NONE
    return new_dict


@register_rule_by_name(("OrderedDict", "fromkeys"))
def _ordered_fromkeys(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return subclass_fromkeys(tx, collections.OrderedDict, args, kwargs)


register_rule(collections.OrderedDict)(lambda tx, args, kwargs: _new_dict(tx, collections.OrderedDict, args, kwargs))


@register_rule(collections.defaultdict)
def _defaultdict(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    factory = realize(tx, args[0]) if args else NONE
    if not is_none(factory) and factory.lacks_methods("__call__"):
        tx.raise_type_error("first argument must be callable or None")
    return _new_dict(tx, collections.defaultdict, args[1:], kwargs, factory)
