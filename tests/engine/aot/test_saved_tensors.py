"""Results of one compiled call can be differentiated one after another, as in eager.

Errors and freed buffers match eager, too.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import engine
from engine.aot.saved_tensors import CAN_UNPACK_SINGLE
from tests.engine.aot.aliasing.compare_programs import check
from tests.engine.aot.aliasing.generate_programs import generate
from tests.engine.aot.aliasing.program_features import ONE_AT_A_TIME
from tests.engine.aot.assert_matches_eager import message

ARGUMENTS = 6, 5


def _discriminator_first(net: nn.Module, x: Tensor, y: Tensor) -> None:
    fake = (x * 3).sin()
    loss = net(y.detach()).mean() - net(fake.detach()).mean()
    loss.backward()
    net(fake).mean().backward()


def _both_losses_known(net: nn.Module, x: Tensor, y: Tensor) -> None:
    fake = (x * 3).sin()
    real, loss = net(y.detach()).mean() - net(fake.detach()).mean(), net(fake).mean()
    real.backward()
    loss.backward()


def _shared(net: nn.Module, x: Tensor, y: Tensor) -> None:
    features = net(x)
    one, other = features.sin().sum(), features.cos().sum()
    one.backward()
    other.backward()


def _shared_without_anything_saved(net: nn.Module, x: Tensor, y: Tensor) -> None:
    z = x + y
    one, other = (z + 1).sum(), (z - 1).sum()
    one.backward()
    other.backward()


def _shared_product_with_a_number(net: nn.Module, x: Tensor, y: Tensor) -> None:
    z = x * 2
    one, other = (z + 1).sum(), (z - 1).sum()
    one.backward()
    other.backward()


def _shared_constant(net: nn.Module, x: Tensor, y: Tensor) -> None:
    z = x.masked_fill(torch.ones(ARGUMENTS) > 0, 2)
    one, other = (z + 1).sum(), (z - 1).sum()
    one.backward()
    other.backward()


def _first_once_more(net: nn.Module, x: Tensor, y: Tensor) -> None:
    one, other = x.sin().sum(), y.cos().sum()
    one.backward()
    other.backward()
    one.backward()


def _a_product_with_a_number(net: nn.Module, x: Tensor, y: Tensor) -> None:
    z = (x * 2).sum()
    z.backward()
    z.backward()


def _a_sum(net: nn.Module, x: Tensor, y: Tensor) -> None:
    z = (x + 2).sum()
    z.backward()
    z.backward()


def _two_at_once(net: nn.Module, x: Tensor, y: Tensor) -> None:
    one, two, three = x.sin().sum(), y.cos().sum(), (x * y).sum()
    one.backward()
    (two + three).backward()


def _with_what_saved_nothing(net: nn.Module, x: Tensor, y: Tensor) -> None:
    one, other = x.sum(), y.cos().sum()
    one.backward()
    (one + other).backward()


def _some_retained(net: nn.Module, x: Tensor, y: Tensor) -> None:
    one, two, three = x.sin().sum(), y.cos().sum(), (x * y).sum()
    one.backward(retain_graph=True)
    two.backward()
    one.backward()
    three.backward()


def _retained_after_it_was_freed(net: nn.Module, x: Tensor, y: Tensor) -> None:
    one, other = x.sin().sum(), y.cos().sum()
    one.backward()
    other.backward(retain_graph=True)
    other.backward()
    other.backward()


def _written_between(net: nn.Module, x: Tensor, y: Tensor) -> None:
    one, other = x.sin(), (y * 3).exp()
    one.sum().backward()
    other.add_(1)
    other.sum().backward()


def _written_before(net: nn.Module, x: Tensor, y: Tensor) -> None:
    one, other = x.sin(), (y * 3).exp()
    other.add_(1)
    one.sum().backward()
    other.sum().backward()


def _differentiated_again(net: nn.Module, x: Tensor, y: Tensor) -> None:
    one, other = (x**3).sum(), (y**4).sum()
    one.backward()
    (gradient,) = torch.autograd.grad(other, y, create_graph=True)
    (gradient**2).sum().backward()


STEPS: tuple[Callable[..., None], ...] = (
    _discriminator_first,
    _both_losses_known,
    _shared,
    _shared_without_anything_saved,
    _shared_product_with_a_number,
    _shared_constant,
    _first_once_more,
    _a_product_with_a_number,
    _a_sum,
    _two_at_once,
    _with_what_saved_nothing,
    _some_retained,
    _retained_after_it_was_freed,
    _written_between,
    _written_before,
    _differentiated_again,
)


@pytest.mark.combinations
@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__.strip("_"))
def test_parts_of_a_call_are_differentiated_as_in_eager(step: Callable[..., None], backend: str) -> None:
    """Gradients are eager's, and so is what is refused."""
    engine.reset()
    runs = []
    for run in (step, engine.compile(step, backend=backend)):
        told: list[Any] = []
        for call in range(2):
            torch.manual_seed(call)
            net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
            x, y = (torch.randn(ARGUMENTS, requires_grad=True) for _ in range(2))
            told.append(message(run, net, x, y).partition(": [")[0])
            told += [t.grad for t in (x, y, *net.parameters())]
        runs.append(told)
    for eager, ours in zip(*runs, strict=True):
        assert type(ours) is type(eager)
        if isinstance(eager, Tensor):
            torch.testing.assert_close(ours, eager)
        else:
            assert ours == eager


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
def test_a_saved_result_is_read_although_another_saved_tensor_was_overwritten(backend: str) -> None:
    """A result that saved itself needs nothing else; overwriting itself raises."""

    def fn(x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * weight, y.exp()

    def differentiate(run: Callable[..., tuple[Tensor, Tensor]], overwritten: int) -> tuple[str, Tensor | None]:
        x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
        weight = torch.ones(3)
        _, result = run(x, weight, y)
        (weight, result)[overwritten].mul_(2)
        return message(result.sum().backward).partition(": [")[0], y.grad

    engine.reset()
    compiled = engine.compile(fn, backend=backend)
    for overwritten in range(2) if CAN_UNPACK_SINGLE else (1,):  # torch before 2.12 unpacks all saved tensors or none
        (expected, gradient), (raised, ours) = differentiate(fn, overwritten), differentiate(compiled, overwritten)
        assert raised == expected
        assert (gradient is None) == (ours is None) == bool(overwritten)
        if gradient is not None:
            torch.testing.assert_close(ours, gradient)


def test_what_is_kept_is_what_the_rest_needs() -> None:
    """A small result that is kept for the log does not keep the activations of a large one."""

    def step(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ w).sum(), w.exp().sum()

    engine.reset()
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    loss, penalty = engine.compile(step, backend="aot_eager")(x, w)
    gone = weakref.ref(x)
    loss.backward()
    del x, loss
    gc.collect()
    assert gone() is None
    w.grad = None
    penalty.backward()
    torch.testing.assert_close(w.grad, w.detach().exp())


def test_a_result_that_is_kept_lets_go_of_its_call() -> None:
    """What is held for a second time holds no result, whose node holds it."""

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), y.exp()

    engine.reset()
    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    one, other = engine.compile(step, backend="aot_eager")(x, y)
    one.sum().backward()
    gone = weakref.ref(other.grad_fn)
    del one, other
    gc.collect()
    assert gone() is None


@pytest.mark.thorough
@pytest.mark.parametrize(
    "first", [0, pytest.param(50, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("is_wider", [False, True])
def test_generated_programs(first: int, is_wider: bool) -> None:
    """Generated programs match eager when their results are differentiated one after another.

    If arguments have an autograd history, the backward runs through it with undefined gradients.
    """
    cases = [replace(generate(n, is_wider=is_wider), backward=ONE_AT_A_TIME) for n in range(first, first + 50)]
    told = {c.seed: check(c, "aot_eager") for c in cases if ".requires_grad_() *" not in c.inputs}
    assert not {seed: lines for seed, lines in told.items() if lines}
    assert len(told) > 25
