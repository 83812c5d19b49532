"""Row stride padding for buffers that feed a library matmul.

Rows then start at multiples of 16 bytes, the unit in which tensor cores load.
"""

from __future__ import annotations

import torch
import torch.fx

from engine.ir.loop_ir.index_expr import Size
from engine.ir.node_values import tensor_meta
from engine.ir.reachable import reachable
from engine.ir.static_sizes import static_sizes

aten = torch.ops.aten

ALIGNMENT_BYTES = 16
"""Rows must start at a multiple of this many bytes for the fast library kernels."""
MIN_ELEMENTS = 1 << 16
"""Smaller tensors are not padded: the speed of their matmul does not matter."""
MATMUL_OPS = frozenset((aten.mm.default, aten.addmm.default, aten.linear.default))
"""Without batched ones: the library has no faster kernel for aligned rows of those."""
PERMUTATIONS = frozenset((aten.t.default, aten.transpose.int, aten.permute.default))
RESHAPES = frozenset(
    (
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.alias.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
    )
)
VIEW_OPS = PERMUTATIONS | RESHAPES | {aten.expand.default}


def pad_row_stride(node: torch.fx.Node, stride: tuple[Size, ...]) -> tuple[Size, ...]:
    """Pad the row stride of a kernel's result if only that enables a fast library matmul.

    Rows that a graph output shows are not padded.
    """
    value = tensor_meta(node)
    if value is None or len(stride) < 2 or stride[-1] != 1 or static_sizes((*value.shape, *stride)) is None:
        return stride
    per_line, width = ALIGNMENT_BYTES // value.dtype.itemsize, value.shape[-1]
    if value.dtype not in (torch.float16, torch.bfloat16) or width % per_line == 0 or value.numel() < MIN_ELEMENTS:
        return stride
    if stride[-2] != width or width < per_line or not _feeds_only_matmul(node):
        return stride
    row = -(-width // per_line) * per_line
    # All strides of a dense row-major tensor but the last are multiples of the row length.
    return (*(s // width * row for s in stride[:-1]), 1)


def _feeds_only_matmul(node: torch.fx.Node) -> bool:
    """Return True if a library matmul reads a node or its view, and no graph output does."""
    views = reachable([node], lambda n: [u for u in n.users if u.target in VIEW_OPS])
    users = {user for view in views for user in view.users}
    return all(u.op != "output" for u in users) and any(u.target in MATMUL_OPS for u in users)
