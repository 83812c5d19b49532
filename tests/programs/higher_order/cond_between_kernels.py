"""Operators before and after a higher-order operator, which stay in one functional graph."""

import torch
from torch._higher_order_ops import while_loop

from tests.programs import program


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


@program(lambda: (torch.randn(4, 3),), lambda: (leaf(4, 3),))
def cond_in_the_middle(x):
    """Elementwise operators around a branch chosen by a tensor."""
    y = x.sin() * 2
    z = torch.cond(x.sum() > 0, lambda a: a.cos() + 1, lambda a: a - 1, (y,))
    return (z * 3).relu()


@program(lambda: (torch.randn(4, 3),))
def loop_in_the_middle(x):
    """Elementwise operators around a loop."""
    _, v = while_loop(lambda n, v: n < 3, lambda n, v: (n + 1, v * 2), (torch.tensor(0), x.sin()))
    return (v + 1).relu()
