"""The ``__dict__`` of an instance: a window on its attributes."""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any

from engine.trace.values.base import NONE, Value
from engine.trace.values.classes import find_in_class
from engine.trace.values.mappings import DictValue
from engine.trace.values.objects import ObjectValue, dict_of
from engine.trace.values.sequences import TupleValue

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


class InstanceDict(DictValue):
    """An instance's ``__dict__``: a window on its attributes, which writes through."""

    def __init__(self, tx: Tracer, of: ObjectValue | DictValue) -> None:
        self.tx = tx
        self.of_object = of
        super().__init__({})

    @property
    def entries(self) -> dict[Any, tuple[Value, Value]]:
        return self.of_object.attributes_now(self.tx)

    @entries.setter
    def entries(self, entries: Any) -> None:
        if entries:
            raise self.refuse("replacing an instance's __dict__")

    def children(self) -> list[Value]:
        return [self.of_object]

    def put(self, tx: Tracer, stands_for: Any, key: Value, value: Value) -> None:
        name = stands_for
        found = find_in_class(self.of_object.cls, name) if isinstance(name, str) else (object, None)
        if not isinstance(name, str) or (found is not None and self._is_elsewhere(found)):
            raise self.refuse("writing this key into an instance's __dict__")
        self.of_object.write(tx, name, value)

    def _is_elsewhere(self, found: tuple[builtins.type, Any]) -> bool:
        """Whether an entry of that name would be hidden by what C code keeps elsewhere."""
        kinds = (types.MemberDescriptorType, types.GetSetDescriptorType)
        return found[0] is object or isinstance(found[1], kinds)

    def pop(self, tx: Tracer, key: Value, default: Value | None = None) -> Value:
        name = key.key(tx)
        present = self.entries.get(name)
        if present is None:
            return super().pop(tx, key, default)
        self.of_object.write(tx, name, None)
        return present[1]

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "clear":
            for key in self.keys():
                self.pop(tx, key)
            return NONE
        if name == "popitem" and not args and (names := list(self.entries)):
            last = self.entries[names[-1]][0]
            return TupleValue([last, self.pop(tx, last)])
        return super().call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Codegen) -> None:
        cg.load(self.of_object)
        cg.out.attribute("__dict__")


def holds_names(value: Value) -> bool:
    """Whether it is a dict whose keys are names."""
    holder = dict_of(value)
    return isinstance(holder, DictValue) and all(isinstance(key, str) for key in holder.entries)
