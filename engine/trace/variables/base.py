"""What every value can be asked, the lazily wrapped value, and constants."""

from __future__ import annotations

import cmath
import enum
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from engine.bytecode.opcodes import VERSION
from engine.ir.sources.base import Source
from engine.trace.exc import Unsupported

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer


def type_name(cls: type) -> str:
    """What Python's messages call a class: those that C code defines with their module."""
    if cls.__flags__ & _HEAPTYPE_FLAG or cls.__module__ == "builtins":
        return cls.__name__
    return f"{cls.__module__}.{cls.__name__}"


def full_type_name(cls: type) -> str:
    """What some messages call a class from Python 3.13 on: with its module, if that is no plain one; before, its bare name."""
    if VERSION < (3, 13):
        return cls.__name__
    return cls.__qualname__ if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}.{cls.__qualname__}"


_HEAPTYPE_FLAG = 1 << 9
"""Py_TPFLAGS_HEAPTYPE."""


NO_DICT_SUFFIX = " and no __dict__ for setting new attributes" if VERSION >= (3, 13) else ""
"""What ends the refusal to set or delete an attribute of an object that has no ``__dict__``."""


class Variable:
    """Base of all kinds. The verbs refuse: a kind implements those that it supports.

    ``origin`` says how compiled code reaches the value again; None for values made while tracing.
    """

    source: Source | None = None
    is_mutable = False
    is_constructed = False
    """Whether it was made while tracing although it has an origin: each call makes its own."""
    reconstruct_before_break = False
    """Whether rebuilding it gives what holds at that moment: it is rebuilt before Python does anything at a break, and kept."""

    def python_type(self) -> type:
        """The Python type that ``type(x)`` gives."""
        raise NotImplementedError(type(self).__name__)

    def describe(self) -> str:
        """A few words for people."""
        return self.python_type().__name__

    def unsupported(self, what: str) -> Unsupported:
        """The break for an operation that this kind does not support."""
        return Unsupported("unsupported-operation", f"{what} on a value of type {self.python_type().__name__}")

    def lacks_methods(self, *names: str) -> bool:
        """Whether the value's class has none of these special methods."""
        return not any(name in base.__dict__ for base in self.python_type().__mro__ for name in names)

    def _require_method(self, tx: Tracer, name: str, text: str, *instead: str) -> None:
        """Raise the user's TypeError where the class has no method for the operation."""
        if self.lacks_methods(name, *instead):
            tx.raise_type_error(text.format(type_name(self.python_type())))

    def as_python_object(self) -> Any:
        """The one Python object that this value is known to be, else ``NotImplemented``."""
        return NotImplemented

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        """``self.name``."""
        if self.lacks_methods(name, "__getattr__") and self.python_type().__dictoffset__ == 0:
            return tx.raise_error(AttributeError, f"'{type_name(self.python_type())}' object has no attribute '{name}'")  # type: ignore[no-any-return]
        raise self.unsupported(f"reading the attribute {name!r}")

    def set_attr(self, tx: Tracer, name: str, value: Variable) -> None:
        """``self.name = value``."""
        if self.lacks_methods(name, "__getattr__") and self.python_type().__dictoffset__ == 0:
            tx.raise_error(
                AttributeError, f"'{type_name(self.python_type())}' object has no attribute '{name}'{NO_DICT_SUFFIX}"
            )
        raise self.unsupported(f"setting the attribute {name!r}")

    def del_attr(self, tx: Tracer, name: str) -> None:
        """``del self.name``."""
        raise self.unsupported(f"deleting the attribute {name!r}")

    def call(self, tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        """``self(*args, **kwargs)``."""
        if self.lacks_methods("__call__"):
            return tx.raise_type_error(f"'{type_name(self.python_type())}' object is not callable")  # type: ignore[no-any-return]
        raise Unsupported("unknown-call", f"calling {self.describe()}")

    def call_method(self, tx: Tracer, name: str, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        """``self.name(*args, **kwargs)``."""
        return realize(tx, self.get_attr(tx, name)).call(tx, args, kwargs)

    def is_truthy(self, tx: Tracer) -> bool:
        """``bool(self)``."""
        if self.lacks_methods("__bool__", "__len__"):
            return True
        raise self.unsupported("a truth test")

    def length(self, tx: Tracer) -> Variable:
        """``len(self)``."""
        self._require_method(tx, "__len__", "object of type '{}' has no len()")
        raise self.unsupported("len()")

    def get_iterator(self, tx: Tracer) -> Variable:
        """``iter(self)``."""
        self._require_method(tx, "__iter__", "'{}' object is not iterable", "__getitem__")
        raise self.unsupported("iteration")

    def next_item(self, tx: Tracer) -> Variable | None:
        """``next(self)``; None when exhausted."""
        self._require_method(tx, "__next__", "'{}' object is not an iterator")
        raise self.unsupported("next()")

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        """``self[key]``."""
        self._require_method(tx, "__getitem__", "'{}' object is not subscriptable")
        raise self.unsupported("indexing")

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        """``self[key] = value``."""
        self._require_method(tx, "__setitem__", "'{}' object does not support item assignment")
        raise self.unsupported("item assignment")

    def del_item(self, tx: Tracer, key: Variable) -> None:
        """``del self[key]``."""
        self._require_method(tx, "__delitem__", "'{}' object doesn't support item deletion")
        raise self.unsupported("item deletion")

    def contains(self, tx: Tracer, item: Variable) -> bool:
        """``item in self``."""
        self._require_method(tx, "__contains__", "argument of type '{}' is not iterable", "__iter__", "__getitem__")
        raise self.unsupported("a membership test")

    def hash_key(self, tx: Tracer) -> Any:
        """What stands for the value as a dict key: equal for equal values."""
        if self.python_type().__hash__ is None:
            tx.raise_type_error(f"unhashable type: '{type_name(self.python_type())}'")
        raise self.unsupported("hashing")

    def as_python_constant(self, tx: Tracer) -> Any:
        """The value as a Python object free of tensors.

        Raises:
            NotConstant: it is not fully known.
        """
        raise NotPythonConstant

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        """The value as an argument of an fx node, and the same over fake tensors."""
        raise Unsupported(
            "unsupported-argument", f"a value of type {self.python_type().__name__} as an argument of a torch operation"
        )

    def child_variables(self) -> list[Variable]:
        """Values held inside, for codegen's walk."""
        return []

    def reconstruct(self, cg: PyCodegen) -> None:
        """Push the value in generated code; only called for values that have no origin."""
        raise Unsupported("side-effect", f"rebuilding a value of type {self.python_type().__name__} after the graph")


class RealObjectVariable(Variable):
    """A kind that stands for one real object, reached through ``origin`` where it has one."""

    def __init__(self, real_object: Any, source: Source | None) -> None:
        self.real_object = real_object
        self.source = source

    def python_type(self) -> type:
        return type(self.real_object)

    def as_python_object(self) -> Any:
        return self.real_object


class NotPythonConstant(Exception):
    """``python()`` of a value that is not fully known while tracing."""


class LazyVariable(Variable):
    """A real object that nothing has looked at yet: no guards until ``force``."""

    __slots__ = ("real_object", "realized", "source")

    def __init__(self, real_object: Any, source: Source) -> None:
        self.real_object = real_object
        self.source = source
        self.realized: Variable | None = None

    def python_type(self) -> type:
        return type(self.real_object)

    def describe(self) -> str:
        return (
            self.realized.describe()
            if self.realized is not None
            else f"{type(self.real_object).__name__} (not looked at)"
        )

    def realize(self, tx: Tracer) -> Variable:
        """The value, wrapped and guarded at the first call."""
        if self.realized is None:
            assert self.source is not None
            self.realized = tx.wrap(self.real_object, self.source)
        return self.realized


class StringFormatVariable(Variable):
    """Text with numbers in it that are symbols: made after the graph, unless something looks at it.

    ``parts`` are pieces of text and (value, conversion, format), as in an f-string.
    """

    __slots__ = ("parts", "realized")

    def __init__(self, parts: list[str | tuple[Variable, int, str]]) -> None:
        self.parts = parts
        self.realized: Variable | None = None

    def python_type(self) -> type:
        return str

    def describe(self) -> str:
        return self.realized.describe() if self.realized is not None else "text (not looked at)"

    def realize(self, tx: Tracer) -> Variable:
        """The text itself; which numbers are in it is taken for granted."""
        if self.realized is None:
            from engine.trace.codegen_runtime.f_strings import format_value

            shown = (p if isinstance(p, str) else format_value(p[0].as_python_constant(tx), *p[1:]) for p in self.parts)
            self.realized = ConstantVariable("".join(shown))
        return self.realized

    def child_variables(self) -> list[Variable]:
        return [part[0] for part in self.parts if not isinstance(part, str)]

    def reconstruct(self, cg: PyCodegen) -> None:
        from engine.trace.codegen_runtime.f_strings import join_f_string

        cg.load_helper(join_f_string, 0)
        cg.load_const(tuple(p if isinstance(p, str) else p[1:] for p in self.parts))
        cg.load_all(self.child_variables())
        cg.body.call(1 + len(self.child_variables()))


def realize(tx: Tracer, value: Variable) -> Variable:
    """Look at a value: what a lazy one stands for, any other itself."""
    return value.realize(tx) if value.__class__ is LazyVariable or value.__class__ is StringFormatVariable else value


def reachable_variables(values: Iterable[Variable]) -> Iterator[Variable]:
    """Each value that is reached from these, once; not those that nothing has looked at."""
    seen: set[int] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if isinstance(value, LazyVariable):
            if value.realized is None:
                continue
            value = value.realized
        if id(value) not in seen:
            seen.add(id(value))
            yield value
            todo += value.child_variables()


class NullVariable(Variable):
    """CPython's NULL on the stack, below a callable without ``self``."""

    def python_type(self) -> type:
        return type(None)

    def describe(self) -> str:
        return "NULL"


NULL = NullVariable()


class AttributeDictVariable(Variable):
    """A kind whose attributes are kept by name, as written by the traced code."""

    attributes: dict[str, Variable]


class ConstantVariable(Variable):
    """An immutable Python object known while tracing: numbers, strings, None, dtypes, devices, enum members."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.value = value
        self.source = source

    def python_type(self) -> type:
        return type(self.value)

    def describe(self) -> str:
        try:
            text = repr(self.value)
        except ValueError:  # a whole number of more digits than texts may have
            return "a number with very many digits"
        return text if len(text) <= 60 else text[:57] + "..."

    def as_python_object(self) -> Any:
        return self.value

    def as_python_constant(self, tx: Tracer) -> Any:
        return self.value

    def hash_key(self, tx: Tracer) -> Any:
        return self.value

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
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
        if type(value) is complex and not _survives_repr_round_trip(value):
            node = tx.graph.create_node("call_function", complex, (value.real, value.imag), {}, tx.node_provenance())
            node.meta["example_value"] = value
            return node, value
        return value, value

    def is_truthy(self, tx: Tracer) -> bool:
        return bool(self.value)

    def length(self, tx: Tracer) -> Variable:
        return tx.fold_constant(len, self.value)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return tx.get_constant_attr(self, name)

    def get_iterator(self, tx: Tracer) -> Variable:
        from engine.trace.variables.containers.iterators import SequenceIteratorVariable

        if not isinstance(self.value, (str, bytes)):
            return super().get_iterator(tx)
        return SequenceIteratorVariable([ConstantVariable(c) for c in self.value], type(iter(self.value)), source=self)

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return tx.fold_constant(lambda a, b: a[b], self.value, key.as_python_constant(tx))

    def contains(self, tx: Tracer, item: Variable) -> bool:
        return bool(tx.fold_constant(lambda: item.as_python_constant(tx) in self.value).as_python_constant(tx))

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_const(self.value)


def _survives_repr_round_trip(value: complex) -> bool:
    """Whether the text of a complex number, as fx writes it, is that number: not with NaN, infinity or a negative zero."""
    parts = (value.real, value.imag)
    return cmath.isfinite(value) and not any(part == 0 and math.copysign(1, part) < 0 for part in parts)


def is_none(value: Variable) -> bool:
    """Whether a looked-at value is None."""
    return isinstance(value, ConstantVariable) and value.value is None


NONE = ConstantVariable(None)
