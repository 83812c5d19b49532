"""An optimizer's first compiled step finds its state, so later steps run the same graph."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import engine

OPTIMIZERS = ["Adadelta", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RMSprop", "Rprop"]


def _optimizer(name: str) -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
    torch.manual_seed(3)
    params = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(2))]
    groups = [{"params": params[:1]}, {"params": params[1:], "lr": 0.05}]
    return params, getattr(torch.optim, name)(groups, lr=0.01)


def _train(name: str, step: Callable[[list[nn.Parameter], torch.optim.Optimizer], Any], backend: Any) -> list[Any]:
    """Return the result, parameters and state after each of four steps.

    Without a backend, the steps run eagerly.
    """
    params, optimizer = _optimizer(name)

    def call() -> Any:
        return step(params, optimizer)

    run = call if backend is None else engine.compile(call, backend=backend)
    found: list[Any] = []
    for _ in range(4):
        for p in params:
            p.grad = torch.full_like(p, 0.5)
        result = run()
        state = optimizer.state_dict()["state"]
        found.append((result, [p.detach().clone() for p in params], {n: dict(s) for n, s in state.items()}))
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_of_an_optimizer_share_one_graph(name: str) -> None:
    """The first step creates no state in its graph, so the second one does not recompile."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    def step(params: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    torch.testing.assert_close(_train(name, step, backend), _train(name, step, None))
    assert len(graphs) == 1


def _drop_gradient(params: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    params[0].grad = None
    optimizer.step()


def _change_rate(params: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()


def _count_state(params: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> tuple[int, int]:
    before = len(optimizer.state)
    optimizer.step()
    return before, len(optimizer.state)


def _read_state(params: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> int:
    count = len(optimizer.state[params[0]])
    optimizer.step()
    return count


@pytest.mark.parametrize("step", [_drop_gradient, _change_rate, _count_state, _read_state])
@pytest.mark.parametrize("name", ["Adam", "ASGD"])
def test_state_is_eager_s_when_the_function_wrote_or_read_what_decides(name: str, step: Callable[..., Any]) -> None:
    """A function that first drops a gradient, changes a rate or reads the state acts as eager."""
    torch.testing.assert_close(_train(name, step, "aot_eager"), _train(name, step, None))


@pytest.mark.parametrize("count", [3, 40])
def test_one_guard_tells_the_state_of_all_parameters_from_others(count: int) -> None:
    """Guards that states are different objects do not grow with the number of parameters."""

    def train(compiled: Callable[[Callable[[], None]], Callable[[], None]]) -> list[torch.Tensor]:
        params = [nn.Parameter(torch.ones(2)) for _ in range(count)]
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer = torch.optim.SGD(params, momentum=0.9)
        run = compiled(lambda: optimizer.step())
        for _ in range(3):
            run()
        optimizer.state[params[1]] = optimizer.state[params[0]]
        run()
        return [*(p.detach() for p in params), optimizer.state[params[0]]["momentum_buffer"]]

    with engine.record() as session:
        found = train(lambda call: engine.compile(call, backend="eager"))
    assert all(map(torch.equal, found, train(lambda call: call)))
    checks = [c.guards.check_text for c in session.compilations if c.guards is not None]
    assert not any(" is not _" in check for check in checks)
    assert any("first_are_distinct" in check for check in checks)


def test_a_step_that_stores_its_buffers_back_has_no_side_effects() -> None:
    """SGD stores each momentum buffer under its key again: the dicts are not refilled."""
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    step = engine.compile(optimizer.step, backend="eager")
    with engine.record() as session:
        for _ in range(2):
            for p in parameters:
                p.grad = torch.ones(3)
            step()
    assert session.compilations[-1].trace.side_effects == ()
    for state in optimizer.state.values():
        torch.testing.assert_close(state["momentum_buffer"], torch.full((3,), 1.9))


def test_optimizers_of_each_call_share_code_while_earlier_ones_are_garbage() -> None:
    """Optimizers of earlier calls that wait for the garbage collector cost no compilations."""

    def fit(target: torch.Tensor) -> torch.Tensor:
        latent = target.clone().requires_grad_()
        optimizer = torch.optim.Adam([latent], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (latent.sin() * target).sum().backward()
            optimizer.step()
        return latent.detach()

    compiled, target = engine.compile(fit, backend="eager"), torch.randn(2, 3)
    gc.disable()
    try:
        for _ in range(3):
            torch.testing.assert_close(compiled(target), fit(target))
        with engine.record() as session:
            compiled(target)
    finally:
        gc.enable()
    assert [c.cause for c in session.compilations] == []
