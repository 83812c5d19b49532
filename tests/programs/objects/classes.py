"""User classes: attributes, methods, dataclasses, inheritance, special methods, enums."""

import dataclasses
import enum
import types

import torch

from tests.programs import program


class Scaler:
    """A plain class with state."""

    count = 0

    def __init__(self, scale):
        self.scale = scale
        self.last = None

    def __call__(self, x):
        self.count += 1
        self.last = x
        return x * self.scale

    def apply(self, x):
        return self(x) + 1

    @property
    def half(self):
        return self.scale / 2

    @staticmethod
    def plus(x, y):
        return x + y

    @classmethod
    def make(cls, scale):
        return cls(scale)

    def __getitem__(self, index):
        return self.scale * index

    def __len__(self):
        return 7

    def __add__(self, other):
        return self.scale + other

    def __eq__(self, other):
        return isinstance(other, Scaler) and other.scale == self.scale

    def __contains__(self, item):
        return item == self.scale

    def __bool__(self):
        return self.scale > 0


@program(lambda: (torch.randn(3), Scaler(2.0)), lambda: (torch.randn(3), Scaler(3.0)))
def object_argument(x, scaler):
    """Attributes and properties of an object handed in are guarded."""
    return x * scaler.scale + scaler.half, scaler.plus(x, 1), type(scaler).__name__


@program(lambda: (torch.randn(3), Scaler(2.0)), steady=False)
def object_mutated(x, scaler):
    """Methods that write attributes write them on the caller's object."""
    y = scaler(x)
    z = scaler.apply(y)
    scaler.extra = z + 1
    return z, scaler.count


@program(lambda: (torch.randn(3),))
def object_made_inside(x):
    """An object that lives and dies inside."""
    scaler = Scaler.make(4.0)
    return (
        scaler(x),
        scaler.count,
        scaler[2],
        len(scaler),
        scaler + 1,
        4.0 in scaler,
        bool(scaler),
        scaler == Scaler(4.0),
    )


@program(lambda: (torch.randn(3),))
def object_returned(x):
    """An object made inside goes out."""
    scaler = Scaler(x.sum())
    scaler.name = "made inside"
    return scaler


@dataclasses.dataclass
class Config:
    """Settings as models keep them."""

    width: int = 4
    scale: float = 0.5
    names: tuple = ("a", "b")
    parts: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Output:
    """A result with names."""

    logits: torch.Tensor
    loss: torch.Tensor | None = None


@program(lambda: (torch.randn(4), Config()), lambda: (torch.randn(4), Config(scale=2.0)))
def dataclass_argument(x, config):
    """A dataclass of settings."""
    assert x.shape[0] == config.width
    return x * config.scale + len(config.names)


@program(lambda: (torch.randn(4),))
def dataclass_made_inside(x):
    """Dataclasses made inside, changed and returned."""
    config = Config(width=2)
    config.parts.append(x)
    config.scale = config.scale * 2
    return Output(x * config.scale), Output(logits=x, loss=x.sum()).loss, config


class Base:
    """A base class that others refine."""

    factor = 2

    def transform(self, x):
        return x * self.factor

    def describe(self):
        return "base"


class Derived(Base):
    """Overrides and calls up."""

    factor = 3

    def transform(self, x):
        return super().transform(x) + 1

    def describe(self):
        return "derived of " + super().describe()


@program(lambda: (torch.randn(3), Derived()), lambda: (torch.randn(3), Base()))
def inheritance(x, thing):
    """super(), class attributes, isinstance and overriding."""
    return (
        thing.transform(x),
        thing.describe(),
        isinstance(thing, Base),
        isinstance(thing, Derived),
        issubclass(type(thing), Base),
    )


class Mode(enum.Enum):
    """Two modes."""

    FAST = "fast"
    SLOW = "slow"


@program(lambda: (torch.randn(3), Mode.FAST), lambda: (torch.randn(3), Mode.SLOW))
def enum_argument(x, mode):
    """Members of an enum by identity, name and value."""
    if mode is Mode.FAST:
        return x * 2, mode.value
    return x, mode.name, Mode("slow") is mode


class Slotted:
    """A class with slots."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


@program(lambda: (torch.randn(3), Slotted(2)))
def slots(x, thing):
    """Objects with slots are read and made like others."""
    return x * thing.value + Slotted(3).value


@program(lambda: (torch.randn(3), types.SimpleNamespace(a=2, b=types.SimpleNamespace(c=3))))
def namespaces(x, options):
    """Nested namespaces of settings."""
    return x * options.a + options.b.c, getattr(options, "missing", 1), vars(options)["a"]


class Lazy:
    """Computes an attribute when it is missing."""

    def __init__(self):
        self.known = 1

    def __getattr__(self, name):
        if name.startswith("times_"):
            return int(name.removeprefix("times_"))
        raise AttributeError(name)


@program(lambda: (torch.randn(3), Lazy()))
def getattr_hook(x, lazy):
    """__getattr__ answers for missing names only."""
    return x * lazy.times_7 + lazy.known, hasattr(lazy, "other")


class Counter:
    """Counts on the class."""

    made = 0

    def __init__(self):
        type(self).made += 1


@program(lambda: (torch.randn(3),), steady=False)
def class_attribute_written(x):
    """An instance count kept on the class."""
    Counter()
    Counter()
    return x * Counter.made


class Countdown:
    """An iterator of our own."""

    def __init__(self, start):
        self.value = start

    def __iter__(self):
        return self

    def __next__(self):
        if self.value == 0:
            raise StopIteration
        self.value -= 1
        return self.value


@program(lambda: (torch.randn(3),))
def own_iterator(x):
    """for over an object with __iter__ and __next__."""
    for i in Countdown(3):
        x = x + i
    return x


class Doubling:
    """A context manager that counts its uses."""

    uses = []

    def __enter__(self):
        self.uses.append("enter")
        return 2

    def __exit__(self, kind, value, traceback):
        self.uses.append("exit" if kind is None else kind.__name__)
        return kind is KeyError


@program(lambda: (torch.randn(3),), steady=False)
def own_context_manager(x):
    """with over an object with __enter__ and __exit__."""
    with Doubling() as factor:
        x = x * factor
    return x


@program(lambda: (torch.randn(3),), steady=False)
def context_manager_swallows(x):
    """An exception swallowed by __exit__."""
    with Doubling():
        x = x + 1
        raise KeyError("gone")
    return x


class WithMethod:
    """Its method is compiled bound."""

    def __init__(self):
        self.weight = torch.full((3,), 2.0)

    def forward(self, x, scale=1.0):
        """A bound method as the root."""
        self.weight = self.weight + 1
        return x * self.weight * scale


bound_method = program(lambda: (torch.randn(3),), lambda: (torch.randn(3), 2.0), steady=True)(WithMethod().forward)


@program(lambda: (torch.randn(3), Scaler))
def class_argument(x, kind):
    """A class handed in and instantiated."""
    return kind(3.0)(x)


class Counted:
    count = 0

    def step(self):
        return 1

    @property
    def width(self):
        return 2

    @classmethod
    def counted(cls):
        cls.count += 1
        return cls.count


class Inheriting(Counted):
    pass


class Deeper(Inheriting):
    def step(self):
        return super().step() + 1


INHERITING = Inheriting()


def hidden(name, value):
    def make():
        setattr(Inheriting, name, value)
        return (torch.ones(3),)

    return make


@program(
    lambda: (torch.ones(3),),
    hidden("count", 10),
    hidden("step", lambda self: 20),
    hidden("width", property(lambda self: 30)),
    hidden("absent", 40),
)
def inherited_and_then_hidden(x):
    """An entry added later to an intermediate class is found first, also through ``super``."""
    found = [INHERITING.count, INHERITING.step(), INHERITING.width, Inheriting.count, Deeper().step()]
    found += [hasattr(Inheriting, "absent"), getattr(INHERITING, "absent", None), getattr(Inheriting(), "absent", None)]
    return x + 1, found


@program(lambda: (torch.ones(3),), lambda: (torch.ones(3),), lambda: (torch.ones(3),), steady=False)
def counters_of_subclasses(x):
    """The first count of a subclass begins at the base's, later ones go on from its own."""
    return x + Deeper.counted(), Counted.count, Deeper.count
