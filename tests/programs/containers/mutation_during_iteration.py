"""Containers that change while they are used, and what functions know of themselves."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch

from tests.programs import program


def ones() -> tuple[Any, ...]:
    return (torch.ones(3),)


@program(ones)
def changed_while_iterated(x):
    """Values are read when the loop comes to them; another size is an error."""
    d = {"a": 1, "b": 2}
    told = []
    for key, value in d.items():
        d["b"] = 5
        told.append((key, value))
    try:
        for key in d:
            d[key + "x"] = 1
    except RuntimeError as error:
        told.append(str(error))
    s = {1}
    try:
        for q in s:
            s.add(q + 1)
    except RuntimeError as error:
        told.append(str(error))
    return x + 1, told


@program(ones)
def exhausted_list_iterator(x):
    """It stays at its end when the list grows."""
    items = [1]
    it = iter(items)
    told = [next(it), next(it, None)]
    items.append(2)
    told.append(next(it, "end"))
    return x + 1, told, type(it).__name__, type(iter(())).__name__


@program(ones)
def initialized_again(x):
    """``__init__`` of a list that exists."""
    items = [1, 2]
    items.__init__([3])
    first = list(items)
    items.__init__()
    return x + 1, first, items


@program(ones)
def wrapped_function(x):
    """``functools.wraps`` takes over names, docstring, annotations and attributes."""

    def decorate(f):
        @functools.wraps(f)
        def wrapper(*args):
            return f(*args)

        wrapper.extra = 1
        return wrapper

    @decorate
    def inner(a: int):
        """Told."""
        return a

    return inner(x), inner.__name__, inner.__qualname__, inner.__doc__, inner.__annotations__, list(inner.__dict__)


@program(ones)
def sets_popped_and_copied(x):
    """``pop`` to the end and beyond, deep copies, identity of frozen sets."""
    s = {3}
    taken = s.pop()
    try:
        s.pop()
    except KeyError as error:
        text = str(error)
    frozen = frozenset((1,))
    return x + taken, text, copy.deepcopy({1, 2}), frozenset(frozen) is frozen, frozen.copy() is frozen


class Hashed(list):
    """A list that remembers its hash in a slot."""

    __slots__ = ("hashed",)

    def __init__(self, items):
        self[:] = items
        self.hashed = hash(items)

    def __hash__(self):
        return self.hashed


@program(ones)
def key_with_slots(x):
    """The key is whole before the dict asks for its hash."""
    return x + 1, len({Hashed((1, 2)): 4}), next(iter({Hashed((1, 2)): 4})).hashed


class Pair:
    """Two parts that patterns take by position."""

    __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a = a
        self.b = b


@program(ones)
def positional_patterns(x):
    """Class patterns, and too many of them."""
    pair = Pair(1, 2)
    match pair:
        case Pair(1, b):
            got = b
    match 3:
        case int(z):
            pass
    try:
        match pair:
            case Pair(1, 2, 3):
                pass
    except TypeError as error:
        return x + got, z, str(error)


@program(ones)
def own_local_variables(x):
    """``locals()`` lists what is bound, cells included."""
    a, b = 1, 2

    def inner():
        return a

    return x + inner(), sorted(locals()), locals()["b"]


@program(ones, breaks=1)
def evaluated_text(x):
    """A function that evaluates text sees all of its variables."""
    b = 3
    return x + 1, eval("b + 1")


@program(ones, breaks=4)
def generator_names(x):
    """A generator is called as its function is, until it is renamed."""

    def numbers():
        yield 1

    numbers.__name__ = "renamed"
    it = numbers()
    first = it.__name__
    it.__name__ = "again"
    return x + next(it), first, it.__name__, it.__qualname__, it.gi_running


@program(ones)
def multiplied_by_one(x):
    """A tuple times one is itself, a list is not."""
    t, items = (1, 2), [1]
    return x + 1, t * 1 is t, items * 1 is items


@program(ones)
def views_compared_as_sets(x):
    """Keys and items of dicts that hold tensors."""
    first, second = {"p": x, "q": 1}, {"q": 1, "p": x}
    keys = first.keys() == second.keys(), first.keys() <= {"p", "q", "r"}, {"p"} < first.keys()
    return x + 1, keys, first.keys() != {"p"}


@program(ones)
def methods_without_arguments(x):
    """They refuse any."""
    told = []
    for call in (
        lambda: {}.clear(1),
        lambda: {}.keys(1),
        lambda: set().pop(1),
        lambda: [].copy(1),
        lambda: [].clear(1),
    ):
        try:
            call()
        except TypeError as error:
            told.append(str(error))
    return x + 1, told


class _NoIterator:
    def __iter__(self):
        return 3


@program(lambda: (torch.randn(3),))
def iterables_that_are_none(x):
    """``iter`` and its callers reject an invalid ``__iter__``; ``enumerate`` takes keywords."""
    told = []
    for use in (iter, list, enumerate, lambda of: zip(of, of), lambda of: [i for i in of]):
        try:
            use(_NoIterator())
        except TypeError as error:
            told.append(str(error))
    return x + 1, told, list(enumerate(iterable="ab", start=2))


class _EmptiesOther:
    def __init__(self, other):
        self.other = other

    def __eq__(self, other):
        self.other.clear()
        return True


@program(lambda: (torch.randn(3),))
def comparing_changes_what_is_compared(x):
    """List comparison and search stop early if ``__eq__`` empties them; sort sees changes."""
    a = [1, 2]
    b = [_EmptiesOther(a), 2]
    equal = a == b
    told = []

    def by(item):
        c.append(item)
        return item

    c = [2, 1]
    try:
        c.sort(key=by)
    except ValueError as error:
        told.append(str(error))
    return x * 2, equal, a, c, told


class _Words(set):
    pass


class _Pair(tuple):
    __slots__ = ()


@program(lambda: (torch.randn(3),))
def sets_looked_for_in_sets(x):
    """Sets are looked up as frozensets, and a ``KeyError`` holds the missing key itself."""
    inner = frozenset((1, 2))
    outer = {inner, len, int, (1, "a")}
    sought = _Words((3, 4))
    try:
        outer.remove(sought)
    except KeyError as error:
        same = error.args[0] is sought
    many = set(range(6))
    many.difference_update({1}, [2], (3,))
    outer.discard({1, 2})
    told = []
    for wrong in (lambda: _Words(a=1), lambda: set().__init__(a=1), lambda: [1].__getitem__()):
        try:
            wrong()
        except TypeError as error:
            told.append(str(error))
    whole = _Pair((1, 2))
    return x - 1, same, many, len(outer), {1, 2} in {inner}, told, type(whole[:]), whole * 1 is whole, _Words((1,))


class _Point:
    __match_args__ = ("a",)
    a = 1


@program(lambda: (torch.randn(3),))
def patterns_that_ask_twice(x):
    """A pattern that asks twice for one attribute is refused; so is a list too long to be."""
    told = []

    try:
        match _Point():
            case _Point(1, a=1):
                told.append("matched")
    except TypeError as error:
        told.append(str(error))
    try:
        [1, 2] * (1 << 62)
    except MemoryError:
        told.append("too long")
    d = {"a": 1}
    d |= [("b", 2)]
    return x, told, d
