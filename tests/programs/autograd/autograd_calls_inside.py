"""Gradients computed inside, hooks on tensors, and what an autograd.Function may do."""

import torch
from torch.autograd import Function

import engine
from tests.programs import program


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


@program(lambda: (leaf(3), leaf(3)))
def gradient_of_two(x, y):
    """torch.autograd.grad of several inputs, one of which is not used."""
    z = (x**2).sum()
    return torch.autograd.grad(z, [x, y], allow_unused=True)


@program(lambda: (leaf(3, 4) * 1,), lambda: (leaf(5, 4) * 2,))
def gradient_of_what_is_made_inside(x):
    """Gradients of tensors made here do not go through the argument's own autograd history."""
    rows = x[1:] * 2
    (g,) = torch.autograd.grad((rows.sin() * x[1:]).sum(), [rows], create_graph=True)
    return g.sum(), torch.autograd.grad(rows.sum(), rows, retain_graph=True, allow_unused=True)


@program(lambda: (leaf(3) * 1,), lambda: (leaf(5),), breaks=2)
def gradient_after_a_break(x):
    """After a break, autograd separates a tensor of the earlier graph from a dependent sum."""
    y = x * 2
    total = (y.sin() * x).sum()
    print("between")
    return torch.autograd.grad(total, [y], allow_unused=True, retain_graph=True), total


@program(lambda: (leaf(3),), breaks=1)
def late_hook_that_prints(x):
    """Python registers a hook on a tensor that the graph has already used."""
    y = x * 2
    total = y.exp().sum()
    y.register_hook(lambda g: print("gradient", tuple(g.shape)))
    return total


@program(lambda: (leaf(3),))
def gradient_of_gradient(x):
    """create_graph: the gradient's gradient."""
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return g.sum()


@program(lambda: (leaf(3),))
def gradient_penalty(x):
    """A penalty on the size of a gradient, as in GANs."""
    y = (x.sin() * x).sum()
    (g,) = torch.autograd.grad(
        outputs=y, inputs=x, grad_outputs=torch.ones_like(y), create_graph=True, retain_graph=True
    )
    return y + (g.norm() - 1) ** 2


@program(lambda: (torch.randn(3),))
def gradient_of_intermediate(x):
    """With respect to an intermediate that was made to want gradients."""
    y = x.clone().requires_grad_(True)
    loss = (y * y).sum()
    return torch.autograd.grad(loss, y)[0], loss.detach()


@program(lambda: (leaf(3),), breaks=1)
def backward_inside(x):
    """backward() accumulates into .grad."""
    (x * x).sum().backward()
    return x.grad * 2


@program(lambda: (leaf(3),))
def hook_on_intermediate(x):
    """register_hook changes the gradient that passes."""
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y.sin()


@program(lambda: (leaf(3), torch.randn(3)))
def hook_with_closure(x, scale):
    """A hook that reads a tensor."""
    y = x.exp()
    y.register_hook(lambda g: g * scale)
    return y * 2


@program(lambda: (leaf(3),))
def hook_removed(x):
    """A hook that is removed again."""
    y = x * 2
    handle = y.register_hook(lambda g: g * 10)
    handle.remove()
    return y


@program(lambda: (leaf(3),))
def gradient_retained(x):
    """retain_grad of an intermediate."""
    y = x * 2
    y.retain_grad()
    return y.sum(), y


class Exponential(Function):
    """Saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Sorted(Function):
    """One result has no gradient."""

    @staticmethod
    def forward(ctx, x):
        y, i = x.sort()
        ctx.mark_non_differentiable(i)
        ctx.save_for_backward(i)
        return y, i

    @staticmethod
    def backward(ctx, g, _):
        (i,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(0, i, g)


class Doubled(Function):
    """Changes its argument in place."""

    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(_ctx, g):
        return g * 2


class Unmaterialized(Function):
    """Gradients that are missing stay None."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 1, x * 2

    @staticmethod
    def backward(_ctx, a, b):
        total = None
        for g, k in ((a, 1), (b, 2)):
            if g is not None:
                total = g * k if total is None else total + g * k
        return total


class Once(Function):
    """once_differentiable."""

    @staticmethod
    def forward(ctx, x, k=3):
        ctx.k = k
        ctx.shape = x.shape
        return (x * k).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g.expand(ctx.shape) * ctx.k, None


class Pairs(Function):
    """Takes a list of numbers and a flag beside tensors."""

    @staticmethod
    def forward(ctx, x, sizes, flag, weight=None):
        ctx.sizes = sizes
        ctx.has_weight = weight is not None
        ctx.save_for_backward(*([x, weight] if weight is not None else [x]))
        y = x.view(*sizes)
        return y * weight if flag and weight is not None else y * 2

    @staticmethod
    def backward(ctx, g):
        saved = ctx.saved_tensors
        k = saved[1] if ctx.has_weight else 2
        return (g * k).reshape(saved[0].shape), None, None, None


class Scaled(Function):
    """Uses a parameter of a class and calls a helper."""

    factor = 3

    @classmethod
    def helper(cls, x):
        return x * cls.factor

    @staticmethod
    def forward(_ctx, x):
        return Scaled.helper(x)

    @staticmethod
    def backward(_ctx, g):
        return Scaled.helper(g) * 2


@program(lambda: (leaf(3),))
def function_saves_output(x):
    """The result itself is saved."""
    return Exponential.apply(x) * 2


@program(lambda: (leaf(3),))
def function_without_gradient(x):
    """mark_non_differentiable."""
    y, i = Sorted.apply(x)
    return y * 2, i, i.requires_grad


@program(lambda: (torch.randn(3, requires_grad=True),))
def function_in_place(x):
    """mark_dirty."""
    y = x * 1
    z = Doubled.apply(y)
    return z + y, z is y


@program(lambda: (leaf(3),))
def function_missing_gradients(x):
    """set_materialize_grads(False)."""
    a, b = Unmaterialized.apply(x)
    return a.sum() + b.detach().sum()


@program(lambda: (leaf(3),))
def function_once(x):
    """once_differentiable, a default argument, sizes kept in ctx."""
    return Once.apply(x), Once.apply(x, 5)


@program(lambda: (leaf(6), torch.randn(3)))
def function_other_arguments(x, w):
    """Lists, flags, None."""
    return Pairs.apply(x, [2, 3], True, w), Pairs.apply(x, (3, 2), False, None)


@program(lambda: (leaf(3),))
def function_with_helper(x):
    """Class attributes and helpers."""
    return Scaled.apply(x)


@program(lambda: (torch.randn(3),))
def function_without_grad(x):
    """Nothing wants a gradient, or grad mode is off."""
    y = Exponential.apply(x)
    with torch.no_grad():
        z = Exponential.apply(y)
    return y, z


@program(lambda: (leaf(3),), breaks=1, steady=False)
def function_made_inside(x):
    """A Function whose class is made inside."""

    class Inner(Function):
        @staticmethod
        def forward(_ctx, a):
            return a * 2

        @staticmethod
        def backward(_ctx, g):
            return g * 5

    return Inner.apply(x)


@program(lambda: (leaf(3),))
def function_applied_twice(x):
    """Nested uses, kept as a name."""
    apply = Exponential.apply
    return apply(apply(x)) + Scaled.apply(apply(x))


class Block(torch.nn.Module):
    """A module whose forward uses a Function."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return Exponential.apply(self.linear(x)).sum()


program(lambda: (torch.randn(2, 3),))(Block)


@program(lambda: (leaf(3),))
def gradients_checked(x):
    """What autograd says of results."""
    y = x * 2
    return (
        y.requires_grad,
        y.is_leaf,
        y.detach().requires_grad,
        x.is_leaf,
        (y.grad_fn is not None),
        torch.is_grad_enabled(),
    )


@program(lambda: (torch.randn(2, 3),), breaks=0)
def asks_for_gradient(x):
    """``requires_grad`` of a view made here is set as an attribute: what follows is recorded."""
    y = x[:, None]
    y.requires_grad = True
    z = (y * 2).sum(dim=1)
    return y.requires_grad, z.requires_grad, x.requires_grad, torch.autograd.grad(z.sum(), y)


@program(lambda: (torch.randn(2, 3, requires_grad=True),), breaks=1)
def asks_a_computed_one(x):
    """``requires_grad`` of what was computed cannot be set to False."""
    y = x * 2
    try:
        y.requires_grad = False
    except RuntimeError as error:
        return y, str(error)[:30]
    return y


@engine.disable
def differentiated_in_plain_python(scores, x):
    """A penalty on a gradient that code outside of every graph takes."""
    (g,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
    return (g.norm() - 1) ** 2


class Critic(torch.nn.Module):
    """A GAN critic has a gradient penalty; plain Python takes its gradient between graphs."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 8),
            torch.nn.LayerNorm(8),
            torch.nn.LeakyReLU(0.2),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(8, 2),
        )

    def forward(self, x):
        scores = self.body(x).tanh()
        return scores.mean() + 10 * differentiated_in_plain_python(scores, x)


program(lambda: (leaf(3, 4),), lambda: (leaf(3, 4),), breaks=1, tolerance=1e-5)(Critic)


@program(lambda: (leaf(4), leaf(4)), breaks=1)
def penalty_on_two_gradients(x, y):
    """A product's gradient with respect to one input, which then depends on the other."""
    products = x.exp() * y.sin()
    return products, differentiated_in_plain_python(products, x)


class Through(torch.autograd.Function):
    """Takes a module and a list as well as a tensor."""

    @staticmethod
    def forward(ctx, x, layer, seen):
        ctx.save_for_backward(x)
        ctx.layer = layer
        seen.append(ctx.needs_input_grad)
        return layer(x) * 2, len(seen)

    @staticmethod
    def backward(ctx, grad, _):
        return grad, None, None


@program(lambda: (torch.randn(2, 3), torch.nn.Linear(3, 3), []))
def function_given_a_module(x, layer, seen):
    """Where nothing records gradients an autograd.Function takes whatever Python can pass."""
    with torch.no_grad():
        found, count = Through.apply(x, layer, seen)
    return found + count, seen


class Same(torch.autograd.Function):
    """Gives back what it gets."""

    @staticmethod
    def forward(ctx, x):
        return x


@program(lambda: (torch.randn(2, 3),))
def function_gives_back_its_argument(x):
    """Autograd makes another tensor of an argument that is given back."""
    with torch.no_grad():
        found = Same.apply(x)
    return found is x, found + 1
