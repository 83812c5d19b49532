"""Operators with a lowering that ATen runs on the CPU nevertheless."""

from __future__ import annotations

import math
from typing import Any, cast

import torch.fx

from engine.ir.fallback import Fallback
from engine.ir.node_values import called_overload, tensor_meta, tensors_in
from engine.ir.static_sizes import static_size
from engine.lowering.fallbacks.kinds import LoweringFallback

_REASONS = {
    "ATen's own loops are as fast on a CPU: they walk windows of the input.": (
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool2d_backward",
        "_adaptive_avg_pool3d",
        "_adaptive_avg_pool3d_backward",
        "adaptive_max_pool2d",
        "adaptive_max_pool2d_backward",
        "adaptive_max_pool3d",
        "adaptive_max_pool3d_backward",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool2d_backward",
        "avg_pool3d",
        "avg_pool3d_backward",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward",
        "grid_sampler_2d",
        "grid_sampler_2d_backward",
        "grid_sampler_3d",
        "grid_sampler_3d_backward",
        "im2col",
        "col2im",
        "_upsample_bilinear2d_aa",
        "_upsample_bilinear2d_aa_backward",
        "_upsample_bicubic2d_aa",
        "_upsample_bicubic2d_aa_backward",
        *(
            f"{name}{suffix}"
            for name in (
                "upsample_nearest1d",
                "upsample_nearest2d",
                "upsample_nearest3d",
                "_upsample_nearest_exact1d",
                "_upsample_nearest_exact2d",
                "_upsample_nearest_exact3d",
                "upsample_linear1d",
                "upsample_bilinear2d",
                "upsample_trilinear3d",
                "upsample_bicubic2d",
            )
            for suffix in ("", "_backward")
        ),
    ),
    "ATen writes scattered elements as fast on a CPU, in a fixed order.": (
        "embedding_dense_backward",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "_embedding_bag_dense_backward",
        "_embedding_bag_per_sample_weights_backward",
        "_unsafe_index_put",
        "index_put",
        "_index_put_impl",
        "index_add",
        "index_copy",
        "index_reduce",
        "masked_scatter",
        "put",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "histc",
        "bincount",
        "index_fill",
    ),
    "ATen scans a row with a branch that is seldom taken; a kernel waits for each comparison.": ("cummax", "cummin"),
    "ATen searches as fast on a CPU.": ("bucketize", "searchsorted"),
    "Its series runs as long as an element needs: a vector would wait for its slowest lane.": (
        "igamma",
        "igammac",
        "special_airy_ai",
        "_trilinear",
    ),
}
_REASON_OF = {f"aten::{name}": reason for reason, names in _REASONS.items() for name in names}

WINDOW_OPERATORS = frozenset(("aten::avg_pool1d", "aten::avg_pool2d", "aten::max_pool2d_with_indices"))
"""Operators that walk windows: a kernel walks many small ones at once, ATen one by one."""
MAX_WINDOW = 25
"""Most elements of a window that a kernel reads."""
EXTREME_SCANS = frozenset(("aten::cummax", "aten::cummin"))
ROW_OPERATORS = frozenset(("aten::index_add", "aten::scatter_add", "aten::index_put"))
"""Operators that add rows: a kernel adds one in few vectors, ATen one by one."""
MIN_ROW = 8
"""Fewest elements of a row that is added as vectors."""


def _adds_rows(name: str, node: torch.fx.Node) -> bool:
    """Return True if a node adds rows of adjacent elements at indices of the other dimensions."""
    made = next(iter(tensors_in(node.meta.get("val"))), None)
    if made is None or made.dtype not in (torch.float32, torch.float64) or made.dim() < 2:
        return False
    width = static_size(made.shape[-1])
    if width is not None and width < MIN_ROW:
        return False
    arguments: list[Any] = list(node.args)
    if name == "aten::index_put":
        return arguments[3:] == [True] and len(arguments[1]) < made.dim()
    index = next(iter(tensors_in(arguments[2].meta.get("val"))), None)
    is_row = index is not None and (index.dim() == 1 or (index.dim() == made.dim() and index.stride(-1) == 0))
    return is_row and arguments[1] % made.dim() != made.dim() - 1


def _scans_rows(node: torch.fx.Node) -> bool:
    """Return True if a node scans along adjacent elements."""
    given, dim = tensor_meta(node.args[0]), cast("int", node.args[1])
    return given is not None and given.dim() > 0 and static_size(given.stride(dim)) == 1


def _has_small_window(name: str, node: torch.fx.Node) -> bool:
    """Return True if a node pools windows of few elements.

    With symbolic sizes, ATen's result has strides of its own in a dimension of one channel.
    """
    made = next(iter(tensors_in(node.meta.get("val"))), None)
    sizes = [] if made is None else [static_size(n) for n in made.shape]
    if None in sizes and 1 in sizes:
        return False
    kernel: list[Any] = list(cast("Any", node.args[1]))
    sides = [static_size(side) for side in kernel] * (2 if len(kernel) == 1 and name != "aten::avg_pool1d" else 1)
    return None not in sides and math.prod(cast("list[int]", sides)) <= MAX_WINDOW


def cpu_fallback(node: torch.fx.Node) -> Fallback | None:
    """Return the reason why ATen runs a node on the CPU; None if kernels do."""
    called = called_overload(node.target)
    reason = None if called is None else _REASON_OF.get(called._schema.name)
    if called is not None and called._schema.name in EXTREME_SCANS and not _scans_rows(node):
        return None
    if called is not None and called._schema.name in WINDOW_OPERATORS and _has_small_window(called._schema.name, node):
        return None
    if called is not None and called._schema.name in ROW_OPERATORS and _adds_rows(called._schema.name, node):
        return None
    return None if reason is None else Fallback(LoweringFallback.FASTER_IN_ATEN, reason)
