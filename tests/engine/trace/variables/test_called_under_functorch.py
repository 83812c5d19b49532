"""Tests of compiled functions that run under a ``torch.func`` transform.

Plain Python calls vmap, grad and the other transforms.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacfwd, jacrev, jvp, vmap

import engine


def _scaled(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y += x.sin()
    return y.mul_(2) * x.sum()


def _summed(x: torch.Tensor) -> torch.Tensor:
    return _scaled(x).sum()


def _drawn(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(4)


def _broken(x: torch.Tensor) -> torch.Tensor:
    y = x.cos()
    engine.graph_break()
    return y * x


def _picked(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[at] = 7
    return y + x[at]


USES = {
    "rows": lambda f: vmap(f(_scaled))(torch.arange(12.0).view(3, 4)),
    "columns": lambda f: vmap(f(_scaled), in_dims=1, out_dims=1)(torch.arange(12.0).view(3, 4)),
    "gradient": lambda f: grad(f(_summed))(torch.arange(3.0)),
    "gradients of rows": lambda f: vmap(grad(f(_summed)))(torch.arange(12.0).view(3, 4)),
    "jacobians": lambda f: (jacrev(f(_scaled))(torch.ones(3)), jacfwd(f(_scaled))(torch.ones(3))),
    "forward": lambda f: jvp(f(_scaled), (torch.ones(3),), (torch.arange(3.0),)),
    "a break inside": lambda f: vmap(f(_broken))(torch.arange(12.0).view(3, 4)),
    "positions of rows": lambda f: vmap(f(_picked))(torch.arange(12.0).view(3, 4), torch.tensor([2, 0, 1])),
    "one draw": lambda f: vmap(f(_drawn), randomness="same")(torch.zeros(3, 4)),
    "several draws": lambda f: vmap(f(_drawn), randomness="different")(torch.zeros(3, 4)),
    "a module": lambda f: vmap(f(_layer()))(torch.ones(2, 3)),
    "its parameters": lambda f: grad(f(_loss))(dict(_layer().named_parameters()), torch.ones(3)),
}


def _layer() -> nn.Module:
    torch.manual_seed(4)
    return nn.Linear(3, 2)


LAYER = _layer()


def _loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
    return functional_call(LAYER, parameters, (x,)).pow(2).sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("use", USES)
def test_it_is_captured(use: str, backend: str) -> None:
    """It gives what plain Python gives, out of a graph, whatever the backend."""
    engine.reset()
    torch.manual_seed(3)
    expected = USES[use](lambda f: f)
    torch.manual_seed(3)
    with engine.record() as session:
        found = USES[use](lambda f: engine.compile(f, backend=backend))
    torch.testing.assert_close(found, expected)
    assert [b.kind for c in session.compilations if c.trace for b in c.trace.breaks] == ["explicit-break"] * (
        use == "a break inside"
    )
    assert all(c.graphs for c in session.compilations)
    assert not session.skipped


def test_with_and_without() -> None:
    """A compiled function has one entry for calls without transforms, and one for vmap.

    Nested transforms hit the entry for vmap.
    """
    engine.reset()
    compiled = engine.compile(_scaled, backend="aot_eager")
    x = torch.arange(12.0).view(3, 4)
    with engine.record() as session:
        for _ in range(2):
            torch.testing.assert_close(compiled(x[0]), _scaled(x[0]))
            torch.testing.assert_close(vmap(compiled)(x), vmap(_scaled)(x))
            torch.testing.assert_close(vmap(vmap(compiled))(x[None]), vmap(vmap(_scaled))(x[None]))
    assert len(session.compilations) == 2


def test_a_row_of_a_value_jumps_as_in_python() -> None:
    """A jump on a row's value raises what vmap raises."""
    engine.reset()

    def jumps(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        vmap(engine.compile(jumps, backend="eager"))(torch.ones(2, 3))


def test_functionalize_around() -> None:
    """A function under ``torch.func.functionalize`` is captured and mutates its argument."""
    engine.reset()

    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1).view(-1)[:2].mul_(2)
        return x * 2

    with engine.record() as session:
        given, expected = torch.ones(2, 2), torch.ones(2, 2)
        found = torch.func.functionalize(engine.compile(writes, backend="aot_eager"))(given)
    torch.testing.assert_close(found, writes(expected))
    torch.testing.assert_close(given, expected)
    assert [bool(c.graphs) for c in session.compilations] == [True]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_pullback_outlives_the_call_that_made_it(backend: str) -> None:
    """It computes with real tensors, however the graph that made it was compiled."""

    def made(x: torch.Tensor) -> Any:
        return torch.func.vjp(torch.sin, x)

    x = torch.randn(3)
    _, back = engine.compile(made, backend=backend)(x)
    assert torch.equal(back(torch.ones(3))[0], x.cos())
