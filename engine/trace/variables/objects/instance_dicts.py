"""``__dict__`` of an instance or a function as a dict variable."""

from __future__ import annotations

from typing import Any

from engine.trace.annotations import InstanceVariable, PyCodegen, Tracer
from engine.trace.variables.base import NONE, Args, AttributeDictVariable, Kwargs, Variable
from engine.trace.variables.containers.dict_contents import DictEntry
from engine.trace.variables.containers.dicts import ORDERED_DICT_ATTRIBUTES, DictVariable
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.objects.class_lookup import find_in_class


class InstanceDictVariable(DictVariable):
    """``__dict__`` of an object: a live view of its attributes that writes through."""

    __slots__ = ("owner", "tx")

    def __init__(self, tx: Tracer, of: InstanceVariable | AttributeDictVariable) -> None:
        self.tx = tx
        self.owner = of
        super().__init__({})

    @property
    def entries(self) -> dict[Any, tuple[Variable, Variable]]:
        return self.owner.current_attributes(self.tx)

    @entries.setter
    def entries(self, entries: Any) -> None:
        if entries:
            raise self.unsupported("replacing an instance's __dict__", "attribute-write")

    def is_same_as(self, tx: Tracer, other: Variable) -> bool | None:
        return self.owner is other.owner if isinstance(other, InstanceDictVariable) else None

    child_fields = ("owner",)

    def set_hashed_item(self, tx: Tracer, hash_key: Any, key: Variable, value: Variable) -> None:
        is_name = key.python_type() is str
        entry = find_in_class(self.owner.python_type(), hash_key) if is_name else None
        if not is_name or (entry is not None and entry.is_stored_outside_dict):
            raise self.unsupported("writing this key into an instance's __dict__", "attribute-write")
        self.owner.write_attr(tx, hash_key, value)

    def pop(self, tx: Tracer, key: Variable, default: Variable | None = None) -> Variable:
        name = key.hash_key(tx)
        entry = self.entries.get(name)
        if entry is None:
            return super().pop(tx, key, default)
        self.owner.write_attr(tx, name, None)
        return entry[1]

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name == "clear":
            for key in self.keys():
                self.pop(tx, key)
            return NONE
        if name == "popitem" and not args and (names := list(self.entries)):
            last = self.entries[names[-1]][0]
            return TupleVariable([last, self.pop(tx, last)])
        return super().call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load(self.owner)
        cg.body.attribute("__dict__")


def dict_entries(value: Variable) -> dict[Any, DictEntry]:
    """Return the entries of a dict or of a dict subclass instance."""
    holder = value.builtin_contents
    assert isinstance(holder, DictVariable)
    return holder.entries


def _ordered_dict_instance_dict(tx: Tracer, of: DictVariable) -> Variable:
    """Return ``__dict__`` of an OrderedDict created while tracing."""
    if of.source is not None:
        raise of.unsupported_attribute("reading", "__dict__")
    return InstanceDictVariable(tx, of)


ORDERED_DICT_ATTRIBUTES["__dict__"] = _ordered_dict_instance_dict


def has_string_keys(value: Variable) -> bool:
    """Return True for a dict whose keys are all strings."""
    holder = value.builtin_contents
    return isinstance(holder, DictVariable) and all(key.python_type() is str for key, _ in holder.entries.values())
