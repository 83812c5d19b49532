"""Small functions that generated code calls when it runs: they put back what the tracer did with values."""

from __future__ import annotations

import contextvars
import sys
import threading
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

_HEAP_TYPE_FLAG = 1 << 9
"""The flag of classes made by Python code."""


def set_context_var(variable: contextvars.ContextVar[Any], value: Any) -> contextvars.Token[Any]:
    """Set a context variable in the context of the caller."""
    return variable.set(value)


def make_acquired_lock(make: Callable[[], Any], count: int) -> Any:
    """A lock that this thread has taken so many times."""
    made = make()
    for _ in range(count):
        made.acquire()
    return made


def _has_init_subclass(base: type) -> bool:
    return any("__init_subclass__" in c.__dict__ for c in base.__mro__ if c is not object)


def new_object(cls: type) -> Any:
    """An instance whose ``__init__`` has been traced already."""
    made: Any = object.__new__(cls)
    return made


def new_thread_local() -> threading.local:
    """Data of the thread, empty as yet."""
    return threading.local()


def new_exception(cls: type[BaseException], line: int, *args: Any) -> BaseException:
    """An exception whose class's own ``__init__`` has been traced already; what C code does at its creation is done.

    ``line`` is where the calling frame raised it, 0 if it was not raised.
    """
    base: Any = next(c for c in cls.__mro__ if not c.__flags__ & _HEAP_TYPE_FLAG)
    made: BaseException = base.__new__(cls, *args)
    base.__init__(made, *args)
    if line:
        frame = sys._getframe(1)
        # Of the instruction, whose line would be shown instead, nothing is said.
        made.__traceback__ = types.TracebackType(None, frame, -1, line)
        made.__context__ = sys.exc_info()[1]
    return made


def choose_attribute_setter(cls: type, names: Iterable[str]) -> Callable[[Any, tuple[str, ...], tuple[Any, ...]], None]:
    """How these attributes of an instance are set: looked up while tracing, since asking each class for each name takes longer than setting it."""
    return set_attributes_past_descriptors if any(_has_python_setter(cls, name) for name in names) else set_attributes


def set_attributes(target: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """Set attributes past any ``__setattr__`` of the class, which was traced already."""
    plainly: Any = threading.local.__setattr__ if isinstance(target, threading.local) else object.__setattr__
    for name, value in zip(names, values, strict=True):
        plainly(target, name, value)


def set_attributes_past_descriptors(target: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> None:
    """Set attributes past any ``__setattr__`` and descriptor of the class, which were traced already."""
    for name, value in zip(names, values, strict=True):
        if _has_python_setter(type(target), name):
            target.__dict__[name] = value
        else:
            object.__setattr__(target, name, value)


def set_instance_dict(target: Any, namespace: dict[str, Any]) -> None:
    """Let a dict hold the attributes of an instance, past any ``__setattr__`` of the class."""
    object.__setattr__(target, "__dict__", namespace)


def delete_attributes(target: Any, names: tuple[str, ...]) -> None:
    """Delete attributes past any ``__delattr__`` of the class."""
    for name in names:
        if _has_python_setter(type(target), name):
            del target.__dict__[name]
        else:
            object.__delattr__(target, name)


def _has_python_setter(cls: type, name: str) -> bool:
    """Whether setting an attribute would ask a descriptor written in Python."""
    if issubclass(cls, torch.Tensor):
        return False
    found = next((base.__dict__[name] for base in cls.__mro__ if name in base.__dict__), None)
    from_c = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return hasattr(type(found), "__set__") and not isinstance(found, from_c)
