"""Custom backwards that mutate tensors in place mutate them after compiled calls, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import engine


class WritesSaved(torch.autograd.Function):
    """Doubles what it saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        ctx.saved_tensors[0].mul_(2)
        return grads[0].clone()


class TurnsSaved(torch.autograd.Function):
    """Transposes what it saved in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.saved_tensors[0].t_()
        return grads[0] * 2, None


class CountsInto(torch.autograd.Function):
    """Adds up gradients in a buffer."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.buffer.add_(grads[0].sum())
        return grads[0] * 2, None


class WritesGradient(torch.autograd.Function):
    """Doubles the gradient that it is given."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0].mul_(2).clone()


class WritesOwn(torch.autograd.Function):
    """Writes to what nobody else sees."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        made = x.cos()
        ctx.save_for_backward(made)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return ctx.saved_tensors[0].mul_(grads[0])


CASES: dict[str, tuple[Callable[..., Any], bool]] = {
    "saved input": (lambda x, y: WritesSaved.apply(x) * y, True),
    "saved intermediate": (lambda x, y: WritesSaved.apply(x * 2) + y, False),
    "layout of an input": (lambda x, y: TurnsSaved.apply(x, y), True),
    "buffer": (lambda x, y: CountsInto.apply(x, y), True),
    "gradient of a result": (lambda x, y: WritesGradient.apply(x), True),
    "gradient of an intermediate": (lambda x, y: WritesGradient.apply(x).sin() + y, False),
    "its own": (lambda x, y: WritesOwn.apply(x) * y, False),
}


@pytest.mark.parametrize(("fn", "is_seen"), CASES.values(), ids=CASES.keys())
def test_what_a_backward_writes_to(fn: Callable[..., Any], is_seen: bool) -> None:
    """A backward that mutates tensors matches eager.

    Compares inputs, results, gradients and version counters. Tensors that only the backward reads are captured,
    too.
    """

    def seen(run: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(0)
        leaf = torch.randn(3, 3, requires_grad=True)
        x, y, tangent = leaf * 1, torch.ones(3, 3), torch.ones(3, 3)
        out = run(x, y)
        out.backward(tangent)
        tensors = [leaf.grad, x.detach(), y, out.detach(), tangent]
        return [*(t.tolist() for t in tensors if t is not None), *(t._version for t in (x, y, out)), y.stride()]

    engine.reset()
    expected = seen(fn)
    with engine.record() as session:
        found = seen(engine.compile(fn, backend="aot_eager"))
    assert found == expected
    notes = [c.aot.note for c in session.compilations if c.aot is not None]
    assert len(notes) == 1
    assert ("user-defined backward mutates" in notes[0]) == is_seen
