"""Functions with matrix products that templates can compute, and their surrounding ops."""

from __future__ import annotations

from typing import Any

import torch

from tests.engine.lowering.op_cases import BF16, F16, Case, normal

F = torch.nn.functional


def odd_sizes(x: Any, y: Any) -> Any:
    """Sides that no tile divides."""
    return x @ y


def transposed_operands(x: Any, y: Any, z: Any) -> Any:
    """Operands as they lie: transposed, and every second row."""
    return x.t() @ y, y.t() @ x, z[::2] @ x.t()


def bias_activation_residual(x: Any, w: Any, b: Any, r: Any) -> Any:
    """All that a linear layer is followed by."""
    return F.gelu(torch.addmm(b, x, w.t())) * 0.5 + r


def alpha_and_beta(x: Any, y: Any, z: Any) -> Any:
    """Factors of both summands, and a sum that is left out."""
    return torch.addmm(z, x, y, beta=0.5, alpha=-2), torch.addmm(z, x, y, beta=0)


def result_also_returned(x: Any, w: Any) -> Any:
    """What is activated is returned, too, and read by a second kernel."""
    y = x @ w
    return y, torch.relu(y), y.sum(-1)


def permuted_result(x: Any, w: Any) -> Any:
    """The result is written in another order than its own."""
    return (x @ w).view(4, 9, 3, 8).transpose(1, 2).contiguous()


def computed_operands(x: Any, w: Any, s: Any) -> Any:
    """Operands that are cheap to compute, and one that is not."""
    return (x * s[:, None] + 1) @ w.to(x.dtype), torch.softmax(x, -1) @ w.to(x.dtype)


def batched(x: Any, y: Any, z: Any) -> Any:
    """Many products, one operand of which is the same for all, added to what is there."""
    return torch.bmm(x, y), torch.baddbmm(z, x, y), x @ y[0], torch.relu(torch.bmm(x, y) + z[:, :1])


def gated(x: Any, w: Any, v: Any) -> Any:
    """Two products meet in one kernel, and a third follows."""
    return (F.silu(x @ w) * (x @ v)) @ w.t()


def chained(x: Any, w: Any) -> Any:
    """A product that needs another one's kernel before its own could run."""
    y = x @ w
    z = torch.relu(y) @ w
    return y + z, z


def sides_of_one(x: Any, w: Any, v: Any) -> Any:
    """Sides of one, and an operand that is one number spread out."""
    return x[:1] @ w, w.t() @ v, v[:1].expand(7, 19) @ x, x @ w[:, :1]


def reusable_buffers(x: Any, w: Any) -> Any:
    """Results that could take over each other's memory."""
    for _ in range(3):
        x = torch.tanh(x @ w) + x
    return x


MATMUL_CASES: dict[str, Case] = {
    made.function.__name__: made
    for made in (
        Case(odd_sizes, (normal(37, 51), normal(51, 43))),
        Case(transposed_operands, (normal(40, 24, dtype=F16), normal(40, 17, dtype=F16), normal(50, 24, dtype=F16))),
        Case(bias_activation_residual, (normal(70, 48, dtype=BF16), normal(100, 48, dtype=BF16), normal(100, dtype=BF16), normal(70, 100, dtype=BF16))),
        Case(alpha_and_beta, (normal(20, 33), normal(33, 19), normal(1, 19))),
        Case(result_also_returned, (normal(33, 24), normal(24, 48))),
        Case(permuted_result, (normal(36, 40, dtype=F16), normal(40, 24, dtype=F16))),
        Case(computed_operands, (normal(21, 40, dtype=F16), normal(40, 18), normal(21, dtype=F16))),
        Case(batched, (normal(5, 18, 20), normal(5, 20, 33), normal(5, 18, 33))),
        Case(gated, (normal(18, 32), normal(32, 50), normal(32, 50))),
        Case(chained, (normal(20, 24), normal(24, 24))),
        Case(sides_of_one, (normal(19, 20), normal(20, 48), normal(20, 1))),
        Case(reusable_buffers, (normal(256, 64), normal(64, 64))),
    )
}  # fmt: skip
