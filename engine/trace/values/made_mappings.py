"""Dicts of all kinds made by calling their class, or ``fromkeys`` of it."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from engine.trace.values.base import NONE, Const, Value, force, is_none
from engine.trace.values.mapping_subclasses import from_keys
from engine.trace.values.mappings import DictValue
from engine.trace.values.rules import BY_NAME, special
from engine.trace.values.sequences import sequence_items

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


def _new_dict(tx: Tracer, cls: type, args: Args, kwargs: Words, factory: Value | None = None) -> Value:
    made = DictValue({}, None, cls, factory)
    if args:
        made.update(tx, args[0])
    for name, value in kwargs.items():
        made.set_item(tx, Const(name), value)
    return made


@special(dict)
def _dict(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return _new_dict(tx, dict, args, kwargs)


def _fromkeys(tx: Tracer, args: Args, kwargs: Words) -> DictValue:
    if not 1 <= len(args) <= 2 or kwargs:
        tx.fold(dict.fromkeys, *[()] * len(args), **dict.fromkeys(kwargs))
    made = DictValue({})
    for key in sequence_items(tx, args[0]):
        made.set_item(tx, force(tx, key), args[1] if len(args) > 1 else NONE)
    return made


BY_NAME["dict", "fromkeys"] = _fromkeys


def _default_fromkeys(tx: Tracer, args: Args, kwargs: Words) -> Value:
    made = _fromkeys(tx, args, kwargs)
    made.cls, made.factory = collections.defaultdict, NONE
    return made


def _ordered_fromkeys(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return from_keys(tx, collections.OrderedDict, args, kwargs)


BY_NAME["defaultdict", "fromkeys"] = _default_fromkeys
BY_NAME["OrderedDict", "fromkeys"] = _ordered_fromkeys


@special(collections.OrderedDict)
def _ordered(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return _new_dict(tx, collections.OrderedDict, args, kwargs)


@special(collections.defaultdict)
def _defaultdict(tx: Tracer, args: Args, kwargs: Words) -> Value:
    factory = force(tx, args[0]) if args else NONE
    if not is_none(factory) and factory.lacks("__call__"):
        tx.raise_type_error("first argument must be callable or None")
    return _new_dict(tx, collections.defaultdict, args[1:], kwargs, factory)
