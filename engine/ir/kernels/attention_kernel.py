"""What a template of attention prints from: which tensors lie how, and what is asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

FORWARD_KERNEL, DELTA_KERNEL, GRAD_KEY_VALUE_KERNEL, GRAD_QUERY_KERNEL = "forward", "sums", "keys", "queries"
"""Kernels: results, each row's sum of results times their gradients, gradients of keys and values, gradients of queries."""


@dataclass(frozen=True)
class AttentionBlocks:
    """Queries and keys that a program works on at a time."""

    query_block: int
    key_block: int
    num_warps: int = 4
    num_stages: int = 2

    def __str__(self) -> str:
        return f"{self.query_block}x{self.key_block}, {self.num_warps} warps, {self.num_stages} stages"


@dataclass(frozen=True)
class AttentionOperand:
    """A tensor by its role ("query", "mask", "grad_key"...): type, and its strides for batch, head, row and column, and offset, in elements."""

    role: str
    dtype: torch.dtype
    stride: tuple[int, ...]
    offset: int = 0
    is_written: bool = False


@dataclass(frozen=True)
class AttentionKernel:
    """One kernel. ``width`` and ``values`` are the sizes of a key and of a value; each of ``kv_heads`` serves several of ``heads``."""

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
        """The tensor of this role, None where there is none."""
        return next((t for t in self.tensors if t.role == role), None)


@dataclass(frozen=True)
class AttentionLaunch:
    """One kernel where it is launched: its id, what its operations' ids begin with, the nodes it computes, each role's buffer."""

    kernel: AttentionKernel
    id: str
    prefix: str
    nodes: tuple[str, ...]
    buffers: Mapping[str, str]
