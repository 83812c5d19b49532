"""Rules for Python's builtin functions and types."""

from __future__ import annotations

import collections
import functools
import inspect
import math
import operator
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.origin import Attr, Fixed
from engine.ir.state_guard import GlobalState
from engine.ir.unbacked import is_unbacked
from engine.options import config
from engine.trace import operations
from engine.trace.graph_builder import emit
from engine.trace.signals import Skip, Unsupported, UserException
from engine.trace.values import iterators, tensor_facts
from engine.trace.values.addresses import text_with_address
from engine.trace.values.base import NONE, Const, NotConstant, Value, force, is_none, type_name
from engine.trace.values.cells import CellValue
from engine.trace.values.classes import TENSOR_TYPE, ClassValue, SuperValue, class_origin, find_in_class
from engine.trace.values.container_objects import new_container_value
from engine.trace.values.exceptions import read, write
from engine.trace.values.identity import HashValue
from engine.trace.values.iteration import until
from engine.trace.values.mappings import DictValue, DictView
from engine.trace.values.methods import BuiltinValue
from engine.trace.values.objects import ObjectValue, PythonModule
from engine.trace.values.partials import partial_of
from engine.trace.values.references import ProxyValue
from engine.trace.values.refusals import has_method, raise_missing
from engine.trace.values.rules import special
from engine.trace.values.sequences import (
    ListValue,
    RangeValue,
    SliceValue,
    TupleValue,
    index_of,
    is_plainly_named,
    sequence_items,
)
from engine.trace.values.sets import SetValue
from engine.trace.values.shown import container_text
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorMethod, TensorValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


@special(print)
def _print(tx: Tracer, args: Args, kwargs: Words) -> Value:
    from engine.trace.values.objects import STREAMS
    from engine.trace.values.plain_data import BufferValue, write_line

    to = force(tx, kwargs.get("file", NONE))
    if is_none(to):
        to = force(tx, tx.globals_written.get((STREAMS, "stdout")) or NONE)
    if isinstance(to, BufferValue):
        return write_line(tx, to, args, kwargs)
    raise Unsupported("print", f"print({', '.join(force(tx, a).describe() for a in args)})")


@special(len)
def _len(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return force(tx, args[0]).length(tx)


@special(operator.length_hint)
def _length_hint(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, iterators.IteratorValue) and hasattr(of.type(), "__length_hint__"):
        return Const(of.hint(tx))
    return operations.fold_call(tx, operator.length_hint, args, kwargs, f"operator.length_hint() of {of.describe()}")


@special(isinstance)
def _isinstance(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    return Const(is_instance(tx, of, force(tx, args[1])))


def is_instance(tx: Tracer, of: Value, classes: Value) -> bool:
    """``isinstance(of, classes)``."""
    if isinstance(classes, TupleValue):
        return any(is_instance(tx, of, force(tx, c)) for c in classes.items)
    try:
        cls = classes.python(tx)
    except NotConstant:
        raise Unsupported("unsupported-operation", "isinstance() with a class that is not known") from None
    if not isinstance(cls, (type, types.UnionType)):
        tx.fold(isinstance, None, cls)
    if isinstance(cls, TENSOR_TYPE):
        return _is_of_tensor_type(of, cls)
    if isinstance(of, ProxyValue):
        return issubclass(of.type(), cls) or is_instance(tx, of.of, classes)
    asked = _asked(tx, of, cls)
    if asked is not None:
        return asked
    if isinstance(of, TensorValue) and cls in (torch.nn.Parameter, torch.nn.Buffer) and not issubclass(of.type(), cls):
        return tensor_facts.is_marked(tx, of, "_is_param" if cls is torch.nn.Parameter else "_is_buffer")
    real = of.real()
    if real is not NotImplemented and not isinstance(of, SymValue):
        return isinstance(real, cls)
    if cls is torch.nn.Parameter or cls is torch.nn.Buffer:
        return issubclass(of.type(), cls)
    decides = isinstance(cls, type) and type(cls).__instancecheck__ is not type.__instancecheck__
    if decides and type(cls).__module__ not in ("abc", "torch._C", "torch", "typing", "enum", "torch.nn.parameter"):
        raise Unsupported("unsupported-operation", f"isinstance() with the class {cls.__name__}, which decides itself")
    return issubclass(of.type(), cls)


def _is_of_tensor_type(of: Value, cls: Any) -> bool:
    """Whether it is a tensor of the element type, device and layout that ``torch.FloatTensor`` and its like name."""
    if not isinstance(of, TensorValue):
        return False
    device = "cuda" if cls.is_cuda else "cpu"
    return (of.fake.dtype, of.fake.layout, of.fake.device.type) == (cls.dtype, cls.layout, device)


def _asked(tx: Tracer, of: Value, cls: Any) -> bool | None:
    """What a metaclass's own ``__instancecheck__`` says; None where it has none in Python."""
    if not isinstance(cls, type) or of.type() is cls:
        return None
    from engine.trace.state import is_trusted

    found = find_in_class(type(cls), "__instancecheck__")
    if found is None or not isinstance(found[1], types.FunctionType) or is_trusted(found[0].__module__):
        return None
    check = tx.wrap(found[1], Attr(class_origin(found[0]), "__instancecheck__"))
    return force(tx, check.call(tx, [tx.fixed(cls), of], {})).truth(tx)


@special(issubclass)
def _issubclass(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return tx.fold(issubclass, *tx.constants(args))


@special(callable)
def _callable(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    return Const(any("__call__" in base.__dict__ for base in of.type().__mro__))


@special(type)
def _type(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if len(args) == 3:
        from engine.trace.values.made_classes import make_by_type

        return make_by_type(tx, args, kwargs)
    if len(args) != 1 or kwargs:
        tx.raise_type_error("type() takes 1 or 3 arguments")
    return tx.fixed(force(tx, args[0]).type())


def _attribute_name(tx: Tracer, value: Value) -> str:
    name = force(tx, value).python(tx)
    if not isinstance(name, str):
        tx.raise_type_error(f"attribute name must be string, not '{type(name).__name__}'")
    return str(name)


@special(getattr)
def _getattr(tx: Tracer, args: Args, kwargs: Words) -> Value:
    name = _attribute_name(tx, args[1])
    if len(args) == 2:
        return read(tx, force(tx, args[0]), name)
    return _attribute_or(tx, force(tx, args[0]), name, args[2])


def _attribute_or(tx: Tracer, of: Value, name: str, default: Value) -> Value:
    try:
        return of.get_attr(tx, name)
    except UserException as error:
        if not issubclass(error.value.type(), AttributeError):
            raise
        return default


@special(hasattr)
def _hasattr(tx: Tracer, args: Args, kwargs: Words) -> Value:
    try:
        force(tx, args[0]).get_attr(tx, _attribute_name(tx, args[1]))
    except UserException as error:
        if not issubclass(error.value.type(), AttributeError):
            raise
        return Const(False)
    return Const(True)


@special(setattr)
def _setattr(tx: Tracer, args: Args, kwargs: Words) -> Value:
    write(tx, force(tx, args[0]), _attribute_name(tx, args[1]), args[2])
    return NONE


@special(delattr)
def _delattr(tx: Tracer, args: Args, kwargs: Words) -> Value:
    write(tx, force(tx, args[0]), _attribute_name(tx, args[1]), None)
    return NONE


@special(iter)
def _iter(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if len(args) != 1:
        if force(tx, args[0]).lacks("__call__"):
            wrong: Any = None
            try:
                iter(wrong, None)
            except TypeError as error:  # whose words differ between versions of Python
                tx.raise_type_error(str(error))
        return until(tx, args[0], force(tx, args[1]))
    return force(tx, args[0]).iterate(tx)


@special(next)
def _next(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, ObjectValue) and of.method(tx, "__next__") is None:
        raise_missing(tx, of.type(), "__next__")
    if len(args) == 1 and isinstance(of, (ObjectValue, iterators.IteratorValue)):
        return of.call_method(tx, "__next__", [], {})
    found = of.step(tx)
    if found is not None:
        return found
    if len(args) > 1:
        return args[1]
    raise tx.stop_iteration()


@special(enumerate)
def _enumerate(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("iterable", "start"), args, strict=False)) | kwargs
    start = operations.fold_call(
        tx, operator.index, [given.get("start", Const(0))], {}, "enumerate() from what is not known"
    )
    return iterators.make_enumerate(tx, given["iterable"], start.python(tx))


@special(zip)
def _zip(tx: Tracer, args: Args, kwargs: Words) -> Value:
    strict = force(tx, kwargs["strict"]).truth(tx) if "strict" in kwargs else False
    return iterators.make_zip(tx, args, strict=strict)


@special(map)
def _map(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return iterators.make_map(tx, args[0], args[1:])


@special(filter)
def _filter(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return iterators.make_filter(tx, args[0], args[1])


def _size(tx: Tracer, of: Value) -> int:
    return int(of.length(tx).python(tx))


def _item_or_end(tx: Tracer, of: Value, index: int) -> Value | None:
    """An item of a user's sequence; None where it says that there is none."""
    try:
        return of.get_item(tx, Const(index))
    except UserException as error:
        if issubclass(error.value.type(), (IndexError, StopIteration)):
            return None
        raise


@special(reversed)
def _reversed(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, RangeValue):
        return iterators.RangeIterator(of.value[::-1])
    own = find_in_class(of.type(), "__reversed__")
    if own is not None and own[1] is None:
        raise_missing(tx, of.type(), "__reversed__")
    if isinstance(of, ObjectValue) and of.method(tx, "__reversed__") is not None:
        return of.call_special(tx, "__reversed__", [])
    if not has_method(of.type(), "__reversed__") and not (
        has_method(of.type(), "__len__") and has_method(of.type(), "__getitem__")
    ):
        raise_missing(tx, of.type(), "__reversed__")
    if isinstance(of, ObjectValue):
        count = _size(tx, of)
        return iterators.ReversedIterator(
            reversed, of, count, lambda tx: _size(tx, of), lambda n: _item_or_end(tx, of, n)
        )
    if isinstance(of, (TupleValue, Const)) or (isinstance(of, ListValue) and of.cls is list):
        items = sequence_items(tx, of)
        kind: type = type(reversed([])) if isinstance(of, ListValue) else reversed
        return iterators.ReversedIterator(
            kind, of, len(items), lambda tx: len(items), lambda n: items[n] if n < len(items) else None
        )
    return iterators.SequenceIterator(list(reversed(sequence_items(tx, of))), _reversed_kind(of))


def _reversed_kind(of: Value) -> type:
    """The class of ``reversed`` of a dict, one of its views, or a deque."""
    if isinstance(of, DictView):
        return type(reversed(getattr(of.of.type()() if of.of.is_ordered else {}, of.kind)()))
    made: Any = of.type()
    return type(reversed(made())) if made in (dict, collections.OrderedDict, collections.deque) else reversed


@special(range)
def _range(tx: Tracer, args: Args, kwargs: Words) -> Value:
    values = [index_of(tx, force(tx, a)) for a in args]
    try:
        return RangeValue(range(*values))
    except (TypeError, ValueError) as error:
        raise tx.user_exception(error) from error


@special(slice)
def _slice(tx: Tracer, args: Args, kwargs: Words) -> Value:
    parts = [NONE, args[0], NONE] if len(args) == 1 else [*args, *[NONE] * (3 - len(args))]
    return SliceValue(list(parts))


@special(list)
def _list(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return ListValue(list(sequence_items(tx, args[0])) if args else [])


@special(tuple)
def _tuple(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if args and isinstance(of := force(tx, args[0]), TupleValue) and of.cls is tuple:
        return of
    return TupleValue(list(sequence_items(tx, args[0])) if args else [])


@special(set)
def _set(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return _new_set(tx, args, set)


def _new_set(tx: Tracer, args: Args, kind: type) -> Value:
    of = force(tx, args[0]) if args else None
    if isinstance(of, SetValue):
        return of.copied(tx, kind)
    if type(of) is DictValue and of.cls is dict:  # whose keys are not hashed again
        return SetValue({k: key for k, (key, _) in of.entries.items()}, None, kind)
    return SetValue.of(tx, [] if of is None else sequence_items(tx, of), kind)


@special(frozenset)
def _frozenset(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if args and isinstance(of := force(tx, args[0]), SetValue) and of.cls is frozenset:
        return of
    return _new_set(tx, args, frozenset)


@special(collections.deque)
def _deque(tx: Tracer, args: Args, kwargs: Words) -> Value:
    bound = force(tx, args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)).python(tx)
    tx.fold(collections.deque, (), bound)
    items = list(sequence_items(tx, args[0])) if args else []
    return ListValue(items if bound is None else items[max(0, len(items) - bound) :], None, collections.deque, bound)


def _number(kind: type) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        if not args:
            return operations.fold_call(tx, kind, args, kwargs, f"{kind.__name__}()")
        of = force(tx, args[0])
        if len(args) > 1 or kwargs:
            return operations.fold_call(tx, kind, args, kwargs, f"{kind.__name__}() of {of.describe()}")
        if isinstance(of, TensorValue):
            method = of.call_method(tx, "item", [], {})
            return rule(tx, [method], {})
        if isinstance(of, SymValue):
            if of.type() is kind:
                return of
            if kind is float or (kind is int and of.type() is float and is_unbacked(of.sym)):
                return emit(tx, "call_function", torch.sym_float if kind is float else torch.sym_int, [of])
            return Const(kind(of.python(tx)))
        if isinstance(of, ObjectValue):
            name = f"__{kind.__name__}__"
            if (
                kind is int
                and of.method(tx, "__trunc__") is not None
                and not (of.method(tx, name) or of.method(tx, "__index__"))
            ):
                raise Unsupported("unknown-call", "int() by __trunc__, which warns")
            also = ("__float__", "__index__") if kind is complex else ("__index__",)
            found = next((n for n in (name, *also) if of.method(tx, n) is not None), name)
            return _checked_number(tx, kind, of, found)
        return operations.fold_call(tx, kind, args, kwargs, f"{kind.__name__}() of {of.describe()}")

    return rule


def _checked_number(tx: Tracer, kind: type, of: ObjectValue, name: str) -> Value:
    """What ``__int__`` or its like gives, which must be such a number."""
    made = of.call_special(tx, name, [])
    wanted: Any = {"__index__": int, "__float__": float}.get(name, kind)
    if not issubclass(made.type(), wanted):
        owner = f"{of.cls.__name__}." if name == "__float__" else ""
        tx.raise_type_error(f"{owner}{name} returned non-{wanted.__name__} (type {made.type().__name__})")
    if wanted is not kind:
        return force(tx, tx.fixed(kind).call(tx, [made], {}))
    if made.type() is not kind and not isinstance(made, (SymValue, TensorValue)):
        raise Unsupported("unknown-call", f"{kind.__name__}() by {name}, which warns of what it gives")
    return made


for _kind in (int, float, complex):
    special(_kind)(_number(_kind))


@special(bool)
def _bool(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0]) if args else Const(False)
    if isinstance(of, TensorValue) and config.capture_scalar_outputs and of.fake.numel() == 1:
        whole = of if of.fake.dtype is torch.bool else force(tx, operations.compare(tx, "!=", of, Const(0)))
        return whole.call_method(tx, "item", [], {})
    return Const(of.truth(tx))


def _texts(fn: Any, name: str) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        if not args:
            return Const("")
        of = force(tx, args[0])
        if isinstance(of, ObjectValue):
            found = find_in_class(of.type(), name)
            if found is not None and found[0] is not object:
                return of.call_special(tx, name, [])
            if name == "__str__" and of.method(tx, "__repr__") is not None:
                return of.call_special(tx, "__repr__", [])
        if isinstance(of, (TensorValue, TensorMethod)):
            raise Unsupported("data-dependent", f"{name.strip('_')}() of a tensor shows its values")
        if hasattr(of, "made"):
            return of.call_method(tx, name, [], {})
        text = (
            container_text(tx, of) if isinstance(of, (ListValue, TupleValue, DictValue, DictView, SetValue)) else None
        )
        if text is None:
            text = text_with_address(tx, of)
        if text is not None:
            return Const(text)
        return operations.fold_call(tx, fn, args, kwargs, f"{fn.__name__}() of {of.describe()}")

    return rule


special(str)(_texts(str, "__str__"))
special(repr)(_texts(repr, "__repr__"))


@special(abs)
def _abs(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, (TensorValue, SymValue)):
        return emit(tx, "call_function", abs, [of])
    if isinstance(of, ObjectValue):
        return of.call_special(tx, "__abs__", [])
    on_arrays = operations.on_arrays(tx, abs, [of])
    if on_arrays is not None:
        return on_arrays
    return operations.fold_call(tx, abs, args, kwargs, f"abs() of {of.describe()}")


@special(pow)
def _pow(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if len(args) == 2:
        return operations.binary(tx, "**", args[0], args[1])
    of = force(tx, args[0]) if args else NONE
    if isinstance(of, ObjectValue) and of.method(tx, "__pow__") is not None:
        return of.call_special(tx, "__pow__", [*args[1:], *kwargs.values()])
    return operations.fold_call(tx, pow, args, kwargs, "pow()")


@special(divmod)
def _divmod(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, ObjectValue) and of.method(tx, "__divmod__") is not None:
        return of.call_special(tx, "__divmod__", [args[1]])
    return TupleValue([operations.binary(tx, "//", args[0], args[1]), operations.binary(tx, "%", args[0], args[1])])


@special(round)
def _round(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, TensorValue):
        return of.call_method(tx, "round", [], {"decimals": args[1]} if len(args) > 1 else kwargs)
    if isinstance(of, ObjectValue) and of.method(tx, "__round__") is not None:
        return of.call_special(tx, "__round__", args[1:])
    return operations.fold_call(tx, round, args, kwargs, f"round() of {of.describe()}")


@special(sum)
def _sum(tx: Tracer, args: Args, kwargs: Words) -> Value:
    total = force(tx, args[1] if len(args) > 1 else kwargs.get("start", Const(0)))
    for item in sequence_items(tx, args[0]):
        total = operations.binary(tx, "+", total, item)
    return total


def _extreme(fn: Any, symbol: str) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        items = sequence_items(tx, args[0]) if len(args) == 1 else args
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            tx.raise_error(ValueError, f"{fn.__name__}() arg is an empty sequence")
        key = force(tx, kwargs["key"]) if "key" in kwargs else NONE
        plain = isinstance(key, Const) and key.value is None
        best = force(tx, items[0])
        best_key = best if plain else force(tx, key.call(tx, [best], {}))
        for item in items[1:]:
            item_key = force(tx, item if plain else key.call(tx, [item], {}))
            if any(isinstance(k, SymValue) for k in (best_key, item_key)) and plain:
                best = best_key = emit(
                    tx, "call_function", torch.sym_min if fn is min else torch.sym_max, [best, item_key]
                )
            elif force(tx, operations.compare(tx, symbol, item_key, best_key)).truth(tx):
                best, best_key = force(tx, item), item_key
        return best

    return rule


special(min)(_extreme(min, "<"))
special(max)(_extreme(max, ">"))


@special(any)
def _any(tx: Tracer, args: Args, kwargs: Words) -> Value:
    iterator = iterators.iterator_of(tx, args[0])
    while (item := iterator.step(tx)) is not None:
        if force(tx, item).truth(tx):
            return Const(True)
    return Const(False)


@special(all)
def _all(tx: Tracer, args: Args, kwargs: Words) -> Value:
    iterator = iterators.iterator_of(tx, args[0])
    while (item := iterator.step(tx)) is not None:
        if not force(tx, item).truth(tx):
            return Const(False)
    return Const(True)


@special(sorted)
def _sorted(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return ListValue(operations.sorted_items(tx, list(sequence_items(tx, args[0])), kwargs))


@special(super)
def _super(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if len(args) == 1:
        raise Unsupported("unknown-call", "super() of one argument is called")
    if args:
        start, instance = force(tx, args[0]), force(tx, args[1])
        if len(args) > 2:
            tx.raise_type_error(f"super expected at most 2 arguments, got {len(args)}")
        if not issubclass(start.type(), type):
            tx.raise_type_error(f"super() argument 1 must be a type, not {start.type().__name__}")
        return SuperValue(start.python(tx), instance)
    frame = tx.frames[-1]
    cell = frame.cells.get("__class__")
    if not isinstance(cell, CellValue) or cell.content is None or not frame.code.co_argcount:
        return tx.raise_error(RuntimeError, "super(): no arguments")  # type: ignore[no-any-return]
    first = frame.code.co_varnames[0]
    of = frame.locals.get(first) or (frame.cells[first].content if first in frame.cells else None)
    if of is None:
        return tx.raise_error(RuntimeError, "super(): arg[0] deleted")  # type: ignore[no-any-return]
    return SuperValue(force(tx, cell.content).python(tx), force(tx, of))


@special(hash)
def _hash(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if isinstance(of, ObjectValue) and of.method(tx, "__hash__") is not None:
        return of.call_special(tx, "__hash__", [])
    if of.type().__hash__ is None:
        tx.raise_type_error(f"unhashable type: '{type_name(of.type())}'")
    if isinstance(of, (Const, TupleValue)) or of.type() is frozenset:
        try:
            return tx.fold(hash, of.python(tx))
        except NotConstant:
            pass
    return HashValue(tx, of)


@special(vars)
def _vars(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if not args:
        return _locals(tx, args, kwargs)
    return force(tx, args[0]).get_attr(tx, "__dict__")


@special(object.__new__)
def _object_new(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    assert isinstance(of, ClassValue)
    if len(args) > 1 or kwargs:
        new, init = (find_in_class(of.held, name) for name in ("__new__", "__init__"))
        if new is not None and new[0] is not object:
            tx.raise_type_error("object.__new__() takes exactly one argument (the type to instantiate)")
        if init is None or init[0] is object:
            tx.raise_type_error(f"{of.held.__name__}() takes no arguments")
    if issubclass(of.held, torch.nn.Module):
        from engine.trace.values.made_modules import empty_module

        return empty_module(of.held)
    return ObjectValue(of.held, None, NotImplemented)


@special(object)
def _object(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if args or kwargs:
        tx.raise_type_error("object() takes no arguments")
    return ObjectValue(object, None, NotImplemented)


@special(functools.reduce)
def _reduce(tx: Tracer, args: Args, kwargs: Words) -> Value:
    items = list(sequence_items(tx, args[1]))
    if len(args) < 3 and not items:
        tx.raise_type_error("reduce() of empty iterable with no initial value")
    total = args[2] if len(args) > 2 else items.pop(0)
    for item in items:
        total = force(tx, args[0]).call(tx, [total, item], {})
    return total


@special(functools.wraps)
def _wraps(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("wrapped", "assigned", "updated"), args, strict=False)) | kwargs
    return partial_of(BuiltinValue(functools.update_wrapper, None), [], given)


@special(functools.update_wrapper)
def _update_wrapper(tx: Tracer, args: Args, kwargs: Words) -> Value:
    wrapper = force(tx, args[0])
    wrapped = force(tx, kwargs["wrapped"] if "wrapped" in kwargs else args[1])
    assigned = kwargs.get("assigned", args[2] if len(args) > 2 else tx.from_python(functools.WRAPPER_ASSIGNMENTS))
    updated = kwargs.get("updated", args[3] if len(args) > 3 else tx.from_python(functools.WRAPPER_UPDATES))
    for name in tx.constants(sequence_items(tx, assigned)):
        try:
            found = wrapped.get_attr(tx, name)
        except UserException as error:
            if not issubclass(error.value.type(), AttributeError):
                raise
        else:
            wrapper.set_attr(tx, name, found)
    for name in tx.constants(sequence_items(tx, updated)):
        source = _attribute_or(tx, wrapped, name, DictValue({}))
        force(tx, wrapper.get_attr(tx, name)).call_method(tx, "update", [source], {})
    wrapper.set_attr(tx, "__wrapped__", wrapped)
    return wrapper


def _operator_rule(run: Any, symbol: str, count: int) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        made: Value = run(tx, symbol, *args[:count])
        return made

    return rule


def _register_operators() -> None:
    for symbol, (fn, _) in (*operations.BINARY.items(), *operations.INPLACE.items()):
        special(fn)(_operator_rule(operations.binary, symbol, 2))
    for symbol, (compare, _, _) in operations.COMPARE.items():
        special(compare)(_operator_rule(operations.compare, symbol, 2))
    for symbol, unary in operations.UNARY.items():
        special(unary)(_operator_rule(operations.unary, symbol, 1))
    special(operator.getitem)(lambda tx, args, kwargs: force(tx, args[0]).get_item(tx, force(tx, args[1])))
    special(operator.setitem)(_setitem)
    special(operator.not_)(lambda tx, args, kwargs: Const(not force(tx, args[0]).truth(tx)))
    special(operator.truth)(lambda tx, args, kwargs: Const(force(tx, args[0]).truth(tx)))
    special(operator.is_)(lambda tx, args, kwargs: Const(operations.is_same(tx, args[0], args[1])))
    special(operator.is_not)(lambda tx, args, kwargs: Const(not operations.is_same(tx, args[0], args[1])))
    special(operator.contains)(lambda tx, args, kwargs: Const(force(tx, args[0]).contains(tx, force(tx, args[1]))))


def _setitem(tx: Tracer, args: Args, kwargs: Words) -> Value:
    force(tx, args[0]).set_item(tx, force(tx, args[1]), args[2])
    return NONE


_register_operators()


@special(tuple.__new__)
def _tuple_new(tx: Tracer, args: Args, kwargs: Words) -> Value:
    cls = force(tx, args[0]).python(tx)
    items = list(sequence_items(tx, args[1])) if len(args) > 1 else []
    if cls is not tuple and not is_plainly_named(cls):
        return new_container_value(cls, TupleValue(items))
    return TupleValue(items, cls)


def _count_elements(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """What ``collections.Counter`` does with an iterable."""
    counts = force(tx, args[0])
    for item in sequence_items(tx, args[1]):
        key = force(tx, item)
        before = counts.call_method(tx, "get", [key, Const(0)], {})
        counts.set_item(tx, key, operations.binary(tx, "+", before, Const(1)))
    return NONE


special(vars(collections)["_count_elements"])(_count_elements)


@special(dir)
def _dir(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if not args:
        raise Unsupported("unknown-call", "dir() of the frame")
    of = force(tx, args[0])
    if isinstance(of, ObjectValue):
        custom = of.method(tx, "__dir__")
        if custom is not None:
            return ListValue(operations.sorted_items(tx, list(sequence_items(tx, custom.call(tx, [], {}))), {}))
        own = [str(force(tx, k).python(tx)) for k in sequence_items(tx, of.get_attr(tx, "__dict__"))]
        return tx.from_python(sorted({*dir(of.type()), *own}))
    if isinstance(of, PythonModule) and of.is_trusted:
        return tx.from_python(dir(of.held))
    return operations.fold_call(tx, dir, args, kwargs, f"dir() of {of.describe()}")


@special(format)
def _format(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    spec = force(tx, args[1]) if len(args) > 1 else Const("")
    if isinstance(of, ObjectValue) and of.method(tx, "__format__") is not None:
        return of.call_special(tx, "__format__", [spec])
    if not isinstance(of, (Const, TensorValue, SymValue)) and not has_method(of.type(), "__format__", below=object):
        if isinstance(spec, Const) and spec.value == "":
            return force(tx, tx.fixed(str).call(tx, [of], {}))
        if isinstance(spec, Const) and isinstance(spec.value, str):
            tx.raise_type_error(f"unsupported format string passed to {type_name(of.type())}.__format__")
    return operations.fold_call(tx, format, args, kwargs, f"format() of {of.describe()}")


def _by_method(function: Any, name: str) -> None:
    """A pure function that asks objects for a special method first."""

    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        of = force(tx, args[0])
        if isinstance(of, ObjectValue) and of.method(tx, name) is not None:
            return of.call_special(tx, name, args[1:])
        return operations.fold_call(tx, function, args, kwargs, f"{function.__name__}() of {of.describe()}")

    special(function)(rule)


for _function, _method_name in (
    (math.floor, "__floor__"),
    (math.ceil, "__ceil__"),
    (math.trunc, "__trunc__"),
    (operator.index, "__index__"),
):
    _by_method(_function, _method_name)


@special(bytes)
def _bytes(tx: Tracer, args: Args, kwargs: Words) -> Value:
    if args and isinstance(of := force(tx, args[0]), ObjectValue) and of.method(tx, "__bytes__") is not None:
        return of.call_special(tx, "__bytes__", [])
    return operations.fold_call(tx, bytes, args, kwargs, "bytes()")


@special(sys.getrecursionlimit)
def _recursion_limit(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return Const(tx.recursion_limit)


@special(sys.get_int_max_str_digits)
def _digits_limit(tx: Tracer, args: Args, kwargs: Words) -> Value:
    limit = sys.get_int_max_str_digits()
    tx.guard(GlobalState(Fixed(torch, "torch"), "digits", limit, cause=tx.cause("it was asked for")))
    return Const(limit)


@special(sys.set_int_max_str_digits)
def _set_digits_limit(tx: Tracer, args: Args, kwargs: Words) -> Value:
    # Texts of numbers are made while tracing, under the limit as it is.
    raise Skip("unknown-call", "the limit of digits in texts of numbers is set")


@special(bool.__new__)
def _bool_new(tx: Tracer, args: Args, kwargs: Words) -> Value:
    of = force(tx, args[0])
    if not isinstance(of, ClassValue) or of.held is not bool or kwargs or len(args) > 2:
        return operations.fold_call(tx, bool.__new__, args, kwargs, "bool.__new__ is called")
    return _bool(tx, args[1:], {})


@special(sys.setrecursionlimit)
def _set_recursion_limit(tx: Tracer, args: Args, kwargs: Words) -> Value:
    # Compiled code and its dispatch are deeper than the calls they stand for: only Python's own depth fits the limit that is asked for.
    raise Skip("unknown-call", "the recursion limit is set")


@special(locals)
def _locals(tx: Tracer, args: Args, kwargs: Words) -> Value:
    frame = tx.frames[-1]
    code = frame.code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a class
        return DictValue.of(frame.locals)
    made = DictValue({})
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        value = frame.locals.get(name)
        if value is None and isinstance(cell := frame.cells.get(name), CellValue):
            value = cell.content
        if value is not None:
            made.set_item(tx, Const(name), value)
    return made


@special(sys.intern)
def _intern(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return operations.fold_call(tx, sys.intern, args, kwargs, "sys.intern()")
