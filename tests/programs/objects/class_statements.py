"""Classes that a function makes each time it runs."""

from __future__ import annotations

import collections
import dataclasses
import enum
from typing import Any

import torch

from tests.programs import program


def ones() -> tuple[Any, ...]:
    return (torch.ones(3),)


@program(ones, breaks=2, steady=False)
def inherited_methods(x):
    """Python runs a class statement; ``super``, properties and methods are traced."""
    k = 3

    class A:
        """The docstring."""

        z: int = k

        def scaled(self):
            return self.z * k

        @property
        def more(self):
            return self.z + 1

        @classmethod
        def added(cls, y):
            return cls.z + y

        @staticmethod
        def doubled(y):
            return y * 2

    class B(A):
        def __init__(self, v):
            super().__init__()
            self.v = v

        def scaled(self):
            return super().scaled() + self.v

    b = B(5)
    told = (A.added(4), b.doubled(3), isinstance(b, A), A.__doc__, B.__name__, type(b) is B, A.__annotations__)
    return x * b.scaled() + b.more, told


def _made(x):
    class Holder:
        def __init__(self, v):
            self.v = v

        def me(self):
            return __class__, self.v

    return Holder(x + 1)


@program(ones, breaks=2, steady=False)
def instance_across_a_break(x):
    """An object, its class and a bound method agree about each other after the break."""
    holder = _made(x)
    method = holder.me
    torch._dynamo.graph_break()
    return holder.me()[1], type(holder).__name__, holder.me()[0] is type(holder), method()[0] is type(holder)


@program(ones, breaks=1, steady=False)
def exception_class(x):
    """It is raised and caught by its base."""

    class Coded(ValueError):
        def __init__(self, code):
            super().__init__(code, 3)
            self.code = code

    try:
        raise Coded(2)
    except ValueError as error:
        return x + error.code, error.args


@program(ones, breaks=2, steady=False)
def dataclass_inside(x):
    """Defaults, default factories, equality and repr."""

    @dataclasses.dataclass
    class Point:
        a: int
        b: float = 2.0
        c: list = dataclasses.field(default_factory=list)

        def total(self):
            return self.a + self.b

    p = Point(1)
    p.c.append(3)
    return x * p.total(), repr(p), p == Point(1, 2.0, [3]), p == Point(1)


@program(ones, breaks=1, steady=False)
def enum_inside(x):
    """Members, their methods, iteration and lookup."""

    class Color(enum.Enum):
        RED = 1
        GREEN = 2

        def loud(self):
            return self.name.upper() + "!"

    return x * Color.GREEN.value, Color.RED.loud(), [c.name for c in Color], Color(2) is Color.GREEN


@program(ones, breaks=1, steady=False)
def module_class_inside(x):
    """A module without parameters."""

    class Double(torch.nn.Module):
        def forward(self, x):
            return x * 2

    return Double()(x)


class Base:
    """The base of a class that ``type`` makes."""

    scale = 2

    def apply(self, x):
        """Scale a tensor by the constants of the class."""
        return x * self.scale + self.shift


@program(ones)
def class_by_type(x):
    """Each call of ``type(name, bases, namespace)`` of constants makes its own class."""
    made = type("A", (Base,), {"shift": 4})
    return made().apply(x), made, made(), made.__module__, made is type("A", (Base,), {"shift": 4})


@program(ones, breaks=2, steady=False)
def class_by_type_with_methods(x):
    """Python makes a class with methods, and sets an attribute of one that traced code made."""
    made = type("A", (), {"f": lambda self: 3})
    plain = type("B", (), {"n": 4})
    plain.w = 9
    return x + (made().f() + plain().n + plain.w)


@program(ones)
def named_tuple_by_call(x):
    """A named tuple class of constants, whose instance and class are returned."""
    made = collections.namedtuple("Pair", "a b", defaults=[3])
    pair = made(x + 1)
    return pair, made, pair._replace(b=x), pair.a * pair.b, made._make([1, 2]), type(pair) is made


@program(ones)
def annotated_function(x):
    """Annotations and the docstring of a function made inside."""

    def inner(a: int, b: str = "q") -> float:
        """Told."""
        return a

    return x + 1, inner.__annotations__, inner.__doc__, inner.__name__


@program(lambda: (torch.ones(3), 2), lambda: (torch.ones(3), 3), breaks=1, steady=False)
def changing_entries(x, n):
    """A class body reads the current value of a changing argument, not an earlier class's."""

    class Made:
        z = n
        parts = [n]

        def val(self):
            return self.z + len(self.parts)

    made = Made()
    Made.parts.append(made.val())
    return x * made.val(), Made.parts, Made.z


@program(lambda: (torch.linspace(-2, 2, 12).view(4, 3),))
def masked_reductions(x):
    """Library code defines a class that it does not use for these arguments."""
    return torch.masked.mean(x, 0, mask=x > 0), torch.masked.softmax(x, 1, mask=x > -1)
