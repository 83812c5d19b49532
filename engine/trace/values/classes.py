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

from engine.ir import exact
from engine.ir.exact import is_placement_class
from engine.ir.origin import MISSING, Asked, Attr, Fixed, Item, Maybe, Origin
from engine.ir.value_guard import HasAttribute, IsObject, LengthIs
from engine.trace.signals import Skip, Unsupported
from engine.trace.values.arity import check_arity
from engine.trace.values.base import NONE, Const, NotConstant, Value, force, full_type_name
from engine.trace.values.methods import BoundMethod, BuiltinValue, MethodOf
from engine.trace.values.rules import special_of
from engine.trace.values.wrap import is_literal, wraps_if

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

_HEAP = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: set for classes that Python code made."""
_ABSTRACT = 1 << 20
"""Py_TPFLAGS_IS_ABSTRACT: set for classes with abstract methods left."""


def find_in_class(cls: builtins.type, name: str) -> tuple[builtins.type, Any] | None:
    """Which class of the MRO defines ``name``, and the raw entry."""
    for base in cls.__mro__:
        if WRITTEN and (base, name) in WRITTEN:
            written = WRITTEN[base, name]
            if written is not None:
                return base, written
        elif name in base.__dict__:
            return base, base.__dict__[name]
    return None


Made = Callable[["Tracer", Any, list[Value], dict[str, Value]], Value]
MADE_BY: dict[builtins.type, Made] = {}
"""How instances of classes from C are made, of their subclasses, and of the same classes from a later import of their module."""


def imported_first(cls: builtins.type) -> Any:
    """The class that a module of the standard library from C gave at its first import, of one from a later import; None for any other."""
    if not cls.__flags__ & _HEAP or not isinstance(cls.__module__, str):
        return None
    module = sys.modules.get(f"_{cls.__module__}")
    first = None if module is None else vars(module).get(cls.__name__)
    if not isinstance(first, type) or first is cls or not _is_from_c(cls) or vars(first).keys() != vars(cls).keys():
        return None
    return first


def _is_from_c(cls: builtins.type) -> bool:
    return type(cls) is type and not any(isinstance(entry, types.FunctionType) for entry in vars(cls).values())


def _is_cache(cls: builtins.type) -> bool:
    return cls is functools._lru_cache_wrapper or imported_first(cls) is functools._lru_cache_wrapper


def _made_by(cls: builtins.type) -> Made | None:
    """How instances are made where a class from C that has a rule does it."""
    for base in cls.__mro__[:-1]:
        rule = MADE_BY.get(base) or MADE_BY.get(imported_first(base))
        if rule is not None:
            return rule
        if "__new__" in vars(base):
            return None
    return None


class Written:
    """Stands among a class's entries for the value that the traced code wrote there."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


WRITTEN: dict[tuple[builtins.type, str], Written | None] = {}
"""What the frame being traced wrote to classes that exist; None for what it deleted. One frame is traced at a time."""


def is_data_descriptor(found: Any) -> bool:
    """Whether it wins over the instance's own dict."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def reads_first(found: Any) -> bool:
    """Whether reading asks it before the instance's own dict: one that only sets leaves reading to the dict."""
    return is_data_descriptor(found) and hasattr(type(found), "__get__")


def class_origin(cls: builtins.type) -> Origin:
    """How generated code reaches a class whose identity is guarded already."""
    return Fixed(cls, cls.__qualname__)


def class_attribute(
    tx: Tracer, cls: builtins.type, name: str, instance: Value | None, start: builtins.type | None = None
) -> Value | None:
    """``instance.name`` (or ``cls.name``) as far as classes define it; None where they do not.

    ``start``: look only behind this class of the MRO, as ``super`` does.
    """
    mro = cls.__mro__ if start is None else cls.__mro__[cls.__mro__.index(start) + 1 :]
    for base in mro:
        if WRITTEN and (base, name) in WRITTEN:
            written = WRITTEN[base, name]
            if written is not None:
                return bind_attribute(tx, cls, base, name, written, instance)
        elif name in base.__dict__:
            return bind_attribute(tx, cls, base, name, base.__dict__[name], instance)
    return None


def bind_attribute(
    tx: Tracer, cls: builtins.type, base: builtins.type, name: str, found: Any, instance: Value | None
) -> Value:
    """What a class's raw entry gives when read through an instance, or through the class (``instance`` None)."""
    origin = Attr(class_origin(base), name)
    _guard_passed(tx, cls, base, name)
    made = tx.made_classes.get(base)
    given = made.given(name, found) if isinstance(made, ClassValue) else None  # each call makes its own class
    if given is not None:
        return given
    if isinstance(found, Written):
        return _bind_written(tx, name, force(tx, found.value), instance)
    if isinstance(found, types.FunctionType):
        function = tx.wrap(found, origin)
        return function if instance is None else BoundMethod(instance, function, name=name)
    if isinstance(found, staticmethod):
        return tx.wrap(found.__func__, origin)
    if _is_cache(type(found)) and instance is not None:
        return BoundMethod(instance, tx.wrap(found, origin), name=name)
    if isinstance(found, classmethod):
        behind: Any = found.__func__
        if isinstance(behind, property) and sys.version_info < (3, 13):
            return _property_of_class(tx, cls, behind, Item(Attr(class_origin(base), "__dict__"), name))
        inner = tx.wrap(found.__func__, Attr(origin, "__func__"))
        return BoundMethod(tx.wrap(cls, class_origin(cls)), inner, name=name)
    if isinstance(found, property) and instance is not None and not _gets_its_own_way(found):
        if found.fget is None:
            return raise_accessor_missing(tx, found, cls, "getter")  # type: ignore[no-any-return]
        return tx.wrap(found.fget, Attr(origin, "fget")).call(tx, [instance], {})
    if isinstance(found, types.MemberDescriptorType | types.GetSetDescriptorType) and instance is not None:
        return _slot(tx, name, instance)
    if isinstance(found, (types.MethodDescriptorType, types.WrapperDescriptorType)) and instance is not None:
        return BoundMethod(instance, tx.fixed(found))
    if isinstance(found, types.ClassMethodDescriptorType):
        return tx.fixed(getattr(cls, name))
    if hasattr(type(found), "__get__") and not isinstance(found, (types.BuiltinFunctionType, type)):
        return _descriptor(tx, cls, found, instance, name, origin)
    return tx.wrap(found, origin)


def _guard_passed(tx: Tracer, cls: builtins.type, base: builtins.type, name: str) -> None:
    """Take for granted that the classes before ``base`` go on without an entry of that name, which would be found first."""
    from engine.trace.state import is_trusted

    for passed in cls.__mro__:
        if passed is base:
            return
        if passed not in tx.made_classes and name not in passed.__dict__ and not is_trusted(passed.__module__):
            why = f"{base.__name__}'s {name!r} was used, which one of {passed.__name__} would hide"
            tx.guard(IsObject(Maybe(class_origin(passed), name), MISSING, cause=tx.cause(why)))


def guard_absent(tx: Tracer, cls: builtins.type, name: str) -> None:
    """Take for granted that neither a class nor its bases come to have an entry of that name."""
    from engine.trace.state import is_trusted

    if cls not in tx.made_classes and not is_trusted(cls.__module__) and not exact.has_attribute(cls, name):
        tx.guard(HasAttribute(class_origin(cls), name, False, cause=tx.cause(f"it has no attribute {name!r}")))


def raise_accessor_missing(tx: Tracer, found: property, cls: builtins.type, word: str) -> Any:
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
        raise tx.user_exception(error) from error
    raise Unsupported("unsupported-operation", f"a property without a {word}")


def _property_of_class(tx: Tracer, cls: builtins.type, found: property, entry: Origin) -> Value:
    """``@classmethod @property``: until Python 3.12 a class method's function is bound by its own ``__get__``."""
    getter = tx.wrap(found.fget, Attr(Attr(entry, "__func__"), "fget"))
    return force(tx, getter).call(tx, [tx.wrap(cls, class_origin(cls))], {})


def _bind_written(tx: Tracer, name: str, value: Value, instance: Value | None) -> Value:
    from engine.trace.values.functions import FunctionValue

    if isinstance(value, FunctionValue) and instance is not None:
        return BoundMethod(instance, value, name=name)
    if find_in_class(value.type(), "__get__") is not None and not isinstance(value, (FunctionValue, BuiltinValue)):
        raise Unsupported("unsupported-operation", f"a descriptor that the traced code set on a class as {name!r}")
    return value


def _slot(tx: Tracer, name: str, instance: Value) -> Value:
    real = instance.real()
    absent = f"'{full_type_name(instance.type())}' object has no attribute '{name}'"
    if real is NotImplemented or instance.origin is None:
        if name == "__dict__":
            raise instance.refuse("reading __dict__")
        if name == "__weakref__":
            return NONE
        return tx.raise_error(AttributeError, absent)  # type: ignore[no-any-return]
    if not hasattr(real, name):
        tx.guard(HasAttribute(instance.origin, name, False, cause=tx.cause(f"it has no attribute {name!r}")))
        tx.raise_error(AttributeError, absent)
    if name == "__dict__":
        raise instance.refuse("reading __dict__")
    return tx.wrap(getattr(real, name), Attr(instance.origin, name))


def _descriptor(tx: Tracer, cls: builtins.type, found: Any, instance: Value | None, name: str, origin: Origin) -> Value:
    if _gets_its_own_way(found):
        return _descriptor_of_user(tx, cls, found, instance, name, origin)
    if isinstance(found, functools.cached_property) and instance is not None:
        value = tx.wrap(found.func, Attr(origin, "func")).call(tx, [instance], {})
        instance.set_attr(tx, name, value)
        return value
    if (
        type(found) is NAMED_FIELD
        and instance is not None
        and isinstance(inner := getattr(instance, "inner", None), Value)
    ):
        return inner.get_item(tx, Const(found.__reduce__()[1][0]))
    if isinstance(found, functools.partialmethod) and instance is not None:
        from engine.trace.values.dispatching import bound_partial

        base = next(b for b in cls.__mro__ if name in b.__dict__)
        return bound_partial(tx, found, instance, base, name)
    if isinstance(found, (property, functools.cached_property, types.MemberDescriptorType)):
        return tx.wrap(found, origin)
    getter = find_in_class(type(found), "__get__")
    if getter is not None and isinstance(getter[1], types.FunctionType):
        return _descriptor_of_user(tx, cls, found, instance, name, origin)
    if instance is None:
        return tx.wrap(found, origin)
    raise Unsupported("unsupported-operation", f"the descriptor {name!r} of {cls.__name__}")


def _descriptor_of_user(
    tx: Tracer, cls: builtins.type, found: Any, instance: Value | None, name: str, origin: Origin
) -> Value:
    # Read through the class, the descriptor would answer for itself.
    entry = origin if origin.parent is None else Item(Attr(origin.parent, "__dict__"), name)
    descriptor = tx.wrap(found, entry)
    owner = tx.wrap(cls, class_origin(cls))
    return force(tx, descriptor).call_method(tx, "__get__", [instance or NONE, owner], {})


_OWN_GETTERS = (property, functools.cached_property)


def _gets_its_own_way(found: Any) -> bool:
    """Whether it is a property of a class that says itself how it is read, as a property of the class does."""
    kind = type(found)
    if not isinstance(found, _OWN_GETTERS) or kind in _OWN_GETTERS:
        return False
    getter = find_in_class(kind, "__get__")
    return getter is not None and getter[0] not in _OWN_GETTERS and isinstance(getter[1], types.FunctionType)


NAMED_FIELD = type(vars(inspect.ArgInfo)["args"])
"""What reads an item of a named tuple by its name."""


TENSOR_TYPE: Any = type(torch.FloatTensor)
"""The class of ``torch.FloatTensor`` and its like."""

_DTYPES: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class ClassValue(Value):
    """A class."""

    def __init__(self, held: type, origin: Origin | None) -> None:
        self.held = held
        self.origin = origin

    def type(self) -> type:
        return type(self.held)

    def describe(self) -> str:
        return f"class {self.held.__qualname__}"

    def real(self) -> Any:
        return self.held

    def truth(self, tx: Tracer) -> bool:
        asked = self._ask(tx, "__bool__", []) or self._ask(tx, "__len__", [])
        return True if asked is None else asked.truth(tx)

    def python(self, tx: Tracer) -> Any:
        return self.held

    def given(self, name: str, entry: Any) -> Value | None:
        """The value that the traced code gave a class which it made, where ``entry`` stands for one in the class's twin."""
        return None

    def key(self, tx: Tracer) -> Any:
        return self.held

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        # A class names the type of a tensor's elements, as in ``x.to(float)`` and ``x.type(torch.HalfTensor)``.
        named: Any = _DTYPES.get(self.held)
        if isinstance(self.held, TENSOR_TYPE):
            named = f"{self.held.__module__}.{self.held.__name__}"
        return super().graph_arg(tx) if named is None else (named, named)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.state import is_trusted
        from engine.trace.values.metaclasses import meta_attribute

        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return tx.from_python(getattr(self.held, name))
        if name in ("__mro__", "__bases__"):
            from engine.trace.values.sequences import TupleValue

            return TupleValue([tx.fixed(c) for c in getattr(self.held, name)])
        if name == "__dict__" and self.held not in tx.made_classes and not any(of is self.held for of, _ in WRITTEN):
            return tx.wrap(self.held.__dict__, Attr(class_origin(self.held), name))
        if name == "__dict__":
            raise self.refuse(f"reading the attribute {name!r}")
        if name == "__subclasses__" and find_in_class(self.held, name) is None:
            return MethodOf(self, name)
        if issubclass(self.held, enum.Enum) and name in self.held.__members__:
            return Const(self.held.__members__[name])
        if is_trusted(self.held.__module__) and hasattr(self.held, name):
            found = getattr(self.held, name)
            return Const(found) if is_literal(found) else tx.fixed(found)
        found_value = class_attribute(tx, self.held, name, None)
        if found_value is not None:
            return found_value
        by_meta = meta_attribute(tx, self, name)
        if by_meta is not None:
            return by_meta
        if hasattr(self.held, name):
            found = getattr(self.held, name)
            return tx.fixed(found) if callable(found) else tx.wrap(found, Attr(class_origin(self.held), name))
        if issubclass(self.held, enum.Enum):  # its words differ from version to version
            try:
                getattr(self.held, name)
            except AttributeError as error:
                raise tx.user_exception(error) from None
        guard_absent(tx, self.held, name)
        return tx.raise_error(AttributeError, f"type object '{self.held.__name__}' has no attribute '{name}'")  # type: ignore[no-any-return]

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        self._write(tx, name, value)

    def del_attr(self, tx: Tracer, name: str) -> None:
        found = find_in_class(self.held, name)
        if found is None or found[0] is not self.held:
            tx.raise_error(AttributeError, name)
        self._write(tx, name, None)

    def _write(self, tx: Tracer, name: str, value: Value | None) -> None:
        """Set or delete an attribute of a class that exists: seen from here on, done after the graph."""
        from engine.trace.state import is_trusted
        from engine.trace.values.iteration import CallOf

        held = self.held
        if not held.__flags__ & _HEAP:
            tx.raise_type_error(f"cannot set {name!r} attribute of immutable type '{held.__name__}'")
        plain = type(held).__setattr__ is type.__setattr__ and type(held).__delattr__ is type.__delattr__
        found = find_in_class(type(held), name)
        if (
            not plain
            or is_trusted(held.__module__)
            or name.startswith("__")
            or (found and is_data_descriptor(found[1]))
        ):
            raise self.refuse(f"setting the attribute {name!r}")
        key = (held, name)
        WRITTEN[key] = None if value is None else Written(value)
        done = CallOf(delattr, [self, Const(name)]) if value is None else CallOf(setattr, [self, Const(name), value])
        tx.happens(done, f"{held.__name__}.{name} is {'deleted' if value is None else 'set'}")

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__subclasses__" and not args and not kwargs:
            return self._subclasses(tx)
        return force(tx, self.get_attr(tx, name)).call(tx, args, kwargs)

    def _subclasses(self, tx: Tracer) -> Value:
        """A list of the classes that are there, in the order in which they were made."""
        from engine.trace.values.sequences import ListValue

        if tx.made_classes:
            raise self.refuse("asking for the subclasses that traced code may have added to")
        found: list[type] = type.__subclasses__(self.held)
        asked = Asked(class_origin(self.held), "__subclasses__")
        tx.guard(LengthIs(asked, len(found), cause=tx.cause(f"the subclasses of {self.held.__name__} were asked for")))
        return ListValue([tx.wrap(c, Item(asked, n)) for n, c in enumerate(found)])

    def get_item(self, tx: Tracer, key: Value) -> Value:
        if issubclass(self.held, enum.Enum):
            return tx.fold(lambda: self.held[key.python(tx)])  # type: ignore[index]
        asked = self._ask(tx, "__getitem__", [key])
        if asked is not None:
            return asked
        own = find_in_class(self.held, "__class_getitem__")
        is_python = own is not None and isinstance(getattr(own[1], "__func__", None), types.FunctionType)
        if own is not None and is_python and own[0].__module__ != "typing":
            return self.call_method(tx, "__class_getitem__", [key], {})
        if hasattr(self.held, "__class_getitem__") or self.held in (type, list, dict, tuple, set):
            return _parametrised(tx, self, key)
        return super().get_item(tx, key)

    def iterate(self, tx: Tracer) -> Value:
        if issubclass(self.held, enum.Enum):
            from engine.trace.values.iterators import SequenceIterator

            return SequenceIterator([Const(m) for m in self.held], type(iter(())))
        return self._ask(tx, "__iter__", []) or super().iterate(tx)

    def length(self, tx: Tracer) -> Value:
        if issubclass(self.held, enum.Enum):
            return Const(len(self.held))
        return self._ask(tx, "__len__", []) or super().length(tx)

    def _ask(self, tx: Tracer, name: str, args: list[Value]) -> Value | None:
        from engine.trace.values.metaclasses import ask

        return ask(tx, self, name, args)

    def contains(self, tx: Tracer, item: Value) -> bool:
        asked = self._ask(tx, "__contains__", [item])
        if asked is not None:
            return asked.truth(tx)
        return bool(tx.fold(operator.contains, self.held, item.python(tx)).python(tx))

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        rule = special_of(self.held)
        if rule is not None:
            check_arity(tx, self.held, args, kwargs)
            return rule(tx, args, kwargs)
        return construct(tx, self, args, kwargs)

    def reconstruct(self, cg: Codegen) -> None:
        cg.const(self.held)


def construct(
    tx: Tracer, of: ClassValue, args: list[Value], kwargs: dict[str, Value], *, by_type: bool = False
) -> Value:
    """``Class(*args)`` for classes without a rule of their own; with ``by_type`` as if the metaclass had no ``__call__``."""
    from engine.trace.operations import fold_call
    from engine.trace.values.exception_groups import make_group
    from engine.trace.values.exceptions import ExceptionValue, class_made

    cls = of.held
    _check_death(cls)
    if issubclass(cls, BaseException):
        new = find_in_class(cls, "__new__")
        raw = None if new is None else getattr(new[1], "__func__", new[1])
        if new is not None and isinstance(raw, types.FunctionType):
            made: Value = tx.wrap(raw, Attr(class_origin(new[0]), "__new__")).call(tx, [of, *args], kwargs)
            if not issubclass(made.type(), cls):
                return made
        elif issubclass(cls, BaseExceptionGroup):
            made = make_group(tx, cls, args)
        else:
            made = ExceptionValue(class_made(tx, cls, args), args)
        init = find_in_class(cls, "__init__")
        if init is not None and isinstance(init[1], types.FunctionType):
            tx.wrap(init[1], Attr(class_origin(init[0]), "__init__")).call(tx, [made, *args], kwargs)
        elif isinstance(made, ExceptionValue):
            made.take_words(tx, kwargs)
        return made
    if issubclass(cls, enum.Enum) or is_placement_class(cls):
        return fold_call(tx, cls, args, kwargs, f"{cls.__name__}()")
    called = find_in_class(type(cls), "__call__")
    if called is not None and called[1] is dict:  # as for each TypedDict, of typing or typing_extensions
        return tx.fixed(dict).call(tx, args, kwargs)
    if issubclass(cls, tuple) and hasattr(cls, "_make") and _is_named(cls):
        return named_tuple(tx, cls, args, kwargs)
    if cls.__module__ == "torch.return_types":
        return structseq(tx, cls, args, kwargs)
    if issubclass(cls, torch.nn.Module):
        from engine.trace.values.made_modules import made_module

        return made_module(tx, cls, args, kwargs)
    if not by_type and type(cls).__call__ is not type.__call__ and type(cls).__module__ not in ("abc", "typing"):
        meta = find_in_class(type(cls), "__call__")
        if meta is None or not isinstance(meta[1], types.FunctionType):
            raise Unsupported("unknown-call", f"{cls.__name__} is created")
        return tx.wrap(meta[1], Attr(class_origin(meta[0]), "__call__")).call(tx, [of, *args], kwargs)
    if issubclass(cls, torch.Tensor):
        from engine.trace.values.tensor_subclasses import constructed

        tensor = constructed(tx, cls, args, kwargs)
        if tensor is not None:
            return tensor
    return _plain_object(tx, of, args, kwargs)


def _is_named(cls: builtins.type) -> bool:
    from engine.trace.values.sequences import is_plainly_named

    return is_plainly_named(cls)


def _check_death(cls: builtins.type) -> None:
    """Leave to Python the function that makes an object whose ``__del__`` runs when its last name goes: compiled code holds it for as long as it likes."""
    if find_in_class(cls, "__del__") is None:
        return
    raise Skip("unknown-call", f"{cls.__qualname__} is created, whose __del__ runs when nothing names it any more")


_NOT_MADE = 1 << 7
"""Py_TPFLAGS_DISALLOW_INSTANTIATION."""


def _makes_in_c(base: builtins.type) -> bool:
    """Whether C code makes instances of a class that looks as if Python had made it."""
    return isinstance(vars(base).get("__new__"), types.BuiltinFunctionType) or bool(base.__flags__ & _NOT_MADE)


def is_plain_class(cls: builtins.type) -> bool:
    """Whether instances hold nothing but attributes: all of its bases are ``object`` or made by Python code."""
    return all(
        base is object or (base.__flags__ & _HEAP and base.__module__ != "_ctypes" and not _makes_in_c(base))
        for base in cls.__mro__
    ) and (cls.__basicsize__ <= 64 + 8 * 32)


def _plain_object(tx: Tracer, of: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    from engine.trace.values.container_objects import container_base, new_instance
    from engine.trace.values.objects import ObjectValue

    cls = of.held
    by_class = _made_by(cls)
    if by_class is not None:
        made = by_class(tx, cls, args, kwargs)
        init = find_in_class(made.type(), "__init__")
        return made if init is None or init[0] is object else _initialised(tx, cls, made, args, kwargs)
    base = container_base(cls)
    if base is not None and cls.__new__ is base.__new__ and not cls.__flags__ & _ABSTRACT:
        built = new_instance(tx, cls, base, args, kwargs)
        return _initialised(tx, cls, built, args, kwargs)
    if is_plain_class(cls) and cls.__flags__ & _ABSTRACT:
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
        made = tx.wrap(raw, Attr(class_origin(new[0]), "__new__")).call(tx, [of, *args], kwargs)
        if not (isinstance(made, ObjectValue) and issubclass(made.type(), cls)):
            return made
    else:
        made = ObjectValue(cls, None, NotImplemented)
    init = find_in_class(made.type(), "__init__")
    if init is not None and init[0] is not object:
        return _initialised(tx, cls, made, args, kwargs)
    if (args or kwargs) and (new is None or new[0] is object):
        tx.raise_type_error(f"{cls.__name__}() takes no arguments")
    return made


def _initialised(tx: Tracer, cls: builtins.type, made: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Run ``__init__`` on a new instance."""
    init = find_in_class(made.type(), "__init__")
    assert init is not None
    if isinstance(init[1], types.FunctionType):
        tx.wrap(init[1], Attr(class_origin(init[0]), "__init__")).call(tx, [made, *args], kwargs)
    elif hasattr(made, "builtin_method"):
        made.builtin_method(tx, "__init__", args, kwargs)
    else:
        raise Unsupported("unknown-call", f"{cls.__qualname__} is created")
    return made


def named_tuple(tx: Tracer, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A new instance of a ``collections.namedtuple`` class."""
    from engine.trace.values.sequences import TupleValue

    own = next(c for c in cls.__mro__ if "_fields" in c.__dict__)
    if any("__new__" in c.__dict__ for c in cls.__mro__[: cls.__mro__.index(own)]):
        raise Unsupported("unknown-call", f"{cls.__qualname__} is created")
    bound: dict[str, Value] = dict(zip(cls._fields, args, strict=False))
    if len(args) > len(cls._fields) or set(kwargs) - set(cls._fields) or set(kwargs) & set(bound):
        tx.fold(cls.__new__, cls, *[None] * len(args), **dict.fromkeys(kwargs))
    bound.update(kwargs)
    for name, default in cls._field_defaults.items():
        if name not in bound:
            bound[name] = tx.from_python(default) if is_literal(default) else tx.fixed(default)
    if len(bound) < len(cls._fields):
        tx.fold(cls.__new__, cls, *[None] * len(args), **dict.fromkeys(kwargs))
    return TupleValue([bound[f] for f in cls._fields], cls)


def structseq(tx: Tracer, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A new instance of what an operation with several named results returns."""
    from engine.trace.values.sequences import TupleValue, sequence_items

    if len(args) != 1 or kwargs or len(items := list(sequence_items(tx, args[0]))) != cls.n_sequence_fields:
        raise Unsupported("unknown-call", f"{cls.__module__}.{cls.__qualname__} is created")
    return TupleValue(items, cls)


class SuperValue(Value):
    """``super(cls, obj)``."""

    def __init__(self, start: builtins.type, of: Value) -> None:
        self.start = start
        self.of = of

    def type(self) -> type:
        return super

    def get_attr(self, tx: Tracer, name: str) -> Value:
        from engine.trace.values.metaclasses import super_of_class
        from engine.trace.values.objects import ObjectValue

        if isinstance(self.of, ClassValue):
            by_meta = super_of_class(tx, self.start, self.of, name)
            if by_meta is not None:
                return by_meta
            cls, instance = self.of.held, None
            if name == "__init_subclass__" and self._base(cls, name) is object:
                return tx.fixed(object.__init_subclass__)
            if isinstance((raw := self._raw(cls, name)), classmethod):
                return BoundMethod(self.of, tx.wrap(raw.__func__, Fixed(raw.__func__, name)))
        else:
            cls, instance = self.of.type(), self.of
        if isinstance(instance, ObjectValue):
            found = self._raw(cls, name)
            base = self._base(cls, name)
            if base is object or found is None:
                return _object_method(tx, name, instance)
        if instance is not None and issubclass(cls, torch.Tensor):
            from engine.trace.values.tensor_subclasses import inherited

            base = self._base(cls, name)
            if base in (torch.Tensor, torch._C.TensorBase):
                return inherited(tx, instance, name)
        value = class_attribute(tx, cls, name, instance, self.start)
        if value is None:
            return tx.raise_error(AttributeError, f"'super' object has no attribute '{name}'")  # type: ignore[no-any-return]
        return value

    def _raw(self, cls: builtins.type, name: str) -> Any:
        for base in cls.__mro__[cls.__mro__.index(self.start) + 1 :]:
            if name in base.__dict__:
                return base.__dict__[name]
        return None

    def _base(self, cls: builtins.type, name: str) -> builtins.type | None:
        for base in cls.__mro__[cls.__mro__.index(self.start) + 1 :]:
            if name in base.__dict__:
                return base
        return None

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return force(tx, self.get_attr(tx, name)).call(tx, args, kwargs)


def _object_method(tx: Tracer, name: str, instance: Value) -> Value:
    if name in ("__setattr__", "__init__", "__init_subclass__", "__getattribute__", "__delattr__"):
        return MethodOf(instance, f"object.{name}")
    found = getattr(object, name, None)
    if found is None:
        return tx.raise_error(AttributeError, f"'super' object has no attribute '{name}'")  # type: ignore[no-any-return]
    return BoundMethod(instance, tx.fixed(found))


def _is_class(real: Any) -> bool:
    return isinstance(real, type)


@wraps_if(1, _is_class)
def _class(tx: Tracer, real: type, origin: Origin) -> Value:
    tx.guard_object(real, origin, f"the class {real.__qualname__} was used")
    return ClassValue(real, origin)


def _is_alias(real: Any) -> bool:
    return isinstance(real, (types.GenericAlias, types.UnionType)) or (
        type(real).__module__ == "typing" and not isinstance(real, typing.Generic)
    )


@wraps_if(40, _is_alias)
def _alias(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_object(real, origin, "it was used as a type")
    return AliasValue(real, origin)


class AliasValue(BuiltinValue):
    """``list[int]``, ``int | str`` and the like."""

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        inner = getattr(self.held, "__origin__", None)
        if inner is None:
            raise Unsupported("unknown-call", f"{self.held!r} is called")
        return tx.fixed(inner).call(tx, args, kwargs)

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return _parametrised(tx, self, key)


def _parametrised(tx: Tracer, of: ClassValue | AliasValue, key: Value) -> Value:
    """``of[key]`` where all is known; what the traced code makes itself counts as ``of``."""
    if of.held in tx.made_classes:
        return of
    try:
        real = key.python(tx)
    except NotConstant:
        return of
    if any(
        part in tx.made_classes for part in (real if isinstance(real, tuple) else (real,)) if isinstance(part, type)
    ):
        return of
    try:
        return tx.fixed(of.held[real])  # type: ignore[index]
    except TypeError as error:
        raise tx.user_exception(error) from error
