"""Hooks on tensors with an undefined gradient are not called, as in eager.

Gradients are undefined if only some results of a compiled call are differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import engine

Told = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    engine.reset()
    yield


class _TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.policy, self.value = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(x).tanh()
        return self.policy(features), self.value(features)


def _clamps(net: nn.Module, told: Told) -> None:
    for name, p in net.named_parameters():
        p.register_hook(lambda g, name=name: (told.append((name,)), g.clamp(-0.1, 0.1))[1])


def _steps(net: nn.Module, told: Told) -> None:
    """An optimizer for each parameter, which steps when its gradient is there."""
    for name, p in net.named_parameters():
        optimizer = torch.optim.SGD([p], lr=0.1)

        def step(p: Tensor, name: str = name, optimizer: torch.optim.Optimizer = optimizer) -> None:
            told.append((name, p.grad is None))
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(step)


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("hooked", [_clamps, _steps])
@pytest.mark.parametrize("reached", [(0,), (1,), (0, 1)])
def test_hooks_of_parameters(reached: tuple[int, ...], hooked: Callable[[nn.Module, Told], None], backend: str) -> None:
    """Those of a head that the loss does not come from."""
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net, told = _TwoHeads(), []
        hooked(net, told)
        run = engine.compile(net, backend=backend) if compiled else net
        for _ in range(2):
            results = run(torch.ones(5, 3))
            sum(results[n].square().sum() for n in reached).backward()
            told.append(("backward",))
        found.append((sorted(told), [(p.grad, p.detach()) for p in net.parameters()]))
    assert found[1][0] == found[0][0]
    torch.testing.assert_close(*(torch.nn.utils.parameters_to_vector(p for _, p in f[1]) for f in found))
    for (eager, _), (ours, _) in zip(found[0][1], found[1][1], strict=True):
        assert (eager is None) is (ours is None)
        assert eager is None or torch.allclose(ours, eager)


def _pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), y.cos()


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_hooks_of_arguments(*, is_leaf: bool, elsewhere: bool) -> None:
    """Hooks run if a gradient arrives another way or in a later backward, and stay removable."""
    found = []
    for run in (_pair, engine.compile(_pair, backend="aot_eager")):
        told: Told = []
        x, leaf = (torch.ones(3, requires_grad=True) for _ in range(2))
        y = leaf if is_leaf else leaf + 1
        handle = y.register_hook(lambda g: told.append(tuple(g.tolist())))
        if is_leaf:
            leaf.register_post_accumulate_grad_hook(lambda t: told.append(("after", *t.grad.tolist())))
        hooks = dict(y._backward_hooks)
        one, other = run(x, y)
        (one.sum() + (y * 2).sum() if elsewhere else one.sum()).backward(retain_graph=True)
        assert dict(y._backward_hooks) == hooks
        told.append(("then",))
        other.sum().backward(retain_graph=True)
        handle.remove()
        told.append(("removed",))
        other.sum().backward()
        found.append((told, leaf.grad.tolist(), x.grad.tolist()))
    assert found[1] == found[0]


def test_hooks_after_a_backward_that_raised() -> None:
    """They are quiet for that backward only."""

    def fail(gradient: Tensor) -> None:
        raise ValueError("no")

    found = []
    for run in (_pair, engine.compile(_pair, backend="aot_eager")):
        told: Told = []
        x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
        y.register_hook(lambda g: told.append(tuple(g.tolist())))
        handle = x.register_hook(fail)
        with pytest.raises(ValueError, match="no"):
            run(x, y)[0].sum().backward()
        handle.remove()
        for n in (0, 1):
            run(x, y)[n].sum().backward()
            told.append((n,))
        found.append((told, y.grad.tolist(), x.grad.tolist()))
    assert found[1] == found[0]


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0, 1)])
def test_calls_that_nothing_comes_to_keep_what_they_saved(backend: str, order: tuple[int, ...]) -> None:
    """A compiled call that gets only undefined gradients keeps its saved tensors.

    Two encoders, each compiled alone, feed two losses. The first backward reaches both encoders, but one of them
    gets only undefined gradients.
    """

    def first(x: Tensor) -> Tensor:
        return x.exp()

    def second(x: Tensor) -> Tensor:
        return x.tanh() * x

    def losses(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return a.sin().sum(), b.cos().sum()

    def outcome(compile: Callable[[Any], Any]) -> list[Any]:
        one, two, both = map(compile, (first, second, losses))
        x, y = (torch.linspace(-1, 1, 3).requires_grad_() for _ in range(2))
        found = both(one(x), two(y))
        seen: list[Any] = []
        for n in order:
            try:
                found[n].backward()
            except RuntimeError as error:
                seen.append(str(error))
            seen += [None if t.grad is None else t.grad.clone() for t in (x, y)]
        return seen

    expected = outcome(lambda f: f)
    actual = outcome(lambda f: engine.compile(f, backend=backend))
    for a, e in zip(actual, expected, strict=True):
        if isinstance(e, Tensor):
            torch.testing.assert_close(a, e)
        else:
            assert a == e
