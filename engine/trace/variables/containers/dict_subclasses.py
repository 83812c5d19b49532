"""Methods that subclasses of dict, OrderedDict and defaultdict inherit.

They determine which overridden methods the C code calls, and which class the result has.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.variables.base import NONE, ConstantVariable, Variable, realize
from engine.trace.variables.callable_registry import SUBCLASS_METHOD_RULES, UNBOUND_METHOD_RULES
from engine.trace.variables.containers.dicts import DictVariable, iterate_pairs, ordered_dict_reduce
from engine.trace.variables.containers.iterators import iterator_of
from engine.trace.variables.objects.class_lookup import class_source

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer
    from engine.trace.variables.containers.builtin_subclasses import BuiltinSubclassVariable

Args = list[Variable]
Kwargs = dict[str, Variable]


def call_inherited_dict_method(
    tx: Tracer, of: BuiltinSubclassVariable, name: str, args: Args, kwargs: Kwargs
) -> Variable | None:
    """Call a method that a subclass inherits from dict, OrderedDict or defaultdict.

    Return None if the method only affects the contents, so that the caller runs it on the inner dict.
    """
    by_base: dict[str, Any] = {}
    if issubclass(of.cls, collections.OrderedDict):
        by_base = _ORDERED_DICT_METHODS
    elif issubclass(of.cls, collections.defaultdict):
        by_base = _DEFAULTDICT_METHODS
    method = by_base.get(name) or _DICT_METHODS.get(name)
    made: Variable | None = None if method is None else method(tx, of, args, kwargs)
    return made


def _call_dict_method_on_ordered(tx: Tracer, of: Variable, name: str, args: Args, kwargs: Kwargs) -> Variable | None:
    """Call a ``dict`` method on an OrderedDict, which bypasses the order of the OrderedDict.

    Return None if OrderedDict does not override this method.

    Raises:
        Unsupported: the order of the dict and the order of its OrderedDict may differ.
    """
    if not issubclass(of.python_type(), collections.OrderedDict) or name not in _ORDER_BYPASSING_METHODS:
        return None
    contents = of.dict_contents
    if (
        name == "__setitem__"
        and contents is not None
        and len(args) == 2
        and contents.contains(tx, realize(tx, args[0]))
    ):
        return None
    if contents is not None and contents.source is None and contents.was_reordered:
        # After a graph break the order of the plain dict would be that of the OrderedDict.
        raise SkipFrame("builtin-subclass", f"dict.{name} on an OrderedDict whose order was changed")
    if contents is None or contents.source is not None or contents.was_reordered or name in ("__repr__", "__init__"):
        raise Unsupported("builtin-subclass", f"dict.{name} on an OrderedDict does not maintain its order")
    if name in ("keys", "values", "items"):
        return contents.call_method(tx, name, args, kwargs)
    plain = DictVariable(dict(contents.entries))
    if name in ("__or__", "__ror__"):
        return _or(tx, plain, realize(tx, args[0])) if name == "__or__" else _or(tx, realize(tx, args[0]), plain)
    result = plain.call_method(tx, name, args, kwargs)
    if plain.entries.keys() != contents.entries.keys():
        contents.order_invalid = True
    if plain.mutation_count or name in ("__ior__", "update", "setdefault"):
        tx.side_effects.record_mutation(contents)
        contents.mutation_count += 1
        contents.entries = plain.entries
    return of if result is plain else result


UNBOUND_METHOD_RULES[dict] = _call_dict_method_on_ordered
_ORDER_BYPASSING_METHODS = frozenset(
    "__setitem__ __delitem__ __eq__ __ne__ __ior__ __or__ __ror__ __iter__ __reversed__ __repr__ pop popitem setdefault update clear "
    "copy keys values items __init__".split()
)


def subclass_fromkeys(tx: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Variable:
    """Implement ``Class.fromkeys(...)`` of a subclass: create an instance, set item by item."""
    ordered = issubclass(cls, collections.OrderedDict)
    by_name = kwargs.keys() <= {"iterable", "value"} if ordered else not kwargs
    given = dict(zip(("iterable", "value"), args, strict=False)) | (kwargs if by_name else {})
    if not by_name or len(args) > 2 or "iterable" not in given:
        base = collections.OrderedDict if ordered else dict
        tx.fold_constant(base.fromkeys, *[()] * len(args), **dict.fromkeys(kwargs))
    made = realize(tx, _class_variable(tx, cls).call(tx, [], {}))
    items = iterator_of(tx, given["iterable"])
    while (key := items.next_item(tx)) is not None:
        made.set_item(tx, realize(tx, key), given.get("value", NONE))
    return made


for _base in (dict, collections.OrderedDict, collections.defaultdict):
    SUBCLASS_METHOD_RULES[_base, "fromkeys"] = subclass_fromkeys


def _class_variable(tx: Tracer, cls: type) -> Variable:
    return tx.wrap(cls, class_source(cls))


def ordered_dict_update(tx: Tracer, of: Variable, name: str, args: Args, kwargs: Kwargs) -> None:
    """Implement ``OrderedDict.update`` and ``__init__``: set each item by the class's methods."""
    if len(args) > 1:
        tx.fold_constant(getattr(collections.OrderedDict, name), collections.OrderedDict(), *[()] * len(args))
    for other in args:
        for key, value in iterate_pairs(tx, realize(tx, other)):
            of.set_item(tx, realize(tx, key), value)
    for word, value in kwargs.items():
        of.set_item(tx, ConstantVariable(word), value)


# OrderedDict.


def _ordered_init(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable:
    ordered_dict_update(tx, of, "__init__", args, kwargs)
    return NONE


def _ordered_update(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable:
    ordered_dict_update(tx, of, "update", args, kwargs)
    return NONE


def _ordered_setdefault(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    given = dict(zip(("key", "default"), args, strict=False)) | kwargs
    if "key" not in given or len(args) + len(kwargs) > 2 or not given.keys() <= {"key", "default"}:
        return None
    key, default = realize(tx, given["key"]), given.get("default", NONE)
    if of.contains(tx, key):
        return of.get_item(tx, key)
    of.set_item(tx, key, default)
    return default


def _ordered_copy(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    if args or kwargs:
        return None
    made = realize(tx, _class_variable(tx, of.cls).call(tx, [], {}))
    for key, _ in list(of.dict_contents.entries.values()):  # type: ignore[union-attr]
        key = realize(tx, key)
        made.set_item(tx, key, of.get_item(tx, key))
    return made


def _ordered_or(tx: Tracer, left: Variable, right: Variable) -> Variable:
    if left.dict_contents is None or right.dict_contents is None:
        return ConstantVariable(NotImplemented)
    cls = left.python_type() if issubclass(left.python_type(), collections.OrderedDict) else right.python_type()
    made = realize(tx, _class_variable(tx, cls).call(tx, [left], {}))
    ordered_dict_update(tx, made, "update", [right], {})
    return made


def _ordered_reduce(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    if args or kwargs or of.cls.__dictoffset__ == 0:
        return None
    state = of.get_attr(tx, "__dict__")
    return ordered_dict_reduce(tx, of, state if state.is_truthy(tx) else NONE)


def _ordered_ior(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable:
    ordered_dict_update(tx, of, "update", args, {})
    return of


# defaultdict.


def _default_copy(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    if args or kwargs:
        return None
    return _class_variable(tx, of.cls).call(tx, [of.dict_contents.default_factory or NONE, of], {})  # type: ignore[union-attr]


def _default_or(tx: Tracer, left: Variable, right: Variable) -> Variable:
    if left.dict_contents is None or right.dict_contents is None:
        return ConstantVariable(NotImplemented)
    of = left if issubclass(left.python_type(), collections.defaultdict) else right
    made = realize(
        tx,
        _class_variable(tx, of.python_type()).call(
            tx,
            [of.dict_contents.default_factory or NONE, left],  # type: ignore[union-attr]
            {},
        ),
    )
    contents = made.dict_contents
    if contents is None:
        raise made.unsupported("merging into the result of the class", "builtin-subclass")
    contents.update(tx, right)
    return made


def _default_missing(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable:
    contents = of.dict_contents
    assert contents is not None
    return contents.call_default_factory(tx, realize(tx, args[0]), of)


# All dict subclasses.


def _copy(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    if args or kwargs:
        return None
    return DictVariable(dict(of.dict_contents.entries))  # type: ignore[union-attr]


def _or(tx: Tracer, left: Variable, right: Variable) -> Variable:
    of = left.dict_contents
    if of is None or right.dict_contents is None:
        return ConstantVariable(NotImplemented)
    made = DictVariable(dict(of.entries))
    made.update(tx, right)
    return made


def _binary_method(how: Any, *, reflected: bool) -> Any:
    def method(tx: Tracer, of: BuiltinSubclassVariable, args: Args, kwargs: Kwargs) -> Variable | None:
        if len(args) != 1 or kwargs:
            return None
        other = realize(tx, args[0])
        made: Variable = how(tx, other, of) if reflected else how(tx, of, other)
        return made

    return method


def _or_methods(how: Any) -> dict[str, Any]:
    return {"__or__": _binary_method(how, reflected=False), "__ror__": _binary_method(how, reflected=True)}


_DICT_METHODS: dict[str, Any] = {"copy": _copy, **_or_methods(_or)}
_DEFAULTDICT_METHODS: dict[str, Any] = {
    "copy": _default_copy,
    "__copy__": _default_copy,
    "__missing__": _default_missing,
    **_or_methods(_default_or),
}
_ORDERED_DICT_METHODS: dict[str, Any] = {
    "__init__": _ordered_init,
    "update": _ordered_update,
    "setdefault": _ordered_setdefault,
    "copy": _ordered_copy,
    "__reduce__": _ordered_reduce,
    "__ior__": _ordered_ior,
    **_or_methods(_ordered_or),
}
