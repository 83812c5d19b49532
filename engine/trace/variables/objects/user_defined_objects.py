"""Variables for user-defined objects, Python modules and opaque objects.

Attributes come from the real object or from writes during tracing.
"""

from __future__ import annotations

import builtins
import types
from typing import TYPE_CHECKING, Any

from engine.ir.guards.aliasing import SameObject
from engine.ir.guards.python_values import DictKeysMatch, HasAttrGuard, IdMatch
from engine.ir.sources.attributes import AttrSource, InstanceDictGetSource
from engine.ir.sources.base import MISSING, Source
from engine.ir.sources.containers import GetItemSource
from engine.trace.codegen_runtime.objects import (
    choose_attribute_setter,
    delete_attributes,
    new_object,
    set_instance_dict,
)
from engine.trace.exc import Unsupported, UserException
from engine.trace.operators.arithmetic import compare_op, identical_or_equal, is_same_object
from engine.trace.variables.base import NO_DICT_SUFFIX, NONE, ConstantVariable, RealObjectVariable, Variable, realize
from engine.trace.variables.builder import register_builder_if
from engine.trace.variables.callables.methods import BoundMethodVariable
from engine.trace.variables.containers.itertools_module import make_getitem_iterator
from engine.trace.variables.containers.sequences import sequence_items
from engine.trace.variables.exceptions.exceptions import set_attribute_error_context
from engine.trace.variables.exceptions.type_errors import raise_missing_method
from engine.trace.variables.objects.attribute_binding import NAMEDTUPLE_FIELD_TYPE, bind_attribute
from engine.trace.variables.objects.class_lookup import (
    class_source,
    find_in_class,
    guard_no_class_attribute,
    is_data_descriptor,
    is_plain_class,
    overrides_instance_dict,
    raise_missing_accessor,
)
from engine.trace.variables.objects.id_and_hash import HashVariable, UserHashKey
from engine.trace.variables.objects.instance_dicts import InstanceDictVariable, dict_entries, has_string_keys
from engine.trace.variables.tensors.sym_node import SymNodeVariable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer


_C_METHOD_TYPES = (types.MethodDescriptorType, types.WrapperDescriptorType)


_DISABLED_BY_NONE = frozenset(("__iter__", "__contains__", "__hash__", "__reversed__"))
"""Special methods that None disables; another special method set to None is called."""


class _AttributeNotFound(Exception):
    """Raised if generic attribute lookup finds no attribute."""


class _FakeLength:
    """Returns a given length, so that Python checks it and converts it to an int."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> Any:
        return self.length


class UserDefinedObjectVariable(Variable):
    """A user-defined object.

    ``attr_writes`` holds attributes set during tracing, None for deleted ones. Others are read from ``real_object``.
    """

    is_mutable = True
    is_user_object = True
    may_have_torch_function = True

    def __init__(self, cls: builtins.type, source: Source | None, real_object: Any) -> None:
        self.cls = cls
        self.source = source
        self.real_object = real_object
        self.attr_writes: dict[str, Variable | None] = {}
        self.shared_dict: Variable | None = None
        """The dict of its attributes if other references to it exist, as for ``x.__dict__ = d``."""
        self.dict_was_assigned = False
        """True if traced code assigned ``shared_dict`` to ``__dict__``."""
        self.dict_was_exposed = False
        """True if traced code read ``__dict__``."""

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"{self.cls.__name__} object"

    def as_python_object(self) -> Any:
        return self.real_object

    def child_variables(self) -> list[Variable]:
        return [v for v in (*self.attr_writes.values(), self.shared_dict) if v is not None and v is not self]

    # Attributes.

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "__class__":
            return tx.wrap(self.cls, class_source(self.cls))
        if name == "__dict__":
            return self._get_dict(tx)
        custom = find_in_class(self.cls, "__getattribute__")
        if custom is not None and isinstance(custom[1], types.FunctionType):
            return self._call_getattribute(tx, custom, name)
        try:
            return self.generic_get_attr(tx, name)
        except _AttributeNotFound:
            return self.get_missing_attr(tx, name)

    def _call_getattribute(self, tx: Tracer, custom: tuple[builtins.type, Any], name: str) -> Variable:
        function = tx.wrap(custom[1], AttrSource(class_source(custom[0]), "__getattribute__"))
        try:
            return function.call(tx, [self, ConstantVariable(name)], {})
        except UserException as error:
            if find_in_class(self.cls, "__getattr__") is None or not issubclass(
                error.exception.python_type(), AttributeError
            ):
                raise
            return self.get_missing_attr(tx, name)

    def generic_get_attr(self, tx: Tracer, name: str) -> Variable:
        """Implement ``object.__getattribute__``.

        Raises:
            _AttributeNotFound: neither the instance nor its class has the attribute.
        """
        found = find_in_class(self.cls, name)
        if found is not None and overrides_instance_dict(found[1]) and not self._is_written_slot(found[1], name):
            return bind_attribute(tx, self.cls, found[0], name, found[1], self)
        own = self.get_instance_attr(tx, name)
        if own is not None:
            return own
        if found is not None:
            self._guard_not_shadowed(tx, name, found[1])
            return bind_attribute(tx, self.cls, found[0], name, found[1], self)
        raise _AttributeNotFound

    def _is_written_slot(self, found: Any, name: str) -> bool:
        return isinstance(found, types.MemberDescriptorType) and (
            name in self.attr_writes or self.real_object is NotImplemented
        )

    def get_instance_attr(self, tx: Tracer, name: str) -> Variable | None:
        """Return an attribute of the instance itself; None if it has none of that name."""
        if name in self.attr_writes:
            found: Variable | None = self.attr_writes[name]
            return found
        if self.shared_dict is not None:
            entry = dict_entries(self.shared_dict).get(name)
            return None if entry is None else entry[1]
        if self.real_object is NotImplemented or self.source is None:
            return None
        own = getattr(self.real_object, "__dict__", None)
        if own is None or name not in own:
            return None
        described = find_in_class(self.cls, name)
        if not isinstance(name, str) or (described is not None and is_data_descriptor(described[1])):
            return tx.wrap(own[name], GetItemSource(AttrSource(self.source, "__dict__"), name))
        return tx.wrap(own[name], AttrSource(self.source, name))

    def _guard_not_shadowed(self, tx: Tracer, name: str, found: Any) -> None:
        if (
            self.source is None
            or name in self.attr_writes
            or not hasattr(self.real_object, "__dict__")
            or self.shared_dict is not None
        ):
            return
        if overrides_instance_dict(found):
            return
        why = f"the class's {name!r} was used, which an attribute of the instance would hide"
        tx.add_guard(IdMatch(InstanceDictGetSource(self.source, name), MISSING, cause=tx.guard_cause(why)))

    def get_missing_attr(self, tx: Tracer, name: str) -> Variable:
        """Handle a read of a name that neither the instance nor its class defines.

        Calls ``__getattr__`` if there is one, otherwise raises AttributeError.
        """
        getter = find_in_class(self.cls, "__getattr__")
        if getter is not None:
            if isinstance(getter[1], _C_METHOD_TYPES):
                self._guard_no_attribute(tx, name)
                return realize(
                    tx, BoundMethodVariable(self, tx.wrap_static(getter[1])).call(tx, [ConstantVariable(name)], {})
                )
            if not isinstance(getter[1], types.FunctionType):
                raise self.unsupported(f"reading the attribute {name!r}")
            self._guard_no_attribute(tx, name)
            function = tx.wrap(getter[1], AttrSource(class_source(getter[0]), "__getattr__"))
            return function.call(tx, [self, ConstantVariable(name)], {})
        self._guard_no_attribute(tx, name)
        return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")  # type: ignore[no-any-return]

    def _guard_no_attribute(self, tx: Tracer, name: str) -> None:
        if self.source is None:
            guard_no_class_attribute(tx, self.cls, name)
        elif name not in self.attr_writes and self.shared_dict is None:
            tx.add_guard(HasAttrGuard(self.source, name, False, cause=tx.guard_cause(f"it has no attribute {name!r}")))

    def _get_dict(self, tx: Tracer) -> Variable:
        if self.has_no_dict():
            return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '__dict__'")  # type: ignore[no-any-return]
        if self.shared_dict is not None:
            return self.shared_dict
        self.dict_was_exposed = True
        if self.source is not None:
            own = tuple(getattr(self.real_object, "__dict__", {}))
            tx.add_guard(
                DictKeysMatch(
                    AttrSource(self.source, "__dict__"), own, cause=tx.guard_cause("its attributes were listed")
                )
            )
        return InstanceDictVariable(tx, self)

    def has_no_dict(self) -> bool:
        """Return True if instances have no ``__dict__``: all classes declare ``__slots__``."""
        return self.cls.__dictoffset__ == 0

    def current_attributes(self, tx: Tracer) -> dict[Any, tuple[Variable, Variable]]:
        """Return the current ``__dict__``, as dict entries."""
        if self.shared_dict is not None:
            return dict(dict_entries(self.shared_dict))
        own = {} if self.real_object is NotImplemented else dict(getattr(self.real_object, "__dict__", {}))
        entries: dict[Any, tuple[Variable, Variable]] = {}
        for name in own:
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
        found = find_in_class(self.cls, name)
        return found is not None and isinstance(found[1], types.MemberDescriptorType)

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        setter = find_in_class(self.cls, "__setattr__")
        if setter is not None and setter[0] is not object and self.has_generic_setattr(setter[0]) is False:
            if isinstance(setter[1], _C_METHOD_TYPES) and not issubclass(object, setter[1].__objclass__):
                BoundMethodVariable(self, tx.wrap_static(setter[1])).call(tx, [ConstantVariable(name), value], {})
                return
            if not isinstance(setter[1], types.FunctionType):
                raise self.unsupported(f"setting the attribute {name!r}")
            tx.wrap(setter[1], AttrSource(class_source(setter[0]), "__setattr__")).call(
                tx, [self, ConstantVariable(name), value], {}
            )
            return
        self.generic_set_attr(tx, name, value)

    def has_generic_setattr(self, base: builtins.type) -> bool:
        """Return True if attribute writes by ``base`` are traced like those by ``object``."""
        return False

    def generic_set_attr(self, tx: Tracer, name: str, value: Variable | None) -> None:
        """Implement ``object.__setattr__``; a value of None means ``object.__delattr__``."""
        found = find_in_class(self.cls, name)
        if found is not None and _has_python_accessor(found[1], "__delete__" if value is None else "__set__"):
            method, rest = ("__delete__", []) if value is None else ("__set__", [value])
            # A read through the class would call __get__ of the descriptor.
            descriptor = tx.wrap(found[1], GetItemSource(AttrSource(class_source(found[0]), "__dict__"), name))
            realize(tx, descriptor).call_method(tx, method, [self, *rest], {})
            return
        if (
            name == "__class__"
            and value is not None
            and not issubclass(realize(tx, value).python_type(), builtins.type)
        ):
            tx.raise_type_error(
                f"__class__ must be set to a class, not '{realize(tx, value).python_type().__name__}' object"
            )
        if found is not None and isinstance(found[1], property):
            which, word = ("fdel", "deleter") if value is None else ("fset", "setter")
            function = getattr(found[1], which)
            if function is None:
                raise_missing_accessor(tx, found[1], self.cls, word)
            rest = [] if value is None else [value]
            tx.wrap(function, AttrSource(AttrSource(class_source(found[0]), name), which)).call(tx, [self, *rest], {})
            return
        if name == "__dict__" and value is not None and _is_default_dict_descriptor(found):
            self._assign_dict(tx, realize(tx, value))
            return
        if found is not None and isinstance(found[1], NAMEDTUPLE_FIELD_TYPE):
            tx.raise_error(AttributeError, "can't set attribute" if value is not None else "can't delete attribute")
        if found is not None and is_data_descriptor(found[1]) and not isinstance(found[1], types.MemberDescriptorType):
            raise self.unsupported(f"setting the attribute {name!r}, a descriptor,")
        if name in ("__class__", "__dict__"):
            raise self.unsupported(f"setting {name}")
        if self.has_no_dict() and (found is None or not isinstance(found[1], types.MemberDescriptorType)):
            words = "has no attribute" if found is None else "attribute"
            end = NO_DICT_SUFFIX if found is None else " is read-only"
            tx.raise_error(AttributeError, f"'{self.cls.__name__}' object {words} '{name}'{end}")
        self.write_attr(tx, name, value)

    def _assign_dict(self, tx: Tracer, value: Variable) -> None:
        """Implement ``self.__dict__ = value``: the dict holds the attributes from now on."""
        if not issubclass(value.python_type(), dict):
            tx.raise_type_error(f"__dict__ must be set to a dictionary, not a '{value.python_type().__name__}'")
        if isinstance(value, InstanceDictVariable) and value.owner is self:
            return  # the final store of ``x.__dict__ |= ...``
        outside = self.real_object is not NotImplemented and bool(self.attr_writes)
        if not has_string_keys(value) or self.dict_was_exposed or outside:
            raise self.unsupported("setting __dict__")
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

    def del_attr(self, tx: Tracer, name: str) -> None:
        custom = find_in_class(self.cls, "__delattr__")
        if custom is not None and custom[0] is not object and not self.has_generic_setattr(custom[0]):
            if isinstance(custom[1], _C_METHOD_TYPES) and not issubclass(object, custom[1].__objclass__):
                BoundMethodVariable(self, tx.wrap_static(custom[1])).call(tx, [ConstantVariable(name)], {})
                return
            if not isinstance(custom[1], types.FunctionType):
                raise self.unsupported(f"deleting the attribute {name!r}")
            tx.wrap(custom[1], AttrSource(class_source(custom[0]), "__delattr__")).call(
                tx, [self, ConstantVariable(name)], {}
            )
            return
        self.generic_del_attr(tx, name)

    def generic_del_attr(self, tx: Tracer, name: str) -> None:
        """Implement ``object.__delattr__``."""
        found = find_in_class(self.cls, name)
        if found is not None and (isinstance(found[1], property) or _has_python_accessor(found[1], "__delete__")):
            self.generic_set_attr(tx, name, None)
            return
        if self.get_instance_attr(tx, name) is None:
            by_slot = found is not None and isinstance(found[1], types.MemberDescriptorType)
            end = NO_DICT_SUFFIX if self.has_no_dict() else ""
            tx.raise_error(
                AttributeError, name if by_slot else f"'{self.cls.__name__}' object has no attribute '{name}'{end}"
            )
        self.generic_set_attr(tx, name, None)

    # Protocols through special methods of the class.

    def lookup_special_method(self, tx: Tracer, name: str) -> Variable | None:
        """Return a bound special method that a user class defines; None without one."""
        found = find_in_class(self.cls, name)
        if found is None or found[0] is object or found[1] is None:
            return None
        return bind_attribute(tx, self.cls, found[0], name, found[1], self)

    def call_special_method(self, tx: Tracer, name: str, args: list[Variable]) -> Variable:
        """Call a special method; raise Python's TypeError if it is missing."""
        method = self.lookup_special_method(tx, name)
        if method is None and self._is_set_to_none(tx, name) and name not in _DISABLED_BY_NONE:
            return tx.raise_type_error("'NoneType' object is not callable")  # type: ignore[no-any-return]
        if method is None:
            return raise_missing_method(tx, self.cls, name)  # type: ignore[no-any-return]
        return realize(tx, method.call(tx, args, {}))

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        direct = tx.call_stack.direct_callee is self
        method = self.lookup_special_method(tx, "__call__")
        if method is None:
            return tx.raise_type_error(f"'{self.cls.__name__}' object is not callable")  # type: ignore[no-any-return]
        tx.call_stack.direct_callee = method if direct else None
        return method.call(tx, args, kwargs)

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        match name:
            case "object.__setattr__":
                self.generic_set_attr(tx, str(realize(tx, args[0]).as_python_constant(tx)), args[1])
                return NONE
            case "object.__delattr__":
                self.generic_del_attr(tx, str(realize(tx, args[0]).as_python_constant(tx)))
                return NONE
            case "object.__init__":
                if args or kwargs:
                    self._check_no_arguments(tx)
                return NONE
            case "object.__init_subclass__":
                return NONE
            case "object.__getattribute__":
                return self._getattribute_with_error_context(tx, str(realize(tx, args[0]).as_python_constant(tx)))
        if name.startswith("object."):
            return self._call_object_method(tx, name.removeprefix("object."), args)
        return super().call_method(tx, name, args, kwargs)

    def call_c_method(
        self, tx: Tracer, owner: builtins.type, name: str, args: list[Variable], kwargs: dict[str, Variable]
    ) -> Variable | None:
        return self.call_method(tx, f"object.{name}", args, kwargs) if owner is object else None

    def _getattribute_with_error_context(self, tx: Tracer, name: str) -> Variable:
        try:
            return self._object_getattribute(tx, name)
        except UserException as error:
            set_attribute_error_context(error.exception, self, name)
            raise

    def _check_no_arguments(self, tx: Tracer) -> None:
        """Raise the TypeError of ``object.__init__`` for extra arguments.

        They are only allowed if the class overrides ``__new__`` but not ``__init__``.
        """
        for name, of in (("__init__", "object"), ("__new__", self.cls.__name__)):
            found = find_in_class(self.cls, name)
            is_own = found is not None and found[0] is not object
            if is_own == (name == "__init__"):
                text = f"{of}.__init__() takes exactly one argument (the instance to initialize)"
                tx.raise_type_error(text)

    def _call_object_method(self, tx: Tracer, name: str, args: list[Variable]) -> Variable:
        """Call the method of ``object``, not an override of the class."""
        match name:
            case "__eq__" | "__ne__":
                same = is_same_object(tx, self, args[0])
                return (
                    ConstantVariable(name == "__eq__")
                    if same
                    else ConstantVariable(NotImplemented)
                    if name == "__eq__"
                    else self._not_equal(tx, args[0])
                )
            case "__lt__" | "__le__" | "__gt__" | "__ge__":
                return ConstantVariable(NotImplemented)
            case "__str__":
                return realize(tx, tx.wrap_static(repr).call(tx, [self], {}))
            case "__format__" if realize(tx, args[0]).as_python_constant(tx) == "":
                return realize(tx, tx.wrap_static(str).call(tx, [self], {}))
            case "__delattr__":
                self.generic_del_attr(tx, str(realize(tx, args[0]).as_python_constant(tx)))
                return NONE
        raise self.unsupported(f"object's method {name!r}")

    def _not_equal(self, tx: Tracer, other: Variable) -> Variable:
        """Implement ``object.__ne__``: the inverse of ``__eq__``."""
        if self.lookup_special_method(tx, "__eq__") is None:
            return ConstantVariable(NotImplemented)
        equal = self.call_special_method(tx, "__eq__", [other])
        if isinstance(equal, ConstantVariable) and equal.value is NotImplemented:
            return equal
        return ConstantVariable(not equal.is_truthy(tx))

    def _object_getattribute(self, tx: Tracer, name: str) -> Variable:
        if name in ("__class__", "__dict__"):
            return tx.wrap(self.cls, class_source(self.cls)) if name == "__class__" else self._get_dict(tx)
        try:
            return self.generic_get_attr(tx, name)
        except _AttributeNotFound:
            self._guard_no_attribute(tx, name)
            return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")  # type: ignore[no-any-return]

    def is_truthy(self, tx: Tracer) -> bool:
        if self._is_set_to_none(tx, "__bool__"):
            tx.raise_type_error("'NoneType' object is not callable")
        if self.lookup_special_method(tx, "__bool__") is not None:
            found = self.call_special_method(tx, "__bool__", [])
            if not issubclass(found.python_type(), bool):
                tx.raise_type_error(f"__bool__ should return bool, returned {found.python_type().__name__}")
            return found.is_truthy(tx)
        if self.lookup_special_method(tx, "__len__") is not None:
            return self.length(tx).is_truthy(tx)
        return True

    def _is_set_to_none(self, tx: Tracer, name: str) -> bool:
        """Return True if the class sets this special method to None."""
        found = find_in_class(self.cls, name)
        return found is not None and found[1] is None

    def length(self, tx: Tracer) -> Variable:
        found = self.call_special_method(tx, "__len__", [])
        if isinstance(found, SymNodeVariable) and not realize(
            tx, compare_op(tx, ">=", found, ConstantVariable(0))
        ).is_truthy(tx):
            return tx.fold_constant(len, _FakeLength(-1))
        if isinstance(found, ConstantVariable) and (type(found.value) is not int or found.value < 0):
            return tx.fold_constant(len, _FakeLength(found.value))
        return found

    def get_iterator(self, tx: Tracer) -> Variable:
        if self._is_set_to_none(tx, "__iter__"):
            raise_missing_method(tx, self.cls, "__iter__")
        if (
            self.lookup_special_method(tx, "__iter__") is None
            and self.lookup_special_method(tx, "__getitem__") is not None
        ):
            return make_getitem_iterator(self)
        found = self.call_special_method(tx, "__iter__", [])
        if find_in_class(found.python_type(), "__next__") is None:
            tx.raise_type_error(f"iter() returned non-iterator of type '{found.python_type().__name__}'")
        return found

    def next_item(self, tx: Tracer) -> Variable | None:
        try:
            return self.call_special_method(tx, "__next__", [])
        except UserException as error:
            if issubclass(error.exception.python_type(), StopIteration):
                return None
            raise

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return self.call_special_method(tx, "__getitem__", [key])

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        self.call_special_method(tx, "__setitem__", [key, value])

    def del_item(self, tx: Tracer, key: Variable) -> None:
        self.call_special_method(tx, "__delitem__", [key])

    def contains(self, tx: Tracer, item: Variable) -> bool:
        if self.lookup_special_method(tx, "__contains__") is not None:
            return self.call_special_method(tx, "__contains__", [item]).is_truthy(tx)

        if self._is_set_to_none(tx, "__contains__"):
            tx.raise_type_error(f"'{self.cls.__name__}' object is not a container")
        if self.lookup_special_method(tx, "__iter__") is None and self.lookup_special_method(tx, "__getitem__") is None:
            raise_missing_method(tx, self.cls, "__contains__")
        return any(identical_or_equal(tx, realize(tx, i), item) for i in sequence_items(tx, self))

    def hash_key(self, tx: Tracer) -> Any:
        found = find_in_class(self.cls, "__hash__")
        if found is not None and found[1] is not object.__dict__["__hash__"]:
            method = self.lookup_special_method(tx, "__hash__")
            if method is None:
                return tx.raise_type_error(f"unhashable type: '{self.cls.__name__}'")
            before = tx.side_effects.mutation_count
            found_hash = realize(tx, method.call(tx, [], {}))
            number = (
                found_hash.hash_value if isinstance(found_hash, HashVariable) else found_hash.as_python_constant(tx)
            )
            if not isinstance(number, int):
                return tx.raise_type_error("__hash__ method should return an integer")
            return UserHashKey(tx, self, number, has_effects=tx.side_effects.mutation_count != before)
        return tx.objects.as_identity_key(self)

    def reconstruct(self, cg: PyCodegen) -> None:
        if not is_plain_class(self.cls):
            raise Unsupported("side-effect", f"rebuilding a {self.cls.__name__} after the graph")
        cg.load_helper(new_object, 0)
        cg.load_const(self.cls)
        cg.body.call(1)
        cg.cache_top(self)
        self.fill_or_defer(cg)

    def fill_or_defer(self, cg: PyCodegen) -> None:
        """Emit code that fills the new object on the stack, now or deferred.

        Now, because its ``__hash__`` may run soon; deferred if the object contains itself.
        """
        if cg.is_cyclic(self):
            cg.defer_fill(self)
            return
        cg.body.emit("COPY", 1)
        self.fill(cg)

    def fill(self, cg: PyCodegen) -> None:
        """Emit code that pops the object on the stack and sets its written attributes."""
        if self.dict_was_assigned and self.shared_dict is not None:
            cg.body.emit("COPY", 1)
            cg.load_helper(set_instance_dict, 1)
            cg.load(self.shared_dict)
            cg.body.call(2)
            cg.body.emit("POP_TOP")
        deleted = tuple(n for n, v in self.attr_writes.items() if v is None and self.has_real_attr(n))
        if deleted:
            cg.body.emit("COPY", 1)
            cg.load_helper(delete_attributes, 1)
            cg.load_const(deleted)
            cg.body.call(2)
            cg.body.emit("POP_TOP")
        present = {n: v for n, v in self.attr_writes.items() if v is not None}
        if not present:
            cg.body.emit("POP_TOP")
            return
        cg.load_helper(choose_attribute_setter(self.cls, present), 1)
        cg.load_const(tuple(present))
        cg.load_all(list(present.values()))
        cg.body.emit("BUILD_TUPLE", len(present))
        cg.body.call(3)
        cg.body.emit("POP_TOP")

    def has_real_attr(self, name: str) -> bool:
        """Return True if ``__dict__`` of the real object has the attribute."""
        return name in getattr(self.real_object, "__dict__", {})


def _is_default_dict_descriptor(found: tuple[builtins.type, Any] | None) -> bool:
    """Return True if the ``__dict__`` entry of a class is Python's default descriptor."""
    return found is None or (isinstance(found[1], types.GetSetDescriptorType) and found[1].__name__ == "__dict__")


def _has_python_accessor(found: Any, name: str) -> bool:
    """Return True for a descriptor whose class defines the accessor ``name`` in Python."""
    accessor = find_in_class(type(found), name)
    return accessor is not None and isinstance(accessor[1], types.FunctionType)


class OpaqueObjectVariable(RealObjectVariable):
    """An object of which only the type is known; traced code just passes it on."""

    is_mutable = True

    def describe(self) -> str:
        return f"{type(self.real_object).__module__}.{type(self.real_object).__qualname__} object"

    def hash_key(self, tx: Tracer) -> Any:
        assert self.source is not None
        tx.guard_identity(self.real_object, self.source, "it is a key of a dict or an element of a set")
        return self.real_object


def _is_object(real: Any) -> bool:
    return is_plain_class(type(real))


@register_builder_if(90, _is_object)
def _object(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "its attributes or methods were used")
    made = UserDefinedObjectVariable(type(real), origin, real)
    register_instance_dict(tx, made)
    return made


def register_instance_dict(tx: Tracer, value: UserDefinedObjectVariable) -> None:
    """Register the ``__dict__`` of an object, so that all references to it share one state.

    A dict that already has a variable holds the attributes from now on.
    """
    own = getattr(value.real_object, "__dict__", None)
    if type(own) is not dict or value.source is None:
        return
    other = tx.objects.variables_by_dict_id.setdefault(id(own), value)
    known = tx.objects.variables_by_id.get(id(own))
    if other is not value:  # two objects share one dict
        value.shared_dict = other.get_attr(tx, "__dict__")
    elif known is not None:
        value.shared_dict = known[0]
    if value.shared_dict is not None and value.shared_dict.source is not None:
        place = AttrSource(value.source, "__dict__")
        tx.add_guard(
            SameObject(
                place, value.shared_dict.source, True, cause=tx.guard_cause("it holds the attributes of an object")
            )
        )


def _is_any(real: Any) -> bool:
    return True


@register_builder_if(100, _is_any)
def _opaque(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it was used")
    return OpaqueObjectVariable(real, origin)
