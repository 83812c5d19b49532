"""Metaclass of variable classes: annotated names are slots and constructor parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, dataclass_transform

T = TypeVar("T")


def state(value: T, *, init: Literal[False] = False) -> T:
    """Return a field that begins with ``value`` and is no constructor parameter."""
    declared: T = field(default=value, init=init)
    return declared


def fresh(make: Callable[[], T], *, init: Literal[False] = False) -> T:
    """Return a field that begins with a new ``make()`` and is no constructor parameter."""
    declared: T = field(default_factory=make, init=init)
    return declared


@dataclass_transform(eq_default=False, field_specifiers=(field, state, fresh))
class SlottedType(type):
    """Metaclass whose classes have slots for their fields, a constructor, and no ``__dict__``.

    Annotated names are the fields, as in a dataclass. A class with its own ``__slots__`` or ``__init__`` keeps it.
    """

    __field_defaults__: dict[str, tuple[str, Any]]
    """Annotation and default of each field, in the order of the parameters."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> SlottedType:
        annotations = {n: k for n, k in namespace.get("__annotations__", {}).items() if not k.startswith("ClassVar")}
        own = {n: (kind, namespace.pop(n, ...)) for n, kind in annotations.items()}
        fields = {n: f for base in bases for n, f in getattr(base, "__field_defaults__", {}).items()} | own
        namespace["__field_defaults__"] = fields
        if own and not namespace.keys() & {"__init__", "__slots__"}:
            namespace["__init__"] = _constructor(name, bases, namespace, fields)
        inherited = {n for base in bases for parent in base.__mro__ for n in vars(parent).get("__slots__", ())}
        namespace.setdefault("__slots__", tuple(n for n in fields if n not in inherited))
        return super().__new__(cls, name, bases, namespace)


def _constructor(name: str, bases: tuple[type, ...], namespace: Any, fields: dict[str, tuple[str, Any]]) -> Any:
    """Return the ``__init__`` of a dataclass with these fields."""
    defaults = {n: default for n, (_, default) in fields.items() if default is not ...}
    annotations = {"__annotations__": {n: kind for n, (kind, _) in fields.items()}}
    finish = namespace.get("__post_init__") or next(filter(None, (getattr(b, "__post_init__", None) for b in bases)), 0)
    hooks = {"__post_init__": finish} if finish else {}
    about = {"__doc__": name, "__module__": namespace["__module__"]}
    plain = dataclass(eq=False, repr=False, match_args=False, slots=True)
    return vars(plain(type(name, (), {**defaults, **annotations, **hooks, **about})))["__init__"]
