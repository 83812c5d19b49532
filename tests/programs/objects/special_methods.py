"""Operator protocols of user classes: descriptors, metaclasses, iteration, contexts."""

import abc
import enum
import functools
import math

import torch

from tests.programs import outcomes_of, program


class Clamped:
    """A descriptor that clamps what is assigned."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner):
        return self if instance is None else getattr(instance, self.name, 0)

    def __set__(self, instance, value):
        setattr(instance, self.name, min(max(value, 0), 10))


class Settings:
    """Two clamped numbers."""

    level = Clamped()

    def __init__(self, level):
        self.level = level


@program(lambda: (torch.randn(3), Settings(4)), steady=False)
def descriptors(x, settings):
    """Reading and writing through a data descriptor."""
    settings.level = 99
    return x * settings.level, Settings(-3).level


class Registry(type):
    """A metaclass that counts its classes and answers len()."""

    made = []

    def __new__(mcs, name, bases, namespace):
        cls = super().__new__(mcs, name, bases, namespace)
        mcs.made.append(name)
        return cls

    def __len__(cls):
        return len(cls.__name__)


class Registered(metaclass=Registry):
    """A class with a metaclass."""

    scale = 3


@program(lambda: (torch.randn(3),))
def metaclasses(x):
    """Attributes and special methods that come from a metaclass."""
    return x * Registered.scale + len(Registered), list(Registry.made)


class Vector:
    """Two tensors with arithmetic."""

    def __init__(self, u, v):
        self.u, self.v = u, v

    def __add__(self, other):
        return Vector(self.u + other.u, self.v + other.v)

    def __mul__(self, scale):
        return Vector(self.u * scale, self.v * scale)

    __rmul__ = __mul__

    def __neg__(self):
        return self * -1

    def __iadd__(self, other):
        self.u = self.u + other.u
        return self

    def __matmul__(self, other):
        return (self.u * other.u + self.v * other.v).sum()

    def __iter__(self):
        yield self.u
        yield self.v

    def __getattr__(self, name):
        if name == "w":
            return self.u - self.v
        raise AttributeError(name)

    def __lt__(self, other):
        return len(self.u) < len(other.u)


@program(lambda: (torch.randn(3), torch.randn(3)))
def arithmetic_of_own(x, y):
    """Binary, reflected, unary and in-place operators of a user class."""
    a, b = Vector(x, y), Vector(y, x)
    c = 2 * (a + b) * 3
    c += -a
    u, v = c
    return u, v, a @ b, a.w, a < b


class Table:
    """Items by key, with deletion, membership and a default."""

    def __init__(self):
        self.items = {}

    def __setitem__(self, key, value):
        self.items[key] = value

    def __getitem__(self, key):
        return self.items[key]

    def __delitem__(self, key):
        del self.items[key]

    def __contains__(self, key):
        return key in self.items

    def __len__(self):
        return len(self.items)

    def __missing__(self, key):
        return None


@program(lambda: (torch.randn(3),))
def items_of_own(x):
    """Subscripting, deleting and membership of a user class."""
    table = Table()
    table["a"] = x
    table["b"] = x + 1
    table["a"] += 2
    del table["b"]
    return table["a"], "b" in table, len(table), bool(table)


class Shape(abc.ABC):
    """An abstract base with one concrete method."""

    @abc.abstractmethod
    def area(self): ...

    def scaled(self, k):
        return self.area() * k


class Square(Shape):
    """A square."""

    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side * self.side


@program(lambda: (torch.randn(3), Square(3)), lambda: (torch.randn(3), Square(4)))
def abstract_bases(x, shape):
    """Methods through an abstract base class."""
    return x * shape.scaled(2), isinstance(shape, Shape)


class Cached:
    """A property that is computed once."""

    def __init__(self):
        self.computed = 0

    @property
    def value(self):
        if not hasattr(self, "_value"):
            self.computed += 1
            self._value = 5
        return self._value

    @value.setter
    def value(self, new):
        self._value = new

    @value.deleter
    def value(self):
        del self._value


@program(lambda: (torch.randn(3), Cached()), steady=False)
def properties(x, cached):
    """Getter, setter and deleter of a property."""
    first = cached.value
    cached.value = 7
    second = cached.value
    del cached.value
    return x * first + second * cached.value, cached.computed


class MyList(list):
    """A list with one more method."""

    def total(self):
        return sum(self)


class MyDict(dict):
    """A dict whose keys are attributes."""

    def __getattr__(self, name):
        return self[name]


@program(lambda: (torch.randn(3), MyDict(scale=2.0)))
def subclasses_of_builtins(x, options):
    """Subclasses of list and dict keep their type."""
    values = MyList([x, x + 1])
    values.append(x * options.scale)
    return values, values.total(), type(values).__name__, options["scale"]


class MyTensor(torch.Tensor):
    """A tensor subclass without behavior of its own."""


@program(lambda: (torch.randn(3).as_subclass(MyTensor), torch.randn(3)))
def tensor_subclass(x, y):
    """A subclass of Tensor goes through operations as PyTorch has it."""
    return x + y, type(x * 2).__name__


class Formatted:
    """Has words for itself."""

    def __init__(self, n):
        self.n = n

    def __repr__(self):
        return f"Formatted({self.n})"

    def __format__(self, spec):
        return f"<{self.n}{spec}>"

    def __hash__(self):
        return self.n

    def __eq__(self, other):
        return self.n == other.n


@program(lambda: (torch.randn(3), Formatted(3)))
def words_of_own(x, thing):
    """repr, str, format, hash and equality of a user class."""
    table = {thing: 1, Formatted(3): 2}
    return x, f"{thing!r} {thing:!} {thing}", len(table), table[Formatted(3)]


@program(lambda: (torch.randn(3),), breaks=1, steady=False)
def class_made_inside(x):
    """A class defined in the function."""

    class Local:
        factor = 2

        def apply(self, y):
            return y * self.factor

    return Local().apply(x), type("Made", (), {"k": 4}).k


class Stateful:
    """Called through __call__ with state in closures and attributes."""

    def __init__(self):
        self.history = []

    def __call__(self, x):
        """An object with __call__ as the root."""
        self.history.append(tuple(x.shape))
        return x * len(self.history)


@program(lambda: (torch.randn(3), Stateful()), steady=False)
def callable_object(x, f):
    """Calling an object that remembers."""
    return f(x) + f(x[:1])


@program(lambda: (torch.randn(3),))
def setattr_delattr(x):
    """setattr, getattr, delattr and vars by name."""
    thing = Formatted(1)
    setattr(thing, "extra", x)
    value = getattr(thing, "extra")
    delattr(thing, "extra")
    return value + 1, hasattr(thing, "extra"), sorted(vars(thing))


class Maker(dict):
    """Makes an instance of the class that is stored, at each reading."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


class Negate:
    """Called with a tensor."""

    def __call__(self, x):
        return -x


MAKERS = Maker(negate=Negate, same=dict)


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def dict_that_makes_what_it_gives(x):
    """A dict whose ``__getitem__`` computes from what is stored."""
    return MAKERS["negate"](x) + len(MAKERS["same"])


class Compared:
    """Notes what it is compared with, and what is deleted of it."""

    log = []

    def __init__(self, number):
        self.number = number

    def __lt__(self, other):
        self.log.append((self.number, other.number))
        return self.number < other.number

    def __rdivmod__(self, other):
        return other, self.number

    def __delattr__(self, name):
        object.__delattr__(self, name)


class Slotted:
    """Has no dict."""

    __slots__ = ("number",)


@program(lambda: (torch.ones(2),))
def order_of_comparing(x):
    """Sorting asks ``<`` of each pair once, in Python's order."""
    Compared.log = []
    items = [Compared(n) for n in (3, 1, 2, 1)]
    by_number = sorted(items), sorted(items, reverse=True), max(items), sorted([2, 1], key=Compared)
    return [c.number for c in by_number[0]], by_number[2].number, list(Compared.log), x + 1


@program(lambda: (torch.ones(2),))
def refused_by_builtins(x):
    """``divmod``, ``sum``, ``vars`` and ``delattr`` raise as in Python or use class methods."""
    calls = (
        (divmod, 3, Compared(2)), (divmod, "a", 2), (divmod, object(), 2), (divmod, 1), (divmod, 7.5, 2),
        (sum, ["a"], ""), (sum, [b"a"], b""), (sum, [[1], [2]], []),
        (delattr, Compared(1), "other"), (delattr, Compared(1), "number"), (vars, Slotted()), (vars, 3), (vars, Compared(4)),
    )  # fmt: skip
    return outcomes_of(*(functools.partial(*call) for call in calls)), x + 1


class _Access(enum.Flag):
    READ = 1
    WRITE = 2


@program(lambda: (torch.ones(2),))
def several_flags(x):
    """Flags of a class made inside, several at once, leave the graph."""

    both = _Access.READ | _Access.WRITE
    return (
        [both.value, repr(both), both in {both}, (_Access(3) ^ _Access.READ).name],
        {"it": [both]}["it"][0].value,
        x + 1,
    )


@program(lambda: (torch.ones(2),))
def not_a_number_in_containers(x):
    """NaN is in what holds the same object, and equals nothing."""
    made = float("nan")
    found = [math.nan in [math.nan], made in [made], float("nan") in [made], [made].index(made), [made].count(math.nan)]
    return found, [math.nan] == [math.nan], (made,) == (math.nan,), {made: 1}.get(made), made == made, x + 1  # noqa: PLR0124
