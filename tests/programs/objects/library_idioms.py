"""Library idioms: marks on tensors, stored dict views, metaclasses, modules by name."""

import abc
import collections
import importlib

import torch
import typing_extensions

from tests.programs import program


class Rounded(torch.autograd.Function):
    """Rounds, and remembers on the result what was rounded."""

    @staticmethod
    def forward(ctx, soft):
        """The result says what it was made of, the argument that it was rounded."""
        hard = soft.round()
        hard.soft = soft
        soft.times = getattr(soft, "times", 0) + 1
        return hard

    @staticmethod
    def backward(ctx, grad):
        """As if nothing had happened."""
        return grad


@program(lambda: (torch.tensor([0.2, 1.7], requires_grad=True),), breaks=1)
def marks_of_a_forward(x):
    """What the forward of an autograd function writes on tensors can be read after it."""
    soft = x * 2
    hard = Rounded.apply(soft)
    return hard, getattr(hard, "soft", hard) * 3, getattr(soft, "times", 0)


class Kept:
    """Keeps views of a dict that nothing else names."""

    def __init__(self, **words):
        ordered = collections.OrderedDict(words)
        self.names, self.values, self.pairs = ordered.keys(), ordered.values(), ordered.items()


@program(lambda: (torch.randn(3), Kept(a=1, b=2.5)), lambda: (torch.randn(3), Kept(a=1, c=2.5, d=3)))
def views_of_ordered_dicts(x, kept):
    """The views of an ordered dict can be kept without it."""
    for _, value in kept.pairs:
        x = x * value
    return x, len(kept.names), "c" in kept.names, list(kept.values), type(kept.names).__name__


class Counted(abc.ABCMeta):
    """A metaclass that says nothing of instances."""

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.args = len(args)
        return made


class Shape(metaclass=Counted):
    """A base."""

    def __init__(self, *sides):
        self.sides = sides


class Square(Shape):
    """A subclass."""


@program(lambda: (torch.randn(3), Square(2)), lambda: (torch.randn(3), [2]))
def metaclass_below_abc(x, given):
    """``isinstance`` with a class whose metaclass inherits its answer from ABCMeta."""
    made = Square(1, 2)
    return x + made.args, isinstance(made, Shape), isinstance(given, Shape), isinstance(x, Shape)


class Message(typing_extensions.TypedDict, total=False):
    """A dict with named entries."""

    name: str
    value: int


@program(lambda: (torch.randn(3),))
def typed_dict_of_extensions(x):
    """A TypedDict of ``typing_extensions`` makes dicts, as that of ``typing`` does."""
    message = Message(name="m", value=2)
    message["value"] += 1
    return x * message["value"], type(message) is dict, message


@program(lambda: (torch.randn(3), "math"), lambda: (torch.randn(3), "collections.abc"))
def module_by_name(x, name):
    """A module that is there already is found by its name, a relative one too."""
    module = importlib.import_module(name)
    near = importlib.import_module(".abc", "collections")
    return x * len(module.__name__), near.__name__, importlib.import_module(name="math").floor(2.5)


@program(lambda: (torch.rand(2, 3), torch.rand(4, 1, 3)))
def sizes_that_broadcast(x, y):
    """The size that two sizes broadcast to, as torch's distributions ask for it."""
    size = torch._C._infer_size(x.shape, y.shape)
    return x.expand(size) + y.expand(size), size


@program(lambda: (torch.rand(2, 3),), lambda: (torch.rand(2, 3, requires_grad=True),))
def no_tangent_outside_of_levels(x):
    """Where no forward-mode level is open, no tensor has a tangent."""
    primal, tangent = torch.autograd.forward_ad.unpack_dual(x * 2)
    return primal.sin(), tangent, torch.autograd.forward_ad.unpack_dual(x).primal is x


def _tangent_of(x):
    unpacked = torch.autograd.forward_ad.unpack_dual(x)
    return unpacked.primal * 1 if unpacked.tangent is None else unpacked.tangent * 3


@program(lambda: (torch.ones(2), torch.full((2,), 5.0)), breaks=3)
def tangent_of_an_open_level(x, tangent):
    """A function compiled outside a dual level recompiles inside one and sees outer tangents."""
    first = _tangent_of(x)
    torch._dynamo.graph_break()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, tangent)
        torch._dynamo.graph_break()
        return first, _tangent_of(dual)


@program(lambda: (torch.rand(2), "window"), lambda: (torch.rand(2), True))
def isinstance_of_scripted_code(x, normalized):
    """Code that can be scripted asks for types with a function of ``torch.jit``."""
    if torch.jit.isinstance(normalized, str):
        return x + len(normalized)
    return x if torch.jit.isinstance(normalized, bool) else -x


@program(lambda: (torch.randn(3),))
def gradients_of_what_gives_tensors(x):
    """Tensors to differentiate by come from a view of a dict, a generator, a map."""
    weights = {"a": torch.ones(3, requires_grad=True), "b": torch.full((3,), 2.0, requires_grad=True)}
    loss = (weights["a"] * x * weights["b"]).sum()
    first = torch.autograd.grad(loss, weights.values(), create_graph=True)
    second = torch.autograd.grad((g.sum() for g in first), inputs=(w for w in weights.values()), retain_graph=True)
    return first, second
