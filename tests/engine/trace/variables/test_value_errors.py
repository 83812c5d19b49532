"""Errors that depend on values are eager's, traced or after a graph break."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import engine

QUANTILES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "function": lambda x, q: torch.quantile(x, q),
    "ignoring NaN": lambda x, q: torch.nanquantile(x, q, dim=0),
    "method with a keyword": lambda x, q: x.nanquantile(q=q) + 1,
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("function", QUANTILES.values(), ids=QUANTILES)
def test_quantiles_must_lie_between_0_and_1(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], backend: str
) -> None:
    """A quantile out of range raises eager's error; one in range gives eager's value."""
    compiled = engine.compile(function, backend=backend)
    x, inside = torch.arange(5.0), torch.tensor([0.5, 1.0])
    torch.testing.assert_close(compiled(x, inside), function(x, inside), rtol=0, atol=0)
    for outside in (torch.tensor([0.5, 1.5]), torch.tensor([-0.1, 0.5])):
        with pytest.raises(RuntimeError) as eager:
            function(x, outside)
        with pytest.raises(RuntimeError) as found:
            compiled(x, outside)
        assert str(found.value) == str(eager.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.one_hot(),
        lambda x: torch.nn.functional.one_hot(x, 3, 4),
        lambda x: torch.quantile(x),
        lambda x: x.quantile(),
    ],
    ids=["one_hot()", "one_hot(x, 3, 4)", "quantile(x)", "x.quantile()"],
)
def test_wrong_calls_are_the_users_errors(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Missing or surplus arguments raise eager's error and are no bug of the tracer."""
    with pytest.raises(TypeError) as eager:
        function(torch.arange(3))
    with engine.record() as session, pytest.raises(TypeError) as found:
        engine.compile(function, backend="eager")(torch.arange(3))
    assert str(found.value) == str(eager.value)
    kinds = [b.kind for c in session.compilations if c.trace is not None for b in c.trace.breaks]
    assert kinds
    assert "internal" not in kinds
