"""The user's objects that the tracer knows, and the variables that stand for them."""

from __future__ import annotations

from typing import Any

import torch

from engine.trace.annotations import NewClassVariable
from engine.trace.variables.base import Variable


class KnownObjects:
    """Variables of real objects by identity.

    A reference to each object is held while its id is a key, so that no other object gets this id.
    """

    def __init__(self) -> None:
        self.variables_by_id: dict[int, tuple[Variable, Any]] = {}
        self.variables_by_dict_id: dict[int, Variable] = {}
        """Variables of objects that were read, by the ids of their instance dicts."""
        self.real_by_variable_id: dict[int, tuple[Variable, Any]] = {}
        """Wrapped objects with an identity that their variables do not hold, by variable id."""
        self.identity_keys: dict[int, Variable] = {}
        """External objects used as dict keys or set elements by identity, by variable id."""
        self.viewed_dict_ids: set[int] = set()
        """Ids of dicts that have external views."""
        self.new_classes: dict[type, NewClassVariable] = {}
        """Classes that the traced code creates, by their placeholder classes."""

    def real_object(self, value: Variable) -> Any:
        """Return the object that the variable represents; NotImplemented if tracing created it."""
        variable_and_real = self.real_by_variable_id.get(id(value))
        return value.as_python_object() if variable_and_real is None else variable_and_real[1]

    def object_from_outside(self, value: Variable) -> Any:
        """Return the object that was wrapped as the variable; else NotImplemented."""
        real = self.real_object(value)
        mutable = (r for v, r in self.variables_by_id.values() if v is value)
        return next(mutable, NotImplemented) if real is NotImplemented else real

    def is_compiled_module(self, value: Variable) -> bool:
        """Return True for the lazy variable of a compiled module, which resolves to its original."""
        real = self.real_object(value)
        return issubclass(type(real), torch.nn.Module) and self.real_object(value.resolved) is not real

    def as_identity_key(self, value: Variable) -> Variable:
        """Return the key of a variable that is compared by identity.

        For external objects, guards at the end require that distinct keys stay distinct.
        """
        if value.source is not None:
            self.identity_keys[id(value)] = value
        return value

    def release(self) -> None:
        """Release the objects and their variables."""
        self.variables_by_id.clear()
        self.variables_by_dict_id.clear()
        self.real_by_variable_id.clear()
        self.identity_keys.clear()
        self.new_classes.clear()
