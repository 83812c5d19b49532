"""Optimizers step inside compiled code, and compiled steps use state from outside."""

import copy

import torch
from torch import nn

from tests.programs import program

torch.manual_seed(5)


def fitted():
    """A model and a batch."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def batch():
    """Inputs and targets."""
    return torch.randn(8, 4), torch.randn(8, 1)


def stepping(model, optimizer):
    """A training step as a function of the batch."""

    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


SGD_MODEL = fitted()
SGD = torch.optim.SGD(SGD_MODEL.parameters(), lr=0.1, momentum=0.9, nesterov=True)


@program(batch, batch, batch, breaks=1)
def sgd_step(x, y):
    """A whole step with momentum."""
    return stepping(SGD_MODEL, SGD)(x, y)


ADAM_MODEL = fitted()
ADAM = torch.optim.AdamW(ADAM_MODEL.parameters(), lr=0.01, weight_decay=0.1)


@program(batch, batch, batch, breaks=1)
def adam_step(x, y):
    """A whole step with AdamW."""
    return stepping(ADAM_MODEL, ADAM)(x, y)


ALONE_MODEL = fitted()
ALONE = torch.optim.Adam(ALONE_MODEL.parameters(), lr=0.01)


@program(lambda: (0.5,), lambda: (0.5,), lambda: (0.5,), breaks=0)
def step_alone(scale):
    """Only ``optimizer.step()``, gradients set before."""
    ALONE.step()
    return [p.sum() for p in ALONE_MODEL.parameters()]


for _p in ALONE_MODEL.parameters():
    _p.grad = torch.ones_like(_p)

SCALED_MODEL = fitted()
SCALED = torch.optim.AdamW(SCALED_MODEL.parameters(), lr=0.01)
SCALER = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)


@program(batch, batch, batch, batch, breaks=2)
def scaled_step(x, y):
    """A gradient scaler checks that all gradients are finite before the optimizer steps."""
    SCALED.zero_grad()
    loss = (SCALED_MODEL(x) - y).pow(2).mean()
    SCALER.scale(loss).backward()
    SCALER.step(SCALED)
    SCALER.update()
    return loss.detach(), SCALER.get_scale()


GROUP_MODEL = fitted()
GROUPS = torch.optim.SGD(
    [{"params": GROUP_MODEL[0].parameters(), "lr": 0.1}, {"params": GROUP_MODEL[2].parameters(), "momentum": 0.5}],
    lr=0.01,
)


@program(batch, batch, breaks=1)
def groups_step(x, y):
    """Parameter groups with settings of their own."""
    return stepping(GROUP_MODEL, GROUPS)(x, y)


CLIP_MODEL = fitted()
CLIP = torch.optim.SGD(CLIP_MODEL.parameters(), lr=0.1)


@program(batch, batch, breaks=1)
def clipped_step(x, y):
    """Gradients clipped by their norm before the step."""
    CLIP.zero_grad()
    loss = (CLIP_MODEL(x) - y).pow(2).mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(CLIP_MODEL.parameters(), 0.5)
    CLIP.step()
    return loss.detach(), norm


def by_hand(params, grads, lr):
    """A step written by hand."""
    with torch.no_grad():
        for p, g in zip(params, grads, strict=True):
            p -= lr * g


@program(batch, batch)
def handwritten_step(x, y):
    """Gradients by autograd.grad, parameters changed in place."""
    loss = (HAND_MODEL(x) - y).pow(2).mean()
    params = list(HAND_MODEL.parameters())
    grads = torch.autograd.grad(loss, params)
    by_hand(params, grads, 0.1)
    return loss.detach()


HAND_MODEL = fitted()
AVERAGED = copy.deepcopy(HAND_MODEL)


@program(lambda: (0.9,), lambda: (0.9,), lambda: (0.99,))
def moving_average(decay):
    """An average of another model's parameters and buffers."""
    with torch.no_grad():
        for slow, fast in zip(AVERAGED.parameters(), HAND_MODEL.parameters(), strict=True):
            slow.copy_(slow * decay + fast * (1 - decay))
    return [p.sum() for p in AVERAGED.parameters()]


def gradients():
    """Parameters of two dtypes in turn, with gradients."""
    torch.manual_seed(6)
    made = [torch.randn(n + 1).to(torch.float64 if n % 2 else torch.float32).requires_grad_() for n in range(4)]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


@program(lambda: (gradients(), 0.5), lambda: (gradients(), 0.5), breaks=0)
def clip_alone(params, most):
    """Gradients clipped in place by the norm of all of them; their dtypes make two groups."""
    norm = torch.nn.utils.clip_grad_norm_(params, most)
    return norm, [p.grad * 1 for p in params]


@program(lambda: (gradients(), 0.5), breaks=0)
def clip_values(params, most):
    """Each element of each gradient clipped in place."""
    torch.nn.utils.clip_grad_value_(params, most)
    return [p.grad * 1 for p in params]


@program(lambda: (gradients(),), breaks=0)
def norms_of_gradients(params):
    """The total norm alone, in another order and by the largest element."""
    grads = [p.grad for p in params]
    return torch.nn.utils.get_total_norm(grads), torch.nn.utils.get_total_norm(grads, float("inf"))


@program(lambda: ([torch.randn(3), torch.randn(2)], [torch.randn(3), torch.randn(2)]))
def foreach_operators(left, right):
    """Operators on lists of tensors, in place and not."""
    sums = torch._foreach_add(left, right, alpha=2)
    torch._foreach_mul_(sums, 0.5)
    torch._foreach_lerp_(left, right, 0.1)
    return sums, torch._foreach_norm(left), torch._foreach_sqrt(torch._foreach_abs(right))


KEPT_MODEL = fitted()
KEPT = torch.optim.SGD(KEPT_MODEL.parameters(), lr=0.1)


@program(batch, batch)
def cleared_first(x, y):
    """``zero_grad`` before forward causes no graph break, though torch hides it from Dynamo."""
    KEPT.zero_grad()
    return (KEPT_MODEL(x) - y).pow(2).mean()


def stepped(kind, **settings):
    """Some steps of an optimizer on the gradients that each call is given."""
    model = fitted()
    optimizer = kind(model.parameters(), lr=0.1, **settings)

    def step(scale):
        for n, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, n + 1.0) * scale
        optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    return step


AVERAGING = stepped(torch.optim.ASGD, t0=2, lambd=0.1)
RECTIFYING = stepped(torch.optim.RAdam)
SCALES = [(lambda s: lambda: (torch.tensor(s),))(s) for s in (0.5, -1.0, 2.0, 0.25, 1.5, -0.5, 1.0, 0.75)]


@program(*SCALES)
def averaged_step(scale):
    """ASGD decides by its counts of steps, which are tensors, how it averages."""
    return AVERAGING(scale)


@program(*SCALES)
def rectified_step(scale):
    """RAdam decides by its counts of steps when it begins to adapt."""
    return RECTIFYING(scale)


def overflowing(value):
    """A gradient of these values, at their scale."""
    return (torch.full((2,), value), torch.ones(2, requires_grad=True))


@program(*[lambda v=v: overflowing(v) for v in (1.0, float("inf"), 2.0)], breaks=1, steady=False)
def skipped_on_overflow(grad, weight):
    """A scaler finds an infinite gradient, and the optimizer leaves the weight as it is."""
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(weight.sum())
    weight.grad = grad.clone()
    scaler.step(optimizer)
    scaler.update()
    return weight.detach().clone(), scaler.get_scale()


@program(*[lambda v=v: (torch.full((2,), v),) for v in (1.0, float("inf"), 2.0)], breaks=1)
def found_beside_the_gradients(grad):
    """Operators that find infinities count no write of the number that they set."""
    found = torch.full((), 0.0)
    torch._amp_foreach_non_finite_check_and_unscale_([grad], found, torch.ones(()))
    if found.item():
        return grad * 0, found
    return grad * 2, found


SCHEDULED_MODEL = fitted()
SCHEDULED = torch.optim.AdamW(SCHEDULED_MODEL.parameters(), lr=0.1)


@program(lambda: (2,), lambda: (2,))
def scheduler_created_inside(steps):
    """A scheduler wraps the optimizer's ``step``, a library function with attributes."""
    scheduler = torch.optim.lr_scheduler.LambdaLR(SCHEDULED, lambda epoch: 0.5**epoch)
    rates = []
    for _ in range(steps):
        SCHEDULED.step()
        scheduler.step()
        rates += scheduler.get_last_lr()
    return rates, SCHEDULED.param_groups[0]["initial_lr"], sorted(vars(type(SCHEDULED).step))


@program(*[lambda: (torch.randn(2, 3),)] * 4, breaks=1)
def optimizer_of_each_call(target):
    """An optimizer made in the function has new parameters and no state in each call."""
    latent = target.clone().requires_grad_()
    optimizer = torch.optim.Adam([latent], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = (latent.sin() * target).sum()
        loss.backward()
        optimizer.step()
    return latent.detach(), loss.detach()
