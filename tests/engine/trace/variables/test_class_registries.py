"""Tests of the class registries: entries, constructors and marked functions.

They bind class entries, construct instances and find the rules of marked functions.
"""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import pytest
import torch

from engine.trace.variables.base import ConstantVariable, Variable
from engine.trace.variables.objects import constructor_registry
from engine.trace.variables.objects.attribute_binding import AttributeRead, binds
from tests.engine.trace.harness import compare_with_eager

X = torch.arange(4.0)


class Meta(type):
    """Doubles what it constructs."""

    def __call__(cls, *args: Any) -> Any:
        return [super().__call__(*args)] * 2


class Doubled(metaclass=Meta):
    def __init__(self, value: Any) -> None:
        self.value = value


class Loud(property):
    """A property that adds one."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else super().__get__(instance, owner) + 1


class Entries:
    """One class entry of each kind that has a binder."""

    __slots__ = ("slot",)
    plain = 3

    def __init__(self, slot: Any) -> None:
        self.slot = slot

    def method(self, x: Any) -> Any:
        return x + self.slot

    @staticmethod
    def static(x: Any) -> Any:
        return x * 2

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.plain

    @property
    def half(self) -> Any:
        return self.slot / 2

    @Loud
    def loud(self) -> Any:
        return self.slot

    bound = functools.partialmethod(method, 5)


def read_entries(x: Any) -> Any:
    """Read every entry of a class through an instance."""
    of = Entries(2)
    return of.method(x), of.static(x), of.of_class(x), of.half, of.loud, of.bound(), of.plain, of.slot


class Holder:
    """Gets a method from traced code."""


def write_torch_function(x: Any) -> Any:
    """Set a function on a class and call it as a method."""
    Holder.shift = lambda self, y: y + 1  # type: ignore[attr-defined]
    return Holder().shift(x)  # type: ignore[attr-defined]


def raise_errors_of_python(x: Any) -> Any:
    """Catch errors that real objects raise while tracing."""
    caught = []
    for run in (lambda: re.compile("("), lambda: slice()):
        try:
            run()
        except (TypeError, ValueError, re.error) as error:
            caught.append(type(error).__name__)
    return x + len(caught), caught


def copy_by_reference(x: Any) -> Any:
    """Copy what the copy module returns unchanged, and what it copies."""
    items = [read_entries, Entries, len, 3, (1, 2)]
    deep = copy.deepcopy(items)
    return x + 1, [a is b for a, b in zip(items, deep, strict=True)], deep is items, copy.copy({1: x})[1] is x


def wrap_function(x: Any) -> Any:
    """Copy the name of a function to its wrapper."""

    def inner(y: Any) -> Any:
        """Add one."""
        return y + 1

    @functools.wraps(inner)
    def outer(y: Any) -> Any:
        return inner(y) * 2

    return outer(x), outer.__name__, outer.__doc__, outer.__wrapped__ is inner


@pytest.mark.parametrize(
    "function",
    [
        read_entries,
        write_torch_function,
        raise_errors_of_python,
        copy_by_reference,
        wrap_function,
        lambda x: [d.value for d in Doubled(x)],
    ],
)
def test_runs_like_python_without_a_break(function: Any) -> None:
    """Binders, constructors, copies and errors of Python give what Python gives, in one graph."""
    assert compare_with_eager(function, X).breaks == []


def test_a_second_binder_is_refused() -> None:
    """A type of class entries has one binder."""
    with pytest.raises(ValueError, match="property has a binder already"):
        binds(property)(lambda tx, read: ConstantVariable(read.name))


def test_a_read_knows_the_sources_of_its_entry() -> None:
    """An entry is found as an attribute of its class, and unbound in the class's ``__dict__``."""
    read = AttributeRead(Entries, Entries, "half", vars(Entries)["half"], None)
    assert "half" in read.source.expr
    assert "__dict__" in read.dict_source.expr


def test_constructors_apply_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first constructor whose predicate holds is called; ``by_type`` skips metaclasses."""
    monkeypatch.setattr(constructor_registry, "_CONSTRUCTORS", [])
    made: list[str] = []

    def add(order: int, name: str) -> None:
        def constructor(tx: Any, of: Any, args: Any, kwargs: Any) -> Variable:
            made.append(name)
            return ConstantVariable(name)

        constructor_registry.register_constructor(order, lambda cls: True)(constructor)

    add(90, "object")
    add(constructor_registry.METACLASS_CALL_ORDER, "metaclass")
    tx: Any = None
    constructor_registry.construct(tx, ConstantVariable(Entries), [], {})
    constructor_registry.construct(tx, ConstantVariable(Entries), [], {}, by_type=True)
    assert made == ["metaclass", "object"]
