"""Hooks of bases and metaclasses of classes made inside; properties; escaping generators."""

import abc
from collections.abc import Iterator
from typing import Any, NamedTuple, TypedDict

import torch

from tests.programs import program


class Registered:
    """Keeps its subclasses, and the words that they were made with."""

    known: list[type] = []
    scale: float = 1.0

    def __init_subclass__(cls, scale: float = 1.0, **words: Any) -> None:
        super().__init_subclass__(**words)
        cls.scale = scale
        Registered.known.append(cls)


class Named(type):
    """Gives each class a tag, and each instance a number."""

    made = 0

    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **words: Any) -> Any:
        space["origin"] = "made"
        found = super().__new__(cls, name, bases, space)
        found.tag = name.lower()  # type: ignore[attr-defined]
        return found

    def __init__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **words: Any) -> None:
        super().__init__(name, bases, space)
        cls.words = tuple(words)

    def __call__(cls, *args: Any) -> Any:
        instance = super().__call__(*args)
        instance.number = len(args)
        return instance


class Doubled:
    """Keeps twice what it is given, in the instance's ``__dict__``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, of: Any, owner: type) -> Any:
        return self if of is None else of.__dict__.get(self.name, 7)

    def __set__(self, of: Any, value: Any) -> None:
        of.__dict__[self.name] = value * 2

    def __delete__(self, of: Any) -> None:
        del of.__dict__[self.name]


class Holder:
    """Has one."""

    value = Doubled()


def holder() -> Holder:
    """One that holds something already."""
    made = Holder()
    made.value = 3
    return made


@program(lambda: (torch.ones(2),), steady=False, breaks=1)
def hooked_by_a_base(x: torch.Tensor) -> tuple[Any, ...]:
    """``__init_subclass__`` of an outside base runs once, with the class statement's keywords."""
    before = len(Registered.known)

    class Child(Registered, scale=4.0):
        def apply(self, y: torch.Tensor) -> torch.Tensor:
            return y * self.scale

    return (
        Child().apply(x),
        len(Registered.known) - before,
        Registered.known[-1] is Child,
        Child.scale,
        Registered.scale,
    )


@program(lambda: (torch.ones(2),), breaks=3, steady=False)
def hooked_by_a_base_made_inside(x: torch.Tensor) -> tuple[Any, ...]:
    """The same with a base of the trace's own, two levels deep."""

    class Base:
        def __init_subclass__(cls, factor: int = 1, **words: Any) -> None:
            super().__init_subclass__(**words)
            cls.factor = factor  # type: ignore[attr-defined]

    class Middle(Base, factor=2):
        pass

    class Last(Middle):
        pass

    return x * Middle.factor, Last.factor, [c.__name__ for c in Last.__mro__]  # type: ignore[attr-defined]


@program(lambda: (torch.ones(2),), breaks=1, steady=False)
def made_by_a_metaclass(x: torch.Tensor) -> tuple[Any, ...]:
    """``__new__``, ``__init__`` and ``__call__`` of a metaclass are traced as in Python."""

    class Model(metaclass=Named, big=True):  # type: ignore[call-arg]
        def __init__(self, factor: float = 2.0) -> None:
            self.factor = factor

        def apply(self, y: torch.Tensor) -> torch.Tensor:
            return y * self.factor

    model: Any = Model(3.0)
    kind: Any = Model
    return model.apply(x), kind.tag, kind.origin, kind.words, model.number, type(kind) is Named, isinstance(model, kind)


@program(lambda: (torch.ones(2),), breaks=2, steady=False)
def abstract_made_inside(x: torch.Tensor) -> tuple[Any, ...]:
    """An abstract class of the trace's own, with what its children may leave out."""

    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self) -> torch.Tensor: ...

    class Square(Shape):
        def area(self) -> torch.Tensor:
            return x * x

    try:
        Shape()  # type: ignore[abstract]
    except TypeError as error:
        told = str(error)
    return Square().area(), told, issubclass(Square, Shape)


@program(lambda: (torch.ones(2),), breaks=1, steady=False)
def named_tuple_made_inside(x: torch.Tensor) -> tuple[Any, ...]:
    """``typing.NamedTuple`` as a base, with a default and a method."""

    class Point(NamedTuple):
        a: int
        b: float = 1.5

        def total(self) -> float:
            return self.a + self.b

    point, other = Point(3), Point(1, b=2)
    return (
        x * point.total(),
        point._replace(a=4).total(),
        tuple(other),
        Point._fields,
        point == (3, 1.5),
        Point.__name__,
    )


class Options(TypedDict):
    """From outside."""

    scale: float


@program(lambda: (torch.ones(2),), breaks=1, steady=False)
def typed_dicts(x: torch.Tensor) -> tuple[Any, ...]:
    """What a ``TypedDict`` makes is a plain dict."""

    class Inner(TypedDict):
        shift: int

    options, inner = Options(scale=2.0), Inner(shift=1)
    return x * options["scale"] + inner["shift"], options, inner, type(options) is dict, type(inner) is dict


@program(lambda: (torch.ones(2), Holder()), lambda: (torch.ones(2), holder()))
def described_values(x: torch.Tensor, of: Holder) -> tuple[Any, ...]:
    """Read, set and deleted through a descriptor that writes to the instance itself."""
    first = of.value
    of.value = first + 1
    second = of.value
    own = dict(of.__dict__)
    other = Holder()
    other.value = 5
    del of.value
    return x * first, second, own, of.value, other, other.value


@program(lambda: (torch.ones(2),))
def generators_that_leave(x: torch.Tensor) -> Any:
    """An unstarted generator is returned as a generator and sees later additions to its list."""
    items = [1]

    def give(start: int, *, step: int = 2) -> Iterator[torch.Tensor]:
        for item in items:
            yield x * (item + start + step)

    made = give(3, step=4)
    items.append(5)
    return list(made), give(1), (x + n for n in items)


@program(lambda: (torch.ones(2),), breaks=1)
def generators_over_a_break(x: torch.Tensor) -> list[torch.Tensor]:
    """Made before a break, asked after it."""
    made = (x + n for n in range(3))
    print("between")
    return list(made)


class OfClass(property):
    """A property of the class."""

    def __get__(self, of: Any, cls: Any = None) -> Any:
        return self.fget(cls)  # type: ignore[misc]


class Kept(property):
    """Computed once for each object; twice what is set is kept."""

    def __get__(self, of: Any, cls: Any = None) -> Any:
        if of is None:
            return self
        name = "_" + self.fget.__name__  # type: ignore[union-attr]
        if name not in of.__dict__:
            of.__dict__[name] = super().__get__(of, cls)
        return of.__dict__[name]

    def __set__(self, of: Any, value: Any) -> None:
        super().__set__(of, value * 2)


class Setting:
    """Its table is its class's; its rate is computed when first read."""

    parts: dict[str, int] = {"a": 1}

    def __init__(self) -> None:
        self.base = 3

    @OfClass
    def table(cls) -> dict[str, int]:  # noqa: N805
        """The parts, as they are."""
        return dict(cls.parts)

    @Kept
    def rate(self) -> int:
        """One more than the base."""
        return self.base + 1

    @rate.setter
    def rate(self, value: int) -> None:
        self._rate = value


class Narrower(Setting):
    """Has parts of its own."""

    parts = {"a": 2, "b": 3}


@program(lambda: (torch.ones(2), Narrower()))
def own_kinds_of_property(x: torch.Tensor, of: Narrower) -> Any:
    """Subclasses of property that say themselves how they are read and set."""
    first = of.rate
    of.rate = 10
    return x * first + of.rate, of.table, Setting.table, len(type(of).table), type(of).rate is Setting.rate, vars(of)
