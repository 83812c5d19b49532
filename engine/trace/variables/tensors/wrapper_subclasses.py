"""Wrapper subclasses of tensors: the members that their classes add or override."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine.ir.introspection.fakeable_tensors import is_jagged, is_wrapper_subclass
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import ConstantVariable, Variable
from engine.trace.variables.builder import is_literal
from engine.trace.variables.objects.attribute_binding import bind_attribute
from engine.trace.variables.objects.class_lookup import find_in_class
from engine.trace.variables.tensors.tensor_members import SUBCLASS_MEMBER_RULES, SubclassMemberRule

if TYPE_CHECKING:
    from engine.trace.variables.tensors.tensor import TensorVariable


def find_member_rule(tensor: TensorVariable, name: str) -> SubclassMemberRule | None:
    """Return the rule for a member that a wrapper subclass adds or overrides, or None.

    Raises:
        Unsupported: the member belongs to a class of ``torch.distributed`` and has no rule.
    """
    cls = type(tensor.fake)
    if not is_wrapper_subclass(tensor.fake):
        return None
    owner = next((c for c in cls.__mro__ if name in vars(c)), None)
    rule = None if owner is None else SUBCLASS_MEMBER_RULES.get((owner.__module__, owner.__qualname__, name))
    is_own = owner is None or (owner is not torch.Tensor and issubclass(owner, torch.Tensor))
    if rule is None and is_own and cls.__module__.startswith("torch.distributed."):
        raise Unsupported("tensor-subclass", f"{tensor.python_type().__name__}.{name}, of a tensor subclass")
    return rule


def find_member(tx: Tracer, tensor: TensorVariable, name: str) -> Variable | None:
    """Return a member that a wrapper subclass adds or overrides, or None.

    It is an inner tensor, another attribute, or a method of the class.
    """
    if not is_wrapper_subclass(tensor.fake) or is_jagged(tensor.fake):
        return None
    if name in tensor.fake.__dict__:
        found = tensor.fake.__dict__[name]
        if isinstance(found, torch.Tensor):
            return emit_node(tx, "call_function", getattr, [tensor, ConstantVariable(name)])
        own = tensor.own_attribute(tx, name)
        if own is None and not is_literal(found):
            raise Unsupported("tensor-subclass", f"{tensor.python_type().__name__}.{name}, of a tensor subclass")
        return ConstantVariable(found) if own is None else own
    cls = tensor.python_type()
    entry = find_in_class(cls, name)
    if entry is None or entry[0] is torch.Tensor or not issubclass(entry[0], torch.Tensor):
        return None
    return bind_attribute(tx, cls, entry[0], name, entry[1], tensor)
