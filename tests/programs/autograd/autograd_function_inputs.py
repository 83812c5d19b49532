"""Exercise custom autograd functions with objects, free tensors, tangents and hooks."""

import torch
from torch.autograd import Function, forward_ad

from tests.programs import program

FACTOR = torch.full((4,), 3.0)


class Scale:
    """A plain object."""

    def __init__(self, factor):
        self.factor = factor


def leaf():
    return (torch.randn(3, 4, requires_grad=True),)


class ThroughLayers(Function):
    """Runs modules, whose parameters get no gradient here."""

    @staticmethod
    def forward(ctx, x, layers, options):
        ctx.options = options
        for layer in layers:
            x = layer(x)
        return x * options["factor"]

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.options["factor"], None, None


class Layers(torch.nn.Module):
    """A list of modules and a dict handed to a function."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])

    def forward(self, x):
        return ThroughLayers.apply(x, self.layers, {"factor": 2})


Layers = program(leaf)(Layers)


class WithObject(Function):
    """Takes an object and a function."""

    @staticmethod
    def forward(ctx, x, scale, function):
        ctx.scale = scale
        ctx.save_for_backward(x)
        return function(x) * scale.factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.scale.factor * x, None, None


@program(leaf)
def object_and_closure(x):
    """Both made in traced code."""
    bias = x.detach().sum()
    return WithObject.apply(x, Scale(3), lambda y: y * 2 + bias)


@program(lambda: (torch.randn(3, 4),))
def object_without_gradient(x):
    """Nothing wants a gradient."""
    return WithObject.apply(x, Scale(3), torch.sin)


class FreeTensor(Function):
    """Read a module-level tensor in both bodies, and keep an intermediate on the context."""

    @staticmethod
    def forward(ctx, x):
        ctx.doubled = x * 2
        return (x * FACTOR).sin(), x.argsort(), None, 5

    @staticmethod
    def backward(ctx, grad, *_):
        return grad * FACTOR * ctx.doubled


@program(leaf)
def free_tensor(x):
    """Results without a gradient, and constants."""
    y, order, nothing, five = FreeTensor.apply(x)
    return y, order, nothing, five


class Recomputed(Function):
    """Keeps inputs only, and differentiates the function again: a checkpoint by hand."""

    @staticmethod
    def forward(ctx, run, count, *args):
        ctx.run, ctx.count = run, count
        ctx.save_for_backward(*args)
        with torch.no_grad():
            return run(*args)

    @staticmethod
    def backward(ctx, grad):
        given = [a.detach().requires_grad_() for a in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.run(*given)
        return (None, None, *torch.autograd.grad(out, given, grad))


class CheckpointByHand(torch.nn.Module):
    """Through a layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        return Recomputed.apply(self.layer, 1, x) + x


CheckpointByHand = program(leaf)(CheckpointByHand)


class GradientOfItsOwn(Function):
    """Its backward runs autograd."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (found,) = torch.autograd.grad((y**3).sum(), y)
        return grad * found


@program(leaf)
def gradient_in_backward(x):
    """And its graph is compiled all the same."""
    return GradientOfItsOwn.apply(x * 2)


class Doubling(Function):
    """Changes its argument."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@program(leaf, lambda: (torch.randn(3, 4),))
def dirty(x):
    """The argument is the result."""
    y = x * 1
    z = Doubling.apply(y)
    return z + y, z is y


@program(lambda: (torch.randn(4), torch.randn(4)))
def tangents(x, v):
    """Forward mode: a tensor with its tangent."""
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)
        value, tangent = forward_ad.unpack_dual((dual.sin() * 2).exp())
        plain = forward_ad.unpack_dual(x * 2)
    return value, tangent, plain.tangent


def _halve(p):
    p.grad.mul_(0.5)


@program(leaf)
def after_accumulation(x):
    """A hook that autograd calls once a gradient is complete."""
    x.register_post_accumulate_grad_hook(_halve)
    return x.sin()


@program(lambda: (torch.randn(3, 4),))
def loop_with_ints(x):
    """A loop that carries an int, which sizes then depend on."""

    def goes_on(i, y):
        return i < 5

    def body(i, y):
        return i + 2, y + i

    i, y = torch._higher_order_ops.while_loop(goes_on, body, (0, x))
    return y * i, torch.zeros(i)


@torch.compiler.nested_compile_region
def region(x, factor=2):
    """A region that is compiled once."""
    return x.sin() * factor


@program(lambda: (torch.randn(4),))
def regions(x):
    """Twice the same region, and one made inside."""
    return region(x) + region(x, factor=3) + torch.compiler.nested_compile_region(lambda y: y.cos())(x)
