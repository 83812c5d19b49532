"""Exercise objects and ids as keys, tuple subclasses, and invalid method results."""

import collections
import functools
import sys
import typing

import numpy as np
import torch
import torch.utils._pytree as pytree

from tests.programs import program

ONE, TWO, THREE = torch.ones(2), torch.full((2,), 2.0), torch.full((2,), 3.0)


class Plain:
    """An object that is compared by identity."""


FIRST, SECOND = Plain(), Plain()


def id_of_first(number=id(FIRST)):
    """A number that no comparison of globals sees."""
    return number


def adds(number):
    """Functions of one code."""

    def add(x):
        return x + number

    return add


ADD_ONE, ADD_TWO = adds(1), adds(2)


@program(
    lambda: (TWO, THREE, ONE),
    lambda: (THREE, TWO, ONE),
    lambda: (TWO, TWO, TWO),
    lambda: (THREE, THREE, THREE),
    lambda: (ONE, ONE, ONE),
)
def tensors_in_a_set(a, b, c):
    """As many elements as there are different tensors in this call."""
    return a + len({ONE, a, b, c}), {a: 1}.get(b), {(a, 1): 2}.get((c, 1))


@program(
    lambda: (torch.randn(2), FIRST, SECOND),
    lambda: (torch.randn(2), FIRST, FIRST),
    lambda: (torch.randn(2), ADD_ONE, ADD_TWO),
    lambda: (torch.randn(2), ADD_ONE, ADD_ONE),
)
def objects_and_functions_in_a_set(x, a, b):
    """Two objects of one class, or two functions of one code, are one key only if identical."""
    return x + len({a, b}), {a: 1}.get(b)


@program(lambda: (torch.randn(2), FIRST), lambda: (torch.randn(2), SECOND))
def id_and_a_number(x, a):
    """The number that ``id`` gives is compared with one from outside."""
    return x * 2 if id(a) == id_of_first() else x * 3


@program(lambda: (torch.randn(2), Plain), lambda: (torch.randn(2), dict))
def id_of_a_class(x, cls):
    """Ids of classes are numbers, too."""
    return x + (id(cls) == id(Plain)), id(cls) // 2 == id(cls) // 2


class Row(tuple):  # noqa: SLOT001
    """A tuple of the user's."""

    def __contains__(self, item):
        self.asked = True
        return super().__contains__(item)

    def __getitem__(self, index):
        raise RuntimeError("not asked for")


@program(lambda: (torch.randn(2), Row([1, 2, 3])))
def tuples_of_a_class(x, row):
    """Comparison, order and hash look at the items, not at what the class overrides."""
    made = Row([1, 2, 3])
    return (
        x + len(row),
        row == made,
        made == row,
        row != (1, 2),
        (1, 2, 3) == row,
        row < Row([1, 3]),
        2 in row,
        {row: 1}[(1, 2, 3)],
    )


class Pair(typing.NamedTuple):
    """A named tuple of the user's."""

    left: torch.Tensor
    right: torch.Tensor


class Tagged(Pair):
    """A subclass with room for attributes."""

    def __add__(self, other):
        return Tagged(self.left + other.left, self.right + other.right)


@program(lambda: (Tagged(torch.ones(2), torch.ones(2)), torch.randn(2)))
def named_tuples_with_attributes(given, x):
    """Instances of a named tuple subclass accept attributes, if passed in or made inside."""
    made = Tagged(x, right=x + 1)
    made.extra = x
    given.extra = 3
    total = given + made
    return (
        made,
        given.extra,
        hasattr(made, "extra"),
        total.left,
        total._replace(left=1),
        made[0],
        made._asdict(),
        Tagged._fields,
    )


class OnlySets:
    """A descriptor that leaves reading to the instance."""

    def __set__(self, instance, value):
        instance.__dict__["field"] = value * 2


class WithField:
    """Its field is set by a descriptor."""

    field = OnlySets()


@program(lambda: (torch.randn(2), WithField()))
def descriptors_that_only_set(x, of):
    """A set-only descriptor reads the instance's dict, or gives itself if nothing is set."""
    before = type(of.field).__name__
    of.field = 5
    return x + of.field, before, vars(of)


class Unsure:
    """Its truth is no truth."""

    def __bool__(self):
        return 1.5


class Negative:
    """Of a length that cannot be."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length


@program(
    lambda: (torch.randn(2), Unsure()),
    lambda: (torch.randn(2), Negative(-1)),
    lambda: (torch.randn(2), Negative(2)),
    lambda: (torch.randn(2), Negative(-3)),
    steady=False,
)
def truths_and_lengths_that_are_none(x, of):
    """Python's own errors."""
    try:
        return x + 1 if of else x - 1
    except (TypeError, ValueError) as error:
        return x, str(error)


@program(lambda: (torch.randn(3),))
def extending_with_what_looks_back(x):
    """``extend`` appends items one by one, so computing the next item sees the earlier ones."""
    seen = [1]
    seen.extend(map(lambda n: n + seen[-1], range(3)))
    turned = collections.deque([1], maxlen=3)
    turned.extendleft(n + turned[0] for n in range(4))
    turned.extend(n + len(turned) for n in range(2))
    return x + 1, seen, turned


@program(lambda: (torch.randn(3),))
def recursion_limit_is_the_callers(x):
    """Tracing is deeper than the calls that it traces; the program sees its own limit."""
    return x * sys.getrecursionlimit()


def gives(x, b=1, c=2):
    """Takes defaults."""
    return x + b


def drop_a_default():
    gives.__defaults__ = (1,)
    return (torch.zeros(2),)


@program(lambda: (torch.zeros(2),), drop_a_default, steady=False)
def defaults_that_became_fewer(x):
    """Which parameter a default belongs to depends on how many there are."""
    try:
        return gives(x, c=3)
    except TypeError as error:
        return str(error)


@program(lambda: (torch.randn(3),))
def trees_of_every_kind(x):
    """``tree_map`` supports deques, several trees, and leaves that the user chooses."""
    tree = {"a": collections.deque([x, 1], maxlen=3), "b": Pair(x, 2), "c": torch.return_types.max((x, x + 1))}
    doubled = pytree.tree_map(lambda a, b: (a, b), [x, (1, 2)], [1, (x, 4)])
    kept = pytree.tree_map(lambda leaf: 1, [x, [x], [x, x]], is_leaf=lambda v: isinstance(v, list) and len(v) == 1)
    return pytree.tree_map(lambda leaf: leaf * 2, tree), doubled, kept


@program(lambda: (torch.randn(2, 3),))
def classes_that_name_element_types(x):
    """Python's classes and torch's tensor classes stand for types of elements."""
    kinds = [isinstance(torch.empty(1, dtype=d), torch.FloatTensor) for d in (torch.float32, torch.float64)]
    return (
        x.to(float),
        (x > 0).to(int),
        x.type(torch.HalfTensor),
        x.type(x.double().type()),
        kinds,
        isinstance(3, torch.LongTensor),
    )


@functools.lru_cache
def scaled(x, factor, other=None):
    """Scales."""
    return torch.sin(x * factor)


class Caching:
    """Its method caches."""

    def __init__(self):
        self.total = 0

    @functools.lru_cache  # noqa: B019
    def add(self, number):
        self.total += number
        return self.total


@program(lambda: (torch.randn(3),))
def caches_of_tensors(x):
    """A cached function of tensors is looked into; one result for one tensor."""
    of = Caching()
    of.add(3)
    of.add(3)
    a, b = scaled(x, 2), scaled(x, 2)
    return a + scaled(x + 1, 3, x), a is b, of.total, scaled.__name__


@program(lambda: (torch.randn(3, 4),))
def numpy_of_tensors(x):
    """Functions of numpy take tensors; arrays tell their strides; numbers as numpy's types."""
    a = x.numpy()
    return np.ones_like(x, dtype=np.dtype("float")), a.strides, a.T.strides, np.asarray(x) is a, np.asarray(x) + 1


@program(lambda: (torch.randn(3, requires_grad=True),))
def numpy_by_force(x):
    """``numpy(force=True)`` leaves the gradient behind."""
    return x.numpy(force=True) * 2


@program(
    lambda: (np.arange(3.0), 3),
    lambda: (np.arange(3.0), 4),
    lambda: (np.arange(3.0), 5),
)
def numpy_with_a_symbol(x, n):
    """A number that changes from call to call is a symbol for numpy, too."""
    return np.where(x < 1.5, n, x) * n


class Noted(torch.Tensor):
    """Made by ``__new__`` of its own, which asks that of torch."""

    def __new__(cls, x, note="none"):
        made = super().__new__(cls, x)
        made.note = note
        return made


@program(lambda: (torch.ones(3),), lambda: (torch.ones(3, requires_grad=True),))
def made_by_super(x):
    """A Tensor subclass whose ``__new__`` calls Tensor's shares storage and keeps attributes."""
    noted = Noted(x * 2, note="twice")
    noted[0].mul_(3)
    return noted, noted.note, type(noted + 1) is Noted


Plane = collections.namedtuple("Plane", "x y")  # noqa: PYI024 - the untyped kind is what is tested


@program(lambda: (ONE,))
def class_of_a_namedtuple(x):
    """Attributes that every object has, read through a namedtuple."""
    point = Plane(x.sin(), 2)
    return point.__class__(3, x), point.__class__ is Plane, point.__doc__, point._replace(y=x), Plane.__name__


def keyed(*order):
    """Two tensors, and a dict that has the chosen ones of three tensors as keys, numbered."""
    tensors = [torch.full((2,), float(n)) for n in range(3)]
    return tensors[0], tensors[1], {tensors[n]: {"number": n} for n in order}


@program(*[lambda order=order: keyed(*order) for order in ((0, 1), (0, 1), (1, 0), (2, 1), (1, 2), (2,))])
def tensors_as_keys(x, y, numbers):
    """Which of the arguments are keys decides, not which tensors they are."""
    first = next(iter(numbers))
    held = [numbers[t]["number"] if t in numbers else -1 for t in (x, y)]
    return held, first is x, first is y, sum(numbers) + x, [n["number"] for n in numbers.values()]
