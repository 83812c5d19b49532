"""Runs recurrent layers so that fake tensors get results of the right shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.torch_private.fake_tensors import FakeTensor


def run_recurrent(
    kind: str,
    x: torch.Tensor,
    hidden: Any,
    params: Sequence[torch.Tensor],
    *flags: Any,
    batch_sizes: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Call ``torch.lstm`` or another recurrent function; packed input has batch sizes.

    Its Python decomposition runs step by step, which would specialize a symbolic length. For such a length, it runs
    two steps, and the output is extended to all of them.
    """
    *other_flags, batch_first = flags
    if batch_sizes is not None:
        if isinstance(batch_sizes, FakeTensor):
            return _run_packed_on_fakes(kind, x, hidden, params, *flags)
        results: tuple[torch.Tensor, ...] = getattr(torch, kind)(x, batch_sizes, hidden, params, *other_flags)
        return results
    length = x.shape[1 if batch_first else 0]
    if not hasattr(length, "node"):
        return _run(kind, x, hidden, params, *flags)
    by_time = x.transpose(0, 1) if batch_first else x
    steps = by_time.new_zeros(2, dtype=torch.int64)
    two_steps = by_time.index_select(0, steps)
    out, *states = _run(kind, two_steps, hidden, params, *other_flags, False)
    out = out.index_select(0, steps.new_empty(length))
    if batch_first:  # like torch, which returns a view from an LSTM only
        out = out.transpose(0, 1) if kind == "lstm" else out.transpose_(0, 1)
    return (out, *states)


def _run_packed_on_fakes(kind: str, x: torch.Tensor, hidden: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
    """Run two steps of a batch of two, and extend the results to the sizes of a packed call."""
    two = x.new_zeros(2, dtype=torch.int64)
    states = list(hidden) if kind == "lstm" else [hidden]
    rows = x.index_select(0, two).expand(2, 2, x.shape[1])
    few = [h.index_select(1, two) for h in states]
    out, *last = _run(kind, rows, few if kind == "lstm" else few[0], *rest)
    counts = [h.shape[1] for h in states]
    return (
        out[0].index_select(0, two.new_empty(x.shape[0])),
        *(h.index_select(1, two.new_empty(n)) for h, n in zip(last, counts, strict=True)),
    )


def _run(kind: str, x: torch.Tensor, hidden: Any, *rest: Any) -> tuple[torch.Tensor, ...]:
    """Call the function; return final states of the shape of the given ones.

    Before torch 2.13, the Python decomposition of an LSTM returns them with a dimension of size 1 too many.
    """
    out, *states = getattr(torch, kind)(x, hidden, *rest)
    initial_states = hidden if kind == "lstm" else (hidden,)
    return (
        out,
        *(s if s.dim() == h.dim() else s.reshape(h.shape) for s, h in zip(states, initial_states, strict=True)),
    )


def empty_input_grad(x: torch.Tensor, *, is_batch_first: bool) -> torch.Tensor:
    """Return an empty input gradient: contiguous with time as its first dimension."""
    if is_batch_first:
        return torch.empty_like(x.transpose(0, 1), memory_format=torch.contiguous_format).transpose(0, 1)
    return torch.empty_like(x, memory_format=torch.contiguous_format)
