"""Instances of classes: attributes read from the real object or written while tracing; and objects that are passed on unread."""

from __future__ import annotations

import builtins
import sys
import types
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.origin import MISSING, Attr, Global, Item, Maybe, Namespace, Origin
from engine.ir.relation_guard import SameObject
from engine.ir.value_guard import HasAttribute, IsObject
from engine.trace.signals import Unsupported
from engine.trace.values import backend_flags
from engine.trace.values.base import NO_DICT, NONE, Const, HeldValue, Value, force
from engine.trace.values.classes import (
    NAMED_FIELD,
    bind_attribute,
    class_origin,
    find_in_class,
    guard_absent,
    is_data_descriptor,
    is_plain_class,
    raise_accessor_missing,
    reads_first,
)
from engine.trace.values.methods import BoundMethod
from engine.trace.values.refusals import raise_missing
from engine.trace.values.wrap import is_literal, wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


_FROM_C = (types.MethodDescriptorType, types.WrapperDescriptorType)


_SAY_SO = frozenset(("__iter__", "__contains__", "__hash__", "__reversed__"))
"""Special methods of which None says that the class has none; of others it is called."""


class _Missing(Exception):
    """An attribute that plain lookup does not find."""


class _Long:
    """Stands in for an object whose ``__len__`` gives what Python refuses, or turns into an int."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> Any:
        return self.length


class ObjectValue(Value):
    """An instance. ``written`` holds attributes set while tracing, None for deleted ones; others are read from ``held``."""

    is_mutable = True

    def __init__(self, cls: builtins.type, origin: Origin | None, held: Any) -> None:
        self.cls = cls
        self.origin = origin
        self.held = held
        self.written: dict[str, Value | None] = {}
        self.namespace: Value | None = None
        """The dict that holds its attributes, where that is one which others know as well: ``x.__dict__ = d``."""
        self.is_assigned = False
        """Whether traced code gave it that dict."""
        self.is_shown = False
        """Whether traced code has had its ``__dict__``."""

    def type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"{self.cls.__name__} object"

    def real(self) -> Any:
        return self.held

    def children(self) -> list[Value]:
        return [v for v in (*self.written.values(), self.namespace) if v is not None and v is not self]

    # Attributes.

    def get_attr(self, tx: Tracer, name: str) -> Value:
        if name == "__class__":
            return tx.wrap(self.cls, class_origin(self.cls))
        if name == "__dict__":
            return self._dict(tx)
        custom = find_in_class(self.cls, "__getattribute__")
        if custom is not None and isinstance(custom[1], types.FunctionType):
            return self._custom_attr(tx, custom, name)
        try:
            return self.plain_attr(tx, name)
        except _Missing:
            return self.missing_attr(tx, name)

    def _custom_attr(self, tx: Tracer, custom: tuple[builtins.type, Any], name: str) -> Value:
        from engine.trace.signals import UserException

        function = tx.wrap(custom[1], Attr(class_origin(custom[0]), "__getattribute__"))
        try:
            return function.call(tx, [self, Const(name)], {})
        except UserException as error:
            if find_in_class(self.cls, "__getattr__") is None or not issubclass(error.value.type(), AttributeError):
                raise
            return self.missing_attr(tx, name)

    def plain_attr(self, tx: Tracer, name: str) -> Value:
        """``object.__getattribute__``.

        Raises:
            _Missing: neither the instance nor its class has it.
        """
        found = find_in_class(self.cls, name)
        if found is not None and reads_first(found[1]) and not self._is_slot(found[1], name):
            return bind_attribute(tx, self.cls, found[0], name, found[1], self)
        own = self.own_attr(tx, name)
        if own is not None:
            return own
        if found is not None:
            self._not_hidden(tx, name, found[1])
            return bind_attribute(tx, self.cls, found[0], name, found[1], self)
        raise _Missing

    def _is_slot(self, found: Any, name: str) -> bool:
        return isinstance(found, types.MemberDescriptorType) and (name in self.written or self.held is NotImplemented)

    def own_attr(self, tx: Tracer, name: str) -> Value | None:
        """An attribute of the instance itself; None when it has none of that name."""
        if name in self.written:
            found: Value | None = self.written[name]
            return found
        if self.namespace is not None:
            entry = dict_of(self.namespace).entries.get(name)
            return None if entry is None else entry[1]
        if self.held is NotImplemented or self.origin is None:
            return None
        own = getattr(self.held, "__dict__", None)
        if own is None or name not in own:
            return None
        described = find_in_class(self.cls, name)
        if not isinstance(name, str) or (described is not None and is_data_descriptor(described[1])):
            return tx.wrap(own[name], Item(Attr(self.origin, "__dict__"), name))
        return tx.wrap(own[name], Attr(self.origin, name))

    def _not_hidden(self, tx: Tracer, name: str, found: Any) -> None:
        if (
            self.origin is None
            or name in self.written
            or not hasattr(self.held, "__dict__")
            or self.namespace is not None
        ):
            return
        if reads_first(found):
            return
        why = f"the class's {name!r} was used, which an attribute of the instance would hide"
        tx.guard(IsObject(Maybe(self.origin, name), MISSING, cause=tx.cause(why)))

    def missing_attr(self, tx: Tracer, name: str) -> Value:
        """What reading a name does that neither the instance nor its class has."""
        getter = find_in_class(self.cls, "__getattr__")
        if getter is not None:
            if isinstance(getter[1], _FROM_C):
                self._guard_absent(tx, name)
                return force(tx, BoundMethod(self, tx.fixed(getter[1])).call(tx, [Const(name)], {}))
            if not isinstance(getter[1], types.FunctionType):
                raise self.refuse(f"reading the attribute {name!r}")
            self._guard_absent(tx, name)
            function = tx.wrap(getter[1], Attr(class_origin(getter[0]), "__getattr__"))
            return function.call(tx, [self, Const(name)], {})
        self._guard_absent(tx, name)
        return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")  # type: ignore[no-any-return]

    def _guard_absent(self, tx: Tracer, name: str) -> None:
        if self.origin is None:
            guard_absent(tx, self.cls, name)
        elif name not in self.written and self.namespace is None:
            tx.guard(HasAttribute(self.origin, name, False, cause=tx.cause(f"it has no attribute {name!r}")))

    def _dict(self, tx: Tracer) -> Value:
        if self.has_no_dict():
            return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '__dict__'")  # type: ignore[no-any-return]
        if self.namespace is not None:
            return self.namespace
        self.is_shown = True
        if self.origin is not None:
            from engine.ir.value_guard import DictKeys

            own = tuple(getattr(self.held, "__dict__", {}))
            tx.guard(DictKeys(Attr(self.origin, "__dict__"), own, cause=tx.cause("its attributes were listed")))
        from engine.trace.values.instance_dicts import InstanceDict

        return InstanceDict(tx, self)

    def has_no_dict(self) -> bool:
        """Whether all classes declare ``__slots__``, none of them ``__dict__``."""
        return self.cls.__dictoffset__ == 0

    def attributes_now(self, tx: Tracer) -> dict[Any, tuple[Value, Value]]:
        """What its ``__dict__`` holds now, as entries of a dict."""
        if self.namespace is not None:
            return dict(dict_of(self.namespace).entries)
        own = {} if self.held is NotImplemented else dict(getattr(self.held, "__dict__", {}))
        entries: dict[Any, tuple[Value, Value]] = {}
        for name in own:
            value = self.own_attr(tx, name)
            if value is not None:
                entries[name] = (Const(name), value)
        for name, written in self.written.items():
            if written is None:
                entries.pop(name, None)
            elif not self._in_slot(name):
                entries[name] = (Const(name), written)
        return entries

    def _in_slot(self, name: str) -> bool:
        found = find_in_class(self.cls, name)
        return found is not None and isinstance(found[1], types.MemberDescriptorType)

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        setter = find_in_class(self.cls, "__setattr__")
        if setter is not None and setter[0] is not object and self.sets_plainly(setter[0]) is False:
            if isinstance(setter[1], _FROM_C) and not issubclass(object, setter[1].__objclass__):
                BoundMethod(self, tx.fixed(setter[1])).call(tx, [Const(name), value], {})
                return
            if not isinstance(setter[1], types.FunctionType):
                raise self.refuse(f"setting the attribute {name!r}")
            tx.wrap(setter[1], Attr(class_origin(setter[0]), "__setattr__")).call(tx, [self, Const(name), value], {})
            return
        self.set_plainly(tx, name, value)

    def sets_plainly(self, base: builtins.type) -> bool:
        """Whether the ``__setattr__`` that ``base`` defines does what ``object``'s does, as far as tracing goes."""
        return False

    def deletes_plainly(self, base: builtins.type) -> bool:
        """Whether the ``__delattr__`` that ``base`` defines does what ``object``'s does."""
        return False

    def set_plainly(self, tx: Tracer, name: str, value: Value | None) -> None:
        """``object.__setattr__`` (or with None ``object.__delattr__``)."""
        found = find_in_class(self.cls, name)
        if found is not None and _accesses_in_python(found[1], "__delete__" if value is None else "__set__"):
            method, rest = ("__delete__", []) if value is None else ("__set__", [value])
            # Read through the class, the descriptor would answer for itself.
            descriptor = tx.wrap(found[1], Item(Attr(class_origin(found[0]), "__dict__"), name))
            force(tx, descriptor).call_method(tx, method, [self, *rest], {})
            return
        if name == "__class__" and value is not None and not issubclass(force(tx, value).type(), builtins.type):
            tx.raise_type_error(f"__class__ must be set to a class, not '{force(tx, value).type().__name__}' object")
        if found is not None and isinstance(found[1], property):
            which, word = ("fdel", "deleter") if value is None else ("fset", "setter")
            function = getattr(found[1], which)
            if function is None:
                raise_accessor_missing(tx, found[1], self.cls, word)
            rest = [] if value is None else [value]
            tx.wrap(function, Attr(Attr(class_origin(found[0]), name), which)).call(tx, [self, *rest], {})
            return
        if name == "__dict__" and value is not None and _is_own_dict(found):
            self._set_dict(tx, force(tx, value))
            return
        if found is not None and isinstance(found[1], NAMED_FIELD):
            tx.raise_error(AttributeError, "can't set attribute" if value is not None else "can't delete attribute")
        if found is not None and is_data_descriptor(found[1]) and not isinstance(found[1], types.MemberDescriptorType):
            raise self.refuse(f"setting the attribute {name!r}, a descriptor,")
        if name in ("__class__", "__dict__"):
            raise self.refuse(f"setting {name}")
        if self.has_no_dict() and (found is None or not isinstance(found[1], types.MemberDescriptorType)):
            words = "has no attribute" if found is None else "attribute"
            end = NO_DICT if found is None else " is read-only"
            tx.raise_error(AttributeError, f"'{self.cls.__name__}' object {words} '{name}'{end}")
        self.write(tx, name, value)

    def _set_dict(self, tx: Tracer, value: Value) -> None:
        """``self.__dict__ = value``: from now on the dict holds the attributes."""
        if not issubclass(value.type(), dict):
            tx.raise_type_error(f"__dict__ must be set to a dictionary, not a '{value.type().__name__}'")
        from engine.trace.values.instance_dicts import InstanceDict, holds_names

        if isinstance(value, InstanceDict) and value.of_object is self:
            return  # ``x.__dict__ |= ...`` ends so
        outside = self.held is not NotImplemented and bool(self.written)
        if not holds_names(value) or self.is_shown or outside:
            raise self.refuse("setting __dict__")
        tx.mutating(self)
        self.written = {name: v for name, v in self.written.items() if self._in_slot(name)}
        self.namespace, self.is_assigned = value, True

    def write(self, tx: Tracer, name: str, value: Value | None) -> None:
        """Set (or with None delete) what the instance itself holds under a name."""
        if self.namespace is not None and not self._in_slot(name):
            holder = dict_of(self.namespace)
            if value is None:
                holder.pop(tx, Const(name))
            else:
                holder.set_item(tx, Const(name), value)
            return
        tx.mutating(self)
        if name in self.written and self.written[name] is None:
            del self.written[name]  # set again after it was deleted: it comes last
        self.written[name] = value

    def del_attr(self, tx: Tracer, name: str) -> None:
        custom = find_in_class(self.cls, "__delattr__")
        if custom is not None and custom[0] is not object and not self.deletes_plainly(custom[0]):
            if isinstance(custom[1], _FROM_C) and not issubclass(object, custom[1].__objclass__):
                BoundMethod(self, tx.fixed(custom[1])).call(tx, [Const(name)], {})
                return
            if not isinstance(custom[1], types.FunctionType):
                raise self.refuse(f"deleting the attribute {name!r}")
            tx.wrap(custom[1], Attr(class_origin(custom[0]), "__delattr__")).call(tx, [self, Const(name)], {})
            return
        self.delete_plainly(tx, name)

    def delete_plainly(self, tx: Tracer, name: str) -> None:
        """``object.__delattr__``."""
        found = find_in_class(self.cls, name)
        if found is not None and (isinstance(found[1], property) or _accesses_in_python(found[1], "__delete__")):
            self.set_plainly(tx, name, None)
            return
        if self.own_attr(tx, name) is None:
            by_slot = found is not None and isinstance(found[1], types.MemberDescriptorType)
            end = NO_DICT if self.has_no_dict() else ""
            tx.raise_error(
                AttributeError, name if by_slot else f"'{self.cls.__name__}' object has no attribute '{name}'{end}"
            )
        self.set_plainly(tx, name, None)

    # Protocols through the class's own methods.

    def method(self, tx: Tracer, name: str) -> Value | None:
        """A special method that a Python class defines, bound; None where there is none or ``object``'s."""
        found = find_in_class(self.cls, name)
        if found is None or found[0] is object or found[1] is None:
            return None
        return bind_attribute(tx, self.cls, found[0], name, found[1], self)

    def call_special(self, tx: Tracer, name: str, args: list[Value]) -> Value:
        """Call a special method; the user's TypeError where it is missing."""
        method = self.method(tx, name)
        if method is None and self._is_none(tx, name) and name not in _SAY_SO:
            return tx.raise_type_error("'NoneType' object is not callable")  # type: ignore[no-any-return]
        if method is None:
            return raise_missing(tx, self.cls, name)  # type: ignore[no-any-return]
        return force(tx, method.call(tx, args, {}))

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        direct = tx.direct is self
        method = self.method(tx, "__call__")
        if method is None:
            return tx.raise_type_error(f"'{self.cls.__name__}' object is not callable")  # type: ignore[no-any-return]
        tx.direct = method if direct else None
        return method.call(tx, args, kwargs)

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        match name:
            case "object.__setattr__":
                self.set_plainly(tx, str(force(tx, args[0]).python(tx)), args[1])
                return NONE
            case "object.__delattr__":
                self.delete_plainly(tx, str(force(tx, args[0]).python(tx)))
                return NONE
            case "object.__init__":
                if args or kwargs:
                    self._check_no_arguments(tx)
                return NONE
            case "object.__init_subclass__":
                return NONE
            case "object.__getattribute__":
                return self._plainly(tx, str(force(tx, args[0]).python(tx)))
        if name.startswith("object."):
            return self._by_object(tx, name.removeprefix("object."), args)
        return super().call_method(tx, name, args, kwargs)

    def _plainly(self, tx: Tracer, name: str) -> Value:
        from engine.trace.signals import UserException
        from engine.trace.values.exceptions import tell_object

        try:
            return self._object_getattribute(tx, name)
        except UserException as error:
            tell_object(error.value, self, name)
            raise

    def _check_no_arguments(self, tx: Tracer) -> None:
        """``object.__init__`` takes nothing, unless the class has a ``__new__`` alone."""
        for name, of in (("__init__", "object"), ("__new__", self.cls.__name__)):
            found = find_in_class(self.cls, name)
            is_own = found is not None and found[0] is not object
            if is_own == (name == "__init__"):
                text = f"{of}.__init__() takes exactly one argument (the instance to initialize)"
                tx.raise_type_error(text)

    def _by_object(self, tx: Tracer, name: str, args: list[Value]) -> Value:
        """A method as ``object`` has it, past what the class defines."""
        match name:
            case "__eq__" | "__ne__":
                from engine.trace.operations import is_same

                same = is_same(tx, self, args[0])
                return (
                    Const(name == "__eq__")
                    if same
                    else Const(NotImplemented)
                    if name == "__eq__"
                    else self._not_equal(tx, args[0])
                )
            case "__lt__" | "__le__" | "__gt__" | "__ge__":
                return Const(NotImplemented)
            case "__str__":
                return force(tx, tx.fixed(repr).call(tx, [self], {}))
            case "__format__" if force(tx, args[0]).python(tx) == "":
                return force(tx, tx.fixed(str).call(tx, [self], {}))
            case "__delattr__":
                self.delete_plainly(tx, str(force(tx, args[0]).python(tx)))
                return NONE
        raise self.refuse(f"object's method {name!r}")

    def _not_equal(self, tx: Tracer, other: Value) -> Value:
        """``object.__ne__``: the opposite of what ``__eq__`` says."""
        if self.method(tx, "__eq__") is None:
            return Const(NotImplemented)
        equal = self.call_special(tx, "__eq__", [other])
        if isinstance(equal, Const) and equal.value is NotImplemented:
            return equal
        return Const(not equal.truth(tx))

    def _object_getattribute(self, tx: Tracer, name: str) -> Value:
        if name in ("__class__", "__dict__"):
            return tx.wrap(self.cls, class_origin(self.cls)) if name == "__class__" else self._dict(tx)
        try:
            return self.plain_attr(tx, name)
        except _Missing:
            self._guard_absent(tx, name)
            return tx.raise_error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")  # type: ignore[no-any-return]

    def truth(self, tx: Tracer) -> bool:
        if self._is_none(tx, "__bool__"):
            tx.raise_type_error("'NoneType' object is not callable")
        if self.method(tx, "__bool__") is not None:
            found = self.call_special(tx, "__bool__", [])
            if not issubclass(found.type(), bool):
                tx.raise_type_error(f"__bool__ should return bool, returned {found.type().__name__}")
            return found.truth(tx)
        if self.method(tx, "__len__") is not None:
            return self.length(tx).truth(tx)
        return True

    def _is_none(self, tx: Tracer, name: str) -> bool:
        """Whether the class says by None that it has no such method."""
        found = find_in_class(self.cls, name)
        return found is not None and found[1] is None

    def length(self, tx: Tracer) -> Value:
        from engine.trace.operations import compare
        from engine.trace.values.symbolic import SymValue

        found = self.call_special(tx, "__len__", [])
        if isinstance(found, SymValue) and not force(tx, compare(tx, ">=", found, Const(0))).truth(tx):
            return tx.fold(len, _Long(-1))
        if isinstance(found, Const) and (type(found.value) is not int or found.value < 0):
            return tx.fold(len, _Long(found.value))
        return found

    def iterate(self, tx: Tracer) -> Value:
        if self._is_none(tx, "__iter__"):
            raise_missing(tx, self.cls, "__iter__")
        if self.method(tx, "__iter__") is None and self.method(tx, "__getitem__") is not None:
            from engine.trace.values.iteration import by_index

            return by_index(self)
        found = self.call_special(tx, "__iter__", [])
        if find_in_class(found.type(), "__next__") is None:
            tx.raise_type_error(f"iter() returned non-iterator of type '{found.type().__name__}'")
        return found

    def step(self, tx: Tracer) -> Value | None:
        from engine.trace.signals import UserException

        try:
            return self.call_special(tx, "__next__", [])
        except UserException as error:
            if issubclass(error.value.type(), StopIteration):
                return None
            raise

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return self.call_special(tx, "__getitem__", [key])

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        self.call_special(tx, "__setitem__", [key, value])

    def del_item(self, tx: Tracer, key: Value) -> None:
        self.call_special(tx, "__delitem__", [key])

    def contains(self, tx: Tracer, item: Value) -> bool:
        if self.method(tx, "__contains__") is not None:
            return self.call_special(tx, "__contains__", [item]).truth(tx)
        from engine.trace.operations import same_or_equal
        from engine.trace.values.sequences import sequence_items

        if self._is_none(tx, "__contains__"):
            tx.raise_type_error(f"'{self.cls.__name__}' object is not a container")
        if self.method(tx, "__iter__") is None and self.method(tx, "__getitem__") is None:
            raise_missing(tx, self.cls, "__contains__")
        return any(same_or_equal(tx, force(tx, i), item) for i in sequence_items(tx, self))

    def key(self, tx: Tracer) -> Any:
        found = find_in_class(self.cls, "__hash__")
        if found is not None and found[1] is not object.__dict__["__hash__"]:
            from engine.trace.values.identity import HashedKey, HashValue

            method = self.method(tx, "__hash__")
            if method is None:
                return tx.raise_type_error(f"unhashable type: '{self.cls.__name__}'")
            before = tx.changes
            found_hash = force(tx, method.call(tx, [], {}))
            number = found_hash.number if isinstance(found_hash, HashValue) else found_hash.python(tx)
            if not isinstance(number, int):
                return tx.raise_type_error("__hash__ method should return an integer")
            return HashedKey(tx, self, number, has_effects=tx.changes != before)
        return tx.keyed_by_identity(self)

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.support import new_object

        if not is_plain_class(self.cls):
            raise Unsupported("side-effect", f"rebuilding a {self.cls.__name__} after the graph")
        cg.helper(new_object, 0)
        cg.const(self.cls)
        cg.out.call(1)
        cg.remember(self)
        self.fill_now(cg)

    def fill_now(self, cg: Codegen) -> None:
        """Fill the new object on top of the stack: at once, since its ``__hash__`` may run soon; later where it holds itself."""
        if cg.is_reaching(self):
            cg.fill_later(self)
            return
        cg.out.emit("COPY", 1)
        self.fill(cg)

    def fill(self, cg: Codegen) -> None:
        """Set the attributes written on the object on top of the stack, and pop it."""
        from engine.trace.support import delete_attributes, set_dict, setter_of

        if self.is_assigned and self.namespace is not None:
            cg.out.emit("COPY", 1)
            cg.helper(set_dict, 1)
            cg.load(self.namespace)
            cg.out.call(2)
            cg.out.emit("POP_TOP")
        deleted = tuple(n for n, v in self.written.items() if v is None and self.has_real(n))
        if deleted:
            cg.out.emit("COPY", 1)
            cg.helper(delete_attributes, 1)
            cg.const(deleted)
            cg.out.call(2)
            cg.out.emit("POP_TOP")
        present = {n: v for n, v in self.written.items() if v is not None}
        if not present:
            cg.out.emit("POP_TOP")
            return
        cg.helper(setter_of(self.cls, present), 1)
        cg.const(tuple(present))
        cg.load_all(list(present.values()))
        cg.out.emit("BUILD_TUPLE", len(present))
        cg.out.call(3)
        cg.out.emit("POP_TOP")

    def has_real(self, name: str) -> bool:
        """Whether the real object has the attribute itself."""
        return name in getattr(self.held, "__dict__", {})


def _is_own_dict(found: tuple[builtins.type, Any] | None) -> bool:
    """Whether what a class has under ``__dict__`` is what Python puts there."""
    return found is None or (isinstance(found[1], types.GetSetDescriptorType) and found[1].__name__ == "__dict__")


def _accesses_in_python(found: Any, name: str) -> bool:
    """Whether a class's entry is a descriptor whose own class says in Python how it is set or deleted."""
    accessor = find_in_class(type(found), name)
    return accessor is not None and isinstance(accessor[1], types.FunctionType)


def dict_of(value: Value) -> Any:
    """The plain contents of a dict, or of an instance of a subclass of dict."""
    return getattr(value, "inner", value)


class PythonModule(Value):
    """An imported module."""

    def __init__(self, held: types.ModuleType, origin: Origin) -> None:
        from engine.trace.state import is_trusted

        self.held = held
        self.origin = origin
        self.is_trusted = is_trusted(held.__name__)

    def type(self) -> type:
        return types.ModuleType

    def describe(self) -> str:
        return f"module {self.held.__name__}"

    def real(self) -> Any:
        return self.held

    def key(self, tx: Tracer) -> Any:
        return self.held

    def truth(self, tx: Tracer) -> bool:
        return True

    def get_attr(self, tx: Tracer, name: str) -> Value:
        written = tx.globals_written.get((self._namespace(), name))
        if written is not None:
            return written
        try:
            found = getattr(self.held, name)
        except AttributeError as error:
            raise tx.user_exception(error) from error
        if self.is_trusted and is_literal(found) and (type(found) is bool or type(self.held) is not types.ModuleType):
            return backend_flags.read(tx, self.held, name, found)
        if self.is_trusted and not isinstance(found, (list, dict, set, torch.Tensor)):
            return Const(found) if is_literal(found) else tx.fixed(found)
        if name not in self.held.__dict__ and (self._namespace(), name) not in tx.globals_written:
            return tx.wrap(
                found, Attr(self.origin, name) if self.origin is not None else Attr(class_origin(type(found)), name)
            )
        return tx.wrap(found, Global(self._namespace(), name))

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        """The attribute of a module is a global of its code."""
        if backend_flags.is_flag(self.held, name):
            backend_flags.write(tx, self.held, name, value)
            return
        if type(self.held) is not types.ModuleType or self.is_trusted:
            super().set_attr(tx, name, value)
        tx.write_global(self._namespace(), name, value)

    def _namespace(self) -> Namespace:
        return STREAMS if self.held is sys else Namespace(self.held.__dict__, self.held.__name__)

    def reconstruct(self, cg: Codegen) -> None:
        cg.const(self.held)


STREAMS = Namespace(sys.__dict__, "sys")
"""The module whose attributes are the standard streams."""


class OpaqueValue(HeldValue):
    """An object that is only passed on: nothing is known of it but its type."""

    is_mutable = True

    def describe(self) -> str:
        return f"{type(self.held).__module__}.{type(self.held).__qualname__} object"

    def key(self, tx: Tracer) -> Any:
        assert self.origin is not None
        tx.guard_object(self.held, self.origin, "it is a key of a dict or an element of a set")
        return self.held


@wraps(types.ModuleType)
def _module(tx: Tracer, real: types.ModuleType, origin: Origin) -> Value:
    tx.guard_object(real, origin, f"the module {real.__name__} was used")
    return PythonModule(real, origin)


def _is_python_module(real: Any) -> bool:
    return isinstance(real, types.ModuleType)


wraps_if(50, _is_python_module)(_module)


def _is_object(real: Any) -> bool:
    return is_plain_class(type(real))


@wraps_if(90, _is_object)
def _object(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "its attributes or methods were used")
    made = ObjectValue(type(real), origin, real)
    note_namespace(tx, made)
    return made


def note_namespace(tx: Tracer, value: ObjectValue) -> None:
    """Remember whose attributes a dict holds that may be met by itself; one that was met already holds them from here on."""
    own = getattr(value.held, "__dict__", None)
    if type(own) is not dict or value.origin is None:
        return
    other = tx.namespaces.setdefault(id(own), value)
    known = tx.known.get(id(own))
    if other is not value:  # two objects with one dict
        value.namespace = other.get_attr(tx, "__dict__")
    elif known is not None:
        value.namespace = known[0]
    if value.namespace is not None and value.namespace.origin is not None:
        place = Attr(value.origin, "__dict__")
        tx.guard(
            SameObject(place, value.namespace.origin, True, cause=tx.cause("it holds the attributes of an object"))
        )


def _is_any(real: Any) -> bool:
    return True


@wraps_if(100, _is_any)
def _opaque(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_type(real, origin, "it was used")
    return OpaqueValue(real, origin)
