"""Runs an LSTM with final states of the right shape."""

from __future__ import annotations

from typing import Any

import torch


def run_lstm(x: torch.Tensor, hidden: list[torch.Tensor], *rest: Any) -> tuple[torch.Tensor, ...]:
    """Call ``torch.lstm``; return final states of the shape of the given ones.

    Before torch 2.13, its Python decomposition returns them with a dimension of size 1 too many.
    """
    out, *states = torch.lstm(x, hidden, *rest)
    return (out, *(s if s.dim() == h.dim() else s.reshape(h.shape) for s, h in zip(states, hidden, strict=True)))
