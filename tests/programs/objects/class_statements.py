"""Classes that a function makes each time it runs."""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
from typing import Any

import torch

from tests.programs import program


def ones() -> tuple[Any, ...]:
    return (torch.ones(3),)


@program(ones)
def inherited_methods(x):
    """``super``, properties, class and static methods, names of the function around."""
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


@program(ones)
def property_with_setter(x):
    """The setter is traced, and so is the deleter's absence."""

    class Bounded:
        def __init__(self):
            self._v = 0

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, value):
            self._v = min(value, 10)

    b = Bounded()
    b.v = 20
    try:
        del b.v
    except AttributeError as error:
        kind = type(error).__name__
    return x + b.v, kind


def _made(x):
    class Holder:
        def __init__(self, v):
            self.v = v

        def me(self):
            return __class__, self.v

    return Holder(x + 1)


@program(ones, breaks=1, steady=False)
def instance_across_a_break(x):
    """An object, its class and a bound method agree about each other after the break."""
    holder = _made(x)
    method = holder.me
    torch._dynamo.graph_break()
    return holder.me()[1], type(holder).__name__, holder.me()[0] is type(holder), method()[0] is type(holder)


@program(ones)
def exception_classes(x):
    """They are raised and caught by their bases."""

    class Base(Exception):
        pass

    class Coded(Base):
        def __init__(self, code):
            super().__init__(code, 3)
            self.code = code

    try:
        raise Coded(2)
    except Base as error:
        return x + error.code, error.args


@program(ones)
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


@program(ones)
def enum_inside(x):
    """Members, their methods, iteration and lookup."""

    class Color(enum.Enum):
        RED = 1
        GREEN = 2

        def loud(self):
            return self.name.upper() + "!"

    return x * Color.GREEN.value, Color.RED.loud(), [c.name for c in Color], Color(2) is Color.GREEN


@program(ones, breaks=1, steady=False)
def enum_member_across_a_break(x):
    """The member belongs to the class that lives on."""

    class Color(enum.Enum):
        RED = 1

        def loud(self):
            return self.name + "!"

    c = Color.RED
    torch._dynamo.graph_break()
    return x + 1, c.loud(), c is Color.RED


@program(ones)
def container_class_and_descriptor(x):
    """A list with a method; a descriptor that is told its name."""

    class Numbers(list):
        def total(self):
            return sum(self)

    class Answer:
        def __get__(self, of, cls=None):
            return 42

        def __set_name__(self, owner, name):
            self.name = name

    descriptor = Answer()

    class Holder:
        d = descriptor

    numbers = Numbers([1, 2])
    numbers.append(3)
    return x * numbers.total(), Holder().d, descriptor.name


@program(ones)
def abstract_class(x):
    """Only what implements all methods can be made."""

    class Base(abc.ABC):
        @abc.abstractmethod
        def f(self): ...

    class Whole(Base):
        def f(self):
            return 7

    try:
        Base()
    except TypeError as error:
        text = str(error)
    return x + Whole().f(), text


@program(ones)
def class_by_type(x):
    """``type(name, bases, namespace)``, and an attribute set afterwards."""
    made = type("A", (), {"f": lambda self: 3, "n": 4})
    made.w = 9
    a = made()
    return x + (a.f() + a.n + a.w), made.__name__


@program(ones)
def classes_in_a_loop(x):
    """Each turn makes another class; methods see the loop's variable as it is when they run."""
    made = []
    for i in range(3):

        class Sized:
            turn = i

            def __len__(self):
                return i

        made.append(Sized)
    return x + sum(len(c()) for c in made), [c.turn for c in made], made[0] is made[1]


@program(ones)
def module_class_inside(x):
    """A module without parameters."""

    class Double(torch.nn.Module):
        def forward(self, x):
            return x * 2

    return Double()(x)


@program(ones)
def ordering_completed(x):
    """``functools.total_ordering`` on a class made inside."""

    @functools.total_ordering
    class Size:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __lt__(self, other):
            return self.n < other.n

    return x + 1, Size(1) <= Size(2), Size(2) >= Size(3), sorted([Size(3), Size(1)])[0].n


@program(ones)
def slots_inside(x):
    """Only the declared attributes exist."""

    class Slotted:
        __slots__ = ("a",)

        def __init__(self):
            self.a = 1

    s = Slotted()
    try:
        s.b = 2
    except AttributeError as error:
        return x + s.a, str(error)


@program(ones)
def annotated_function(x):
    """Annotations and the docstring of a function made inside."""

    def inner(a: int, b: str = "q") -> float:
        """Told."""
        return a

    return x + 1, inner.__annotations__, inner.__doc__, inner.__name__


@program(ones)
def data_class_with_slots(x):
    """The decorator recreates a dataclass with slots; its instances hold no other attribute."""

    @dataclasses.dataclass(slots=True)
    class Part:
        value: Any
        scale: int = 3
        seen: list = dataclasses.field(default_factory=list)

        def scaled(self):
            return self.value * self.scale

    @dataclasses.dataclass(slots=True)
    class Named(Part):
        name: str = "none"

    part = Named(x.sin(), name="a")
    part.scale = 5
    part.seen.append(1)
    try:
        part.other = 3
    except AttributeError as error:
        text = str(error)
    return part.scaled(), Named.__slots__, hasattr(part, "__dict__"), text, part.seen, dataclasses.asdict(part)


@program(ones)
def frozen_data_class_with_slots(x):
    """A frozen data class with slots and an order, one of whose objects is handed out."""

    @dataclasses.dataclass(frozen=True, slots=True, order=True)
    class Pair:
        first: int
        second: int = 3

    low = Pair(1)
    high = dataclasses.replace(low, second=4)
    try:
        low.first = 3
    except dataclasses.FrozenInstanceError as error:
        text = str(error)
    return x.sin() * high.second * (low < high), hash(low) == hash(Pair(1)), text, type(high).__name__


@program(lambda: (torch.ones(3), 2), lambda: (torch.ones(3), 3), lambda: (torch.ones(3), 4), steady=True)
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
