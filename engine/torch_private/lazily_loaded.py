"""Parts of torch that are loaded at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Kind, load_lazily

if TYPE_CHECKING:
    from torch.distributed.tensor.experimental import _func_map as local_map_module

    torch_numpy: Any

ENTRIES = (
    Entry(
        "torch.distributed.tensor.experimental:_func_map",
        Kind.MODULE,
        "Module of ``local_map``.",
        without="traced code that calls it breaks the graph",
        alias="local_map_module",
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
