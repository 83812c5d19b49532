"""Inspect Python values without user code: equality, length, keys, attributes, text."""

from __future__ import annotations

import collections
import functools
import hashlib
import marshal
import math
import operator
import threading
import types
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import torch

from engine.ir.introspection.tensor_spec import is_spec
from engine.torch_private.dispatch import DispatchKeySet
from engine.torch_private.torch_function import DisableTorchFunction

NO_ATTRIBUTE = object()
"""Sentinel for a missing attribute."""


SINGLETON_TYPES: tuple[type, ...] = (
    type(None),
    bool,
    type(Ellipsis),
    type(NotImplemented),
    torch.dtype,
    torch.layout,
    torch.memory_format,
)
"""Types whose equal values are identical, so that values are compared by identity."""

IMMUTABLE_TYPES = frozenset((*SINGLETON_TYPES, int, float, complex, str, bytes, torch.device, torch.Size, range))
"""Types of immutable values without references to other objects."""


_SIZED_TYPES = (dict, list, tuple, set, frozenset, str, bytes, bytearray, range, types.MappingProxyType)
_COLLECTIONS = (collections.OrderedDict, collections.defaultdict, collections.deque)
_LEN_METHODS: dict[type, Any] = {t: t.__len__ for t in (*_SIZED_TYPES, *_COLLECTIONS)}


_TYPE_MRO: Any = type.__dict__["__mro__"]


_TYPE_DICT: Any = type.__dict__["__dict__"]


def mro_of(cls: type) -> tuple[type, ...]:
    """Return the method resolution order; bypass overrides of the metaclass."""
    mro: tuple[type, ...] = _TYPE_MRO.__get__(cls)
    return mro


def class_dict(cls: type) -> types.MappingProxyType[str, Any]:
    """Return the class's own namespace; bypass overrides of the metaclass."""
    namespace: types.MappingProxyType[str, Any] = _TYPE_DICT.__get__(cls)
    return namespace


def builtin_base(cls: type, bases: Iterable[type]) -> type | None:
    """Return the first class in the MRO of ``cls`` that is one of ``bases``, or None."""
    base_set = set(bases)
    return next((c for c in mro_of(cls) if c in base_set), None)


def constants_equal(value: Any, expected: Any) -> bool:
    """Return True if both have the same type and equal values.

    True is not 1, 1 is not 1.0, 0.0 is not -0.0, and NaN equals NaN. Unknown types are compared by identity.
    """
    kind = type(expected)
    if type(value) is not kind:
        return False
    if value is expected:
        return True
    if kind is float:
        return _floats_equal(value, expected)
    if kind is complex:
        return _floats_equal(value.real, expected.real) and _floats_equal(value.imag, expected.imag)
    if kind in (int, str, bytes, torch.device, range, DispatchKeySet):
        return bool(value == expected)
    if kind.__module__.partition(".")[0] == "numpy":
        return _numpy_constants_equal(value, expected)
    if kind in (tuple, list, torch.Size):
        return len(value) == len(expected) and all(map(constants_equal, value, expected))
    if kind is slice:
        return constants_equal((value.start, value.stop, value.step), (expected.start, expected.stop, expected.step))
    if kind in (frozenset, set):
        return len(value) == len(expected) and all(any(constants_equal(v, e) for e in expected) for v in value)
    if kind is dict:
        return len(value) == len(expected) and all(map(constants_equal, value.items(), expected.items()))
    if is_dtensor_placement(expected):
        return bool(value == expected)
    if issubclass(kind, PurePath):
        return str(value) == str(expected)  # names that differ in case are equal on Windows
    if kind.__module__ == "datetime":
        return repr(value) == repr(expected)  # For equal times, one may be the later of two in a repeated hour.
    return False


def digest_literals(values: Iterable[Any]) -> str:
    """Return a digest of the types and values of numbers, strings and None; "" with others."""
    try:
        return hashlib.sha256(marshal.dumps(list(values), 2)).hexdigest()
    except ValueError:
        return ""


def is_dtensor_placement(value: Any) -> bool:
    """Return True if the value is a DTensor placement.

    Examples: ``Shard(0)``, ``Replicate()``, ``Partial()``. Placements are immutable; equal ones are
    interchangeable.
    """
    return is_dtensor_placement_class(type(value))


def is_dtensor_placement_class(cls: type) -> bool:
    """Return True for torch's own DTensor placement classes."""
    own = cls.__module__ == "torch.distributed.tensor.placement_types"
    return own and any(base.__name__ == "Placement" for base in mro_of(cls))


def _numpy_constants_equal(value: Any, expected: Any) -> bool:
    """Compare two NumPy scalars or two NumPy dtypes."""
    if hasattr(expected, "tobytes") and getattr(expected, "shape", None) == ():
        return bool(value.tobytes() == expected.tobytes())
    return type(expected).__module__ == "numpy.dtypes" and bool(value == expected)


def _floats_equal(value: float, expected: float) -> bool:
    if expected != expected:
        return value != value
    return value == expected and math.copysign(1.0, value) == math.copysign(1.0, expected)


def operator_callable_args(value: Any) -> tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]:
    """Return the constructor arguments of an operator callable.

    Operator callables are ``itemgetter``, ``attrgetter`` and ``methodcaller``. The result is the positional
    arguments, and (name, value) pairs of keyword arguments.

    Raises:
        TypeError: the value is none of these.
    """
    if type(value) not in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
        raise TypeError(f"{type(value).__name__} is not a callable of the operator module")
    function, args = value.__reduce__()[:2]
    if isinstance(function, functools.partial):
        return (*function.args, *args), tuple(function.keywords.items())
    return tuple(args), ()


def builtin_len(value: Any) -> int:
    """Return the length of a builtin container or subclass; bypass an overridden ``__len__``.

    Raises:
        TypeError: not such a container.
    """
    kind = type(value)
    measure = _LEN_METHODS.get(kind)
    if measure is None:
        base = builtin_base(kind, _LEN_METHODS)
        if base is None:
            raise TypeError(f"{kind.__name__} is not a builtin container")
        measure = _LEN_METHODS[base]
    length: int = measure(value)
    return length


EXACT_DICTS = frozenset((dict, collections.OrderedDict))
"""Dict types that are false exactly if they are empty."""


def builtin_dict_keys(value: Any) -> list[Any]:
    """Return the keys of a dict or subclass in order; bypass an overridden ``__iter__``.

    Raises:
        TypeError: not a dict.
    """
    if type(value) is dict:
        return list(value)
    base: Any = builtin_base(type(value), (dict, collections.OrderedDict, types.MappingProxyType))
    if base is None:
        raise TypeError(f"{type(value).__name__} is not a dict")
    return list(base.__iter__(value))


def builtin_dict_values(value: Any) -> list[Any]:
    """Return the values of a dict or subclass in order; bypass an overridden ``values``.

    Raises:
        TypeError: not a dict.
    """
    base: Any = builtin_base(type(value), (dict, collections.OrderedDict, types.MappingProxyType))
    if base is None:
        raise TypeError(f"{type(value).__name__} is not a dict")
    return list(base.values(value))


def dict_keys_equal(value: Any, keys: tuple[Any, ...]) -> bool:
    """Return True if a dict has exactly these keys in this order.

    Constants are compared by type and value, other keys by identity.
    """
    plain_keys = value if type(value) is dict else builtin_dict_keys(value)
    return len(plain_keys) == len(keys) and (
        all(map(operator.is_, plain_keys, keys)) or all(map(constants_equal, plain_keys, keys))
    )


def instance_dict(value: Any) -> dict[str, Any]:
    """Return the instance ``__dict__``, or an empty dict; bypass a property of that name."""
    if issubclass(type(value), threading.local):  # its dict is that of the current thread
        local_namespace: dict[str, Any] = threading.local.__getattribute__(value, "__dict__")
        return local_namespace
    holder = _lookup_in_mro(type(value), "__dict__")
    if type(holder) in (types.GetSetDescriptorType, types.MemberDescriptorType):
        namespace = holder.__get__(value, type(value))
        return namespace if type(namespace) is dict else {}
    return value.__dict__ if type(value) is types.ModuleType else {}


def set_instance_dict(value: Any, space: dict[str, Any]) -> None:
    """Make ``space`` the instance ``__dict__``; bypass a property of that name.

    Does nothing if the instance has no ``__dict__``.
    """
    holder = _lookup_in_mro(type(value), "__dict__")
    if type(holder) is types.GetSetDescriptorType:
        holder.__set__(value, space)


def static_attribute(value: Any, name: str) -> Any:
    """Look up an attribute without running user code.

    Return ``NO_ATTRIBUTE`` if it is missing.

    A property or another Python descriptor is returned, not called. Slots and C-level attributes are read.
    """
    kind = type(value)
    if issubclass(kind, type):
        attribute = _lookup_in_mro(value, name)
        if attribute is not NO_ATTRIBUTE:
            return attribute
    attribute = _lookup_in_mro(kind, name)
    if type(attribute) in (types.MemberDescriptorType, types.GetSetDescriptorType):
        return _read_descriptor(attribute, value)
    own = instance_dict(value)
    if name in own and not hasattr(type(attribute), "__set__"):
        return own[name]
    return _module_getattr(value, own, name) if attribute is NO_ATTRIBUTE else attribute


_TRUSTED_METACLASSES = (type, type(torch.Tensor))
"""Metaclasses with Python's own attribute lookup for classes, which cannot be changed."""


def _lookup_in_mro(cls: type, name: str) -> Any:
    """Return the first entry of this name in the namespaces of a class's MRO."""
    # Fast path: plain access if the metaclass does not override it.
    if type(cls) in _TRUSTED_METACLASSES:
        for base in cls.__mro__:
            if type(base) not in _TRUSTED_METACLASSES:
                break
            space = base.__dict__
            if name in space:
                return space[name]
        else:
            return NO_ATTRIBUTE
    for base in mro_of(cls):
        space = class_dict(base)
        if name in space:
            return space[name]
    return NO_ATTRIBUTE


def _read_descriptor(descriptor: Any, value: Any) -> Any:
    try:
        with DisableTorchFunction():
            return descriptor.__get__(value, type(value))
    except (AttributeError, TypeError, RuntimeError):
        return NO_ATTRIBUTE


def _module_getattr(value: Any, own: dict[str, Any], name: str) -> Any:
    """Return the attribute that ``nn.Module.__getattr__`` would find.

    A class with its own ``__getattr__`` is not queried.
    """
    if _lookup_in_mro(type(value), "__getattr__") is not torch.nn.Module.__getattr__:
        return NO_ATTRIBUTE
    for table in ("_parameters", "_buffers", "_modules"):
        members = own.get(table)
        if type(members) is dict and name in members:
            return members[name]
    return NO_ATTRIBUTE


def has_static_attribute(value: Any, name: str) -> bool:
    """Return True if the attribute exists; runs no user code."""
    if is_spec(value):
        return _lookup_in_mro(value.tensor_type, name) is not NO_ATTRIBUTE
    return static_attribute(value, name) is not NO_ATTRIBUTE


def is_heap_type(cls: type) -> bool:
    """Return True for a class made by ``class`` or ``type()``; most classes in C are not."""
    return bool(cls.__flags__ & _HEAP_TYPE_FLAG)


_HEAP_TYPE_FLAG = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``."""
