"""Methods that subclasses of dict, OrderedDict and defaultdict inherit.

They determine which overridden methods the C code calls, and which class the result has.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

from engine.trace.annotations import DictSubclassVariable, Tracer
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import SUBCLASS_METHOD_RULES, UNBOUND_METHOD_RULES
from engine.trace.variables.containers.dicts import DictVariable, iterate_pairs, ordered_dict_reduce
from engine.trace.variables.containers.iterators import iterator_of
from engine.trace.variables.containers.method_table import MethodTable
from engine.trace.variables.objects.class_lookup import class_source


def call_inherited_dict_method(
    tx: Tracer, of: DictSubclassVariable, name: str, args: Args, kwargs: Kwargs
) -> Variable | None:
    """Call a method that a subclass inherits from dict, OrderedDict or defaultdict.

    Return None if the method only affects the contents, so that the caller runs it on the inner dict.
    """
    by_base = {collections.OrderedDict: _ORDERED_DICT_METHODS, collections.defaultdict: _DEFAULTDICT_METHODS}
    methods = next((by_base[base] for base in of.cls.__mro__ if base in by_base), _DICT_METHODS)
    return methods.call_own(of, tx, name, [realize(tx, a) for a in args], kwargs)


def _call_dict_method_on_ordered(tx: Tracer, of: Variable, name: str, args: Args, kwargs: Kwargs) -> Variable | None:
    """Leave a ``dict`` method to Python that bypasses the order of an OrderedDict.

    Return None if OrderedDict does not override the method, or the method sets the value of a key that exists.
    """
    if not issubclass(of.python_type(), collections.OrderedDict) or name not in _ORDER_BYPASSING_METHODS:
        return None
    contents = of.dict_contents
    is_known = contents is not None and len(args) == 2 and contents.contains(tx, realize(tx, args[0]))
    if name == "__setitem__" and is_known:
        return None
    if contents is not None and contents.source is None and contents.was_reordered:
        # After a graph break the order of the plain dict would be that of the OrderedDict.
        raise SkipFrame("builtin-subclass", f"dict.{name} on an OrderedDict whose order was changed")
    raise Unsupported("builtin-subclass", f"dict.{name} on an OrderedDict bypasses its order")


UNBOUND_METHOD_RULES[dict] = _call_dict_method_on_ordered
_ORDER_BYPASSING_METHODS = frozenset(
    "__setitem__ __delitem__ __eq__ __ne__ __ior__ __or__ __ror__ __iter__ __reversed__ __repr__ pop popitem setdefault update clear "
    "copy keys values items __init__".split()
)


def subclass_fromkeys(tx: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Variable:
    """Implement ``Class.fromkeys(...)`` of a subclass: create an instance, set item by item."""
    ordered = issubclass(cls, collections.OrderedDict)
    by_name = kwargs.keys() <= {"iterable", "value"} if ordered else not kwargs
    arguments = dict(zip(("iterable", "value"), args, strict=False)) | (kwargs if by_name else {})
    if not by_name or len(args) > 2 or "iterable" not in arguments:
        base = collections.OrderedDict if ordered else dict
        tx.fold_constant(base.fromkeys, *[()] * len(args), **dict.fromkeys(kwargs))
    new_dict = realize(tx, _class_variable(tx, cls).call(tx, [], {}))
    items = iterator_of(tx, arguments["iterable"])
    while (key := items.next_item(tx)) is not None:
        new_dict.set_item(tx, realize(tx, key), arguments.get("value", NONE))
    return new_dict


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
    for keyword, value in kwargs.items():
        of.set_item(tx, ConstantVariable(keyword), value)


_DICT_METHODS = MethodTable()
_ORDERED_DICT_METHODS = MethodTable(_DICT_METHODS)
_DEFAULTDICT_METHODS = MethodTable(_DICT_METHODS)


@_DICT_METHODS.method("copy")
def _copy(self: DictSubclassVariable, tx: Tracer) -> Variable:
    return DictVariable(dict(self.inner.entries))


def _or(tx: Tracer, left: Variable, right: Variable) -> Variable:
    of = left.dict_contents
    if of is None or right.dict_contents is None:
        return ConstantVariable(NotImplemented)
    new_dict = DictVariable(dict(of.entries))
    new_dict.update(tx, right)
    return new_dict


# OrderedDict.


@_ORDERED_DICT_METHODS.method("__init__")
def _ordered_init(self: DictSubclassVariable, tx: Tracer, /, *args: Variable, **kwargs: Variable) -> None:
    ordered_dict_update(tx, self, "__init__", list(args), kwargs)


@_ORDERED_DICT_METHODS.method("update")
def _ordered_update(self: DictSubclassVariable, tx: Tracer, /, *args: Variable, **kwargs: Variable) -> None:
    ordered_dict_update(tx, self, "update", list(args), kwargs)


@_ORDERED_DICT_METHODS.method("setdefault")
def _ordered_setdefault(self: DictSubclassVariable, tx: Tracer, key: Variable, default: Variable = NONE) -> Variable:
    key = realize(tx, key)
    if self.contains(tx, key):
        return self.get_item(tx, key)
    self.set_item(tx, key, default)
    return default


@_ORDERED_DICT_METHODS.method("copy")
def _ordered_copy(self: DictSubclassVariable, tx: Tracer) -> Variable:
    new_dict = realize(tx, _class_variable(tx, self.cls).call(tx, [], {}))
    for key, _ in list(self.inner.entries.values()):
        key = realize(tx, key)
        new_dict.set_item(tx, key, self.get_item(tx, key))
    return new_dict


def _ordered_or(tx: Tracer, left: Variable, right: Variable) -> Variable:
    if left.dict_contents is None or right.dict_contents is None:
        return ConstantVariable(NotImplemented)
    cls = left.python_type() if issubclass(left.python_type(), collections.OrderedDict) else right.python_type()
    new_dict = realize(tx, _class_variable(tx, cls).call(tx, [left], {}))
    ordered_dict_update(tx, new_dict, "update", [right], {})
    return new_dict


@_ORDERED_DICT_METHODS.method("__reduce__", condition=lambda of: of.cls.__dictoffset__ != 0)
def _ordered_reduce(self: DictSubclassVariable, tx: Tracer) -> Variable:
    state = self.get_attr(tx, "__dict__")
    return ordered_dict_reduce(tx, self, state if state.is_truthy(tx) else NONE)


@_ORDERED_DICT_METHODS.method("__ior__")
def _ordered_ior(self: DictSubclassVariable, tx: Tracer, other: Variable) -> Variable:
    ordered_dict_update(tx, self, "update", [other], {})
    return self


# defaultdict.


@_DEFAULTDICT_METHODS.method("copy", "__copy__")
def _default_copy(self: DictSubclassVariable, tx: Tracer) -> Variable:
    return _class_variable(tx, self.cls).call(tx, [self.inner.default_factory or NONE, self], {})


def _default_or(tx: Tracer, left: Variable, right: Variable) -> Variable:
    of = left if issubclass(left.python_type(), collections.defaultdict) else right
    if left.dict_contents is None or right.dict_contents is None or of.dict_contents is None:
        return ConstantVariable(NotImplemented)
    factory = of.dict_contents.default_factory or NONE
    new_dict = realize(tx, _class_variable(tx, of.python_type()).call(tx, [factory, left], {}))
    if new_dict.dict_contents is None:
        raise new_dict.unsupported("merging into the result of the class", "builtin-subclass")
    new_dict.dict_contents.update(tx, right)
    return new_dict


@_DEFAULTDICT_METHODS.method("__missing__")
def _default_missing(self: DictSubclassVariable, tx: Tracer, key: Variable) -> Variable:
    return self.inner.call_default_factory(tx, realize(tx, key), self)


def _register_or(methods: MethodTable, merge: Callable[[Tracer, Variable, Variable], Variable]) -> None:
    methods.method("__or__")(lambda self, tx, other: merge(tx, self, other))
    methods.method("__ror__")(lambda self, tx, other: merge(tx, other, self))


_register_or(_DICT_METHODS, _or)
_register_or(_ORDERED_DICT_METHODS, _ordered_or)
_register_or(_DEFAULTDICT_METHODS, _default_or)
