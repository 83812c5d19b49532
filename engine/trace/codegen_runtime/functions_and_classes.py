"""Build functions and classes that traced code created."""

from __future__ import annotations

import abc
import functools
import types
from collections.abc import Iterable
from typing import Any

from engine.trace.codegen_runtime.objects import _has_init_subclass


def make_function(
    code: types.CodeType,
    namespace: dict[str, Any],
    name: str,
    qualname: str,
    defaults: tuple[Any, ...] | None,
    keyword_defaults: dict[str, Any] | None,
    closure: Iterable[Any],
    attributes: dict[str, Any] | None,
    annotations: dict[str, Any] | None,
    annotate: Any,
) -> Any:
    """Return a function as the traced code created it."""
    made: Any = types.FunctionType(code, namespace, name, defaults, tuple(closure) or None)
    made.__qualname__ = qualname
    made.__kwdefaults__ = keyword_defaults
    for word, value in (attributes or {}).items():
        setattr(made, word, value)
    if annotations is not None:
        made.__annotations__ = annotations
    if annotate is not None:
        made.__annotate__ = annotate
    return made


def make_singledispatch(classes: tuple[Any, ...], functions: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    """Return ``functools.singledispatch`` of the first function, with the others registered.

    Each function is registered for the class at its position.
    """
    made = functools.singledispatch(functions[0])
    for cls, function in zip(classes[1:], functions[1:], strict=True):
        made.register(cls, function)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def build_class(name: str, bases: tuple[Any, ...], namespace: dict[str, Any], /, **words: Any) -> Any:
    """Create a class as a class statement does after its body has run."""
    resolved = types.resolve_bases(bases)
    metaclass, prepared, rest = types.prepare_class(name, resolved, words)
    for key, value in namespace.items():
        prepared[key] = value
    if resolved is not bases:
        prepared["__orig_bases__"] = bases
    return metaclass(name, resolved, prepared, **rest)


class _NoInitSubclass:
    """Base class whose ``__init_subclass__`` does nothing."""

    def __init_subclass__(cls, **words: Any) -> None:
        pass


def call_type_new(name: str, bases: tuple[Any, ...], namespace: dict[str, Any], /, metaclass: Any) -> Any:
    """Create a class like ``type.__new__``, but run no ``__init_subclass__``: it was traced."""
    resolved = types.resolve_bases(bases)
    space = dict(namespace) if resolved is bases else {**namespace, "__orig_bases__": bases}
    make = abc.ABCMeta.__new__ if issubclass(metaclass, abc.ABCMeta) else type.__new__
    if not any(_has_init_subclass(base) for base in resolved):
        return make(metaclass, name, resolved, space)
    made: Any = make(metaclass, name, (_NoInitSubclass, *resolved), space)
    made.__bases__ = resolved
    return made
