"""Products written into tensors that cannot hold them raise as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import engine


def scale(x: torch.Tensor, by: Any) -> torch.Tensor:
    """Multiply a tensor in place."""
    x.mul_(by)
    return x


def outcome(function: Any, x: torch.Tensor, by: Any) -> tuple[torch.Tensor, str]:
    """Return the tensor after the call, and what the call raised."""
    x = x.clone()
    try:
        function(x, by)
    except RuntimeError as error:
        return x, str(error)
    return x, ""


INTO = [torch.arange(6), torch.arange(6) > 2, torch.arange(6, dtype=torch.uint8), torch.arange(6.0)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("by", [1.6, 2, 1 + 2j, torch.tensor(1.5), torch.tensor(2)], ids=str)
def test_a_product_that_cannot_be_cast_raises(backend: str, by: Any) -> None:
    """The message and the tensor are eager's, after calls that made the number symbolic."""
    compiled = engine.compile(scale, backend=backend)
    for number in (2.5, 3.5):
        compiled(torch.ones(6), number)
    for x in INTO:
        (found, raised), (wanted, message) = outcome(compiled, x, by), outcome(scale, x, by)
        assert raised == message
        torch.testing.assert_close(found, wanted)
