"""Attributes of an instance, by Python's descriptor protocol."""

from __future__ import annotations

import builtins
import functools
import types
from typing import Any

from engine.frame_code.codegen_runtime.objects import choose_attribute_setter, delete_attributes, set_instance_dict
from engine.ir.guards.python_values import DictKeysMatch, HasAttrGuard, IdMatch
from engine.ir.sources.attributes import AttrSource, InstanceDictGetSource
from engine.ir.sources.base import MISSING, Source
from engine.ir.sources.containers import GetItemSource
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import UserException
from engine.trace.variables.base import Args, ConstantVariable, Variable, realize
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.containers.sequences import TupleVariable
from engine.trace.variables.objects.attribute_binding import NAMEDTUPLE_FIELD_TYPE, bind_attribute
from engine.trace.variables.objects.class_lookup import (
    ClassEntry,
    call_python_method,
    class_source,
    find_in_class,
    find_python_method,
    guard_no_class_attribute,
    is_data_descriptor,
    is_slot,
    overrides_instance_dict,
    raise_missing_accessor,
    wrap_entry,
)
from engine.trace.variables.objects.instance_dicts import InstanceDictVariable, dict_entries, has_string_keys
from engine.trace.variables.slotted_type import fresh, state


class _AttributeNotFound(Exception):
    """Raised if generic attribute lookup finds no attribute."""


class InstanceVariable(Variable):
    """An object with attributes of its own.

    ``attr_writes`` holds attributes set during tracing, None for deleted ones. Others are read from ``real_object``.
    """

    cls: builtins.type
    source: Source | None
    real_object: Any
    attr_writes: dict[str, Variable | None] = fresh(dict)
    shared_dict: Variable | None = state(None)
    """The dict of its attributes if other references to it exist, as for ``x.__dict__ = d``."""
    dict_was_assigned: bool = state(False)
    """True if traced code assigned ``shared_dict`` to ``__dict__``."""
    dict_was_exposed: bool = state(False)
    """True if traced code read ``__dict__``."""

    is_mutable = True

    def as_python_object(self) -> Any:
        return self.real_object

    def child_variables(self) -> list[Variable]:
        return [v for v in (*self.attr_writes.values(), self.shared_dict) if v is not None and v is not self]

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name in ("__class__", "__dict__"):
            return self._get_class_or_dict(tx, name)
        if find_python_method(self.cls, "__getattribute__") is not None:
            return self._call_getattribute(tx, name)
        try:
            return self._generic_get_attr(tx, name)
        except _AttributeNotFound:
            return self.get_missing_attr(tx, name)

    def _call_getattribute(self, tx: Tracer, name: str) -> Variable:
        try:
            attribute = call_python_method(tx, self.cls, "__getattribute__", [self, ConstantVariable(name)])
        except UserException as error:
            is_missing = issubclass(error.exception.python_type(), AttributeError)
            if find_in_class(self.cls, "__getattr__") is None or not is_missing:
                raise
            return self.get_missing_attr(tx, name)
        assert attribute is not None
        return attribute

    def object_getattribute(self, tx: Tracer, name: str) -> Variable:
        """Trace ``object.__getattribute__(self, name)``."""
        if name in ("__class__", "__dict__"):
            return self._get_class_or_dict(tx, name)
        try:
            return self._generic_get_attr(tx, name)
        except _AttributeNotFound:
            return self._raise_no_attribute(tx, name)

    def _raise_no_attribute(self, tx: Tracer, name: str) -> Variable:
        self._guard_no_attribute(tx, name)
        return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")

    def _generic_get_attr(self, tx: Tracer, name: str) -> Variable:
        """Implement ``object.__getattribute__``.

        Raises:
            _AttributeNotFound: neither the instance nor its class has the attribute.
        """
        entry = find_in_class(self.cls, name)
        if entry is not None and overrides_instance_dict(entry.raw) and not self._is_written_slot(entry.raw, name):
            return bind_attribute(tx, self.cls, entry.owner, name, entry.raw, self)
        own_attribute = self.get_instance_attr(tx, name)
        if own_attribute is not None:
            return own_attribute
        if entry is not None:
            self._guard_not_shadowed(tx, name, entry.raw)
            return bind_attribute(tx, self.cls, entry.owner, name, entry.raw, self)
        raise _AttributeNotFound

    def _is_written_slot(self, raw_entry: Any, name: str) -> bool:
        return is_slot(raw_entry) and (name in self.attr_writes or self.real_object is NotImplemented)

    def get_instance_attr(self, tx: Tracer, name: str) -> Variable | None:
        """Return an attribute of the instance itself; None if it has none of that name."""
        if name in self.attr_writes:
            written: Variable | None = self.attr_writes[name]
            return written
        if self.shared_dict is not None:
            entry = dict_entries(self.shared_dict).get(name)
            return None if entry is None else entry[1]
        if self.real_object is NotImplemented or self.source is None:
            return None
        real_dict = getattr(self.real_object, "__dict__", None)
        if real_dict is None or name not in real_dict:
            return None
        class_entry = find_in_class(self.cls, name)
        if not isinstance(name, str) or (class_entry is not None and is_data_descriptor(class_entry.raw)):
            return tx.wrap(real_dict[name], GetItemSource(AttrSource(self.source, "__dict__"), name))
        return tx.wrap(real_dict[name], AttrSource(self.source, name))

    def _guard_not_shadowed(self, tx: Tracer, name: str, raw_entry: Any) -> None:
        if (
            self.source is None
            or name in self.attr_writes
            or not hasattr(self.real_object, "__dict__")
            or self.shared_dict is not None
        ):
            return
        if overrides_instance_dict(raw_entry):
            return
        why = f"the class's {name!r} was used, which an attribute of the instance would hide"
        tx.guard(IdMatch, InstanceDictGetSource(self.source, name), MISSING, why=why)

    def get_missing_attr(self, tx: Tracer, name: str) -> Variable:
        """Handle a read of a name that neither the instance nor its class defines.

        Calls ``__getattr__`` if there is one, otherwise raises AttributeError.
        """
        getter = find_in_class(self.cls, "__getattr__")
        if getter is None:
            return self._raise_no_attribute(tx, name)
        if getter.is_c_method:
            self._guard_no_attribute(tx, name)
            bound = BoundMethodVariable(self, tx.wrap_static(getter.raw))
            return realize(tx, bound.call(tx, [ConstantVariable(name)], {}))
        if getter.function is not getter.raw:
            raise self.unsupported_attribute("reading", name)
        self._guard_no_attribute(tx, name)
        return realize(tx, wrap_entry(tx, getter, "__getattr__").call(tx, [self, ConstantVariable(name)], {}))

    def _guard_no_attribute(self, tx: Tracer, name: str) -> None:
        if self.source is None:
            guard_no_class_attribute(tx, self.cls, name)
        elif name not in self.attr_writes and self.shared_dict is None:
            tx.guard(HasAttrGuard, self.source, name, False, why=f"it has no attribute {name!r}")

    def _get_class_or_dict(self, tx: Tracer, name: str) -> Variable:
        if name == "__class__":
            return tx.wrap(self.cls, class_source(self.cls))
        if self.has_no_dict():
            return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '__dict__'")
        if self.shared_dict is not None:
            return self.shared_dict
        self.dict_was_exposed = True
        if self.source is not None:
            names = tuple(getattr(self.real_object, "__dict__", {}))
            tx.guard(DictKeysMatch, AttrSource(self.source, "__dict__"), names, why="its attributes were listed")
        return InstanceDictVariable(tx, self)

    def has_no_dict(self) -> bool:
        """Return True if instances have no ``__dict__``: all classes declare ``__slots__``."""
        return self.cls.__dictoffset__ == 0

    def current_attributes(self, tx: Tracer) -> dict[Any, tuple[Variable, Variable]]:
        """Return the current ``__dict__``, as dict entries."""
        if self.shared_dict is not None:
            return dict(dict_entries(self.shared_dict))
        real_dict = {} if self.real_object is NotImplemented else dict(getattr(self.real_object, "__dict__", {}))
        entries: dict[Any, tuple[Variable, Variable]] = {}
        for name in real_dict:
            value = self.get_instance_attr(tx, name)
            if value is not None:
                entries[name] = (ConstantVariable(name), value)
        for name, written in self.attr_writes.items():
            if written is None:
                entries.pop(name, None)
            elif not self._is_slot_attr(name):
                entries[name] = (ConstantVariable(name), written)
        return entries

    def _is_slot_attr(self, name: str) -> bool:
        entry = find_in_class(self.cls, name)
        return entry is not None and entry.is_slot

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        self._write_by_class(tx, name, value)

    def del_attr(self, tx: Tracer, name: str) -> None:
        self._write_by_class(tx, name, None)

    def _write_by_class(self, tx: Tracer, name: str, value: Variable | None) -> None:
        """Call ``__setattr__`` of the class, or ``__delattr__`` if the value is None."""
        method, word = ("__delattr__", "deleting") if value is None else ("__setattr__", "setting")
        args = [ConstantVariable(name), *([] if value is None else [value])]
        entry = find_in_class(self.cls, method)
        if entry is None or entry.owner is object or self.has_generic_setattr(entry.owner):
            (self.generic_del_attr(tx, name) if value is None else self.generic_set_attr(tx, name, value))
        elif entry.is_c_method and not issubclass(object, entry.raw.__objclass__):
            BoundMethodVariable(self, tx.wrap_static(entry.raw)).call(tx, args, {})
        elif call_python_method(tx, self.cls, method, [self, *args]) is None:
            raise self.unsupported(f"{word} the attribute {name!r}")

    def has_generic_setattr(self, base: builtins.type) -> bool:
        """Return True if attribute writes by ``base`` are traced like those by ``object``."""
        return False

    def generic_set_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        """Implement ``object.__setattr__``; a value of None means ``object.__delattr__``."""
        entry = find_in_class(self.cls, name)
        raw_entry = None if entry is None else entry.raw
        is_in_slot = is_slot(raw_entry)
        if entry is not None and not is_in_slot and self._write_by_descriptor(tx, entry, name, value):
            return
        if value is not None and name in ("__class__", "__dict__"):
            value = realize(tx, value)
            if name == "__class__" and not issubclass(value.python_type(), builtins.type):
                tx.raise_type_error(f"__class__ must be set to a class, not '{value.python_type().__name__}' object")
            if name == "__dict__" and _is_default_dict_descriptor(raw_entry):
                self._assign_dict(tx, value)
                return
        if raw_entry is not None and is_data_descriptor(raw_entry) and not is_in_slot:
            raise self.unsupported(f"setting the attribute {name!r}, a descriptor,", "descriptor")
        if name in ("__class__", "__dict__"):
            raise self.unsupported(f"setting {name}", "attribute-write")
        if self.has_no_dict() and not is_in_slot:
            problem = "has no attribute" if entry is None else "cannot set attribute"
            tx.raise_error(AttributeError, f"'{self.cls.__name__}' object {problem} '{name}'", is_exact=False)
        self.write_attr(tx, name, value)

    def _write_by_descriptor(self, tx: Tracer, entry: ClassEntry, name: str, value: Variable | None) -> bool:
        """Call the setter or deleter of a descriptor; return False if there is none to call."""
        base, raw = entry
        args: Args = [self] if value is None else [self, value]
        method = "__delete__" if value is None else "__set__"
        if find_python_method(type(raw), method) is None:
            return _write_through(raw, tx, AttrSource(class_source(base), name), args)
        # A read through the class would call __get__ of the descriptor.
        descriptor = tx.wrap(raw, GetItemSource(AttrSource(class_source(base), "__dict__"), name))
        realize(tx, descriptor).call_method(tx, method, args, {})
        return True

    def _assign_dict(self, tx: Tracer, value: Variable) -> None:
        """Implement ``self.__dict__ = value``: the dict holds the attributes from now on."""
        if not issubclass(value.python_type(), dict):
            tx.raise_type_error(f"__dict__ must be set to a dictionary, not a '{value.python_type().__name__}'")
        if isinstance(value, InstanceDictVariable) and value.owner is self:
            return  # the final store of ``x.__dict__ |= ...``
        has_external_writes = self.real_object is not NotImplemented and bool(self.attr_writes)
        if not has_string_keys(value) or self.dict_was_exposed or has_external_writes:
            raise self.unsupported_attribute("setting", "__dict__")
        tx.side_effects.record_mutation(self)
        self.attr_writes = {name: v for name, v in self.attr_writes.items() if self._is_slot_attr(name)}
        self.shared_dict, self.dict_was_assigned = value, True

    def write_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        """Set an instance attribute; a value of None deletes it."""
        if self.shared_dict is not None and not self._is_slot_attr(name):
            holder = self.shared_dict.builtin_contents
            if value is None:
                holder.del_item(tx, ConstantVariable(name))
            else:
                holder.set_item(tx, ConstantVariable(name), value)
            return
        tx.side_effects.record_mutation(self)
        if name in self.attr_writes and self.attr_writes[name] is None:
            del self.attr_writes[name]  # set again after a deletion: the entry moves to the end
        self.attr_writes[name] = value

    def generic_del_attr(self, tx: Tracer, name: str) -> None:
        """Implement ``object.__delattr__``."""
        entry = find_in_class(self.cls, name)
        by_slot = entry is not None and entry.is_slot
        by_descriptor = entry is not None and not by_slot and hasattr(type(entry.raw), "__delete__")
        if not by_descriptor and self.get_instance_attr(tx, name) is None:
            text = f"'{self.cls.__name__}' object has no attribute '{name}'"
            tx.raise_error(AttributeError, text, is_exact=False)
        self.generic_set_attr(tx, name, None)

    def fill_or_defer(self, cg: PyCodegen) -> None:
        """Emit code that fills the new object on the stack, now or deferred.

        Now, because its ``__hash__`` may run soon; deferred if the object contains itself.
        """
        if cg.is_cyclic(self):
            cg.defer_fill(self)
            return
        cg.cache_top(self)
        cg.body.emit("COPY", 1)
        self.fill(cg)

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that pops the object on the stack and sets its written attributes."""
        if self.dict_was_assigned and self.shared_dict is not None:
            cg.body.emit("COPY", 1)
            cg.pop_into_call(set_instance_dict, self.shared_dict)
        real_dict = getattr(self.real_object, "__dict__", {})
        deleted = tuple(n for n, v in self.attr_writes.items() if v is None and n in real_dict)
        if deleted:
            cg.body.emit("COPY", 1)
            cg.pop_into_call(delete_attributes, deleted)
        present = {n: v for n, v in self.attr_writes.items() if v is not None}
        if not present:
            cg.body.emit("POP_TOP")
            return
        values = TupleVariable(list(present.values()))
        cg.pop_into_call(choose_attribute_setter(self.cls, present), tuple(present), values)


@functools.singledispatch
def _write_through(entry: Any, tx: Tracer, source: Source, args: Args) -> bool:
    """Call the C ``__set__`` or ``__delete__`` of a class entry; return False if it has none.

    ``args`` are the instance and the value to set.
    """
    return False


@_write_through.register(property)
def _write_through_property(entry: property, tx: Tracer, source: Source, args: Args) -> bool:
    accessor, accessor_name = ("fdel", "deleter") if len(args) == 1 else ("fset", "setter")
    function = getattr(entry, accessor)
    if function is None:
        raise_missing_accessor(tx, args[0].python_type(), accessor_name)
    tx.wrap(function, AttrSource(source, accessor)).call(tx, args, {})
    return True


@_write_through.register(NAMEDTUPLE_FIELD_TYPE)
def _write_namedtuple_field(entry: Any, tx: Tracer, source: Source, args: Args) -> bool:
    return bool(tx.raise_error(AttributeError, f"can't {'delete' if len(args) == 1 else 'set'} attribute"))


def _is_default_dict_descriptor(entry: Any) -> bool:
    """Return True if the ``__dict__`` entry of a class is Python's default descriptor."""
    return entry is None or (isinstance(entry, types.GetSetDescriptorType) and entry.__name__ == "__dict__")
