"""Registry of tracing rules for attributes and methods of tensors, by name.

The modules that trace a member register it here; every other method becomes a graph node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.ir.register_once import register_once
from engine.trace.annotations import TensorVariable, Tracer
from engine.trace.variables.base import Args, Kwargs, Variable

MethodRule = Callable[[Tracer, TensorVariable, Args, Kwargs], Variable | None]
AttributeRule = Callable[[Tracer, TensorVariable], Variable | None]
SetterRule = Callable[[Tracer, TensorVariable, Variable], None]

METHOD_RULES: dict[str, MethodRule] = {}
"""Rules of methods. A rule that returns None leaves the call to the graph."""
ATTRIBUTE_RULES: dict[str, AttributeRule] = {}
"""Rules of attributes. A rule that returns None leaves the attribute to the fake tensor."""
SETTER_RULES: dict[str, SetterRule] = {}
"""Rules of attribute writes."""


def register_tensor_method(*names: str) -> Callable[[MethodRule], MethodRule]:
    """Register the tracing rule for these methods."""
    return register_once(METHOD_RULES, names, "a rule for this member of Tensor")


def register_tensor_attribute(*names: str) -> Callable[[AttributeRule], AttributeRule]:
    """Register the tracing rule for reading these attributes."""
    return register_once(ATTRIBUTE_RULES, names, "a rule for this member of Tensor")


def register_tensor_setter(*names: str) -> Callable[[SetterRule], SetterRule]:
    """Register the tracing rule for setting these attributes."""
    return register_once(SETTER_RULES, names, "a rule for this member of Tensor")


@dataclass(frozen=True, slots=True)
class SubclassMemberRule:
    """Tracing rule for an attribute or a method of a wrapper subclass."""

    run: Callable[[Tracer, TensorVariable, Args, Kwargs], Variable]
    is_method: bool


SUBCLASS_MEMBER_RULES: dict[tuple[str, str, str], SubclassMemberRule] = {}
"""Rules by (module, class, member), as strings because the modules may not be imported."""
