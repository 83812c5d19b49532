"""Rules for the builtin functions that ask about classes, and for those that make plain instances."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.origin import Attr
from engine.trace.signals import Unsupported
from engine.trace.values import tensor_facts
from engine.trace.values.base import Const, NotConstant, Value, force
from engine.trace.values.cells import CellValue
from engine.trace.values.classes import TENSOR_TYPE, ClassValue, SuperValue, class_origin, find_in_class
from engine.trace.values.objects import ObjectValue
from engine.trace.values.references import ProxyValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import (
    TupleValue,
)
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


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
    decides = find_in_class(type(cls), "__instancecheck__") if isinstance(cls, type) else None
    decider = type if decides is None else decides[0]
    if decider is not type and decider.__module__ not in _AS_SUBCLASSES:
        raise Unsupported("unsupported-operation", f"isinstance() with the class {cls.__name__}, which decides itself")
    return issubclass(of.type(), cls)


@special(torch.jit.isinstance)
def _isinstance_of_jit(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """As ``isinstance`` for a class whose instances hold nothing that scripted code would name the type of."""
    cls = force(tx, args[1]).python(tx) if len(args) == 2 else None
    if not isinstance(cls, type) or cls in (list, tuple, dict):
        raise Unsupported("unknown-call", "torch.jit.isinstance is called with what is no plain class")
    return _isinstance(tx, args, kwargs)


_AS_SUBCLASSES = ("abc", "torch._C", "torch", "typing", "enum", "torch.nn.parameter")
"""Modules whose metaclasses hold the instances of a class's subclasses to be its instances."""


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
