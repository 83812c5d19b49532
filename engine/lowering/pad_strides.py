"""Rows of matrices that a library multiplies begin at whole lines of memory: tensor cores are fed by 16 bytes at a time."""

from __future__ import annotations

import torch
import torch.fx

from engine.ir.loop_ir.index_expr import Size

aten = torch.ops.aten

ALIGNMENT_BYTES = 16
"""Bytes at whose multiples a row must begin for the fast kernels of a vendor's library."""
MIN_ELEMENTS = 1 << 16
"""Elements below which a slower multiplication does not matter."""
MATMUL_OPS = frozenset(
    (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, aten.linear.default)
)
VIEW_OPS = frozenset(
    (
        aten.t.default,
        aten.transpose.int,
        aten.permute.default,
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.alias.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.expand.default,
    )
)


def pad_row_stride(node: torch.fx.Node, stride: tuple[Size, ...]) -> tuple[Size, ...]:
    """The strides of a tensor that a kernel makes: with room at the end of each row where only that lets a library multiply it fast.

    Rows stay as they are where someone else sees them: in the graph's outputs.
    """
    value = node.meta["val"]
    per_line = ALIGNMENT_BYTES // value.dtype.itemsize
    if len(stride) < 2 or stride[-1] != 1 or not all(isinstance(s, int) for s in (*value.shape, *stride)):
        return stride
    width = value.shape[-1]
    if value.dtype not in (torch.float16, torch.bfloat16) or width % per_line == 0 or value.numel() < MIN_ELEMENTS:
        return stride
    if stride[-2] != width or width < per_line or not _feeds_only_matmul(node):
        return stride
    row = -(-width // per_line) * per_line
    # Every stride of a dense row-major tensor but the last is a multiple of the row's length.
    return (*(s // width * row for s in stride[:-1]), 1)


def _feeds_only_matmul(node: torch.fx.Node) -> bool:
    """Whether a library multiplies a node's value, or a view of it, and no output shows it."""
    found, seen, stack = False, {node}, [node]
    while stack:
        for user in stack.pop().users:
            if user.op == "output":
                return False
            found |= user.target in MATMUL_OPS
            if user.target in VIEW_OPS and user not in seen:
                seen.add(user)
                stack.append(user)
    return found
