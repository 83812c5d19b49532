"""Exercise keys with traced methods, attribute dicts, and descriptors used directly."""

import collections
import functools
import sys

import torch

from tests.programs import program


class Noted:
    """Writes down when it is hashed and compared."""

    seen: list = []

    def __init__(self, k):
        self.k = k

    def __hash__(self):
        Noted.seen.append(("hash", self.k))
        return hash(self.k)

    def __eq__(self, other):
        Noted.seen.append(("eq", self.k))
        return isinstance(other, Noted) and self.k == other.k


@program(lambda: (torch.randn(3),), lambda: (torch.randn(3),))
def keys_that_are_seen_to_be_asked(x):
    """Each lookup hashes and compares once, also in ``setdefault``, ``pop`` and ``update``."""
    Noted.seen.clear()
    d = {Noted(1): x}
    d[Noted(1)] = x + 1
    there = (Noted(1) in d, Noted(2) in d, len(d))
    other = d.setdefault(Noted(3), x * 2)
    left = d.pop(Noted(3))
    more = {}
    more.update(d)
    total = d[Noted(1)] + left + other + more[Noted(1)]
    return total, there, list(Noted.seen)


class Bad:
    """Refuses to be hashed, or to be compared."""

    def __init__(self, how):
        self.how = how

    def __hash__(self):
        if self.how == "hash":
            raise TypeError("no hash")
        return 1

    def __eq__(self, other):
        raise ValueError("no comparison")


# From 3.14 on dicts and sets put a TypeError of ``__hash__`` in their own words, which Python has to make.
@program(lambda: (torch.randn(3),), breaks=3 if sys.version_info >= (3, 14) else 0)
def keys_that_refuse(x):
    """What a key's methods raise comes out of the container that asked."""
    told = []
    for f in (
        lambda: {Bad("hash"): 1},
        lambda: {Bad("eq"): 1, Bad("eq"): 2},
        lambda: {Bad("eq"), Bad("eq")},
        lambda: Bad("hash") in {1: 2},
        lambda: {1: 5}[Bad("eq")],
    ):
        try:
            told.append(f())
        except (TypeError, ValueError) as error:
            told.append((type(error).__name__, str(error)))
    return x + 1, told


class Counting(int):
    """Counts how often it is hashed."""

    n = 0

    def __hash__(self):
        Counting.n += 1
        return int.__hash__(self)


@program(lambda: (torch.randn(3),))
def hashes_that_are_kept(x):
    """A set made of a dict, and copies of sets, ask no element for its hash again."""
    Counting.n = 0
    d = dict.fromkeys(map(Counting, range(4)))
    counts = [Counting.n]
    s = set(d)
    counts.append(Counting.n)
    frozenset(s), s.copy(), s | s, set(s)
    counts.append(Counting.n)
    Counting.n = 0
    return x + 1, counts, len(s)


class Plain:
    """Holds attributes."""


class Given:
    """Takes its attributes from a dict."""

    def __init__(self, x):
        self.__dict__ = {"a": x}


class Shared:
    """All instances have the same attributes."""

    state: dict = {}

    def __init__(self):
        self.__dict__ = self.state


class Attributes(dict):
    """Entries that are attributes."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__ = self


kept = Attributes(a=3.0)


@program(lambda: (torch.randn(3),))
def a_dict_for_attributes(x):
    """``obj.__dict__ = d``: the dict and the attributes are one from then on."""
    o, d = Plain(), {"a": x, "b": 2}
    o.old = 1
    o.__dict__ = d
    d["c"] = x + 1
    o.d = 4
    del o.b
    g = Given(x)
    g.q = 1
    return o.a + o.c, o.__dict__ is d, sorted(d), hasattr(o, "old"), o, g, g.__dict__, d


@program(lambda: (torch.randn(3),))
def attributes_that_are_shared(x):
    """Instances that all have one dict see what each of them writes."""
    a, b = Shared(), Shared()
    a.v = 2
    result = x * b.v, dict(Shared.state)
    Shared.state.clear()
    return result


@program(lambda: (torch.randn(3),))
def entries_as_attributes(x):
    """A dict that is its own ``__dict__``, made here or outside: an attribute set is an entry."""
    d = Attributes(a=1)
    d.b = x
    d["c"] = x + 1
    kept.q = 5
    seen = kept["q"], kept.get("a"), "q" in kept
    del kept.q
    return d.a + d["b"] + d.c, len(d), seen, kept.get("q"), hasattr(kept, "q"), d


@program(lambda: (torch.randn(3),))
def a_dict_refused(x):
    """Only a dict can hold attributes."""
    o = Plain()
    try:
        o.__dict__ = [1]
    except TypeError as error:
        return x + 1, str(error)


class Described:
    """One of each kind of descriptor."""

    @classmethod
    def made(cls, a):
        return cls.__name__, a

    @staticmethod
    def plain(a):
        return a

    @property
    def five(self):
        return 5

    @five.setter
    def five(self, value):
        self.set_to = value

    def method(self, a):
        return a + 1


@program(lambda: (torch.randn(3),))
def descriptors_by_themselves(x):
    """``__get__`` and ``__set__`` called by name, on what a class's ``__dict__`` holds."""
    d, own = Described(), Described.__dict__
    own["five"].__set__(d, 7)
    return (
        own["made"].__get__(None, Described)(x),
        own["made"].__get__(d)(1),
        own["plain"].__get__(None, Described)(x),
        own["five"].__get__(d, Described),
        own["five"].__get__(None, Described) is Described.five,
        own["method"].__get__(d, Described)(x),
        Described.five.fget(d),
        own["made"].__func__(Described, 3),
        own["plain"](2),
        d.set_to,
        "made" in own,
        "nothing" in vars(Described),
    )


@program(lambda: (torch.randn(3),), breaks=3)
def made_descriptors_by_themselves(x):
    """The same of descriptors made here."""

    def f(self, a):
        return self.v + a

    o = Plain()
    o.v = x
    o.f = f.__get__(o, Plain)
    named = classmethod(lambda cls: cls.__name__).__get__(None, Plain)()
    return o.f(1), staticmethod(f)(o, 3), property(lambda s: s.v).__get__(o), functools.partial(f, o)(3), named


class Ordered(collections.OrderedDict):
    """A subclass of its own."""


class Doubling(collections.OrderedDict):
    """Makes what is missing."""

    def __missing__(self, key):
        return key * 2


@program(lambda: (torch.randn(3),))
def ordered_dicts_without_the_key(x):
    """Methods of ordered dicts and their subclasses treat missing keys as in eager."""
    told = []
    d, e, f = Doubling(a=1), Ordered(a=1), collections.OrderedDict(a=1)
    for g in (
        lambda: d["z"],
        lambda: d.move_to_end("z"),
        lambda: e["z"],
        lambda: e.pop("z"),
        lambda: e.setdefault("k", x),
        lambda: e.move_to_end("zz"),
        lambda: Ordered.fromkeys("ab", 1),
        lambda: type(Ordered.fromkeys("a")).__name__,
        lambda: f.move_to_end("zz"),
        lambda: collections.OrderedDict().popitem(),
        lambda: e.popitem(False),
    ):
        try:
            told.append(g())
        except KeyError as error:
            told.append((str(error), error.args))
    return x + 1, told, e


@program(lambda: (torch.randn(3),))
def reversed_by_name(x):
    """``__reversed__`` called by its name."""
    d = {"a": 1, "b": 2}
    return (
        x + 1,
        list(d.__reversed__()),
        list(d.keys().__reversed__()),
        list(dict.__reversed__(d)),
        list(d.items().__reversed__()),
        list([1, 2].__reversed__()),
        list(range(3).__reversed__()),
        list(collections.OrderedDict(a=1).__reversed__()),
        list(collections.deque([1, 2]).__reversed__()),
        type(reversed(d)).__name__,
    )


class Views(set):
    """A set of its own class."""


@program(lambda: (torch.randn(3),))
def views_beside_sets(x):
    """Set operations of dict views with any set give plain new sets, in place as well."""
    d = {"one": 1, "two": 2}
    own, keys = Views({"one", "three"}), d.keys()
    before = own
    own |= keys
    again = Views({"one"})
    same = again
    again |= Views({"four"})
    told = [
        (type(v).__name__, sorted(v))
        for v in (own, before, keys | before, before & keys, frozenset("a") | keys, keys - ["one"])
    ]
    return x + 1, told, type(same).__name__, sorted(same), same is again


class _Own(dict):
    pass


class _Defaults(collections.defaultdict):
    pass


@program(lambda: (torch.randn(3),))
def copies_and_unions_of_dict_subclasses(x):
    """``copy`` and ``|`` give dicts for dict subclasses, but keep ordered and default ones."""

    told = []
    for made in (_Own(a=1), Ordered(a=1), _Defaults(int, a=1)):
        told.extend(type(v).__name__ for v in (made.copy(), made | {"b": 2}, {"b": 2} | made))
        try:
            made | 1
        except TypeError as error:
            told.append(str(error))
    return x + 1, told


class Bag:
    """Holds attributes, one behind a property."""

    def __init__(self):
        self.__dict__["x"] = 3


@program(lambda: (torch.randn(3), Bag()), breaks=1)
def a_dict_beside_its_object(x, bag):
    """An object and its ``__dict__`` show each other's writes during and after a break."""
    held = bag.__dict__
    print("break")
    held["y"] = 1
    bag.z = x
    seen = dict(held), bag.y, held["z"] + 1
    held.setdefault("w", 5)
    last = held.popitem()
    held |= {"v": 2}
    bag.__dict__ |= {"u": 7}
    return seen, last, bag.v, sorted(held), bag


def object_and_dict():
    bag = Plain()
    bag.a = 1
    return torch.randn(3), bag, bag.__dict__


@program(object_and_dict)
def a_dict_met_after_its_object(x, bag, held):
    """An object and its ``__dict__`` as arguments share every change, in either order."""
    held["b"] = 3
    bag.c = x
    del bag.a
    return bag.b, held["c"] + 1, sorted(held), hasattr(bag, "a"), "a" in held, bag.__dict__ is held


@program(lambda: object_and_dict()[::-1])
def a_dict_met_before_its_object(held, bag, x):
    """The same with the dict first."""
    before = held["a"]
    held["b"] = 3
    bag.c = x
    del bag.a
    return before, bag.b, held["c"] + 1, sorted(held), hasattr(bag, "a"), "a" in held


def two_with_one_dict():
    a, b = Plain(), Plain()
    a.v = 1
    b.__dict__ = a.__dict__
    return torch.randn(3), a, b


@program(two_with_one_dict)
def objects_from_outside_with_one_dict(x, a, b):
    """What one of two objects that share their dict is given, the other has."""
    before = b.v
    a.v = 5
    b.w = x
    return before, b.v, a.w + 1, a.__dict__ is b.__dict__


class Scaled(torch.nn.Module):
    """Scales by an attribute."""

    def __init__(self):
        super().__init__()
        self.k = 1

    def forward(self, x):
        return x * self.k


@program(lambda: (torch.randn(3), Scaled()), breaks=2)
def a_module_beside_its_dict(x, module):
    """A module whose dict is written to by itself after a break."""
    held = module.__dict__
    print("break")
    held["k"] = 5
    y = module(x)
    module.k = 7
    return y, held["k"], module(x)
