"""Description of one attention template kernel: its operands, sizes and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

FORWARD_KERNEL, DELTA_KERNEL, GRAD_KEY_VALUE_KERNEL, GRAD_QUERY_KERNEL = "forward", "sums", "keys", "queries"
"""Kernel kinds of FlashAttention.

In order: forward; delta (each row's sum of output times its gradient); gradients of key and value; gradient
of query.
"""


@dataclass(frozen=True)
class AttentionBlocks:
    """Numbers of queries and keys that one program processes at a time."""

    query_block: int
    key_block: int
    num_warps: int = 4
    num_stages: int = 2

    def __str__(self) -> str:
        return f"{self.query_block}x{self.key_block}, {self.num_warps} warps, {self.num_stages} stages"


@dataclass(frozen=True)
class AttentionOperand:
    """A tensor by its role ("query", "mask", "grad_key"...).

    ``stride`` covers batch, head, row and column. Strides and offset are in elements.
    """

    role: str
    dtype: torch.dtype
    stride: tuple[int, ...]
    offset: int = 0
    is_written: bool = False


@dataclass(frozen=True)
class AttentionKernel:
    """One attention kernel.

    ``head_dim`` and ``value_dim`` are the sizes of a key and of a value. Several of ``heads`` share one of
    ``kv_heads``.
    """

    kind: str
    batch: int
    heads: int
    kv_heads: int
    query_len: int
    key_len: int
    head_dim: int
    value_dim: int
    scale: float
    is_causal: bool
    precision: str
    blocks: AttentionBlocks
    tensors: tuple[AttentionOperand, ...]
    uses_int64_index: bool = False

    def operand(self, role: str) -> AttentionOperand | None:
        """Return the operand with this role, such as ``mask``, or None."""
        return next((t for t in self.tensors if t.role == role), None)


@dataclass(frozen=True)
class AttentionLaunch:
    """One launch of an attention kernel.

    Holds its id, the prefix of its loop op ids, the nodes that it computes, and the buffer of each role.
    """

    kernel: AttentionKernel
    id: str
    prefix: str
    nodes: tuple[str, ...]
    buffers: Mapping[str, str]
