"""Copies and pickles of objects, as their classes say how they are taken apart."""

from __future__ import annotations

import collections
import copy
import functools
import pickle

import torch

from tests.programs import program


def one():
    return (torch.randn(3),)


class Slotted:
    """Has slots, and no dict."""

    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Settled:
    """Says what its state is."""

    def __init__(self, x, cache):
        self.x = x
        self.cache = cache

    def __getstate__(self):
        return {"x": self.x}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.cache = None


class Reduced:
    """Says how it is made again."""

    def __init__(self, *parts):
        self.parts = parts

    def __reduce__(self):
        return Reduced, (1, *self.parts), {"note": ["kept"]}


class Words(list):
    """A list with attributes."""


class Table(collections.OrderedDict):
    """An ordered dict with attributes."""


class Point(tuple):
    """A tuple that is made of two numbers."""

    __slots__ = ()

    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    def __getnewargs__(self):
        return tuple(self)


class Owner:
    """Copies deeply in a way of its own."""

    def __init__(self, x):
        self.x = x
        self.shared = [1]

    def __deepcopy__(self, memo):
        made = Owner(self.x)
        memo[id(self)] = made
        made.shared = copy.deepcopy(self.shared, memo)
        return made

    def __copy__(self):
        return Owner(self.x + 1)


def _scaled(x, by):
    return x * by


@program(one, breaks=2)
def copies(x):
    """Shallow copies share what the original holds."""
    slotted, settled, reduced, words = Slotted([1]), Settled(x, [2]), Reduced(2), Words([1, 2])
    words.note = [3]
    table = Table(b=1, a=2)
    table.note = 4
    part = functools.partial(_scaled, x, by=2)
    part.mark = [5]
    found = [copy.copy(v) for v in (slotted, settled, reduced, words, table, part, Point(1, 2), Owner(x))]
    return (
        found[0].a is slotted.a,
        hasattr(found[0], "b"),
        found[1].x is x,
        found[1].cache,
        found[2].parts,
        found[2].note,
        found[3],
        type(found[3]) is Words,
        found[3].note is words.note,
        list(found[4].items()),
        found[4].note,
        found[5](),
        found[5].mark is part.mark,
        found[6],
        type(found[6]) is Point,
        found[7].x,
    )


@program(one, breaks=1)
def deep_copies(x):
    """Deep copies share nothing, and what was shared is shared by the copies."""
    inner = [1]
    slotted = Slotted(inner)
    words = Words([inner, inner])
    words.me = words
    made = copy.deepcopy({"a": slotted, "b": words, "c": Owner(x), "d": functools.partial(_scaled, by=inner)})
    again = copy.deepcopy([made["c"], made["c"]])
    return (
        made["a"].a is inner,
        made["a"].a is made["b"][0] is made["b"][1],
        made["b"].me is made["b"],
        made["c"].x,
        made["d"].keywords["by"] is made["a"].a,
        again[0] is again[1],
        copy.deepcopy((1, (2, 3))),
    )


@program(one, breaks=3)
def pickled_objects(x):
    """What a pickle held is given back as it was when it was made, as often as it is read."""
    words = Words([1, [2]])
    words.note = words
    slotted, table = Slotted((1, 2)), Table(b=1)
    data = pickle.dumps([words, slotted, table, Reduced(3), Point(4, 5), functools.partial(_scaled, by=3)])
    words.append(9)
    first, second = pickle.loads(data), pickle.loads(data)  # noqa: S301 - its own
    return (
        x + 1,
        first[0],
        first[0].note is first[0],
        first[0] is second[0],
        first[1].a,
        first[2],
        type(first[2]) is Table,
        first[3].parts,
        first[3].note is second[3].note,
        first[4] == (4, 5),
        first[5](x),
        words,
    )


@program(one, breaks=2)
def pickled_iterators(x):
    """Iterators half-way are pickled with what is still to come."""
    it, text, numbers = iter([1, 2, 3]), iter("abc"), iter(range(5))
    keys = iter({"a": 1, "b": 2})
    for i in (it, text, numbers, keys):
        next(i)
    again = []
    for i in (it, text, numbers, keys):  # a comprehension is a frame of its own before Python 3.12
        again.append(list(pickle.loads(pickle.dumps(i, 2))))  # noqa: S301 - its own
    return x, again, next(it)


class Doubling(torch.Tensor):
    """A tensor whose deep copy is twice itself."""

    def __deepcopy__(self, memo):
        return self.clone() * 2


def base():
    return (torch.arange(12.0).view(3, 4),)


def views():
    (whole,) = base()
    return whole[:, ::2], whole[1:], torch.ones(3, 1).expand(3, 4)


def with_attribute(name):
    def make():
        tensor = torch.ones(2)
        if name:
            setattr(tensor, name, [1])
        return (tensor,)

    return make


@program(views, breaks=3)
def deepcopy_of_views(x, y, z):
    """A deep copy of a tensor has a copy of its whole storage, and its layout in it."""
    return [(c, c.stride(), c.storage_offset()) for c in (copy.deepcopy(x), copy.deepcopy(y), copy.deepcopy(z))]


@program(base, breaks=1)
def deepcopy_of_tensors_that_share_memory(x):
    """Their copies share memory too."""
    whole, row = copy.deepcopy([x, x[0]])
    whole.add_(1)
    return whole, row


@program(with_attribute(""), with_attribute("note"), breaks=1)
def deepcopy_of_a_tensor_with_attributes(x):
    """Attributes are copied; a tensor without any is copied in the graph."""
    copied = copy.deepcopy(x)
    return copied + 1, getattr(copied, "note", None)


@program(lambda: (torch.ones(3).as_subclass(Doubling),), breaks=2)
def deepcopy_of_a_tensor_subclass(x):
    """The method of the class makes the copy."""
    return copy.deepcopy(x), copy.deepcopy({"a": x})
