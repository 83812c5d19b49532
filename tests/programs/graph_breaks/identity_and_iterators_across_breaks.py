"""Exercise object identity and iterator positions across graph breaks."""

import collections
import itertools
import operator
import typing
from collections import namedtuple

import torch

import engine
from tests.programs import program


def vector():
    """A short vector."""
    return torch.arange(4.0)


@program(lambda: (vector(),))
def equal_strings_are_not_one(x):
    """Text that is put together equals a literal without being it."""
    name = "xyzpdq"
    joined = name[:3] + name[3:]
    return x.sin() if operator.is_(name, joined) else x.cos(), name is joined, operator.is_not(name, joined)


@program(lambda: (vector(), "xyzpdq", "xyzpdq"), lambda: (vector(), "xyzpdq", "".join(["xyz", "pdq"])))
def identity_of_arguments(x, first, second):
    """Equal arguments that are one object at one call and two at the next."""
    return x + 1 if first is second else x - 1


@program(lambda: (vector(),))
def tuples_that_are_themselves(x):
    """Copies of a tuple that Python does not make."""
    pair = (x.sin(), 2)
    return (
        pair[0],
        pair * 1 is pair,
        pair[:] is pair,
        pair + () is pair,
        tuple(pair) is pair,
        pair * 2 is pair,
    )


@program(lambda: (vector(),), breaks=1)
def one_object_twice(x):
    """What two variables hold is one object after a break, whatever its type."""
    pair, numbers, part, size = (x.sin(), 1), range(3), slice(1, 3), torch.Size([1, 2])
    again = [pair, numbers, part, size]
    print("break")
    return [a is b for a, b in zip(again, (pair, numbers, part, size), strict=True)], x[part] * pair[0][part]


class Pair(namedtuple("Base", "x y")):  # noqa: PYI024, SLOT002 - the untyped kind, with a dict, is what is tested
    """A named tuple that takes attributes."""


@program(lambda: (vector(),))
def attribute_of_named_tuple(x):
    """What is written on a subclass of a named tuple is there afterwards."""
    pair = Pair(x.sin(), 2)
    pair.w = 5
    return pair.x + 1, hasattr(pair, "w")


@program(lambda: (vector(),), breaks=2)
def property_with_new_text(x):
    """The documentation of a property is written and read."""
    described = property(doc="basic")
    y = x.sin()
    described.__doc__ = "extended"
    return y, described.__doc__


@program(lambda: (vector(),), breaks=1, steady=False)
def documented_property(x):
    """A property takes over the documentation of its getter."""

    class Owner:
        @property
        def value(self):
            """The text."""
            return x + 1

    return Owner().value, Owner.value.__doc__


@program(lambda: (vector(),), breaks=1, steady=True)
def half_reversed(x):
    """A reversed list sees what its list becomes."""
    data = [4, 5, 6, 7]
    left = reversed(data)
    y = x * next(left)
    data[:] = [10, 11, 12, 13]
    print("break")
    return y, next(left), type(left).__name__


@program(lambda: (vector(),), breaks=1)
def half_used_iterators(x):
    """Iterators are of their own types after a break."""
    made = [
        itertools.permutations([1, 2, 3], 2),
        itertools.product([1, 2], repeat=2),
        itertools.repeat(5, 3),
        reversed((1, 2, 3)),
        reversed("abc"),
    ]
    y = x * sum(map(len, map(str, map(next, made))))
    print("break")
    return y, [type(i).__name__ for i in made]


@program(lambda: (vector(),))
def reversed_shrinks(x):
    """A reversed list whose list loses its next item is at its end, and stays there."""
    data = [1, 2, 3]
    left = reversed(data)
    first = next(left)
    del data[1:]
    after = list(left)
    data.extend([4, 5])
    return x * first, after, list(left)


@program(lambda: (vector(),))
def hints_of_length(x):
    """How many items iterators expect to give."""
    data = [1, 2, 3]
    back, forth = reversed(data), iter(data)
    next(back)
    hints = [operator.length_hint(i) for i in (back, forth, iter((1,)), iter(range(4)), iter({1: 2}), iter("ab"))]
    data.pop()
    data.pop()
    return x * hints[0], hints, operator.length_hint(back), operator.length_hint(5, 7)


@program(lambda: (vector(),))
def iterators_have_no_length(x):
    """``len`` of an iterator is an error."""
    said = []
    for iterator in (iter([1]), iter({1: 2}), reversed([1])):
        try:
            said.append(len(iterator))
        except TypeError as error:
            said.append(str(error))
    return x + 1, said


class ByIndex:
    """A sequence of the old kind, with ``__getitem__`` alone."""

    def __init__(self):
        self.items = [1, 2]

    def __getitem__(self, index):
        return self.items[index]


@program(lambda: (vector(),), breaks=1)
def half_used_by_index(x):
    """The iterator of a class with ``__getitem__`` alone goes on after a break."""
    source = ByIndex()
    left = iter(source)
    y = x * next(left)
    print("break")
    source.items.append(3)
    return y, type(left).__name__


@program(lambda: (vector(),))
def repeated_below_zero(x):
    """A negative number of times is none."""
    return x + 1, list(itertools.repeat(1, -2)), list(itertools.repeat(2, 2))


@program(lambda: (vector(),))
def parametrized_types(x):
    """Types with parameters are no classes, and keep their parameters."""
    of_list, of_union = list[int], typing.Union[int, str]  # noqa: UP007 - the old spelling is what is tested
    return x + 1, isinstance(of_list, type), typing.get_args(of_list), typing.get_origin(of_union) is typing.Union


class Hashed:
    """A key that chooses its hash, and may fail to compare."""

    number = 1
    is_failing = False

    def __hash__(self):
        return self.number

    def __eq__(self, other):
        if self.is_failing:
            raise ValueError("compared")
        return self is other


def keyed(name, value):
    """Make a dict with two keys of one hash; change the second where no guard compares it."""
    first, second = Hashed(), Hashed()
    held = {first: 2.0, second: 3.0}
    setattr(second, name, value)
    return torch.ones(3), lambda: held, lambda: second


@program(
    lambda: keyed("number", 1),
    lambda: keyed("number", 9),
    lambda: keyed("number", "no number"),
    lambda: keyed("number", 1),
    steady=False,
    breaks=1,
)
def keys_that_change(x, held, key):
    """A key with a changed hash is not found; an unhashable key fails in its lookup only."""
    y = x.sin()
    try:
        return y * held()[key()]
    except (KeyError, TypeError) as error:
        return y, type(error).__name__


@program(lambda: keyed("number", 1), lambda: keyed("is_failing", True), steady=False)
def keys_that_fail_to_compare(x, held, key):
    """Going over the entries of a dict compares no keys."""
    y = x.sin()
    for factor in held().values():
        y = y * factor
    return y


class Chain(list):
    """Steps that are applied in order; its iterator is one of a list."""

    def __iter__(self):
        self.passes = getattr(self, "passes", 0) + 1
        return super().__iter__()


@program(lambda: (vector(),), breaks=1)
def subclass_iterated_across_a_break(x):
    """An iterator over a list of a subclass outlives a break, and sees what is appended."""
    steps = Chain([torch.sin, torch.cos])
    rest = iter(steps)
    y = next(rest)(x)
    engine.graph_break()
    steps.append(torch.tan)
    for step in rest:
        y = step(y)
    return y, len(steps), steps.passes


class Table(dict):
    """A dict whose method differs from the builtin one."""

    def values(self):
        return [-v for v in super().values()]


class Counts(collections.defaultdict):
    """A defaultdict of a subclass."""


@engine.disable
def added(held, view):
    """Add an entry; a view of the dict shows it."""
    held["z"] = 5
    return list(view)


@program(lambda: (vector(),), breaks=2)
def views_of_subclasses_across_a_break(x):
    """Views of dicts of subclasses show what is added after a break."""
    table, counts = Table(a=1), Counts(int, a=2)
    names, items, own = table.keys(), counts.items(), super(Table, table).values()
    return x + 1, added(table, names), added(counts, items), list(own), table.values()


@program(lambda: (vector(),), breaks=1, steady=False)
def views_read_after_a_break(x):
    """A resumed function adds an entry and reads an earlier view."""
    table = Table(a=1)
    names = table.keys()
    y = x * 2
    engine.graph_break()
    table["b"] = 2
    return y + 1, list(names)
