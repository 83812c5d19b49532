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
