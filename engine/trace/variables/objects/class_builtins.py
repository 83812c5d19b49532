"""Rules for isinstance, issubclass, callable, type(), super() and object()."""

from __future__ import annotations

from typing import Any

import torch

from engine.trace.annotations import Tracer
from engine.trace.exc import BreakGraph, Unsupported
from engine.trace.frame import is_trusted_module
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, NotPythonConstant, Variable, realize
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.containers.sequences import sequence_items
from engine.trace.variables.nn_modules.module_construction import allocate_module
from engine.trace.variables.objects.class_creation import create_class_by_type_call
from engine.trace.variables.objects.class_lookup import find_in_class, find_python_method, wrap_entry
from engine.trace.variables.objects.classes import LEGACY_TENSOR_METACLASS
from engine.trace.variables.objects.super_objects import SuperVariable
from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable
from engine.trace.variables.tensors import tensor_attributes
from engine.trace.variables.tensors.tensor import TensorVariable


@register_bound_rule(isinstance)
def _isinstance(tx: Tracer, of: Variable, classes: Variable) -> Variable:
    return ConstantVariable(is_instance(tx, of, classes))


def is_instance(tx: Tracer, of: Variable, classes: Variable) -> bool:
    """Evaluate ``isinstance(of, classes)``."""
    if issubclass(classes.python_type(), tuple):
        return any(is_instance(tx, of, realize(tx, c)) for c in sequence_items(tx, classes))
    what = "isinstance() with a class that is not known while tracing"
    with BreakGraph("non-constant-arguments", what, NotPythonConstant):
        cls = classes.as_python_constant(tx)
    is_class = classes.as_class() is not None
    if not is_class:
        tx.fold_constant(isinstance, None, cls)  # raises Python's TypeError
    if issubclass(classes.python_type(), LEGACY_TENSOR_METACLASS):
        return _matches_legacy_tensor_type(of, cls)
    result = _user_instancecheck(tx, of, cls)
    if result is not None:
        return result
    if (
        isinstance(of, TensorVariable)
        and cls in (torch.nn.Parameter, torch.nn.Buffer)
        and not issubclass(of.python_type(), cls)
    ):
        return tensor_attributes.has_mark(tx, of, "_is_param" if cls is torch.nn.Parameter else "_is_buffer")
    real = of.as_python_object()
    if real is not NotImplemented and not of.is_symbolic:
        return isinstance(real, cls)
    if cls is torch.nn.Parameter or cls is torch.nn.Buffer:
        return issubclass(of.python_type(), cls)
    decides = find_in_class(type(cls), "__instancecheck__") if is_class else None
    decider = type if decides is None else decides.owner
    if decider is not type and decider.__module__ not in _SUBCLASS_INSTANCECHECK_MODULES:
        raise Unsupported(
            "metaclass", f"isinstance() with the class {cls.__name__}, whose metaclass defines __instancecheck__"
        )
    return issubclass(of.python_type(), cls)


@register_bound_rule(torch.jit.isinstance)
def _isinstance_of_jit(tx: Tracer, obj: Variable, target_type: Variable) -> Variable:
    """Implement ``torch.jit.isinstance`` as ``isinstance``, except for list, tuple and dict.

    TorchScript checks the element types of those three.
    """
    if target_type.as_class() in (None, list, tuple, dict):
        raise Unsupported("builtin-arguments", "torch.jit.isinstance is called without a plain class")
    return _isinstance(tx, obj, target_type)


_SUBCLASS_INSTANCECHECK_MODULES = ("abc", "torch._C", "torch", "typing", "enum", "torch.nn.parameter")
"""Modules whose metaclasses accept instances of subclasses, as ``type`` does."""


def _matches_legacy_tensor_type(of: Variable, cls: Any) -> bool:
    """Return True for a tensor with the dtype, layout and device of a legacy tensor type."""
    if of.fake is None:
        return False
    device = "cuda" if cls.is_cuda else "cpu"
    return (of.fake.dtype, of.fake.layout, of.fake.device.type) == (cls.dtype, cls.layout, device)


def _user_instancecheck(tx: Tracer, of: Variable, cls: Any) -> bool | None:
    """Call ``__instancecheck__`` of a Python metaclass; return None if there is none."""
    if of.python_type() is cls:
        return None
    method = find_python_method(type(cls), "__instancecheck__")
    if method is None or is_trusted_module(method.owner.__module__):
        return None
    check = wrap_entry(tx, method, "__instancecheck__")
    return realize(tx, check.call(tx, [tx.wrap_static(cls), of], {})).is_truthy(tx)


register_rule(issubclass)(lambda tx, args, kwargs: tx.fold_constant(issubclass, *tx.as_python_constants(args)))


@register_bound_rule(callable)
def _callable(tx: Tracer, of: Variable) -> Variable:
    return ConstantVariable(any("__call__" in base.__dict__ for base in of.python_type().__mro__))


@register_rule(type)
def _type(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) == 3:
        return create_class_by_type_call(tx, args, kwargs)
    if len(args) != 1 or kwargs:
        tx.raise_type_error("type() takes 1 or 3 arguments")
    return tx.wrap_static(realize(tx, args[0]).python_type())


@register_rule(super)
def _super(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if len(args) == 1:
        raise Unsupported("builtin-arguments", "super() of one argument is called")
    if args:
        start, instance = realize(tx, args[0]), realize(tx, args[1])
        if len(args) > 2:
            tx.raise_type_error(f"super expected at most 2 arguments, got {len(args)}")
        if not issubclass(start.python_type(), type):
            tx.raise_type_error(f"super() argument 1 must be a type, not {start.python_type().__name__}")
        return SuperVariable(start.as_python_constant(tx), instance)
    frame = tx.frame
    cell = frame.cells.get("__class__")
    if cell is None or cell.content is None or not frame.code.co_argcount:
        return tx.raise_error(RuntimeError, "super(): no arguments")
    first = frame.code.co_varnames[0]
    of = frame.locals.get(first) or (frame.cells[first].content if first in frame.cells else None)
    if of is None:
        return tx.raise_error(RuntimeError, "super(): arg[0] deleted")
    return SuperVariable(realize(tx, cell.content).as_python_constant(tx), realize(tx, of))


@register_rule(object.__new__)
def _object_new(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    cls = realize(tx, args[0]).as_class()
    if len(args) > 1 or kwargs:
        new_entry, init_entry = (find_in_class(cls, name) for name in ("__new__", "__init__"))
        if new_entry is not None and new_entry.owner is not object:
            tx.raise_type_error("object.__new__() takes exactly one argument (the type to instantiate)")
        if init_entry is None or init_entry.owner is object:
            tx.raise_type_error(f"{cls.__name__}() takes no arguments")
    if issubclass(cls, torch.nn.Module):
        return allocate_module(cls)
    return UserDefinedObjectVariable(cls, None, NotImplemented)


@register_rule(object)
def _object(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    if args or kwargs:
        tx.raise_type_error("object() takes no arguments")
    return UserDefinedObjectVariable(object, None, NotImplemented)
