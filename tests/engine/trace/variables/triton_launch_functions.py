"""Functions that launch their own Triton kernels, each compared with eager.

They run with Triton's interpreter on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

import engine


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, D103, N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside), mask=inside)


@triton.autotune(configs=[triton.Config({"BLOCK": 8})], key=["n"])
@triton.jit
def double_kernel(x_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201, D103, N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


def adds(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A launch with a grid of numbers."""
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
    return out * 2


def adds_by_meta(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A launch whose grid is a function of the arguments."""
    total = x.sin()
    out = torch.zeros_like(total)
    n = x.numel()
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](total, y, out, n, BLOCK=8)
    return out.cos()


def doubles_in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A tuned kernel that writes to an argument and to an intermediate."""
    n = x.numel()
    double_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, n)
    z = y + 1
    double_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](z, n)
    return x + z


def launches_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Launches in a loop, one reading what the other wrote, through a view."""
    rows = torch.zeros(2, x.numel())
    for row in rows:
        add_kernel[(4,)](x, y, row, x.numel(), BLOCK=16)
        x = row * 3
    return rows


def adds_to_expanded(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A launch that reads an expanded tensor and writes to a part of another."""
    row = x[:1].sin().expand(x.numel())
    out = torch.zeros(2, x.numel())
    add_kernel[(triton.cdiv(x.numel(), 16),)](row.contiguous(), y, out[1], x.numel(), BLOCK=16)
    return out.t() + 1


@torch.library.triton_op("triton_launches::sum_of_two", mutates_args=())
def sum_of_two(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """An operator that is made of a launch."""
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 16),)](x, y, out, x.numel(), BLOCK=16)
    return out


def calls_triton_op(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A call of an operator that launches a kernel, between operators that fuse."""
    return sum_of_two(x.sin(), y).cos() + 1


@torch.library.triton_op("triton_launches::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    """An operator with a kernel for the GPU and another for the CPU."""
    out = torch.empty_like(x)
    torch.library.wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 16),)](x, x, out, x.numel(), BLOCK=16)
    return out


@doubled.register_kernel("cpu")
def _(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def calls_doubled(x: torch.Tensor) -> torch.Tensor:
    """A call of an operator whose CPU kernel launches nothing."""
    return doubled(x.sin()).cos()


class AddAutograd(torch.autograd.Function):
    """A sum whose forward and backward launch kernels."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return adds(x, y) / 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return twice the gradient, and the gradient."""
        return adds(grad.contiguous(), torch.zeros_like(grad)), grad


def calls_autograd_function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A call of an autograd function whose halves launch kernels."""
    return torch.as_tensor(AddAutograd.apply(x.sin(), y)).cos()


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    adds,
    adds_by_meta,
    doubles_in_place,
    launches_twice,
    adds_to_expanded,
    calls_triton_op,
)


def expected(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """Return what eager returns.

    Until torch 2.12, ``wrap_triton`` accepts compiled kernels alone, so eager cannot interpret an operator made of a launch.
    The compiled function launches its kernel: what the kernel's own launch returns is expected.
    """
    try:
        return function(*inputs)
    except RuntimeError as error:
        if function is not calls_triton_op or "only works on functions annotated with triton.jit" not in str(error):
            raise
        return (adds(inputs[0].sin(), inputs[1]) / 2).cos() + 1


def compare(function: Callable[..., Any], backend: str) -> None:
    """Raise if the compiled function differs from eager, or has more than one graph.

    Compares the results and the mutated arguments.
    """
    compiled = engine.compile(function, backend=backend)
    for number, size in enumerate((40, 40, 24)):
        mine = (torch.arange(float(size)), torch.arange(float(size)).flip(0))
        other = tuple(t.clone() for t in mine)
        want = expected(function, *mine)
        with engine.expect(graphs=None if number else 1, breaks=0):
            got = compiled(*other)
        torch.testing.assert_close((got, *other), (want, *mine))


def compare_gradients() -> None:
    """Raise if gradients through launches differ from eager."""
    gradients = []
    for function in (calls_autograd_function, engine.compile(calls_autograd_function, backend="triton")):
        inputs = [torch.arange(40.0, requires_grad=True), torch.arange(40.0, requires_grad=True)]
        function(*inputs).sum().backward()
        gradients.append([t.grad for t in inputs])
    torch.testing.assert_close(*gradients)


if __name__ == "__main__":
    compare_gradients()
    for function in FUNCTIONS:
        for backend in ("eager", "triton"):
            compare(function, backend)
    print("equal")
