"""Class variable: attribute lookup by the MRO, construction, ``super``, generic aliases."""

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
"""Py_TPFLAGS_HEAPTYPE: set for classes that Python code creates."""
_ABSTRACT_CLASS_FLAG = 1 << 20
"""Py_TPFLAGS_IS_ABSTRACT: set for classes with unimplemented abstract methods."""


def find_in_class(cls: builtins.type, name: str) -> tuple[builtins.type, Any] | None:
    """Return the MRO class that defines ``name`` and its raw entry; None if undefined.

    Class attributes that traced code wrote or deleted are included.
    """
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
"""Constructor rules by C class.

They also apply to subclasses, and to the same class from a second import of its module.
"""


def first_import_of_class(cls: builtins.type) -> Any:
    """Return the C class of the first import for a standard-library class of a second import.

    Return None for any other class.
    """
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
    """Return the constructor rule of the C class that constructs instances, or None."""
    for base in cls.__mro__[:-1]:
        rule = C_CLASS_CONSTRUCTORS.get(base) or C_CLASS_CONSTRUCTORS.get(first_import_of_class(base))
        if rule is not None:
            return rule
        if "__new__" in vars(base):
            return None
    return None


class ClassAttrWrite:
    """Entry of a class attribute that traced code wrote; holds the written variable."""

    __slots__ = ("variable",)

    def __init__(self, value: Variable) -> None:
        self.variable = value


CLASS_ATTR_WRITES: dict[tuple[builtins.type, str], ClassAttrWrite | None] = {}
"""Class attributes that the traced frame wrote; None for deleted ones.

Global state: only one frame is traced at a time.
"""


def is_data_descriptor(found: Any) -> bool:
    """Return True for a data descriptor, which takes precedence over the instance dict."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def overrides_instance_dict(found: Any) -> bool:
    """Return True if a read calls the descriptor before it reads the instance dict.

    A data descriptor without ``__get__`` does not affect reads.
    """
    return is_data_descriptor(found) and hasattr(type(found), "__get__")


def class_source(cls: builtins.type) -> Source:
    """Return the source of a class whose identity is already guarded."""
    return ConstantSource(cls, cls.__qualname__)


def class_attribute(
    tx: Tracer, cls: builtins.type, name: str, instance: Variable | None, start: builtins.type | None = None
) -> Variable | None:
    """Return ``instance.name`` or ``cls.name`` as the classes define it; None if undefined.

    ``start``: search only the part of the MRO after this class, as ``super`` does.
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
    """Bind a raw class entry that is read through an instance, or through the class.

    ``instance`` is None for a read through the class.
    """
    origin = AttrSource(class_source(base), name)
    _guard_not_shadowed_in_mro(tx, cls, base, name)
    made = tx.new_classes.get(base)
    given = (
        made.traced_entry(name, found) if isinstance(made, ClassVariable) else None
    )  # each call creates its own class
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
    """Guard that no class before ``base`` in the MRO gets an entry named ``name``."""
    from engine.trace.frame import is_trusted_module

    for passed in cls.__mro__:
        if passed is base:
            return
        if passed not in tx.new_classes and name not in passed.__dict__ and not is_trusted_module(passed.__module__):
            why = f"{base.__name__}'s {name!r} was used, which one of {passed.__name__} would hide"
            tx.add_guard(IdMatch(InstanceDictGetSource(class_source(passed), name), MISSING, cause=tx.guard_cause(why)))


def guard_no_class_attribute(tx: Tracer, cls: builtins.type, name: str) -> None:
    """Guard that neither a class nor its bases get an attribute named ``name``."""
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
    """Raise Python's AttributeError for a property without this accessor.

    The message depends on whether the property knows its name.
    """
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
    """Implement ``@classmethod @property``, which Python before 3.13 supports."""
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
    # A read through the class would call __get__ of the descriptor.
    entry = origin if origin.parent is None else GetItemSource(AttrSource(origin.parent, "__dict__"), name)
    descriptor = tx.wrap(found, entry)
    owner = tx.wrap(cls, class_source(cls))
    return realize(tx, descriptor).call_method(tx, "__get__", [instance or NONE, owner], {})


_PROPERTY_TYPES = (property, functools.cached_property)


def _overrides_descriptor_get(found: Any) -> bool:
    """Return True for an instance of a property subclass that overrides ``__get__`` in Python."""
    kind = type(found)
    if not isinstance(found, _PROPERTY_TYPES) or kind in _PROPERTY_TYPES:
        return False
    getter = find_in_class(kind, "__get__")
    return getter is not None and getter[0] not in _PROPERTY_TYPES and isinstance(getter[1], types.FunctionType)


NAMEDTUPLE_FIELD_TYPE = type(vars(inspect.ArgInfo)["args"])
"""Type of the descriptors that read the fields of a namedtuple."""


LEGACY_TENSOR_METACLASS: Any = type(torch.FloatTensor)
"""Metaclass of the legacy tensor types, such as ``torch.FloatTensor``."""

_DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class ClassVariable(Variable):
    """A Python class."""

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
        """Return the variable behind an entry of a class created while tracing; None otherwise.

        ``entry`` is the entry in the real stand-in class.
        """
        return None

    def hash_key(self, tx: Tracer) -> Any:
        return self.real_object

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        # A class can name a dtype, as in ``x.to(float)`` and ``x.type(torch.HalfTensor)``.
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
        if issubclass(self.real_object, enum.Enum):  # the message differs between Python versions
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
        """Record the write or deletion of an attribute of an existing class.

        Later traced reads see it; generated code applies it after the graph.
        """
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
        """Return the current subclasses in creation order; guard on their number."""
        from engine.trace.variables.containers.sequences import ListVariable

        if tx.new_classes:
            raise self.unsupported("__subclasses__() of a class that traced code may have subclassed")
        found: list[type] = type.__subclasses__(self.real_object)
        asked = MethodResultSource(class_source(self.real_object), "__subclasses__")
        tx.add_guard(
            LengthMatch(
                asked, len(found), cause=tx.guard_cause(f"the subclasses of {self.real_object.__name__} were read")
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
    """Construct an instance of a class that has no rule.

    ``by_type``: ignore ``__call__`` of the metaclass.
    """
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
    if called is not None and called[1] is dict:  # every TypedDict class, of typing or typing_extensions
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
    """Skip the frame if it creates an object with ``__del__``.

    ``__del__`` runs when the last reference goes away, but compiled code may hold the object for longer.
    """
    if find_in_class(cls, "__del__") is None:
        return
    raise SkipFrame("unknown-call", f"{cls.__qualname__} is created, and its class has a __del__")


_NO_INSTANTIATION_FLAG = 1 << 7
"""Py_TPFLAGS_DISALLOW_INSTANTIATION."""


def _is_constructed_in_c(base: builtins.type) -> bool:
    """Return True if C code constructs instances of a class that is a heap type."""
    return isinstance(vars(base).get("__new__"), types.BuiltinFunctionType) or bool(
        base.__flags__ & _NO_INSTANTIATION_FLAG
    )


def is_plain_class(cls: builtins.type) -> bool:
    """Return True if instances hold only attributes.

    Then each base is ``object`` or a class that Python code created.
    """
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
    """Call ``__init__`` on a new instance and return the instance."""
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
    """Construct an instance of a ``collections.namedtuple`` class."""
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
    """Construct a ``torch.return_types`` instance, an operator result with named fields."""
    from engine.trace.variables.containers.sequences import TupleVariable, sequence_items

    if len(args) != 1 or kwargs or len(items := list(sequence_items(tx, args[0]))) != cls.n_sequence_fields:
        raise Unsupported("unknown-call", f"{cls.__module__}.{cls.__qualname__} is created")
    return TupleVariable(items, cls)


class SuperVariable(Variable):
    """A ``super(cls, obj)`` object."""

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
    """A generic alias or a union, such as ``list[int]`` or ``int | str``."""

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        inner = getattr(self.real_object, "__origin__", None)
        if inner is None:
            raise Unsupported("unknown-call", f"{self.real_object!r} is called")
        return tx.wrap_static(inner).call(tx, args, kwargs)

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return _parametrize_generic(tx, self, key)


def _parametrize_generic(tx: Tracer, of: ClassVariable | GenericAliasVariable, key: Variable) -> Variable:
    """Evaluate ``of[key]`` if ``key`` is constant; otherwise return ``of``.

    ``of`` is also returned if a class created while tracing is involved.
    """
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
