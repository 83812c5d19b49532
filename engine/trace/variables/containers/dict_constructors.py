"""Constructors of dict, OrderedDict and defaultdict, and their ``fromkeys``."""

from __future__ import annotations

import collections

from engine.trace.annotations import Tracer
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, is_none, realize
from engine.trace.variables.callable_registry import RULES_BY_NAME, register_rule
from engine.trace.variables.containers.dict_subclasses import subclass_fromkeys
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import sequence_items


def _new_dict(tx: Tracer, cls: type, args: Args, kwargs: Kwargs, factory: Variable | None = None) -> Variable:
    made = DictVariable({}, None, cls, factory)
    if args:
        made.update(tx, args[0])
    for name, value in kwargs.items():
        made.set_item(tx, ConstantVariable(name), value)
    return made


@register_rule(dict)
def _dict(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return _new_dict(tx, dict, args, kwargs)


def _fromkeys(tx: Tracer, args: Args, kwargs: Kwargs) -> DictVariable:
    if not 1 <= len(args) <= 2 or kwargs:
        tx.fold_constant(dict.fromkeys, *[()] * len(args), **dict.fromkeys(kwargs))
    made = DictVariable({})
    for key in sequence_items(tx, args[0]):
        made.set_item(tx, realize(tx, key), args[1] if len(args) > 1 else NONE)
    return made


RULES_BY_NAME["dict", "fromkeys"] = _fromkeys


def _default_fromkeys(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    made = _fromkeys(tx, args, kwargs)
    made.cls, made.default_factory = collections.defaultdict, NONE
    return made


def _ordered_fromkeys(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return subclass_fromkeys(tx, collections.OrderedDict, args, kwargs)


RULES_BY_NAME["defaultdict", "fromkeys"] = _default_fromkeys
RULES_BY_NAME["OrderedDict", "fromkeys"] = _ordered_fromkeys


@register_rule(collections.OrderedDict)
def _ordered(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return _new_dict(tx, collections.OrderedDict, args, kwargs)


@register_rule(collections.defaultdict)
def _defaultdict(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    factory = realize(tx, args[0]) if args else NONE
    if not is_none(factory) and factory.lacks_methods("__call__"):
        tx.raise_type_error("first argument must be callable or None")
    return _new_dict(tx, collections.defaultdict, args[1:], kwargs, factory)
