"""Classes: attribute lookup through the MRO, construction, ``super``."""

from __future__ import annotations

import builtins
import enum
import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from engine.ir.guards.python_values import HasAttrGuard, IdMatch, LengthMatch
from engine.ir.introspection import python_objects
from engine.ir.introspection.python_objects import is_dtensor_placement_class
from engine.ir.sources.attributes import AttrSource, InstanceDictGetSource, MethodResultSource
from engine.ir.sources.base import MISSING, Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ConstantSource
from engine.trace.exc import SkipFrame, Unsupported
from engine.trace.variables.base import NONE, ConstantVariable, NotPythonConstant, Variable, full_type_name, realize
from engine.trace.variables.builder import is_literal, register_builder_if
from engine.trace.variables.callable_registry import find_rule
from engine.trace.variables.callables.builtin_arity import check_arity
from engine.trace.variables.callables.builtin_functions import BuiltinVariable
from engine.trace.variables.callables.methods import BoundMethodVariable, BuiltinMethodVariable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer

_HEAP_TYPE_FLAG = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: set for classes that Python code made."""
_ABSTRACT_CLASS_FLAG = 1 << 20
"""Py_TPFLAGS_IS_ABSTRACT: set for classes with abstract methods left."""


def find_in_class(cls: builtins.type, name: str) -> tuple[builtins.type, Any] | None:
    """Which class of the MRO defines ``name``, and the raw entry."""
    for base in cls.__mro__:
        if CLASS_ATTR_WRITES and (base, name) in CLASS_ATTR_WRITES:
            written = CLASS_ATTR_WRITES[base, name]
            if written is not None:
                return base, written
        elif name in base.__dict__:
            return base, base.__dict__[name]
    return None


ConstructorRule = Callable[["Tracer", Any, list[Variable], dict[str, Variable]], Variable]
C_CLASS_CONSTRUCTORS: dict[builtins.type, ConstructorRule] = {}
"""How instances of classes from C are made, of their subclasses, and of the same classes from a later import of their module."""


def first_import_of_class(cls: builtins.type) -> Any:
    """The class that a module of the standard library from C gave at its first import, of one from a later import; None for any other."""
    if not cls.__flags__ & _HEAP_TYPE_FLAG or not isinstance(cls.__module__, str):
        return None
    module = sys.modules.get(f"_{cls.__module__}")
    first = None if module is None else vars(module).get(cls.__name__)
    if not isinstance(first, type) or first is cls or not _is_from_c(cls) or vars(first).keys() != vars(cls).keys():
        return None
    return first


def _is_from_c(cls: builtins.type) -> bool:
    return type(cls) is type and not any(isinstance(entry, types.FunctionType) for entry in vars(cls).values())


def _is_lru_cache(cls: builtins.type) -> bool:
    return cls is functools._lru_cache_wrapper or first_import_of_class(cls) is functools._lru_cache_wrapper


def _constructor_rule_of(cls: builtins.type) -> ConstructorRule | None:
    """How instances are made where a class from C that has a rule does it."""
    for base in cls.__mro__[:-1]:
        rule = C_CLASS_CONSTRUCTORS.get(base) or C_CLASS_CONSTRUCTORS.get(first_import_of_class(base))
        if rule is not None:
            return rule
        if "__new__" in vars(base):
            return None
    return None


class ClassAttrWrite:
    """Stands among a class's entries for the value that the traced code wrote there."""

    __slots__ = ("variable",)

    def __init__(self, value: Variable) -> None:
        self.variable = value


CLASS_ATTR_WRITES: dict[tuple[builtins.type, str], ClassAttrWrite | None] = {}
"""What the frame being traced wrote to classes that exist; None for what it deleted. One frame is traced at a time."""


def is_data_descriptor(found: Any) -> bool:
    """Whether it wins over the instance's own dict."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def overrides_instance_dict(found: Any) -> bool:
    """Whether reading asks it before the instance's own dict: one that only sets leaves reading to the dict."""
    return is_data_descriptor(found) and hasattr(type(found), "__get__")


def class_source(cls: builtins.type) -> Source:
    """How generated code reaches a class whose identity is guarded already."""
    return ConstantSource(cls, cls.__qualname__)


def class_attribute(
    tx: Tracer, cls: builtins.type, name: str, instance: Variable | None, start: builtins.type | None = None
) -> Variable | None:
    """``instance.name`` (or ``cls.name``) as far as classes define it; None where they do not.

    ``start``: look only behind this class of the MRO, as ``super`` does.
    """
    mro = cls.__mro__ if start is None else cls.__mro__[cls.__mro__.index(start) + 1 :]
    for base in mro:
        if CLASS_ATTR_WRITES and (base, name) in CLASS_ATTR_WRITES:
            written = CLASS_ATTR_WRITES[base, name]
            if written is not None:
                return bind_attribute(tx, cls, base, name, written, instance)
        elif name in base.__dict__:
            return bind_attribute(tx, cls, base, name, base.__dict__[name], instance)
    return None


def bind_attribute(
    tx: Tracer, cls: builtins.type, base: builtins.type, name: str, found: Any, instance: Variable | None
) -> Variable:
    """What a class's raw entry gives when read through an instance, or through the class (``instance`` None)."""
    origin = AttrSource(class_source(base), name)
    _guard_not_shadowed_in_mro(tx, cls, base, name)
    made = tx.new_classes.get(base)
    given = made.traced_entry(name, found) if isinstance(made, ClassVariable) else None  # each call makes its own class
    if given is not None:
        return given
    if isinstance(found, ClassAttrWrite):
        return _bind_class_attr_write(tx, name, realize(tx, found.variable), instance)
    if isinstance(found, types.FunctionType):
        function = tx.wrap(found, origin)
        return function if instance is None else BoundMethodVariable(instance, function, name=name)
    if isinstance(found, staticmethod):
        return tx.wrap(found.__func__, origin)
    if _is_lru_cache(type(found)) and instance is not None:
        return BoundMethodVariable(instance, tx.wrap(found, origin), name=name)
    if isinstance(found, classmethod):
        behind: Any = found.__func__
        if isinstance(behind, property) and sys.version_info < (3, 13):
            return _get_class_property(tx, cls, behind, GetItemSource(AttrSource(class_source(base), "__dict__"), name))
        inner = tx.wrap(found.__func__, AttrSource(origin, "__func__"))
        return BoundMethodVariable(tx.wrap(cls, class_source(cls)), inner, name=name)
    if isinstance(found, property) and instance is not None and not _overrides_descriptor_get(found):
        if found.fget is None:
            return raise_missing_accessor(tx, found, cls, "getter")  # type: ignore[no-any-return]
        return tx.wrap(found.fget, AttrSource(origin, "fget")).call(tx, [instance], {})
    if isinstance(found, types.MemberDescriptorType | types.GetSetDescriptorType) and instance is not None:
        return _read_slot(tx, name, instance)
    if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType)) and instance is not None:
        return BoundMethodVariable(instance, tx.wrap_static(found))
    if isinstance(found, types.ClassMethodDescriptorType):
        return tx.wrap_static(getattr(cls, name))
    if hasattr(type(found), "__get__") and not isinstance(found, (types.BuiltinFunctionType, type)):
        return _bind_descriptor(tx, cls, found, instance, name, origin)
    return tx.wrap(found, origin)


def _guard_not_shadowed_in_mro(tx: Tracer, cls: builtins.type, base: builtins.type, name: str) -> None:
    """Take for granted that the classes before ``base`` go on without an entry of that name, which would be found first."""
    from engine.trace.frame import is_trusted_module

    for passed in cls.__mro__:
        if passed is base:
            return
        if passed not in tx.new_classes and name not in passed.__dict__ and not is_trusted_module(passed.__module__):
            why = f"{base.__name__}'s {name!r} was used, which one of {passed.__name__} would hide"
            tx.add_guard(IdMatch(InstanceDictGetSource(class_source(passed), name), MISSING, cause=tx.guard_cause(why)))


def guard_no_class_attribute(tx: Tracer, cls: builtins.type, name: str) -> None:
    """Take for granted that neither a class nor its bases come to have an entry of that name."""
    from engine.trace.frame import is_trusted_module

    if (
        cls not in tx.new_classes
        and not is_trusted_module(cls.__module__)
        and not python_objects.has_static_attribute(cls, name)
    ):
        tx.add_guard(
            HasAttrGuard(class_source(cls), name, False, cause=tx.guard_cause(f"it has no attribute {name!r}"))
        )


def raise_missing_accessor(tx: Tracer, found: property, cls: builtins.type, word: str) -> Any:
    """Raise what Python does for a property without a getter, setter or deleter, which differs with what the property knows of its name."""
    of = builtins.type(cls.__name__, (), {"__qualname__": cls.__qualname__})()
    try:
        match word:
            case "getter":
                found.__get__(of)
            case "setter":
                found.__set__(of, None)
            case _:
                found.__delete__(of)
    except AttributeError as error:
        raise tx.make_user_exception(error) from error
    raise Unsupported("unsupported-operation", f"a property without a {word}")


def _get_class_property(tx: Tracer, cls: builtins.type, found: property, entry: Source) -> Variable:
    """``@classmethod @property``: until Python 3.12 a class method's function is bound by its own ``__get__``."""
    getter = tx.wrap(found.fget, AttrSource(AttrSource(entry, "__func__"), "fget"))
    return realize(tx, getter).call(tx, [tx.wrap(cls, class_source(cls))], {})


def _bind_class_attr_write(tx: Tracer, name: str, value: Variable, instance: Variable | None) -> Variable:
    from engine.trace.variables.callables.functions import FunctionVariable

    if isinstance(value, FunctionVariable) and instance is not None:
        return BoundMethodVariable(instance, value, name=name)
    if find_in_class(value.python_type(), "__get__") is not None and not isinstance(
        value, (FunctionVariable, BuiltinVariable)
    ):
        raise Unsupported("unsupported-operation", f"a descriptor that the traced code set on a class as {name!r}")
    return value


def _read_slot(tx: Tracer, name: str, instance: Variable) -> Variable:
    real = instance.as_python_object()
    absent = f"'{full_type_name(instance.python_type())}' object has no attribute '{name}'"
    if real is NotImplemented or instance.source is None:
        if name == "__dict__":
            raise instance.unsupported("reading __dict__")
        if name == "__weakref__":
            return NONE
        return tx.raise_error(AttributeError, absent)  # type: ignore[no-any-return]
    if not hasattr(real, name):
        tx.add_guard(HasAttrGuard(instance.source, name, False, cause=tx.guard_cause(f"it has no attribute {name!r}")))
        tx.raise_error(AttributeError, absent)
    if name == "__dict__":
        raise instance.unsupported("reading __dict__")
    return tx.wrap(getattr(real, name), AttrSource(instance.source, name))


def _bind_descriptor(
    tx: Tracer, cls: builtins.type, found: Any, instance: Variable | None, name: str, origin: Source
) -> Variable:
    if _overrides_descriptor_get(found):
        return _call_user_descriptor(tx, cls, found, instance, name, origin)
    if isinstance(found, functools.cached_property) and instance is not None:
        value = tx.wrap(found.func, AttrSource(origin, "func")).call(tx, [instance], {})
        instance.set_attr(tx, name, value)
        return value
    if (
        type(found) is NAMEDTUPLE_FIELD_TYPE
        and instance is not None
        and isinstance(inner := getattr(instance, "inner", None), Variable)
    ):
        return inner.get_item(tx, ConstantVariable(found.__reduce__()[1][0]))
    if isinstance(found, functools.partialmethod) and instance is not None:
        from engine.trace.variables.callables.functools_module import bind_partialmethod

        base = next(b for b in cls.__mro__ if name in b.__dict__)
        return bind_partialmethod(tx, found, instance, base, name)
    if isinstance(found, (property, functools.cached_property, types.MemberDescriptorType)):
        return tx.wrap(found, origin)
    getter = find_in_class(type(found), "__get__")
    if getter is not None and isinstance(getter[1], types.FunctionType):
        return _call_user_descriptor(tx, cls, found, instance, name, origin)
    if instance is None:
        return tx.wrap(found, origin)
    raise Unsupported("unsupported-operation", f"the descriptor {name!r} of {cls.__name__}")


def _call_user_descriptor(
    tx: Tracer, cls: builtins.type, found: Any, instance: Variable | None, name: str, origin: Source
) -> Variable:
    # Read through the class, the descriptor would answer for itself.
    entry = origin if origin.parent is None else GetItemSource(AttrSource(origin.parent, "__dict__"), name)
    descriptor = tx.wrap(found, entry)
    owner = tx.wrap(cls, class_source(cls))
    return realize(tx, descriptor).call_method(tx, "__get__", [instance or NONE, owner], {})


_PROPERTY_TYPES = (property, functools.cached_property)


def _overrides_descriptor_get(found: Any) -> bool:
    """Whether it is a property of a class that says itself how it is read, as a property of the class does."""
    kind = type(found)
    if not isinstance(found, _PROPERTY_TYPES) or kind in _PROPERTY_TYPES:
        return False
    getter = find_in_class(kind, "__get__")
    return getter is not None and getter[0] not in _PROPERTY_TYPES and isinstance(getter[1], types.FunctionType)


NAMEDTUPLE_FIELD_TYPE = type(vars(inspect.ArgInfo)["args"])
"""What reads an item of a named tuple by its name."""


LEGACY_TENSOR_METACLASS: Any = type(torch.FloatTensor)
"""The class of ``torch.FloatTensor`` and its like."""

_DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class ClassVariable(Variable):
    """A class."""

    def __init__(self, real_object: type, source: Source | None) -> None:
        self.real_object = real_object
        self.source = source

    def python_type(self) -> type:
        return type(self.real_object)

    def describe(self) -> str:
        return f"class {self.real_object.__qualname__}"

    def as_python_object(self) -> Any:
        return self.real_object

    def is_truthy(self, tx: Tracer) -> bool:
        asked = self._call_metaclass_method(tx, "__bool__", []) or self._call_metaclass_method(tx, "__len__", [])
        return True if asked is None else asked.is_truthy(tx)

    def as_python_constant(self, tx: Tracer) -> Any:
        return self.real_object

    def traced_entry(self, name: str, entry: Any) -> Variable | None:
        """The value that the traced code gave a class which it made, where ``entry`` stands for one in the class's twin."""
        return None

    def hash_key(self, tx: Tracer) -> Any:
        return self.real_object

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        # A class names the type of a tensor's elements, as in ``x.to(float)`` and ``x.type(torch.HalfTensor)``.
        named: Any = _DTYPES.get(self.real_object)
        if isinstance(self.real_object, LEGACY_TENSOR_METACLASS):
            named = f"{self.real_object.__module__}.{self.real_object.__name__}"
        return super().as_node_arg(tx) if named is None else (named, named)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        from engine.trace.frame import is_trusted_module
        from engine.trace.variables.objects.metaclasses import metaclass_attribute

        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tx.from_python(getattr(self.real_object, name))
        if name in ("__mro__", "__bases__"):
            from engine.trace.variables.containers.sequences import TupleVariable

            return TupleVariable([tx.wrap_static(c) for c in getattr(self.real_object, name)])
        if (
            name == "__dict__"
            and self.real_object not in tx.new_classes
            and not any(of is self.real_object for of, _ in CLASS_ATTR_WRITES)
        ):
            return tx.wrap(self.real_object.__dict__, AttrSource(class_source(self.real_object), name))
        if name == "__dict__":
            raise self.unsupported(f"reading the attribute {name!r}")
        if name == "__subclasses__" and find_in_class(self.real_object, name) is None:
            return BuiltinMethodVariable(self, name)
        if issubclass(self.real_object, enum.Enum) and name in self.real_object.__members__:
            return ConstantVariable(self.real_object.__members__[name])
        if is_trusted_module(self.real_object.__module__) and hasattr(self.real_object, name):
            found = getattr(self.real_object, name)
            return ConstantVariable(found) if is_literal(found) else tx.wrap_static(found)
        found_value = class_attribute(tx, self.real_object, name, None)
        if found_value is not None:
            return found_value
        by_meta = metaclass_attribute(tx, self, name)
        if by_meta is not None:
            return by_meta
        if hasattr(self.real_object, name):
            found = getattr(self.real_object, name)
            return (
                tx.wrap_static(found)
                if callable(found)
                else tx.wrap(found, AttrSource(class_source(self.real_object), name))
            )
        if issubclass(self.real_object, enum.Enum):  # its words differ from version to version
            try:
                getattr(self.real_object, name)
            except AttributeError as error:
                raise tx.make_user_exception(error) from None
        guard_no_class_attribute(tx, self.real_object, name)
        return tx.raise_error(AttributeError, f"type object '{self.real_object.__name__}' has no attribute '{name}'")  # type: ignore[no-any-return]

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        self._record_attr_write(tx, name, value)

    def del_attr(self, tx: Tracer, name: str) -> None:
        found = find_in_class(self.real_object, name)
        if found is None or found[0] is not self.real_object:
            tx.raise_error(AttributeError, name)
        self._record_attr_write(tx, name, None)

    def _record_attr_write(self, tx: Tracer, name: str, value: Variable | None) -> None:
        """Set or delete an attribute of a class that exists: seen from here on, done after the graph."""
        from engine.trace.frame import is_trusted_module
        from engine.trace.variables.containers.itertools_module import CallExpressionVariable

        held = self.real_object
        if not held.__flags__ & _HEAP_TYPE_FLAG:
            tx.raise_type_error(f"cannot set {name!r} attribute of immutable type '{held.__name__}'")
        plain = type(held).__setattr__ is type.__setattr__ and type(held).__delattr__ is type.__delattr__
        found = find_in_class(type(held), name)
        if (
            not plain
            or is_trusted_module(held.__module__)
            or name.startswith("__")
            or (found and is_data_descriptor(found[1]))
        ):
            raise self.unsupported(f"setting the attribute {name!r}")
        key = (held, name)
        CLASS_ATTR_WRITES[key] = None if value is None else ClassAttrWrite(value)
        done = (
            CallExpressionVariable(delattr, [self, ConstantVariable(name)])
            if value is None
            else CallExpressionVariable(setattr, [self, ConstantVariable(name), value])
        )
        tx.record_side_effect(done, f"{held.__name__}.{name} is {'deleted' if value is None else 'set'}")

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if name == "__subclasses__" and not args and not kwargs:
            return self._subclasses(tx)
        return realize(tx, self.get_attr(tx, name)).call(tx, args, kwargs)

    def _subclasses(self, tx: Tracer) -> Variable:
        """A list of the classes that are there, in the order in which they were made."""
        from engine.trace.variables.containers.sequences import ListVariable

        if tx.new_classes:
            raise self.unsupported("asking for the subclasses that traced code may have added to")
        found: list[type] = type.__subclasses__(self.real_object)
        asked = MethodResultSource(class_source(self.real_object), "__subclasses__")
        tx.add_guard(
            LengthMatch(
                asked, len(found), cause=tx.guard_cause(f"the subclasses of {self.real_object.__name__} were asked for")
            )
        )
        return ListVariable([tx.wrap(c, GetItemSource(asked, n)) for n, c in enumerate(found)])

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        if issubclass(self.real_object, enum.Enum):
            return tx.fold_constant(lambda: self.real_object[key.as_python_constant(tx)])  # type: ignore[index]
        asked = self._call_metaclass_method(tx, "__getitem__", [key])
        if asked is not None:
            return asked
        own = find_in_class(self.real_object, "__class_getitem__")
        is_python = own is not None and isinstance(getattr(own[1], "__func__", None), types.FunctionType)
        if own is not None and is_python and own[0].__module__ != "typing":
            return self.call_method(tx, "__class_getitem__", [key], {})
        if hasattr(self.real_object, "__class_getitem__") or self.real_object in (type, list, dict, tuple, set):
            return _parametrize_generic(tx, self, key)
        return super().get_item(tx, key)

    def get_iterator(self, tx: Tracer) -> Variable:
        if issubclass(self.real_object, enum.Enum):
            from engine.trace.variables.containers.iterators import SequenceIteratorVariable

            return SequenceIteratorVariable([ConstantVariable(m) for m in self.real_object], type(iter(())))
        return self._call_metaclass_method(tx, "__iter__", []) or super().get_iterator(tx)

    def length(self, tx: Tracer) -> Variable:
        if issubclass(self.real_object, enum.Enum):
            return ConstantVariable(len(self.real_object))
        return self._call_metaclass_method(tx, "__len__", []) or super().length(tx)

    def _call_metaclass_method(self, tx: Tracer, name: str, args: list[Variable]) -> Variable | None:
        from engine.trace.variables.objects.metaclasses import call_metaclass_method

        return call_metaclass_method(tx, self, name, args)

    def contains(self, tx: Tracer, item: Variable) -> bool:
        asked = self._call_metaclass_method(tx, "__contains__", [item])
        if asked is not None:
            return asked.is_truthy(tx)
        return bool(
            tx.fold_constant(operator.contains, self.real_object, item.as_python_constant(tx)).as_python_constant(tx)
        )

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        rule = find_rule(self.real_object)
        if rule is not None:
            check_arity(tx, self.real_object, args, kwargs)
            return rule(tx, args, kwargs)
        return construct(tx, self, args, kwargs)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_const(self.real_object)


def construct(
    tx: Tracer, of: ClassVariable, args: list[Variable], kwargs: dict[str, Variable], *, by_type: bool = False
) -> Variable:
    """``Class(*args)`` for classes without a rule of their own; with ``by_type`` as if the metaclass had no ``__call__``."""
    from engine.trace.operators.arithmetic import fold_constant_call
    from engine.trace.variables.exceptions.exception_groups import make_group
    from engine.trace.variables.exceptions.exceptions import ExceptionVariable, resolve_exception_class

    cls = of.real_object
    _check_no_finalizer(cls)
    if issubclass(cls, BaseException):
        new = find_in_class(cls, "__new__")
        raw = None if new is None else getattr(new[1], "__func__", new[1])
        if new is not None and isinstance(raw, types.FunctionType):
            made: Variable = tx.wrap(raw, AttrSource(class_source(new[0]), "__new__")).call(tx, [of, *args], kwargs)
            if not issubclass(made.python_type(), cls):
                return made
        elif issubclass(cls, BaseExceptionGroup):
            made = make_group(tx, cls, args)
        else:
            made = ExceptionVariable(resolve_exception_class(tx, cls, args), args)
        init = find_in_class(cls, "__init__")
        if init is not None and isinstance(init[1], types.FunctionType):
            tx.wrap(init[1], AttrSource(class_source(init[0]), "__init__")).call(tx, [made, *args], kwargs)
        elif isinstance(made, ExceptionVariable):
            made.set_keyword_attributes(tx, kwargs)
        return made
    if issubclass(cls, enum.Enum) or is_dtensor_placement_class(cls):
        return fold_constant_call(tx, cls, args, kwargs, f"{cls.__name__}()")
    called = find_in_class(type(cls), "__call__")
    if called is not None and called[1] is dict:  # as for each TypedDict, of typing or typing_extensions
        return tx.wrap_static(dict).call(tx, args, kwargs)
    if issubclass(cls, tuple) and hasattr(cls, "_make") and _is_plain_namedtuple(cls):
        return construct_namedtuple(tx, cls, args, kwargs)
    if cls.__module__ == "torch.return_types":
        return construct_structseq(tx, cls, args, kwargs)
    if issubclass(cls, torch.nn.Module):
        from engine.trace.variables.nn_modules.module_construction import construct_module

        return construct_module(tx, cls, args, kwargs)
    if not by_type and type(cls).__call__ is not type.__call__ and type(cls).__module__ not in ("abc", "typing"):
        meta = find_in_class(type(cls), "__call__")
        if meta is None or not isinstance(meta[1], types.FunctionType):
            raise Unsupported("unknown-call", f"{cls.__name__} is created")
        return tx.wrap(meta[1], AttrSource(class_source(meta[0]), "__call__")).call(tx, [of, *args], kwargs)
    if issubclass(cls, torch.Tensor):
        from engine.trace.variables.tensors.torch_function_protocol import construct_subclass

        tensor = construct_subclass(tx, cls, args, kwargs)
        if tensor is not None:
            return tensor
    return _construct_object(tx, of, args, kwargs)


def _is_plain_namedtuple(cls: builtins.type) -> bool:
    from engine.trace.variables.containers.sequences import is_plain_namedtuple

    return is_plain_namedtuple(cls)


def _check_no_finalizer(cls: builtins.type) -> None:
    """Leave to Python the function that makes an object whose ``__del__`` runs when its last name goes: compiled code holds it for as long as it likes."""
    if find_in_class(cls, "__del__") is None:
        return
    raise SkipFrame("unknown-call", f"{cls.__qualname__} is created, whose __del__ runs when nothing names it any more")


_NO_INSTANTIATION_FLAG = 1 << 7
"""Py_TPFLAGS_DISALLOW_INSTANTIATION."""


def _is_constructed_in_c(base: builtins.type) -> bool:
    """Whether C code makes instances of a class that looks as if Python had made it."""
    return isinstance(vars(base).get("__new__"), types.BuiltinFunctionType) or bool(
        base.__flags__ & _NO_INSTANTIATION_FLAG
    )


def is_plain_class(cls: builtins.type) -> bool:
    """Whether instances hold nothing but attributes: all of its bases are ``object`` or made by Python code."""
    return all(
        base is object
        or (base.__flags__ & _HEAP_TYPE_FLAG and base.__module__ != "_ctypes" and not _is_constructed_in_c(base))
        for base in cls.__mro__
    ) and (cls.__basicsize__ <= 64 + 8 * 32)


def _construct_object(tx: Tracer, of: ClassVariable, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    from engine.trace.variables.containers.builtin_subclasses import builtin_base_of, call_builtin_new
    from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

    cls = of.real_object
    by_class = _constructor_rule_of(cls)
    if by_class is not None:
        made = by_class(tx, cls, args, kwargs)
        init = find_in_class(made.python_type(), "__init__")
        return made if init is None or init[0] is object else _run_init(tx, cls, made, args, kwargs)
    base = builtin_base_of(cls)
    if base is not None and cls.__new__ is base.__new__ and not cls.__flags__ & _ABSTRACT_CLASS_FLAG:
        built = call_builtin_new(tx, cls, base, args, kwargs)
        return _run_init(tx, cls, built, args, kwargs)
    if is_plain_class(cls) and cls.__flags__ & _ABSTRACT_CLASS_FLAG:
        abstract = cls.__dict__["__abstractmethods__"]
        methods = f"method{'s' * (len(abstract) > 1)} {', '.join(sorted(abstract))}"
        if sys.version_info >= (3, 12):
            names = ", ".join(f"'{n}'" for n in sorted(abstract))
            methods = f"an implementation for abstract method{'s' * (len(abstract) > 1)} {names}"
            tx.raise_type_error(f"Can't instantiate abstract class {cls.__name__} without {methods}")
        tx.raise_type_error(f"Can't instantiate abstract class {cls.__name__} with abstract {methods}")
    if (not is_plain_class(cls) and base is None and not issubclass(cls, functools.partial)) or not cls.__module__:
        raise Unsupported("unknown-call", f"{cls.__module__}.{cls.__qualname__} is created")
    new = find_in_class(cls, "__new__")
    if new is not None and new[0] is not object and new[0].__module__ != "typing":
        raw = new[1].__func__ if isinstance(new[1], staticmethod) else new[1]
        if not isinstance(raw, types.FunctionType):
            raise Unsupported("unknown-call", f"{cls.__qualname__} is created")
        made = tx.wrap(raw, AttrSource(class_source(new[0]), "__new__")).call(tx, [of, *args], kwargs)
        if not (isinstance(made, UserDefinedObjectVariable) and issubclass(made.python_type(), cls)):
            return made
    else:
        made = UserDefinedObjectVariable(cls, None, NotImplemented)
    init = find_in_class(made.python_type(), "__init__")
    if init is not None and init[0] is not object:
        return _run_init(tx, cls, made, args, kwargs)
    if (args or kwargs) and (new is None or new[0] is object):
        tx.raise_type_error(f"{cls.__name__}() takes no arguments")
    return made


def _run_init(
    tx: Tracer, cls: builtins.type, made: Variable, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    """Run ``__init__`` on a new instance."""
    init = find_in_class(made.python_type(), "__init__")
    assert init is not None
    if isinstance(init[1], types.FunctionType):
        tx.wrap(init[1], AttrSource(class_source(init[0]), "__init__")).call(tx, [made, *args], kwargs)
    elif hasattr(made, "call_builtin_method"):
        made.call_builtin_method(tx, "__init__", args, kwargs)
    else:
        raise Unsupported("unknown-call", f"{cls.__qualname__} is created")
    return made


def construct_namedtuple(tx: Tracer, cls: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """A new instance of a ``collections.namedtuple`` class."""
    from engine.trace.variables.containers.sequences import TupleVariable

    own = next(c for c in cls.__mro__ if "_fields" in c.__dict__)
    if any("__new__" in c.__dict__ for c in cls.__mro__[: cls.__mro__.index(own)]):
        raise Unsupported("unknown-call", f"{cls.__qualname__} is created")
    bound: dict[str, Variable] = dict(zip(cls._fields, args, strict=False))
    if len(args) > len(cls._fields) or set(kwargs) - set(cls._fields) or set(kwargs) & set(bound):
        tx.fold_constant(cls.__new__, cls, *[None] * len(args), **dict.fromkeys(kwargs))
    bound.update(kwargs)
    for name, default in cls._field_defaults.items():
        if name not in bound:
            bound[name] = tx.from_python(default) if is_literal(default) else tx.wrap_static(default)
    if len(bound) < len(cls._fields):
        tx.fold_constant(cls.__new__, cls, *[None] * len(args), **dict.fromkeys(kwargs))
    return TupleVariable([bound[f] for f in cls._fields], cls)


def construct_structseq(tx: Tracer, cls: Any, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
    """A new instance of what an operation with several named results returns."""
    from engine.trace.variables.containers.sequences import TupleVariable, sequence_items

    if len(args) != 1 or kwargs or len(items := list(sequence_items(tx, args[0]))) != cls.n_sequence_fields:
        raise Unsupported("unknown-call", f"{cls.__module__}.{cls.__qualname__} is created")
    return TupleVariable(items, cls)


class SuperVariable(Variable):
    """``super(cls, obj)``."""

    def __init__(self, start: builtins.type, of: Variable) -> None:
        self.thisclass = start
        self.receiver = of

    def python_type(self) -> type:
        return super

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        from engine.trace.variables.objects.metaclasses import super_in_metaclass
        from engine.trace.variables.objects.user_defined_objects import UserDefinedObjectVariable

        if isinstance(self.receiver, ClassVariable):
            by_meta = super_in_metaclass(tx, self.thisclass, self.receiver, name)
            if by_meta is not None:
                return by_meta
            cls, instance = self.receiver.real_object, None
            if name == "__init_subclass__" and self._defining_class(cls, name) is object:
                return tx.wrap_static(object.__init_subclass__)
            if isinstance((raw := self._raw_entry(cls, name)), classmethod):
                return BoundMethodVariable(self.receiver, tx.wrap(raw.__func__, ConstantSource(raw.__func__, name)))
        else:
            cls, instance = self.receiver.python_type(), self.receiver
        if isinstance(instance, UserDefinedObjectVariable):
            found = self._raw_entry(cls, name)
            base = self._defining_class(cls, name)
            if base is object or found is None:
                return _object_method(tx, name, instance)
        if instance is not None and issubclass(cls, torch.Tensor):
            from engine.trace.variables.tensors.torch_function_protocol import base_tensor_attribute

            base = self._defining_class(cls, name)
            if base in (torch.Tensor, torch._C.TensorBase):
                return base_tensor_attribute(tx, instance, name)
        value = class_attribute(tx, cls, name, instance, self.thisclass)
        if value is None:
            return tx.raise_error(AttributeError, f"'super' object has no attribute '{name}'")  # type: ignore[no-any-return]
        return value

    def _raw_entry(self, cls: builtins.type, name: str) -> Any:
        for base in cls.__mro__[cls.__mro__.index(self.thisclass) + 1 :]:
            if name in base.__dict__:
                return base.__dict__[name]
        return None

    def _defining_class(self, cls: builtins.type, name: str) -> builtins.type | None:
        for base in cls.__mro__[cls.__mro__.index(self.thisclass) + 1 :]:
            if name in base.__dict__:
                return base
        return None

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        return realize(tx, self.get_attr(tx, name)).call(tx, args, kwargs)


def _object_method(tx: Tracer, name: str, instance: Variable) -> Variable:
    if name in ("__setattr__", "__init__", "__init_subclass__", "__getattribute__", "__delattr__"):
        return BuiltinMethodVariable(instance, f"object.{name}")
    found = getattr(object, name, None)
    if found is None:
        return tx.raise_error(AttributeError, f"'super' object has no attribute '{name}'")  # type: ignore[no-any-return]
    return BoundMethodVariable(instance, tx.wrap_static(found))


def _is_class(real: Any) -> bool:
    return isinstance(real, type)


@register_builder_if(1, _is_class)
def _class(tx: Tracer, real: type, origin: Source) -> Variable:
    tx.guard_identity(real, origin, f"the class {real.__qualname__} was used")
    return ClassVariable(real, origin)


def _is_generic_alias(real: Any) -> bool:
    return isinstance(real, (types.GenericAlias, types.UnionType)) or (
        type(real).__module__ == "typing" and not isinstance(real, typing.Generic)
    )


@register_builder_if(40, _is_generic_alias)
def _generic_alias(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_identity(real, origin, "it was used as a type")
    return GenericAliasVariable(real, origin)


class GenericAliasVariable(BuiltinVariable):
    """``list[int]``, ``int | str`` and the like."""

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        inner = getattr(self.real_object, "__origin__", None)
        if inner is None:
            raise Unsupported("unknown-call", f"{self.real_object!r} is called")
        return tx.wrap_static(inner).call(tx, args, kwargs)

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return _parametrize_generic(tx, self, key)


def _parametrize_generic(tx: Tracer, of: ClassVariable | GenericAliasVariable, key: Variable) -> Variable:
    """``of[key]`` where all is known; what the traced code makes itself counts as ``of``."""
    if of.real_object in tx.new_classes:
        return of
    try:
        real = key.as_python_constant(tx)
    except NotPythonConstant:
        return of
    if any(part in tx.new_classes for part in (real if isinstance(real, tuple) else (real,)) if isinstance(part, type)):
        return of
    try:
        return tx.wrap_static(of.real_object[real])  # type: ignore[index]
    except TypeError as error:
        raise tx.make_user_exception(error) from error
