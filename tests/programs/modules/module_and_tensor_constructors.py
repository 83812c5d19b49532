"""Exercise module constructors, gradient attributes, old tensor constructors and lists."""

from __future__ import annotations

import abc
import collections.abc
import inspect
import os

import numpy as np
import torch

from tests.programs import program


class Stack(list):
    """A list with a method."""

    def twice(self, item):
        """Add an item two times."""
        self.extend([item, item])


@program(lambda: (torch.randn(3),))
def extended_by_itself(x):
    """An instance of a subclass of ``list`` that is given itself takes its items as they were."""
    a = Stack([x, 1])
    a.extend(a)
    a += a
    a.twice(2)
    return a, len(a)


def _alias():
    both = Stack([torch.ones(2), 3])
    return (both, both)


@program(_alias)
def extended_by_an_alias(a, b):
    """Nor does it end never where the list comes from outside under two names."""
    a.extend(b)
    return a is b, len(a), a[2] + 1


class Other(torch.nn.Module):
    """What ``Chooses`` makes."""

    def forward(self, x):
        return torch.tanh(x)


class Chooses(torch.nn.Module):
    """A module whose ``__new__`` gives one of another class."""

    def __new__(cls):
        return Other()


class Scaled(torch.nn.Module):
    """A module with a ``__new__`` of its own."""

    def __new__(cls, scale):
        made = super().__new__(cls)
        return made

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale


class Table(collections.abc.MutableMapping, torch.nn.Module):
    """A mapping that is a module."""

    def __init__(self, **items):
        super().__init__()
        self._items = items

    def __getitem__(self, key):
        return self._items[key]

    def __setitem__(self, key, value):
        self._items[key] = value

    def __delitem__(self, key):
        del self._items[key]

    def __len__(self):
        return len(self._items)

    def __iter__(self):
        yield from self._items

    def __hash__(self):
        return id(self)


class Abstract(torch.nn.Module, abc.ABC):
    """A module that cannot be made."""

    @abc.abstractmethod
    def forward(self, x): ...


@program(lambda: (torch.randn(3),))
def modules_by_new(x):
    """Modules with a ``__new__`` or a registering metaclass can be made while tracing."""
    table = Table(a=1, b=x)
    table["c"] = 3
    plain = Scaled.__new__(Scaled, 1)
    plain.__init__(5)
    return Chooses()(x), Scaled(3)(x), tuple(table.items())[1:], isinstance(Chooses(), Other), plain(x)


@program(lambda: (torch.randn(3),), breaks=1)
def abstract_module(x):
    """One that is abstract raises Python's own error."""
    try:
        return Abstract()
    except TypeError as error:
        return x + 1, str(error)


@program(lambda: (torch.randn(3),))
def gradient_of_a_made_tensor(x):
    """A made tensor's ``grad`` holds the assigned value, also under the name ``_grad``."""
    y = x + 1
    y.grad = x * 2
    z = y.grad + 1
    w = x * 3
    w._grad = z
    w.mark = "w"
    y.grad = None
    return w, w.grad + 1, y, w.grad is z


@program(lambda: (torch.ones(3, requires_grad=True), torch.arange(3.0)))
def gradient_by_its_other_name(x, y):
    """``_grad`` and ``grad`` are one slot."""
    x._grad = y
    return x.grad.data + 1, x._grad is y


@program(lambda: (torch.randn(2),))
def old_constructors(x):
    """The constructors of each type take lists of tensors and of numbers."""
    parts = [torch.tensor(3), torch.tensor(4)]
    return x * torch.LongTensor(parts), torch.FloatTensor([x[0], 2]), torch.IntTensor([1, 2]), torch.BoolTensor([True])


class Place:
    """A path."""

    def __init__(self, text):
        self.text = text

    def __fspath__(self):
        return "to/" + self.text


@program(lambda: (torch.randn(2),))
def path_as_text(x):
    """``os.fspath`` gives texts as they are, and asks paths."""
    try:
        os.fspath(3)
    except TypeError as error:
        told = str(error)
    return x + 1, os.fspath("a/b"), os.fspath(Place("c")), told


@program(lambda: (torch.randn(3),))
def sums_with_sizes(x):
    """A tuple and a size, in either order, make a size where torch says so."""
    whole = (1,)
    whole += x.shape
    return (
        type((1, *x.shape)),
        type((1,) + x.shape),
        type(() + x.size()),
        x.size() + (4,),
        type(whole),
        type(x.shape * 2),
    )  # noqa: RUF005


@program(lambda: (torch.randn(3, 4),))
def sizes_as_tensors(x):
    """What export to other formats calls for sizes as tensors."""
    return torch._shape_as_tensor(x), 1 + torch.onnx.operators.shape_as_tensor(x)[0]


@program(lambda: (torch.nn.Parameter(torch.ones(3)), torch.arange(3.0)))
def parameter_updated_in_try(p, y):
    """A parameter is updated in place where ``finally`` puts the mode of gradients back."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(False)
        p.add_(y)
    finally:
        torch.set_grad_enabled(before)
    return p * 2


@program(lambda: (torch.nn.Parameter(torch.ones(3)), torch.arange(4.0)), breaks=1)
def update_that_fails_in_try(p, y):
    """One whose sizes are wrong is caught, and what was changed before it stays changed once."""
    with torch.no_grad():
        p.mul_(2)
        try:
            p.add_(y)
        except RuntimeError as error:
            return p + 1, "must match" in str(error)


@program(lambda: (torch.randn(2),))
def tensor_of_numbers_of_arrays(x):
    """Numbers read from a numpy array become elements."""
    a = np.array([1, 2, 3, 4], dtype=np.int64)
    return torch.LongTensor([a[0], a[2]]), torch.tensor([a[1], a[3]]), x + 1


class Told:
    """A class whose own dict is read."""

    scale = 3

    def method(self):
        """Give the scale."""
        return self.scale

    def __init__(self, size, *rest, word=1):
        self.size = size


@program(lambda: (torch.randn(2), Told(2)))
def dict_of_a_class(x, told):
    """A class's ``__dict__`` proxies its own attributes; its signature is its constructor's."""
    own = type(told).__dict__
    try:
        own["scale"] = 4
    except TypeError as error:
        refused = str(error)
    bound = inspect.signature(Told).bind(1, 2, word=3)
    return x * own["scale"], "method" in own, own["method"](told), own.get("other"), refused, bound.args, bound.kwargs


@program(
    lambda: (torch.randn(2), "int16"),
    lambda: (torch.randn(2), np.int16),
    lambda: (torch.randn(2), np.dtype("int8")),
)
def limits_by_numpy(x, kind):
    """``np.iinfo`` and ``np.finfo`` tell what a type of numbers holds."""
    return x + np.iinfo(kind).max, np.finfo(np.float32).eps, np.finfo("float64").bits
