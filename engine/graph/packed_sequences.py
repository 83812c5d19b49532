"""Packed sequences in graphs: packing, padding, and their backwards, as composite ops.

The numbers of rows and of steps depend on the values of ``lengths``, so packing has results of unbacked sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.graph.composite_op_registry import composite_op
from engine.torch_private.operators import pack_padded_sequence, pad_packed_sequence, torch_check


def _pack(padded: torch.Tensor, lengths: torch.Tensor, is_batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    results: tuple[torch.Tensor, torch.Tensor] = pack_padded_sequence(padded, lengths, is_batch_first)
    return results


def _fake_pack(padded: torch.Tensor, lengths: torch.Tensor, is_batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    context = torch.library.get_ctx()
    longest = padded.shape[1 if is_batch_first else 0]
    rows = context.new_dynamic_size(min=1)
    steps = context.new_dynamic_size(min=1, max=None if hasattr(longest, "node") else longest)
    torch_check(steps <= longest)
    return padded.new_empty(rows, *padded.shape[2:]), lengths.new_empty(steps)


def _packed_rows(padded: torch.Tensor, lengths: torch.Tensor, is_batch_first: bool, rows: int) -> torch.Tensor:
    return _pack(padded, lengths, is_batch_first)[0]


def _fake_packed_rows(padded: torch.Tensor, lengths: torch.Tensor, is_batch_first: bool, rows: int) -> torch.Tensor:
    return padded.new_empty(rows, *padded.shape[2:])


def pad_packed(
    data: torch.Tensor, batch_sizes: torch.Tensor, is_batch_first: bool, padding: float, steps: int, batch: int
) -> Any:
    """Call torch's function; the graph also says the size of the first batch."""
    return pad_packed_sequence(data, batch_sizes, is_batch_first, padding, steps)


def _fake_pad_packed(
    data: torch.Tensor, batch_sizes: torch.Tensor, is_batch_first: bool, padding: float, steps: int, batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    padded = data.new_empty(steps, batch, *data.shape[1:])
    return padded.transpose(0, 1) if is_batch_first else padded, batch_sizes.new_empty(batch)


PACKED_OPS: dict[str, tuple[str, Callable[..., Any]]] = {
    "pack_padded": ("(Tensor input, Tensor lengths, bool batch_first) -> (Tensor, Tensor)", _pack),
    "packed_rows": ("(Tensor padded, Tensor lengths, bool batch_first, SymInt rows) -> Tensor", _packed_rows),
    "pad_packed": (
        "(Tensor data, Tensor batch_sizes, bool batch_first, Scalar padding, SymInt steps, SymInt batch) -> (Tensor, Tensor)",
        pad_packed,
    ),
}
PACKED_FAKES: dict[str, Callable[..., Any]] = {
    "pack_padded": _fake_pack,
    "packed_rows": _fake_packed_rows,
    "pad_packed": _fake_pad_packed,
}


class _Pack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, padded: Any, lengths: Any, is_batch_first: bool) -> Any:
        data, batch_sizes = composite_op("pack_padded")(padded, lengths, is_batch_first)
        ctx.mark_non_differentiable(batch_sizes)
        ctx.save_for_backward(batch_sizes)
        ctx.options = is_batch_first, padded.shape[:2]
        return data, batch_sizes

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        is_batch_first, sizes = ctx.options
        batch, steps = sizes if is_batch_first else reversed(sizes)
        padded, _ = composite_op("pad_packed")(grads[0], *ctx.saved_tensors, is_batch_first, 0.0, steps, batch)
        return padded, None, None


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, data: Any, batch_sizes: Any, is_batch_first: bool, *options: Any) -> Any:
        padded, lengths = composite_op("pad_packed")(data, batch_sizes, is_batch_first, *options)
        ctx.mark_non_differentiable(lengths)
        ctx.save_for_backward(lengths)
        ctx.options = is_batch_first, data.shape[0]
        return padded, lengths

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        data = composite_op("packed_rows")(grads[0], *ctx.saved_tensors, *ctx.options)
        return data, None, None, None, None, None


PACKED_REPLACEMENTS: dict[Any, Callable[..., Any]] = {pack_padded_sequence: _Pack.apply, pad_packed: _Pad.apply}
"""Replacements of the two functions: they are differentiable and run on fake tensors."""
