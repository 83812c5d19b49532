"""Pass: pads matmul operands of unaligned sizes with zeros where that saves time.

The faster library kernels for aligned sizes must save more than the padding costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from engine.graph.passes.eliminate_dead_code import eliminate_dead_code
from engine.ir.node_metadata import provenance_of, set_provenance
from engine.ir.node_values import tensor_meta
from engine.ir.static_sizes import are_positive_sizes
from engine.lowering.library_ops import is_library_op
from engine.lowering.passes.match_scores import as_node
from engine.torch_private.fake_tensors import detect_fake_mode

aten = torch.ops.aten

ALIGNMENT_BYTES = 16
"""Alignment in bytes for tensor cores. Sizes that are multiples of it have fast kernels."""
LARGE_SIZE_MULTIPLE = 64
LARGE_SIZE = 1024
"""Larger sizes are padded to multiples of ``LARGE_SIZE_MULTIPLE``: cheap and faster."""
UNALIGNED_FLOPS, ALIGNED_FLOPS = 9e13, 6e14
"""FLOP/s of kernels for unaligned and for aligned sizes, measured on an H200."""
UNALIGNED_BANDWIDTH, ALIGNED_BANDWIDTH = 0.75e12, 3.5e12
LAUNCH_SECONDS = 3e-6
MIN_GAIN_SECONDS = 5e-6
"""Seconds that padding must save."""
TRANSPOSE_OPS = (aten.t.default, aten.transpose.int, aten.permute.default)


def pad_matmul(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Pad the matmuls that become faster by it, in place.

    Each result is sliced, so only matmuls read the zeros.
    """
    padding = _MatmulPadder(module.graph)
    for node in list(module.graph.nodes):
        if node.target in (aten.mm.default, aten.addmm.default):
            padding.pad_if_faster(node)
    if padding.is_changed:
        eliminate_dead_code(module)
        module.recompile()
    return module


@dataclass
class _MatmulPadder:
    graph: torch.fx.Graph
    is_changed: bool = False
    _padded_operands: dict[tuple[torch.fx.Node, int, int], torch.fx.Node] = field(default_factory=dict)

    def pad_if_faster(self, node: torch.fx.Node) -> None:
        """Pad one matmul if that saves time."""
        a, b = map(as_node, node.args[-2:])
        value = tensor_meta(node)
        if value is None or value.dtype not in (torch.float16, torch.bfloat16):
            return
        (m, k), n = a.meta["val"].shape, value.shape[1]
        if not are_positive_sizes((m, k, n)):
            return
        per_line = ALIGNMENT_BYTES // value.dtype.itemsize
        is_column = a.meta["val"].stride(0) == 1 and a.meta["val"].stride(1) != 1
        more_m = _pad_amount(m, per_line) if is_column else 0
        more_k, more_n = _pad_amount(k, per_line), _pad_amount(n, per_line)
        if not (more_m or more_k or more_n) or not self._is_profitable(a, b, (more_m, more_k, more_n)):
            return
        mode = detect_fake_mode([value, a.meta["val"]])
        if mode is None:
            return
        with self.graph.inserting_before(node), mode:
            left, right = self._pad_operand(node, a, more_m, more_k), self._pad_operand(node, b, more_k, more_n)
            bias = [self._pad_bias(node, x, more_m, more_n) for x in node.args[:-2]]
            padded = self._call_op(
                node, node.target, (*bias, left, right), dict(node.kwargs), name=f"{node.name}_padded"
            )
            for dim, (more, size) in enumerate(((more_m, m), (more_n, n))):
                if more:
                    padded = self._call_op(node, aten.slice.Tensor, (padded, dim, 0, size))
        # Readers expect eager's strides. A copy restores them.
        padded.meta["val"] = value
        node.replace_all_uses_with(padded)
        self.graph.erase_node(node)
        self.is_changed = True

    def _is_profitable(self, a: torch.fx.Node, b: torch.fx.Node, more: tuple[int, int, int]) -> bool:
        """Return True if the aligned kernel saves more time than padding its operands costs.

        Operands that a kernel computes are padded at no cost when the kernel stores them.
        """
        left, right = a.meta["val"], b.meta["val"]
        (m, k), n, width = left.shape, right.shape[1], left.dtype.itemsize
        moved, work = width * (m * k + k * n + m * n), 2.0 * m * n * k
        odd = max(moved / UNALIGNED_BANDWIDTH, work / UNALIGNED_FLOPS)
        even = max(moved / ALIGNED_BANDWIDTH, work / ALIGNED_FLOPS)
        copied = [x for x, is_padded in ((a, more[0] or more[1]), (b, more[1] or more[2])) if is_padded]
        cost = sum(
            LAUNCH_SECONDS + 2 * x.meta["val"].numel() * width / ALIGNED_BANDWIDTH
            for x in copied
            if _needs_copy_to_pad(_strip_transpose(x)[0])
        )
        return bool(odd - even - cost > MIN_GAIN_SECONDS)

    def _pad_operand(
        self, user: torch.fx.Node, node: torch.fx.Node, more_rows: int, more_columns: int
    ) -> torch.fx.Node:
        """Return a matrix padded at the bottom and at the right.

        The padded matrix is created once and has the memory order of the matrix.
        """
        if not more_rows and not more_columns:
            return node
        base, is_transposed = _strip_transpose(node)
        if is_transposed:
            more_rows, more_columns = more_columns, more_rows
        key = (base, more_rows, more_columns)
        if key not in self._padded_operands:
            pads = [0, more_columns, 0, more_rows] if more_rows else [0, more_columns]
            with self.graph.inserting_after(base) if base.op != "placeholder" else self._insert_after_placeholders():
                padded = self._call_op(
                    base, aten.constant_pad_nd.default, (base, pads, 0.0), name=f"{base.name}_padded"
                )
                self._padded_operands[key] = padded
        operand = self._padded_operands[key]
        return self._call_op(user, aten.permute.default, (operand, [1, 0])) if is_transposed else operand

    def _insert_after_placeholders(self) -> Any:
        return self.graph.inserting_before(next(n for n in self.graph.nodes if n.op != "placeholder"))

    def _pad_bias(self, user: torch.fx.Node, node: Any, more_rows: int, more_columns: int) -> Any:
        shape = node.meta["val"].shape
        pads = [0, more_columns if shape[-1] != 1 else 0]
        pads += [0, more_rows if shape[0] != 1 else 0] if len(shape) == 2 else []
        return self._call_op(user, aten.constant_pad_nd.default, (node, pads, 0.0)) if any(pads) and shape else node

    def _call_op(
        self, origin: torch.fx.Node, target: Any, args: tuple[Any, ...], kwargs: Any = None, name: str | None = None
    ) -> torch.fx.Node:
        new_node = self.graph.create_node("call_function", target, args, kwargs or {}, name)
        values, named = torch.fx.map_arg((args, dict(kwargs or {})), lambda n: n.meta["val"])
        new_node.meta["val"] = target(*values, **named)
        set_provenance(new_node, provenance_of(origin))
        return new_node


def _pad_amount(size: int, per_line: int) -> int:
    """Return the padding of a size to a multiple, 0 if it is a multiple already."""
    return -size % (LARGE_SIZE_MULTIPLE if size > LARGE_SIZE else per_line) if size % per_line else 0


def _strip_transpose(node: torch.fx.Node) -> tuple[torch.fx.Node, bool]:
    """Return ``(matrix, True)`` if the node is a transposed matrix, else ``(node, False)``."""
    if node.target not in TRANSPOSE_OPS:
        return node, False
    first = as_node(node.args[0])
    inner, outer = first.meta["val"], node.meta["val"]
    if inner.dim() == 2 and inner.stride(-1) == 1 and outer.stride() == inner.stride()[::-1] != inner.stride():
        return first, True
    return node, False


def _needs_copy_to_pad(node: torch.fx.Node) -> bool:
    """Return True if a value is in memory anyway, so that padding it needs a copy."""
    return node.op != "call_function" or is_library_op(node.target)
