"""What every value can be asked, the lazily wrapped value, and constants."""

from __future__ import annotations

import cmath
import enum
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from engine.bytecode.opcodes import VERSION
from engine.ir.origin import Origin
from engine.trace.signals import Unsupported

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer


def type_name(cls: type) -> str:
    """What Python's messages call a class: those that C code defines with their module."""
    if cls.__flags__ & _HEAP or cls.__module__ == "builtins":
        return cls.__name__
    return f"{cls.__module__}.{cls.__name__}"


def full_type_name(cls: type) -> str:
    """What some messages call a class from Python 3.13 on: with its module, if that is no plain one; before, its bare name."""
    if VERSION < (3, 13):
        return cls.__name__
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


_HEAP = 1 << 9
"""Py_TPFLAGS_HEAPTYPE."""


NO_DICT = " and no __dict__ for setting new attributes" if VERSION >= (3, 13) else ""
"""What ends the refusal to set or delete an attribute of an object that has no ``__dict__``."""


class Value:
    """Base of all kinds. The verbs refuse: a kind implements those that it supports.

    ``origin`` says how compiled code reaches the value again; None for values made while tracing.
    """

    origin: Origin | None = None
    is_mutable = False
    is_made = False
    """Whether it was made while tracing although it has an origin: each call makes its own."""
    is_dated = False
    """Whether rebuilding it gives what holds at that moment: it is rebuilt before Python does anything at a break, and kept."""

    def type(self) -> type:
        """The Python type that ``type(x)`` gives."""
        raise NotImplementedError(type(self).__name__)

    def describe(self) -> str:
        """A few words for people."""
        return self.type().__name__

    def refuse(self, what: str) -> Unsupported:
        """The break for an operation that this kind does not support."""
        return Unsupported("unsupported-operation", f"{what} on a value of type {self.type().__name__}")

    def lacks(self, *names: str) -> bool:
        """Whether the value's class has none of these special methods."""
        return not any(name in base.__dict__ for base in self.type().__mro__ for name in names)

    def _needs(self, tx: Tracer, name: str, text: str, *instead: str) -> None:
        """Raise the user's TypeError where the class has no method for the operation."""
        if self.lacks(name, *instead):
            tx.raise_type_error(text.format(type_name(self.type())))

    def real(self) -> Any:
        """The one Python object that this value is known to be, else ``NotImplemented``."""
        return NotImplemented

    def get_attr(self, tx: Tracer, name: str) -> Value:
        """``self.name``."""
        if self.lacks(name, "__getattr__") and self.type().__dictoffset__ == 0:
            return tx.raise_error(AttributeError, f"'{type_name(self.type())}' object has no attribute '{name}'")  # type: ignore[no-any-return]
        raise self.refuse(f"reading the attribute {name!r}")

    def set_attr(self, tx: Tracer, name: str, value: Value) -> None:
        """``self.name = value``."""
        if self.lacks(name, "__getattr__") and self.type().__dictoffset__ == 0:
            tx.raise_error(AttributeError, f"'{type_name(self.type())}' object has no attribute '{name}'{NO_DICT}")
        raise self.refuse(f"setting the attribute {name!r}")

    def del_attr(self, tx: Tracer, name: str) -> None:
        """``del self.name``."""
        raise self.refuse(f"deleting the attribute {name!r}")

    def call(self, tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``self(*args, **kwargs)``."""
        if self.lacks("__call__"):
            return tx.raise_type_error(f"'{type_name(self.type())}' object is not callable")  # type: ignore[no-any-return]
        raise Unsupported("unknown-call", f"calling {self.describe()}")

    def call_method(self, tx: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``self.name(*args, **kwargs)``."""
        return force(tx, self.get_attr(tx, name)).call(tx, args, kwargs)

    def truth(self, tx: Tracer) -> bool:
        """``bool(self)``."""
        if self.lacks("__bool__", "__len__"):
            return True
        raise self.refuse("a truth test")

    def length(self, tx: Tracer) -> Value:
        """``len(self)``."""
        self._needs(tx, "__len__", "object of type '{}' has no len()")
        raise self.refuse("len()")

    def iterate(self, tx: Tracer) -> Value:
        """``iter(self)``."""
        self._needs(tx, "__iter__", "'{}' object is not iterable", "__getitem__")
        raise self.refuse("iteration")

    def step(self, tx: Tracer) -> Value | None:
        """``next(self)``; None when exhausted."""
        self._needs(tx, "__next__", "'{}' object is not an iterator")
        raise self.refuse("next()")

    def get_item(self, tx: Tracer, key: Value) -> Value:
        """``self[key]``."""
        self._needs(tx, "__getitem__", "'{}' object is not subscriptable")
        raise self.refuse("indexing")

    def set_item(self, tx: Tracer, key: Value, value: Value) -> None:
        """``self[key] = value``."""
        self._needs(tx, "__setitem__", "'{}' object does not support item assignment")
        raise self.refuse("item assignment")

    def del_item(self, tx: Tracer, key: Value) -> None:
        """``del self[key]``."""
        self._needs(tx, "__delitem__", "'{}' object doesn't support item deletion")
        raise self.refuse("item deletion")

    def contains(self, tx: Tracer, item: Value) -> bool:
        """``item in self``."""
        self._needs(tx, "__contains__", "argument of type '{}' is not iterable", "__iter__", "__getitem__")
        raise self.refuse("a membership test")

    def key(self, tx: Tracer) -> Any:
        """What stands for the value as a dict key: equal for equal values."""
        if self.type().__hash__ is None:
            tx.raise_type_error(f"unhashable type: '{type_name(self.type())}'")
        raise self.refuse("hashing")

    def python(self, tx: Tracer) -> Any:
        """The value as a Python object free of tensors.

        Raises:
            NotConstant: it is not fully known.
        """
        raise NotConstant

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        """The value as an argument of an fx node, and the same over fake tensors."""
        raise Unsupported(
            "unsupported-argument", f"a value of type {self.type().__name__} as an argument of a torch operation"
        )

    def children(self) -> list[Value]:
        """Values held inside, for codegen's walk."""
        return []

    def reconstruct(self, cg: Codegen) -> None:
        """Push the value in generated code; only called for values that have no origin."""
        raise Unsupported("side-effect", f"rebuilding a value of type {self.type().__name__} after the graph")


class HeldValue(Value):
    """A kind that stands for one real object, reached through ``origin`` where it has one."""

    def __init__(self, held: Any, origin: Origin | None) -> None:
        self.held = held
        self.origin = origin

    def type(self) -> type:
        return type(self.held)

    def real(self) -> Any:
        return self.held


class NotConstant(Exception):
    """``python()`` of a value that is not fully known while tracing."""


class Lazy(Value):
    """A real object that nothing has looked at yet: no guards until ``force``."""

    __slots__ = ("held", "known", "origin")

    def __init__(self, held: Any, origin: Origin) -> None:
        self.held = held
        self.origin = origin
        self.known: Value | None = None

    def type(self) -> type:
        return type(self.held)

    def describe(self) -> str:
        return self.known.describe() if self.known is not None else f"{type(self.held).__name__} (not looked at)"

    def get(self, tx: Tracer) -> Value:
        """The value, wrapped and guarded at the first call."""
        if self.known is None:
            assert self.origin is not None
            self.known = tx.wrap(self.held, self.origin)
        return self.known


class LazyText(Value):
    """Text with numbers in it that are symbols: made after the graph, unless something looks at it.

    ``parts`` are pieces of text and (value, conversion, format), as in an f-string.
    """

    __slots__ = ("known", "parts")

    def __init__(self, parts: list[str | tuple[Value, int, str]]) -> None:
        self.parts = parts
        self.known: Value | None = None

    def type(self) -> type:
        return str

    def describe(self) -> str:
        return self.known.describe() if self.known is not None else "text (not looked at)"

    def get(self, tx: Tracer) -> Value:
        """The text itself; which numbers are in it is taken for granted."""
        if self.known is None:
            from engine.trace.support import with_format

            shown = (p if isinstance(p, str) else with_format(p[0].python(tx), *p[1:]) for p in self.parts)
            self.known = Const("".join(shown))
        return self.known

    def children(self) -> list[Value]:
        return [part[0] for part in self.parts if not isinstance(part, str)]

    def reconstruct(self, cg: Codegen) -> None:
        from engine.trace.support import joined_text

        cg.helper(joined_text, 0)
        cg.const(tuple(p if isinstance(p, str) else p[1:] for p in self.parts))
        cg.load_all(self.children())
        cg.out.call(1 + len(self.children()))


def force(tx: Tracer, value: Value) -> Value:
    """Look at a value: what a lazy one stands for, any other itself."""
    return value.get(tx) if value.__class__ is Lazy or value.__class__ is LazyText else value


def reached(values: Iterable[Value]) -> Iterator[Value]:
    """Each value that is reached from these, once; not those that nothing has looked at."""
    seen: set[int] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if isinstance(value, Lazy):
            if value.known is None:
                continue
            value = value.known
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            todo += value.children()


class Null(Value):
    """CPython's NULL on the stack, below a callable without ``self``."""

    def type(self) -> type:
        return type(None)

    def describe(self) -> str:
        return "NULL"


NULL = Null()


class Attributed(Value):
    """A kind whose attributes are kept by name, as written by the traced code."""

    attributes: dict[str, Value]


class Const(Value):
    """An immutable Python object known while tracing: numbers, strings, None, dtypes, devices, enum members."""

    __slots__ = ("origin", "value")

    def __init__(self, value: Any, origin: Origin | None = None) -> None:
        self.value = value
        self.origin = origin

    def type(self) -> type:
        return type(self.value)

    def describe(self) -> str:
        try:
            text = repr(self.value)
        except ValueError:  # a whole number of more digits than texts may have
            return "a number with very many digits"
        return text if len(text) <= 60 else text[:57] + "..."

    def real(self) -> Any:
        return self.value

    def python(self, tx: Tracer) -> Any:
        return self.value

    def key(self, tx: Tracer) -> Any:
        return self.value

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        value = self.value
        if type(value).__module__ == "numpy" and hasattr(value, "item"):  # fx knows Python's own numbers only
            value = value.item()
            if type(value) is bool:  # most operations count it as a fraction then, and some as a truth value
                raise Unsupported("unsupported-argument", "a truth value of numpy as an argument of a torch operation")
        for kind in (int, float, str):
            if isinstance(value, kind) and isinstance(
                value, enum.Enum
            ):  # an operation takes it as the number that it is
                value = kind(value) if kind is not str else str.__str__(value)
        if type(type(value)).__name__ == "pybind11_type":  # fx writes calls as Python, where it has no name
            raise Unsupported("unsupported-argument", f"{value} as an argument of a torch operation")
        if type(value) is complex and not _is_read_back(value):
            node = tx.graph.add("call_function", complex, (value.real, value.imag), {}, tx.node_origin())
            node.meta["example_value"] = value
            return node, value
        return value, value

    def truth(self, tx: Tracer) -> bool:
        return bool(self.value)

    def length(self, tx: Tracer) -> Value:
        return tx.fold(len, self.value)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return tx.constant_attr(self, name)

    def iterate(self, tx: Tracer) -> Value:
        from engine.trace.values.iterators import SequenceIterator

        if not isinstance(self.value, (str, bytes)):
            return super().iterate(tx)
        return SequenceIterator([Const(c) for c in self.value], type(iter(self.value)), source=self)

    def get_item(self, tx: Tracer, key: Value) -> Value:
        return tx.fold(lambda a, b: a[b], self.value, key.python(tx))

    def contains(self, tx: Tracer, item: Value) -> bool:
        return bool(tx.fold(lambda: item.python(tx) in self.value).python(tx))

    def reconstruct(self, cg: Codegen) -> None:
        cg.const(self.value)


def _is_read_back(value: complex) -> bool:
    """Whether the text of a complex number, as fx writes it, is that number: not with NaN, infinity or a negative zero."""
    parts = (value.real, value.imag)
    return cmath.isfinite(value) and not any(part == 0 and math.copysign(1, part) < 0 for part in parts)


def is_none(value: Value) -> bool:
    """Whether a looked-at value is None."""
    return isinstance(value, Const) and value.value is None


NONE = Const(None)
