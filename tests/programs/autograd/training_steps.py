"""Gradients: through functions, modes, in-place work, and whole training steps."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs import program


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


@program(lambda: (leaf(3), leaf(3)))
def gradient_of_product(x, y):
    """Gradients of two inputs."""
    return (x * y).sin().sum()


@program(lambda: (leaf(3, 4), torch.randn(4)))
def gradient_of_one_input(x, y):
    """Only one of two inputs needs a gradient."""
    return x @ y, y * 2


@program(lambda: (leaf(4),))
def gradients_of_many_outputs(x):
    """Several outputs take part in the backward, one does not."""
    return x.exp(), x.detach() * 2, (x > 0), x.relu(), x[1:]


@program(lambda: (leaf(4),))
def no_grad_block(x):
    """no_grad inside: what is made there has no gradient."""
    with torch.no_grad():
        scale = x.abs().max()
        inside = torch.is_grad_enabled()
    return x / scale, inside, torch.is_grad_enabled()


@program(lambda: (leaf(4),))
@torch.no_grad()
def no_grad_decorator(x):
    """no_grad as a decorator of the root."""
    return x * 2


@program(lambda: (torch.randn(4),))
def enable_grad_block(x):
    """set_grad_enabled and enable_grad inside."""
    with torch.set_grad_enabled(False), torch.enable_grad():
        y = x * 2
    return y, torch.is_grad_enabled()


@program(lambda: (leaf(4),))
def detached_and_attached(x):
    """A straight-through estimator."""
    hard = (x > 0).float()
    return hard + x - x.detach()


@program(lambda: (leaf(4),))
def in_place_with_gradient(x):
    """In-place operations on an intermediate that needs gradients."""
    y = x * 2
    y.add_(1).mul_(x)
    y[0] = 0
    return y.sum()


@program(lambda: (leaf(4),))
def gradient_through_views(x):
    """Gradients through views, splits and joins."""
    a, b = x.view(2, 2).t().chunk(2)
    return torch.cat([b, a]).flatten() * torch.arange(4.0)


@program(lambda: (leaf(2, 3), torch.tensor([0, 2])))
def cross_entropy_gradient(logits, labels):
    """The gradient of a loss."""
    return F.cross_entropy(logits, labels)


@program(lambda: (leaf(3),), breaks=2)
def gradient_across_break(x):
    """Gradients flow through a graph break."""
    y = x.sin()
    print("middle")
    if y.sum() > -1e9:
        y = y * 2
    return y.sum()


@program(lambda: (leaf(3),))
def grad_inside(x):
    """torch.autograd.grad inside the function."""
    y = (x**3).sum()
    (g,) = torch.autograd.grad(y, x)
    return g


class Double(torch.autograd.Function):
    """An autograd function of the user's own, whose gradient is wrong on purpose."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 + x * 0


@program(lambda: (leaf(3),))
def own_autograd_function(x):
    """A user's autograd.Function keeps its own backward."""
    return Double.apply(x + 1).sum()


@program(lambda: (leaf(3, 3),))
def checkpointed(x):
    """Activation checkpointing."""
    return torch.utils.checkpoint.checkpoint(lambda y: (y @ y).sin(), x, use_reentrant=False)


MODEL = nn.Linear(3, 1)
with torch.no_grad():
    MODEL.weight.fill_(0.5)
    MODEL.bias.fill_(0.1)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


@program(lambda: (torch.randn(4, 3), torch.randn(4, 1)), lambda: (torch.randn(4, 3), torch.randn(4, 1)), breaks=1)
def training_step(x, y):
    """A whole step: zero_grad, loss, backward, step."""
    OPTIMIZER.zero_grad()
    loss = F.mse_loss(MODEL(x), y)
    loss.backward()
    OPTIMIZER.step()
    return loss.detach()


def _small(inputs, outputs):
    with torch.random.fork_rng():
        torch.manual_seed(inputs)
        return nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, outputs))


GENERATOR, DISCRIMINATOR = _small(2, 3), _small(3, 1)


@program(lambda: (torch.randn(4, 3), torch.randn(4, 2)), breaks=2)
def adversarial_step(real, noise):
    """Differentiating the discriminator's loss first leaves what the generator's loss needs."""
    fake = GENERATOR(noise)
    told = DISCRIMINATOR(real).mean() - DISCRIMINATOR(fake.detach()).mean()
    told.backward()
    loss = -DISCRIMINATOR(fake).mean()
    loss.backward()
    found = [p.grad for p in (*GENERATOR.parameters(), *DISCRIMINATOR.parameters())]
    for p in (*GENERATOR.parameters(), *DISCRIMINATOR.parameters()):
        p.grad = None
    return told.detach(), loss.detach(), found


@program(lambda: (leaf(3), leaf(3)))
def gradient_of_reused_input(x, y):
    """An input used many times collects its gradient."""
    z = x
    for i in range(4):
        z = z * y + x / (i + 1)
    return z


@program(lambda: (leaf(5, 4),))
def gradient_of_reductions(x):
    """Gradients of softmax, max, norm and var together."""
    return x.softmax(1)[:, 0], x.max(1).values, x.norm(dim=0), x.var(1), x.logsumexp(0)


@program(lambda: (leaf(3),))
def inference_mode_inside(x):
    """inference_mode makes inference tensors."""
    with torch.inference_mode():
        y = x * 2
        flag = torch.is_inference_mode_enabled()
    return y.is_inference(), flag, x + 1


@program(lambda: (leaf(4, 4),))
def autocast_inside(x):
    """bfloat16 autocast around a product, on the CPU."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        kind = y.dtype
    return y.float(), kind


@program(lambda: (leaf(3),))
def requires_grad_inside(x):
    """A tensor made inside is told to need gradients."""
    w = torch.ones(3).requires_grad_()
    y = (x * w).sum()
    return y, w.requires_grad


@program(lambda: (torch.randn(3, 4, 5),))
def dropout_of_transposed(x):
    """Random numbers are drawn in the order of the memory, here not that of the indices."""
    with torch.no_grad():
        return torch.nn.functional.dropout(x.transpose(0, 1) + 1, 0.4), torch.bernoulli(x.transpose(1, 2), 0.5)


@program(lambda: (leaf(2, 3),), lambda: (leaf(4, 5),))
def dropout_of_everything(x):
    """A dropout of everything draws no number, of whatever size."""
    return torch.nn.functional.dropout(x, 1.0), torch.dropout(x.sin(), p=1, train=True), torch.rand(2)


@program(lambda: (torch.randn(2, 3, requires_grad=True),), breaks=1)
def checkpoint_of_an_inference_tensor(x):
    """A checkpoint saves its arguments, which autograd refuses for an inference tensor."""
    with torch.inference_mode():
        y = x * 2
    return torch.utils.checkpoint.checkpoint(lambda t: t * 3, y, use_reentrant=False)
