"""Parts of torch that are loaded at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Kind, load_lazily

if TYPE_CHECKING:
    from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_op

    torch_numpy: Any

ENTRIES = (
    Entry(
        "torch._higher_order_ops.flex_attention:flex_attention",
        Kind.VALUE,
        "Operator of ``flex_attention``.",
        without="traced code that calls it breaks the graph",
        alias="flex_attention_op",
    ),
    Entry(
        "torch:_numpy",
        Kind.MODULE,
        "numpy's functions on tensors.",
        without="traced code that calls numpy breaks the graph",
        alias="torch_numpy",
    ),
)

if not TYPE_CHECKING:
    load_lazily(globals(), ENTRIES)
