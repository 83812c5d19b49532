"""Fake tensors lie as eager's results do, also where torch's own fake tensors do not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from engine.graph.fake_tensors.fake_mode import make_fake_mode
from engine.torch_private.symbolic_shapes import ShapeEnv

LAYOUTS = [
    ((2, 1, 4), (4, 8, 1)),
    ((4, 1, 2), (2, 7, 1)),
    ((4, 1, 3, 1), (3, 5, 1, 1)),
    ((3, 4, 2, 1), (4, 1, 12, 7)),
    ((4, 3), (1, 4)),
    ((2, 3, 4, 5), (60, 1, 15, 3)),
    ((3, 0, 2), (1, 7, 3)),
    ((4, 1), (2, 7)),
    ((3, 4), (0, 1)),
]
OPERATORS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t * 2,
    lambda t: 1 - t,
    lambda t: t > 0,
    lambda t: t + t[:1],
    lambda t: torch.xlogy(t, t[..., :1]),
    lambda t: torch.special.zeta(t, 2.0),
    lambda t: torch.lerp(t, t, 0.5),
    lambda t: t**2,
    lambda t: 2**t,
    torch.zeros_like,
    lambda t: t.flip(0),
    lambda t: t.masked_fill(t > 0, 1.0),
    lambda t: torch.complex(t, t),
    lambda t: t.log_softmax(-1),
    lambda t: t.unflatten(0, (1, -1)),
    lambda t: t.reshape(1, *t.shape, 1),
    lambda t: t.sum(0, keepdim=True),
    lambda t: F.smooth_l1_loss(t, t * 2, reduction="none"),
    lambda t: t.double() + t,
    lambda t: t.int().expand(2, *t.shape) < t.mT.contiguous().mT,
    lambda t: t.sum().expand_as(t),
    lambda t: t.sum(0, keepdim=True).expand(1, 2, *t.shape),
    torch.diag_embed,
]


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize(("shape", "strides"), LAYOUTS)
def test_fake_results_lie_as_eagers(shape: tuple[int, ...], strides: tuple[int, ...], is_static: bool) -> None:
    """By each operator, also where sizes are symbols."""
    real = torch.zeros(200).as_strided(shape, strides)
    mode = make_fake_mode(ShapeEnv())
    fake = mode.from_tensor(real, static_shapes=is_static)
    for n, operator in enumerate(OPERATORS):
        with mode:
            found = operator(fake)
        told = tuple(int(s.node.hint) if isinstance(s, torch.SymInt) else s for s in found.stride())
        assert (n, told) == (n, operator(real).stride())
    assert mode.shape_env is not None
    assert not mode.shape_env.guards or not is_static
