"""Generate features beyond views and writes, and the ways the caller goes backward.

The features are autograd functions, checkpoints, hooks and autocast.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Tensor = torch.Tensor


class Scaled(torch.autograd.Function):
    """A product that saves what it needs, and gives it a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        """``x * y``."""
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Three times the gradient of ``x``."""
        x, y = ctx.saved_tensors
        first = (3 * gradient * y).sum_to_size(x.shape) if ctx.needs_input_grad[0] else None
        return first, (gradient * x).sum_to_size(y.shape) if ctx.needs_input_grad[1] else None


class Doubled(torch.autograd.Function):
    """Doubles in place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """``x`` itself, written to."""
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Twice the gradient."""
        return gradient * 2


class Sorted(torch.autograd.Function):
    """Two results, one without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values in order, and where they were."""
        values, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Tensor:
        """Gradients where the values were."""
        (places,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(-1, places, gradient)


class UndefinedGradients(torch.autograd.Function):
    """Two results, whose gradients are None where nothing flows back from them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """A sine and a product."""
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x.sin(), x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        """What there is."""
        (x,) = ctx.saved_tensors
        if first is None:
            return None if second is None else second * 5
        return first * x.cos() if second is None else first * x.cos() + second * 3


class ViewInForward(torch.autograd.Function):
    """A view by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """All of ``x``."""
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Half the gradient."""
        return gradient / 2


class Passed(torch.autograd.Function):
    """Its own argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """``x`` as it is."""
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient turned about."""
        return -gradient


def checkpointed(x: Tensor) -> Tensor:
    """What a checkpoint holds."""
    return (x * 2).sin() * x


def nested(x: Tensor) -> Tensor:
    """A checkpoint inside of one."""
    kept: Tensor = checkpoint(checkpointed, x.cos(), use_reentrant=False)
    return kept * 2


def cached_call(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """``function(x)`` under a checkpoint."""
    result: Tensor = checkpoint(function, x, use_reentrant=False)
    return result


def doubled_gradient(x: Tensor) -> Tensor:
    """``x`` with a hook on its gradient."""
    x.register_hook(lambda gradient: gradient * 2)
    return x


NAMES: dict[str, Any] = {
    f.__name__: f
    for f in (
        Scaled,
        Doubled,
        Sorted,
        UndefinedGradients,
        ViewInForward,
        Passed,
        checkpointed,
        nested,
        cached_call,
        doubled_gradient,
    )
}
"""What programs find in their namespace."""


def statement(r: random.Random, fresh: Callable[[], str], x: str, y: str, t: Tensor) -> str:
    """Return a statement over ``x`` and ``y`` that the narrower grammar does not have.

    The value of ``x`` is ``t``.
    """
    families = [_functions, _out, _complex, _detached, _parts, _regions, _elsewhere]
    family = r.choices(families, [6, 4, 4, 4, 4, 5, 3])[0]
    return str(r.choice(family(fresh, x, y, t)))


def _functions(fresh: Callable[[], str], x: str, y: str, t: Tensor) -> list[str]:
    return [
        f"{fresh()} = Scaled.apply({x}, {y})", f"{fresh()} = Scaled.apply({x}, {x})", f"{fresh()} = Doubled.apply({x})", f"Doubled.apply({x})",
        f"{fresh()}, {fresh()} = Sorted.apply({x})", f"{fresh()}, {fresh()} = UndefinedGradients.apply({x})", f"{fresh()} = UndefinedGradients.apply({x})[0]",
        f"{fresh()} = ViewInForward.apply({x})", f"{fresh()} = Passed.apply({x})", f"{fresh()} = Scaled.apply({x}.view(-1), {y}.sum())",
        f"{fresh()} = Doubled.apply({x}.clone())", f"{fresh()} = Scaled.apply({x}.detach(), {y})", f"{fresh()} = ViewInForward.apply({x}[0])",
    ]  # fmt: skip


def _out(fresh: Callable[[], str], x: str, y: str, t: Tensor) -> list[str]:
    return [
        f"torch.exp({x}, out={y})", f"torch.mm({x}, {x}, out={y})", f"torch.cat([{x}, {x}], out={y})", f"torch.add({x}, 1, out={y}[0])",
        f"{fresh()} = torch.mul({x}, 2, out={y}.detach())", f"{fresh()} = torch.add({x}, {x}, out=torch.empty_like({x}))",
        f"{fresh()}, {fresh()} = torch.max({x}, 0, out=(torch.empty({x}.shape[1:]), torch.empty({x}.shape[1:], dtype=torch.int64)))",
        f"torch.sub({x}, 1, out={x})", f"{fresh()} = torch.sin({x}, out=torch.empty({x}.shape[::-1]).t())", f"torch.cumsum({x}, 0, out={y})",
    ]  # fmt: skip


def _complex(fresh: Callable[[], str], x: str, y: str, t: Tensor) -> list[str]:
    made = [f"{fresh()} = torch.complex({x}, {x})", f"{fresh()} = torch.view_as_complex({x})", f"{fresh()} = {x} * 1j"]
    if not t.is_complex() or type(t) is not Tensor:  # the subclass drops what it is told of conjugates
        return [
            *made,
            f"{fresh()} = torch.view_as_complex({x}.clone().view(-1, 2))",
            f"{fresh()} = {x}.view(torch.complex64)",
        ]
    return [
        f"{fresh()} = torch.view_as_real({x})", f"torch.view_as_real({x}).mul_(2)", f"{fresh()} = {x}.conj()", f"{x}.conj().mul_(2)",
        f"{fresh()} = {x}.imag", f"{x}.imag.neg_()", f"{x}.real.add_(1)", f"{fresh()} = {x}.conj().imag", f"{fresh()} = {x}.conj() * {x}",
        f"{fresh()} = {x}.resolve_conj()", f"{fresh()} = {x}.mH", f"{x}.conj_physical_()", f"{x}.real.copy_({y})", f"{fresh()} = {x}.abs()",
        f"{fresh()} = {x}.conj().real", f"{fresh()} = torch.view_as_real({x}.resolve_conj())", f"{x}.imag = {y}", *made,
    ]  # fmt: skip


def _detached(fresh: Callable[[], str], x: str, y: str, t: Tensor) -> list[str]:
    return [
        f"{x}.data[0] = 1", f"{x}.data.copy_({y})", f"{x}.data += 1", f"{x}.data = {y} + 0", f"{x}.data.t_()", f"{x}.detach_()",
        f"{fresh()} = ({x} * 2).detach_()", f"{x}.detach().mul_({y}.detach())", f"{fresh()} = {x}.data.view(-1)", f"{x}.data[1:].zero_()",
        f"{fresh()} = ({x} * 2).requires_grad_(False)", f"{fresh()} = {x}.detach().requires_grad_()", f"{fresh()} = {x}.detach()[0]",
        f"{x}.detach().copy_({x} * 2)",
    ]  # fmt: skip


def _parts(fresh: Callable[[], str], x: str, y: str, t: Tensor) -> list[str]:
    return [
        f"for part in {x}.unbind(0): part.mul_(2)", f"for part in {x}.chunk(2): part.add_(1)", f"for n, part in enumerate({x}.split(1)): part.fill_(n)",
        f"{x}.chunk(2)[0].mul_({y}[:1])", f"{x}.unbind(-1)[0].zero_()", f"{x}.split(1)[-1].copy_({y}[:1])", f"torch._foreach_mul_({x}.unbind(0), 2)",
        f"torch._foreach_add_([{x}, {y}], 1)", f"{fresh()} = torch.stack([p * 2 for p in {x}.unbind(0)])", f"{fresh()} = [p.add_(1) for p in {x}.clone().split(1)][0]",
        f"{fresh()}, *_ = {x}.tensor_split(2)", f"{fresh()} = torch.cat({x}.chunk(2))", f"{x}.unfold(0, 1, 1).mul_(2)",
    ]  # fmt: skip


def _regions(fresh: Callable[[], str], x: str, y: str, t: Tensor) -> list[str]:
    low = 'with torch.autocast("cpu", dtype=torch.bfloat16):'
    off = 'with torch.autocast("cpu", enabled=False):'
    return [
        f"{low} {fresh()} = {x} @ {x}.t()", f"{low} {fresh()} = ({x} * 2).float() @ {y}", f"{off} {fresh()} = {x} * 2", f"{low} {x}.mul_(2)",
        f"{fresh()} = cached_call(checkpointed, {x})", f"{fresh()} = cached_call(nested, {x})", f"{fresh()} = cached_call(checkpointed, {x} * 2)", f"{fresh()} = nested({x})",
        f"with torch.no_grad(): {fresh()} = {x}.view(-1)", f"with torch.no_grad(): {x}[1:].mul_(2)", f"with torch.no_grad(): {fresh()} = {x}[1:].view_as({x}[1:])",
        f"with torch.no_grad(): {fresh()} = cached_call(checkpointed, {x})", f"with torch.enable_grad(): {fresh()} = {x}[0]",
        f"with torch.inference_mode(): {fresh()} = {x} * 2", f"with torch.inference_mode(): {x}.add_(1)",
    ]  # fmt: skip


def _elsewhere(fresh: Callable[[], str], x: str, y: str, t: Tensor) -> list[str]:
    # Hooks on views whose base was written to under no_grad may end the process.
    hooks = [] if t._is_view() else [f"doubled_gradient({x})", f"{x}.register_hook(lambda g: g + 1)"]
    return [
        *hooks, f"{fresh()} = doubled_gradient({x} * 2)", f"{x}.retain_grad()",
        f"{fresh()} = {x}.to(torch.float64).to({t.dtype})", f"{fresh()} = torch.linalg.norm({x})", f"{fresh()} = {x}.masked_scatter({x} > 0, torch.cat([{x}.reshape(-1), {y}.reshape(-1)]))",
        f"{fresh()} = torch.func.functional_call(torch.nn.Identity(), {{}}, ({x},))", f"{fresh()} = F.gelu({x})", f"{fresh()} = F.linear({x}, {y})",
    ]  # fmt: skip


BACKWARDS = ("once", "once", "twice", "one by one", "strided", "expanded", "hooked", "higher", "after the fact")
"""How a caller goes backward."""


STRIDED_TANGENTS = ("strided", "expanded")
"""Those whose tangents are not laid out in rows."""

ONE_AT_A_TIME = "one after the other, letting go"
"""Another way: each time, what gradients have flown through is freed."""


def go_backward(outputs: Sequence[Tensor], how: str) -> None:
    """Go backward from all ``outputs`` in one of the ways of ``BACKWARDS``.

    The outputs require gradients.
    """
    if how == "hooked":  # through one result only: that one is made from another does not show in compiled code
        outputs = outputs[-1:]
        outputs[0].register_hook(lambda gradient: gradient * 3)
    if how in STRIDED_TANGENTS:
        torch.autograd.backward(outputs, [_tangent(t, how) for t in outputs])
        return
    parts = [_weighed(t, n + 1) for n, t in enumerate(outputs)]
    if how in ("one by one", ONE_AT_A_TIME):
        for n, part in enumerate(parts):
            part.backward(retain_graph=how != ONE_AT_A_TIME and n < len(parts) - 1)
        return
    total = sum(parts[1:], start=parts[0])
    if how == "higher":
        total.backward(create_graph=True)
        return
    total.backward(retain_graph=how == "twice")
    if how in ("twice", "after the fact"):
        total.backward()


def go_further(leaves: Sequence[Tensor]) -> None:
    """Go backward from the gradients themselves, where they have a history."""
    squares = [(t.grad.abs() ** 2).sum().double() for t in leaves if t.grad is not None and t.grad.grad_fn is not None]
    if squares:
        sum(squares[1:], start=squares[0]).backward()


def _weighed(t: Tensor, weight: int) -> Tensor:
    weights = torch.linspace(-1, 2, max(t.numel(), 1), dtype=torch.float64)[: t.numel()].reshape(t.shape)
    return ((t.abs() if t.is_complex() else t).double() * weights).sum() * weight


def _tangent(t: Tensor, how: str) -> Tensor:
    if type(t) is not Tensor:
        return torch.ones_like(t)
    if how == "expanded":
        return torch.ones((), dtype=t.dtype).expand(t.shape)
    row = torch.linspace(-1, 2, max(2 * t.numel(), 1)).to(t.dtype)
    return row[: 2 * t.numel() : 2].reshape(t.shape[::-1]).permute(*reversed(range(t.dim())))
