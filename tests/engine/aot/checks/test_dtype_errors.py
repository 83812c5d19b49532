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


def scale_all(x: torch.Tensor, by: Any) -> torch.Tensor:
    """Multiply the tensors of a list in place."""
    torch._foreach_mul_([torch.ones(2), x], by)
    return x


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("by", [1.6, 2, [2.5, 1.6], [1.6, 2]], ids=str)
def test_a_list_of_products_that_cannot_be_cast_raises(backend: str, by: Any) -> None:
    """Each tensor of a list is compared with its own operand."""
    compiled = engine.compile(scale_all, backend=backend)
    for x in INTO:
        (found, raised), (wanted, message) = outcome(compiled, x, by), outcome(scale_all, x, by)
        assert raised == message
        torch.testing.assert_close(found, wanted)


def test_lists_that_can_be_cast_stay_in_the_graph() -> None:
    """A list that mixes dtypes runs compiled if each tensor holds its own product."""

    def scale_pairs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counts, values = torch.ones(3, dtype=torch.int64), x + 1
        torch._foreach_mul_([counts, values], [torch.arange(3), x])
        return counts, values

    x = torch.rand(3)
    with engine.record() as session:
        found = engine.compile(scale_pairs, backend="aot_eager")(x)
    torch.testing.assert_close(found, scale_pairs(x))
    (compilation,) = session.compilations
    assert compilation.aot is not None
    assert compilation.aot.fallback is None
