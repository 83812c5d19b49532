"""Assigned ``__dict__``, hand-bound descriptors, set tracebacks, bad named tuple fields."""

import collections
import copy
import enum
import logging
import pickle
import random
import struct
import sys
from typing import Any, ClassVar

import torch

from tests.programs import outcomes_of, program


def ones() -> tuple[Any, ...]:
    return (torch.ones(3),)


class Shared:
    """All instances have the same attributes."""

    state: ClassVar[dict[str, Any]] = {"v": None}

    def __init__(self) -> None:
        self.__dict__ = self.state


class Stated:
    """Takes what it is given for its own."""

    b: Any = 5

    def __init__(self) -> None:
        self.a = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state

    def told(self) -> Any:
        return self.b


class Slotted:
    """An attribute in a slot beside a dict."""

    __slots__ = ("__dict__", "q")


class Described:
    """A descriptor of each kind."""

    @property
    def spam(self) -> Any:
        """Eggs."""
        return self.kept

    @spam.setter
    def spam(self, value: Any) -> None:
        self.kept = value

    fixed = property(lambda self: 3)

    @classmethod
    def by_class(cls, a: Any) -> Any:
        return cls.__name__, a

    @staticmethod
    def plainly(a: Any) -> Any:
        return a


Pair = collections.namedtuple("Pair", "x y")  # noqa: PYI024


class Pairs(Pair):
    """With attributes of its own."""


OUTSIDE = Stated()


@program(ones)
def dict_set(x: torch.Tensor) -> Any:
    """A dict assigned to ``__dict__`` aliases the object's attributes in both directions."""
    of: Any = Stated()
    own = {"z": x}
    of.__dict__ = own
    of.k = 1
    own["w"] = x + 1
    out = [sorted(of.__dict__), own is of.__dict__, of.k, of.told()]
    out += outcomes_of(lambda: of.a, lambda: setattr(of, "__dict__", 3))
    del of.k
    out += outcomes_of(lambda: of.k, lambda: own["k"])
    of.b = 9
    slotted: Any = Slotted()
    slotted.q, slotted.r = 1, 2
    slotted.__dict__ = {"t": 3}
    out += [of.told(), slotted.q, slotted.t, *outcomes_of(lambda: slotted.r)]
    return out, of.w + of.z, of, own, slotted


@program(ones)
def dict_shared(x: torch.Tensor) -> Any:
    """Two objects with one ``__dict__``, and one from outside that gets another."""
    first: Any = Shared()
    second: Any = Shared()
    first.v = x
    OUTSIDE.__dict__ = {"a": 1}
    OUTSIDE.a += 6
    return second.v + OUTSIDE.a, first.__dict__ is second.__dict__, dict(OUTSIDE.__dict__)


@program(ones)
def states_set(x: torch.Tensor) -> Any:
    """Copies of an object whose ``__setstate__`` sets ``__dict__``."""
    of: Any = Stated()
    of.t = x
    return copy.copy(of).t + copy.deepcopy(of).t, copy.copy(of).__dict__


@program(ones)
def bound_by_hand(x: torch.Tensor) -> Any:
    """Properties, class methods and static methods read as what they are."""
    of = Described()
    spam: Any = Described.spam
    spam.__set__(of, 5)
    out = [spam.__doc__, spam.__get__(of), spam.__get__(of, Described), spam.__get__(None, Described) is spam]
    out += [Described.fixed.__get__(of), spam.__isabstractmethod__]  # type: ignore[attr-defined]
    out += outcomes_of(lambda: spam.__delete__(of), lambda: Described.fixed.__set__(of, 1), lambda: spam.nothing)  # type: ignore[attr-defined]
    by_class, plainly = Described.__dict__["by_class"], Described.__dict__["plainly"]
    out += [by_class.__get__(None, Described)(3), by_class.__get__(of)(3), plainly.__get__(of)(4), plainly(5)]
    out += [by_class.__func__(Pair, 2), "spam" in Described.__dict__, x + 1]
    return out


@program(ones)
def fields_stay(x: torch.Tensor) -> Any:
    """Fields of named tuples cannot be set; other attributes only where a subclass has a dict."""
    pair, pairs = Pair(1, x), Pairs(3, 4)
    out = outcomes_of(
        lambda: setattr(pair, "x", 3),
        lambda: delattr(pair, "x"),
        lambda: setattr(pair, "z", 3),
        lambda: setattr(pairs, "x", 4),
        lambda: pair.__getnewargs__()[0],
    )
    pairs.extra = x  # type: ignore[attr-defined]
    return out, pairs.extra + 1


@program(ones)
def tracebacks_set(x: torch.Tensor) -> Any:
    """``__traceback__`` takes a traceback or None."""
    out = outcomes_of(lambda: setattr(Exception(), "__traceback__", 5))
    try:
        raise IndexError(4)
    except IndexError:
        found = sys.exc_info()[2]
    error = Exception()
    error.__traceback__ = found
    out.append(error.__traceback__ is found)
    error.__traceback__ = None
    out.append(error.__traceback__)
    try:
        raise ValueError(3).with_traceback(None)
    except ValueError as again:
        out.append(again.__traceback__ is not None)
    return out, x + 1


@program(ones)
def small_things(x: torch.Tensor) -> Any:
    """``struct``, ``id(())``, copies of slices and sets, ``format``, deleted attributes."""

    def function() -> None: ...

    function.a = 1  # type: ignore[attr-defined]
    function.__dict__.setdefault("b", []).append(3)
    del function.a  # type: ignore[attr-defined]
    out = [struct.pack("<if", 3, 1.5), struct.unpack("<h", b"ab"), struct.calcsize("ii"), id(()) == id(())]
    out += [copy.copy(slice(1, 4)), copy.deepcopy({(1, 2), 3}), format([1, 2]), f"{(1,)}", bool.__new__(bool, [1])]
    out += outcomes_of(lambda: format([1], "3"), lambda: f"{[1]:>3}", lambda: function.a)  # type: ignore[attr-defined]
    words = {"a", "as", "at", "or", "of", "is", "in", "it"}
    out += [collections.namedtuple("Words", [w + "_" for w in words])._fields, list(words), function.b]  # type: ignore[attr-defined]
    return out, x + 1


class Undecided(int):
    """Leaves comparing to the other side."""

    def __lt__(self, other: object) -> Any:
        return NotImplemented

    def __eq__(self, other: object) -> Any:
        return NotImplemented

    __hash__ = int.__hash__


@program(ones)
def compared_by_the_other(x: torch.Tensor) -> Any:
    """A number of a subclass that leaves comparing to a plain one is compared by that."""
    one = Undecided(1)
    return [one < 2, one == 1, one != 1, one == Undecided(1), one > 0], x + 1


LISTS = pickle.dumps({"a": [1, (2, {3})], "b": {4: 5}})


@program(ones, breaks=1)
def plain_data_loaded(x: torch.Tensor) -> Any:
    """Outside pickle bytes load anew at each call; containers lack attributes of their class."""
    found = pickle.loads(LISTS)  # noqa: S301
    found["a"].append(4)
    return found, outcomes_of(lambda: [].__name__, lambda: ().mro, lambda: {}.__bases__), [].__doc__, x + 1  # type: ignore[attr-defined]


class Shade(enum.Enum):
    DARK = 1


class Window(collections.deque):
    """Values of the last steps."""


MARKED = {
    "ordered": collections.OrderedDict(a=1),
    "member": Shade.DARK,
    "window": Window([1]),
    "no_grad": torch.no_grad(),
    "inference": torch.inference_mode(),
    "autocast": torch.autocast("cpu", enabled=False),
    "logger": logging.getLogger("tests.instance_dicts"),
    "numbers": random.Random(0),
}


def mark_all(scale):
    """Set or delete an attribute of several objects between the calls."""
    for of in MARKED.values():
        if scale is None:
            vars(of).pop("scale", None)
        else:
            of.scale = scale
    return (torch.ones(2),)


@program(*[lambda s=s: mark_all(s) for s in (None, 2.0, 3.0, None)])
def attributes_of_library_objects(x):
    """Objects of library classes gain an attribute, change it and lose it between calls."""
    read = {name: getattr(of, "scale", None) for name, of in MARKED.items()}
    try:
        x = x * MARKED["ordered"].scale
    except AttributeError as error:
        x = x - len(str(error))
    return x, read, [hasattr(of, "scale") for of in MARKED.values()], MARKED["ordered"]["a"]


@program(*[lambda s=s: mark_all(s) for s in (2.0, 3.0)])
def contexts_with_attributes(x):
    """Contexts that have attributes are entered, as decorators too, and compared."""
    with torch.no_grad():
        y = x * MARKED["inference"].scale
    return y, MARKED["no_grad"](lambda z: z + 1)(x), MARKED["no_grad"] is MARKED["no_grad"]
