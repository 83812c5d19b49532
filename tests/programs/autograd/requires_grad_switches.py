"""Arguments and parameters that the code tells to require gradients, or not to."""

import torch
import torch.nn as nn

from tests.programs import program


@program(lambda: (torch.arange(3.0),), steady=False)
def argument_comes_to_require(x):
    """requires_grad_ of an argument, whose gradient is then computed inside."""
    x.requires_grad_()
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return g.sum() + y, x.requires_grad


@program(lambda: (torch.arange(3.0),), steady=False)
def argument_by_attribute(x):
    """requires_grad as an attribute, and a result from before that does not know of it."""
    before = x * 2
    x.requires_grad = True
    return before, before.requires_grad, x * 3


@program(
    lambda: (torch.ones(3), torch.ones(3)),
    lambda: (t := torch.ones(3), t),
    lambda: (torch.ones(3, requires_grad=True), torch.ones(3)),
    steady=False,
)
def one_of_two(x, y):
    """Two arguments that may be one: telling one tells the other."""
    x.requires_grad_()
    return y * 2, y.requires_grad


@program(
    lambda: (torch.ones(3), torch.tensor(1)),
    lambda: (torch.ones(3), torch.tensor(2)),
    lambda: (torch.ones(3), torch.tensor(7)),
    lambda: (torch.ones(3), torch.tensor(0)),
)
def caught_afterwards(x, i):
    """A value read before ``requires_grad_`` is still right in Python's exception handler."""
    before = x.requires_grad
    try:
        x.requires_grad_()
        y = (x * 2)[i]
    except IndexError:
        return x + 1, before
    return y, before


@program(lambda: (torch.ones(3), torch.tensor(1)), lambda: (torch.ones(3), torch.tensor(7)))
def raised_afterwards(x, i):
    """The argument stays told when what follows raises."""
    x.requires_grad_()
    return (x * 2)[i]


@program(lambda: (torch.ones(3, dtype=torch.long),), breaks=1)
def integers_cannot(x):
    """Integers cannot require gradients: torch's own words."""
    y = x + 1
    x.requires_grad_()
    return y


@program(lambda: (torch.ones(3),), steady=False)
def written_while_frozen(x):
    """Written in place while it requires no gradient, of which it then requires one."""
    x.requires_grad_(False)
    x.mul_(3)
    x.requires_grad_(True)
    return x.sum()


@program(lambda: (torch.randn(2, 4),))
class Adversary(nn.Module):
    """A critic that is frozen while the generator learns from it."""

    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(4, 4)
        self.critic = nn.Linear(4, 1)

    def forward(self, x):
        for p in self.critic.parameters():
            p.requires_grad = False
        loss = self.critic(self.generator(x)).mean()
        for p in self.critic.parameters():
            p.requires_grad = True
        return loss


@program(lambda: (torch.randn(2, 4),))
class FrozenBetween(nn.Module):
    """Parameters used with gradients, without, and with them again."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        first = self.inner(x)
        self.inner.requires_grad_(False)
        second = self.inner(first)
        self.inner.requires_grad_(True)
        return first.sum() + second.sum()


@program(lambda: (torch.randn(2, 4),), steady=False)
class FrozenAfterwards(nn.Module):
    """Freezing parameters after their use does not affect their gradient."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        loss = self.inner(x).sum()
        for p in self.inner.parameters():
            p.requires_grad_(False)
        return loss


@program(lambda: (torch.ones(3, 4),))
def told_after_a_view(x):
    """What is made of a view that is older than the input's being told to require gradients."""
    seen = x.t()
    x.requires_grad_()
    return seen * 2, seen[0]


def rows_and_weights():
    """A computed tensor whose view may be written, and a leaf."""
    return torch.randn(3, requires_grad=True) * 1.5, torch.randn(3)


def leaf_and_weights():
    """A leaf that requires grad, whose view may not be written, and another leaf."""
    return torch.randn(3, requires_grad=True), torch.randn(3)


@program(rows_and_weights, leaf_and_weights, breaks=1)
def switched_before_an_error(x, weights):
    """What is switched before the operator that raises remains switched."""
    y = x * 2
    weights.requires_grad_()
    x[1:] = 1
    return y + weights


@program(rows_and_weights, leaf_and_weights, breaks=1)
def switched_after_an_error(x, weights):
    """What is switched after the operator that raises is not switched."""
    y = x * 2
    x[1:] = 1
    weights.requires_grad_()
    return y + weights
