"""Operators with a lowering that ATen runs on the CPU nevertheless."""

from __future__ import annotations

from typing import Any, cast

import torch.fx

from engine.ir.fallback import Fallback
from engine.ir.node_values import called_overload, tensor_meta, tensors_in
from engine.ir.static_sizes import static_size
from engine.lowering.cpu.single_operators import NEAREST
from engine.lowering.decompositions.interpolation import adds_whole_blocks
from engine.lowering.fallbacks.kinds import LoweringFallback

NEAREST_BACKWARDS = frozenset(f"aten::{name}{rank}d_backward" for name in NEAREST for rank in (1, 2, 3))
_REASONS = {
    "Each element reads scattered memory, for which ATen's loops are as fast on a CPU.": (
        "grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward "
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward "
        "adaptive_max_pool3d_backward"
    ).split(),
    "If an element is infinite, a kernel could return NaN where ATen does not.": (
        "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d "
        "_upsample_bilinear2d_aa _upsample_bicubic2d_aa"
    ).split(),
    "ATen adds the elements of overlapping windows as fast as a kernel on a CPU.": [
        *(f"{name}_backward" for name in "_adaptive_avg_pool2d _adaptive_avg_pool3d upsample_linear1d".split()),
        *(f"upsample_{name}_backward" for name in "bilinear2d trilinear3d bicubic2d".split()),
        *("col2im", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa_backward"),
        *(name.removeprefix("aten::") for name in NEAREST_BACKWARDS),
    ],
    "On a CPU, ATen writes scattered elements as fast as a kernel, and in a fixed order.": (
        "embedding_dense_backward _embedding_bag _embedding_bag_forward_only _embedding_bag_dense_backward "
        "_embedding_bag_per_sample_weights_backward _unsafe_index_put index_put _index_put_impl index_add "
        "index_copy index_reduce masked_scatter put scatter scatter_add scatter_reduce histc bincount "
        "index_fill"
    ).split(),
    "ATen scans a row with a predictable branch; a kernel would wait for each comparison.": ["cummax", "cummin"],
    "The number of steps differs between elements: a vector would wait for its slowest lane.": (
        "igamma igammac special_airy_ai"
    ).split(),
    "ATen computes the sums as batched matrix products; a kernel would loop over all products.": ["_trilinear"],
}
_REASON_OF = {f"aten::{name}": reason for reason, names in _REASONS.items() for name in names}

POOLING_OPERATORS = frozenset(("aten::avg_pool1d", "aten::avg_pool2d", "aten::max_pool2d_with_indices"))
SYMBOLIC_CHANNEL = "ATen chooses other strides for images of symbolic size with one channel."
EXTREME_SCANS = frozenset(("aten::cummax", "aten::cummin"))
ROW_OPERATORS = frozenset(
    f"aten::{name}" for name in ("index_add", "scatter_add", "index_put", "embedding_dense_backward")
)
"""Operators that add rows: a kernel adds a row as a few vectors, ATen element by element."""
MIN_ROW = 8
"""Minimum number of elements of a row that is added as vectors."""
SCATTER_OPERATORS = frozenset(f"aten::{name}" for name in ("scatter", "scatter_add", "index_put", "index_add"))
"""Operators that write element by element: a kernel on one thread, ATen on several.

ATen uses several threads from ``MIN_SHARED`` elements on.
"""
MIN_SHARED = 1 << 15


def _adds_rows(name: str, node: torch.fx.Node) -> bool:
    """Return True if a node adds rows of adjacent elements at indices of the other dimensions."""
    result = next(iter(tensors_in(node.meta.get("val"))), None)
    if result is None or result.dtype not in (torch.float32, torch.float64) or result.dim() < 2:
        return False
    width = static_size(result.shape[-1])
    if width is not None and width < MIN_ROW:
        return False
    arguments: list[Any] = list(node.args)
    if name == "aten::embedding_dense_backward":
        return True
    if name == "aten::index_put":
        return arguments[3:] == [True] and len(arguments[1]) < result.dim()
    index = next(iter(tensors_in(arguments[2].meta.get("val"))), None)
    is_row = index is not None and (index.dim() == 1 or (index.dim() == result.dim() and index.stride(-1) == 0))
    return is_row and arguments[1] % result.dim() != result.dim() - 1


def _scans_rows(node: torch.fx.Node) -> bool:
    """Return True if a node scans along adjacent elements."""
    operand, dim = tensor_meta(node.args[0]), cast("int", node.args[1])
    return operand is not None and operand.dim() > 0 and static_size(operand.stride(dim)) == 1


def _has_symbolic_channel(node: torch.fx.Node) -> bool:
    """Return True if a node pools an image of symbolic size with one channel."""
    result = next(iter(tensors_in(node.meta.get("val"))), None)
    sizes = [] if result is None else [static_size(n) for n in result.shape]
    return None in sizes and 1 in sizes


def _scatters_few(node: torch.fx.Node) -> bool:
    """Return True if a node writes so few elements that ATen uses one thread too."""
    operands = [t for argument in node.all_input_nodes[1:] for t in tensors_in(argument.meta.get("val"))]
    counts = [static_size(t.numel()) for t in operands]
    return None not in counts and max(cast("list[int]", counts), default=MIN_SHARED + 1) <= MIN_SHARED


def cpu_fallback(node: torch.fx.Node) -> Fallback | None:
    """Return the reason why ATen runs a node on the CPU; None if kernels do."""
    called = called_overload(node.target)
    name = "" if called is None else called._schema.name
    if name in POOLING_OPERATORS and _has_symbolic_channel(node):
        return Fallback(LoweringFallback.FASTER_IN_ATEN, SYMBOLIC_CHANNEL)
    if name in EXTREME_SCANS and not _scans_rows(node):
        return None
    if name in ROW_OPERATORS and _adds_rows(name, node):
        return None
    if name in SCATTER_OPERATORS and _scatters_few(node):
        return None
    if name in NEAREST_BACKWARDS and adds_whole_blocks(node.args[2], node.args[1], node.args[3:]):
        return None
    reason = _REASON_OF.get(name)
    return None if reason is None else Fallback(LoweringFallback.FASTER_IN_ATEN, reason)
