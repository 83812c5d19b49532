"""Tensors given other memory, parameters made inside, autograd state, and leaf checks."""

import torch
from torch import nn

from tests.programs import program

torch.manual_seed(7)
torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.qint8)  # torch warns of it once in a process


class Held:
    """A parameter and a layer that live outside."""

    parameter = nn.Parameter(torch.ones(3))
    layer = nn.Linear(3, 3)


def three():
    """One vector."""
    return (torch.arange(3.0),)


@program(three, three)
def data_replaced(x):
    """A parameter is given new contents by its data."""
    Held.parameter.data = Held.parameter.data * 2 + x
    return Held.parameter + 1, Held.parameter.requires_grad, Held.parameter.is_leaf


@program(three)
def data_shared(x):
    """Afterwards the two share memory."""
    y = torch.zeros(3)
    z = x * 2
    y.data = z
    z.add_(1)
    return y, z, y._version, z._version


@program(three)
def parameter_made(x):
    """A parameter made inside is a leaf."""
    p = nn.Parameter(x.detach().clone())
    return p * 2, p.is_leaf, isinstance(p, nn.Parameter), p.requires_grad


@program(three)
def layer_made(x):
    """A layer with its own random weights."""
    return nn.Linear(3, 2)(x).shape


def double(t):
    """Pack."""
    return t * 2


def half(t):
    """Unpack."""
    return t / 2


@program(lambda: (torch.arange(3.0, requires_grad=True),))
def hooks_on_saved(x):
    """What autograd keeps passes through two functions."""
    with torch.autograd.graph.saved_tensors_hooks(double, half):
        y = Held.layer(x).relu() * x
    return y.sum()


@program(three)
def saved_on_cpu(x):
    """What autograd keeps lies on the CPU."""
    with torch.autograd.graph.save_on_cpu():
        return (Held.layer(x) * x).sum()


@program(
    lambda: (torch.ones(2, requires_grad=True),),
    lambda: (torch.ones(2, requires_grad=True) * 2,),
    lambda: (torch.ones(2),),
)
def leaf_or_not(x):
    """Two tensors that look alike, one of them a leaf."""
    return x * 1, x.is_leaf


@program(three)
def no_history(x):
    """An input without a history has no grad_fn."""
    return x.grad_fn is None, Held.parameter.grad_fn is None, x + 1


@program(three)
def quantized(x):
    """A quantized tensor made and read."""
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


@program(three)
class Bounds(nn.Module):
    """A buffer and an argument of one name."""

    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.zeros(3))

    def forward(self, low):
        """Both are inputs of one graph."""
        return torch.minimum(self.low, low) * 2


def is_traced():
    """Whether code here is compiled."""
    return torch.compiler.is_compiling()


@program(three, breaks=1)
def seen_by_plain_code(x):
    """Code that is left to Python learns of no compiler."""
    raise ValueError("compiled" if is_traced() else "plain")


@program(lambda: (torch.ones(2), torch.arange(3.0)))
def memory_set(x, y):
    """A tensor becomes a view of another one's memory, of another size."""
    z = x.clone()
    z.set_(y)
    z.add_(1)
    return z, y * 2, z.shape[0]


def view_and_base():
    """A tensor that needs a gradient, and a part of it."""
    base = torch.arange(12.0).view(3, 4).requires_grad_() * 1.5
    return base[1:], base


@program(view_and_base)
def view_made_in_the_dark(x, base):
    """A view of a view that was made under ``no_grad`` needs a gradient that leads nowhere."""
    with torch.no_grad():
        base.zero_()
        base.add_(2)
        y = x.diagonal()
    return y[0], base


def detached_and_view():
    """A leaf, a detached view of it, and a view."""
    leaf = torch.arange(12.0).view(3, 4).requires_grad_()
    return leaf, leaf.t().detach(), leaf.t()


@program(detached_and_view)
def history_spoilt_from_the_side(leaf, detached, view):
    """A write through a tensor that autograd does not know of counts for views made before."""
    with torch.no_grad():
        part = view[1:]
        detached.mul_(2)
    try:
        return leaf, part.is_leaf
    except RuntimeError as error:
        return leaf, str(error)[:40]


@program(lambda: (torch.arange(3.0), torch.arange(6.0, dtype=torch.float64).view(2, 3)), breaks=1)
def product_of_types_that_nobody_reads(x, y):
    """Eager raises for a product that is not used, since its operands are of two types."""
    y @ x
    return -x


@program(lambda: (torch.ones(2, 4, dtype=torch.int64), torch.ones(3, requires_grad=True)), breaks=4)
def whole_numbers_that_require_gradients(c, b):
    """What needs a gradient is written to whole numbers, which then require one, too."""
    c[1:] = b[0] * 3
    return c.float().detach(), c.requires_grad


@program(lambda: (torch.ones(3),), lambda: (torch.ones(6).chunk(2)[0],), breaks=1)
def detached_in_place(x):
    """A view cannot be detached in place: the second call raises."""
    x.detach_()
    return x * 2


@program(lambda: (torch.ones(3),), lambda: (torch.ones(6)[:3],), breaks=1)
def detached_in_place_by_a_function(x):
    """The same by the function, which takes the tensor by name."""
    return torch.detach_(input=x) * 2
