"""Views of custom operator results are correct even if the fake reports wrong strides."""

from collections.abc import Callable

import pytest
import torch

import engine


@torch.library.custom_op("engine_tests::by_columns", mutates_args=())
def by_columns(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t() * 2


@by_columns.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)  # it is not


by_columns.register_autograd(lambda _ctx, grad: grad * 2)


def _all_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = by_columns(x)
    return y.t(), y, y[1]


def _written(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = by_columns(x)
    y.add_(1)
    return (y[:, 1:].detach(), y[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_all_views, _written])
def test_views_of_what_lies_otherwise(
    backend: str, dynamic: bool, function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
) -> None:
    """Their elements, that they share memory, and gradients through them."""
    run = engine.compile(function, backend=backend, dynamic=dynamic)
    x = torch.randn(3, 4)
    found = run(x)
    for a, b in zip(found, function(x), strict=True):
        assert torch.equal(a, b)
    assert len({t.untyped_storage()._cdata for t in found}) == 1
    given = [x.clone().requires_grad_() for _ in range(2)]
    for leaf, call in zip(given, (run, function), strict=True):
        sum((t.sum() for t in call(leaf) if t.requires_grad), torch.zeros(())).backward()
    assert given[0].grad is not None
    assert given[1].grad is not None
    assert torch.equal(given[0].grad, given[1].grad)
