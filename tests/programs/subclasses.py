"""Tensors of classes of their own: __torch_function__, modes, wrappers that take themselves apart."""

import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor

from tests.programs import program


class Plain(torch.Tensor):
    """A subclass that changes nothing."""


class Tagged(torch.Tensor):
    """Counts nothing, keeps its type, scales products."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        found = super().__torch_function__(func, types, args, kwargs)
        if func is torch.mul:
            return found * 1
        return found

    def doubled(self):
        return self + self


class Labelled:
    """Like a tensor without being one."""

    def __init__(self, value, label):
        self.value = value
        self.label = label

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        plain = [a.value if isinstance(a, Labelled) else a for a in args]
        label = next(a.label for a in args if isinstance(a, Labelled))
        return Labelled(func(*plain, **kwargs), label + "!")


class Unaware(torch.Tensor):
    """Switches the protocol off."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Shift(TorchFunctionMode):
    """Adds one to every sine."""

    def __init__(self, by=1):
        super().__init__()
        self.by = by

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.sin:
            return func(*args, **(kwargs or {})) + self.by
        return func(*args, **(kwargs or {}))


@program(lambda: (torch.randn(3).as_subclass(Plain),))
def plain_subclass(x):
    """Results keep the class."""
    y = x.sin() + 1
    return y, type(y).__name__, isinstance(y, Plain)


@program(lambda: (torch.randn(3).as_subclass(Tagged), torch.randn(3)))
def tagged_subclass(x, y):
    """The protocol is followed for functions, methods and operators."""
    return torch.mul(x, y), x.doubled(), y + x, x.sum(), x.shape, x[0]


@program(lambda: (torch.randn(3),))
def made_subclass(x):
    """as_subclass inside, and back."""
    y = x.as_subclass(Tagged)
    return (y * 2).as_subclass(torch.Tensor), isinstance(y, Tagged)


@program(lambda: (Labelled(torch.randn(3), "a"),))
def like_a_tensor(x):
    """An object with the protocol."""
    y = torch.sin(x)
    z = torch.add(y, 1)
    return z.value, z.label


@program(lambda: (torch.randn(3).as_subclass(Unaware),))
def unaware_subclass(x):
    """A subclass without the protocol: results are plain."""
    y = x * 2
    return y, type(y).__name__


@program(lambda: (torch.randn(3),))
def mode_inside(x):
    """A mode entered inside."""
    with Shift():
        y = torch.sin(x)
    return y, torch.sin(x)


@program(lambda: (torch.randn(3),))
def modes_nested(x):
    """Modes inside modes, and one that has an attribute."""
    with Shift(2):
        with Shift(3):
            a = torch.sin(x)
        b = torch.sin(x)
    return a, b


@program(lambda: (torch.randn(3).as_subclass(Tagged),))
def protocol_switched_off(x):
    """DisableTorchFunctionSubclass."""
    with torch._C.DisableTorchFunctionSubclass():
        y = x * 2
    return y, type(y).__name__


@program(lambda: (torch.randn(3).as_subclass(Tagged),))
def protocol_asked(x):
    """Questions about the protocol."""
    return torch.overrides.has_torch_function((x,)), torch.overrides.is_tensor_like(x), x.doubled()


@program(lambda: (TwoTensor(torch.ones(3), torch.zeros(3)),))
def two_tensors(x):
    """A wrapper subclass with __torch_dispatch__."""
    return x * 2 + 1


@program(lambda: (TwoTensor(torch.ones(3), torch.zeros(3)), torch.randn(3)))
def two_tensors_and_plain(x, y):
    """A wrapper subclass beside a plain tensor."""
    z = y.sin()
    return x + 1, z


def attributed():
    x = torch.randn(3).as_subclass(Tagged)
    x.note = 5
    return x


@program(lambda: (attributed(),))
def subclass_with_attribute(x):
    """Attributes of the instance."""
    return x * x.note, x.note


@program(lambda: (torch.nn.Parameter(torch.randn(3)),))
def parameter_argument(p):
    """A parameter as an argument."""
    return p * 2, isinstance(p, torch.nn.Parameter), type(p * 1).__name__
