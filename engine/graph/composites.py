"""Operators of ours that keep device-dependent composites whole, so that one graph serves every target.

Traced on a CPU, ``scaled_dot_product_attention`` would become a CPU-only operator. It is exchanged for ``engine::attention`` before ATen, which
runs what torch would run on the device at hand. Random operators need no exchange: they reach ATen as ``bernoulli`` and the like.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F


@functools.cache
def _library() -> torch.library.Library:
    library = torch.library.Library("engine", "FRAGMENT")
    library.define(
        "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, "
        "float? scale=None, bool enable_gqa=False) -> Tensor",
        tags=(torch.Tag.nondeterministic_seeded, torch.Tag.needs_exact_strides),
    )
    library.impl("attention", _attention, "CompositeExplicitAutograd")
    torch.library.register_fake("engine::attention", _attention, lib=library)
    return library


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    found = F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    # An operator may not return a view of an argument.
    return found.clone() if any(found is t or found._base is t for t in (query, key, value)) else found


def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """``torch.nn.functional.scaled_dot_product_attention`` as one operator."""
    _library()
    found: torch.Tensor = torch.ops.engine.attention(*args, **kwargs)
    return found


WHOLE = {F.scaled_dot_product_attention: attention}
"""What is exchanged, and for what."""


def keep_composites(graph: torch.fx.Graph) -> None:
    """Exchange composites for operators of ours, in place."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in WHOLE:
            node.target = WHOLE[node.target]
