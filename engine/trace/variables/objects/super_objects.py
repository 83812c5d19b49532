"""Variable of ``super()``: attribute lookup after a class in the MRO of an instance."""

from __future__ import annotations

import builtins

import torch

from engine.torch_private.tensors import TensorBase
from engine.trace.annotations import Tracer
from engine.trace.variables.base import Variable
from engine.trace.variables.callables.methods import BoundMethodVariable, BuiltinMethodVariable
from engine.trace.variables.objects.attribute_binding import class_attribute
from engine.trace.variables.objects.metaclasses import super_in_metaclass
from engine.trace.variables.tensors.torch_function_protocol import base_tensor_attribute


class SuperVariable(Variable):
    """A ``super(cls, obj)`` object."""

    cls = super
    thisclass: builtins.type
    receiver: Variable

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        of = self.receiver
        if of.as_class() is not None:
            return self._class_attribute(tx, of, name)
        cls = of.python_type()
        base = self._defining_class(cls, name)
        if of.is_user_object and base in (object, None):
            return _object_method(tx, name, of)
        if base in (torch.Tensor, TensorBase):
            return base_tensor_attribute(tx, of, name)
        return self._attribute(tx, cls, name, of)

    def _class_attribute(self, tx: Tracer, of: Variable, name: str) -> Variable:
        by_meta = super_in_metaclass(tx, self.thisclass, of, name)
        if by_meta is not None:
            return by_meta
        if name == "__init_subclass__" and self._defining_class(of.as_class(), name) is object:
            return tx.wrap_static(object.__init_subclass__)
        return self._attribute(tx, of.as_class(), name, None)

    def _attribute(self, tx: Tracer, cls: builtins.type, name: str, instance: Variable | None) -> Variable:
        value = class_attribute(tx, cls, name, instance, self.thisclass)
        if value is None:
            return tx.raise_error(AttributeError, f"'super' object has no attribute '{name}'")
        return value

    def _defining_class(self, cls: builtins.type, name: str) -> builtins.type | None:
        """Return the first class after ``thisclass`` in the MRO that defines the name."""
        later_classes = cls.__mro__[cls.__mro__.index(self.thisclass) + 1 :]
        return next((base for base in later_classes if name in vars(base)), None)


def _object_method(tx: Tracer, name: str, instance: Variable) -> Variable:
    if name in ("__setattr__", "__init__", "__init_subclass__", "__getattribute__", "__delattr__"):
        return BuiltinMethodVariable(instance, f"object.{name}")
    method = getattr(object, name, None)
    if method is None:
        return tx.raise_error(AttributeError, f"'super' object has no attribute '{name}'")
    return BoundMethodVariable(instance, tx.wrap_static(method))
