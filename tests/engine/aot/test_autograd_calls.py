"""``torch.autograd.grad`` inside a compiled function is in its functional graph."""

import pytest
import torch
from torch.nn import functional

import engine

NORM, CELL = torch.nn.BatchNorm1d(3), torch.nn.GRU(3, 3)


def step(x, w):
    loss = (x * w).sin().square().sum()
    (g,) = torch.autograd.grad(loss, w)
    return w - 0.1 * g, loss


def penalty(x, w):
    h = NORM(x * w).tanh()
    (g,) = torch.autograd.grad(h.sum(), x, create_graph=True)
    return h.mean() + (g.norm(dim=-1) - 1).square().mean(), g


def inner_steps(x, w):
    for _ in range(2):
        (g,) = torch.autograd.grad((x * w).tanh().square().mean(), w, create_graph=True)
        w = w - 0.1 * g
    return ((x * w) ** 2).mean()


def forces(x, w):
    at = x.detach().requires_grad_()
    energy = (w * (at[:, None] - at).square().sum(-1).add(1).rsqrt()[..., None]).sum()
    (g,) = torch.autograd.grad(energy, at, create_graph=True)
    return energy, -g


def forces_of_a_fixed_model(x, w):
    at = x.detach().requires_grad_()
    energy = (w.detach() * at.sin()).sum()
    return -torch.autograd.grad(energy, at)[0], energy


def written(x, w):
    (g,) = torch.autograd.grad((x * w).sin().sum(), w)
    with torch.no_grad():
        w -= 0.1 * g
    return w * 2


def several(x, w):
    y = x + w
    return *torch.autograd.grad(y.sum(), [x, w]), *torch.autograd.grad((x * x).sum(), [x, w], allow_unused=True)


def of_a_middle_value(x, w):
    h = (x * w).sin()
    (g,) = torch.autograd.grad((h * h).sum(), h)
    return g, h, h * 2 + w


def attention(x, w):
    q = (x * w)[None]
    y = functional.scaled_dot_product_attention(q, q, q)
    return torch.autograd.grad(y.sin().sum(), x)


def outcome(function, args):
    """The results of a call, what is known of them, and gradients from each, twice."""
    args = [a.detach().clone().requires_grad_() for a in args]
    found = function(*args)
    results = found if isinstance(found, tuple) else (found,)
    seen = [(t.requires_grad, t.is_leaf, t.stride()) if t is not None else None for t in results]
    gradients = []
    for t in results:
        for again in (True, False) if t is not None and t.requires_grad else ():
            try:
                gradients += torch.autograd.grad(t.sum(), args, retain_graph=again, allow_unused=True)
            except RuntimeError as error:
                gradients.append(str(error).partition("(")[0])
    return seen, [*results, *gradients]


@pytest.mark.parametrize(
    "function",
    [
        step,
        penalty,
        inner_steps,
        forces,
        forces_of_a_fixed_model,
        written,
        several,
        of_a_middle_value,
        attention,
    ],
)
def test_gradients_match_eager(function):
    """Results, what requires grad, gradients and errors of freed history equal eager's."""
    args = [torch.rand(5, 3) + 0.5, torch.rand(5, 3)]
    with engine.record() as session:
        seen, found = outcome(engine.compile(function, backend="aot_eager", fullgraph=True), args)
    assert all(c.aot.fallback is None for c in session.compilations)
    expected_seen, expected = outcome(function, args)
    assert seen == expected_seen
    assert [type(v) for v in found] == [type(v) for v in expected]
    for a, b in zip(found, expected, strict=True):
        assert a == b if isinstance(a, str) else a is b or torch.allclose(a, b, rtol=1e-5)


def second_derivative_of_attention(x):
    q = x[None]
    y = functional.scaled_dot_product_attention(q, q, q)
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0].square().sum()


def second_derivative_of_a_recurrent_layer(x):
    return torch.autograd.grad(CELL(x)[0].sum(), x, create_graph=True)[0].square().sum()


@pytest.mark.parametrize("function", [second_derivative_of_attention, second_derivative_of_a_recurrent_layer])
def test_second_derivatives_are_never_dropped(function):
    """Operators without a second derivative are not used: values or errors are eager's."""
    x = torch.rand(4, 3)
    found, expected = (outcome(run, [x])[1] for run in (engine.compile(function, backend="aot_eager"), function))
    for a, b in zip(found, expected, strict=True):
        assert a == b if isinstance(a, str) else torch.allclose(a, b, rtol=1e-4)


def test_hooks_on_an_argument_run():
    """A hook that the caller registers later changes the gradient, as in eager."""
    x, w = torch.rand(3), torch.rand(3, requires_grad=True)
    compiled = engine.compile(step, backend="aot_eager")
    compiled(x, w)
    w.register_hook(lambda g: g * 10)
    assert torch.equal(compiled(x, w)[0], step(x, w)[0])


@pytest.mark.thorough
def test_the_gradient_runs_in_kernels():
    """A penalty on gradients is lowered, and so is its backward."""
    compiled = engine.compile(inner_steps, backend="triton")
    x, w = torch.rand(4, 3), torch.rand(4, 3, requires_grad=True)
    with engine.record() as session:
        compiled(x, w).backward()
    (compilation,) = session.compilations
    lowered = (compilation.lowering, compilation.backward_lowering)
    assert all(r.total and r.lowered == r.total for r in lowered)
