"""``torch.compile``, observed or called: Dynamo, Inductor and their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    from torch._logging import _internal as torch_logging
    from torch._logging import structured as structured_logging

    debug_get_cache_entry_list: Any
    set_guard_complete_hook: Any
    RelationalGuard: Any

ENTRIES = (
    Entry(
        "torch._C._dynamo.eval_frame:_debug_get_cache_entry_list",
        Kind.FUNCTION,
        "Lists the cache entries of a function.",
        without="guards of torch.compile are not shown",
        off=Feature.OBSERVATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C._dynamo.eval_frame:set_guard_complete_hook",
        Kind.FUNCTION,
        "Calls a hook after guards are checked.",
        without="cache hits of torch.compile are not recorded",
        off=Feature.OBSERVATION,
    ),
    Entry(
        "torch._C._dynamo.guards:RelationalGuard",
        Kind.CLASS,
        "Guards on several values.",
        without="guards of torch.compile are not shown",
        off=Feature.OBSERVATION,
    ),
    Entry(
        "torch._logging:_internal",
        Kind.MODULE,
        "Module of torch's logs.",
        without="logs of torch.compile are not read",
        off=Feature.OBSERVATION,
        alias="torch_logging",
    ),
    Entry(
        "torch._logging:structured",
        Kind.MODULE,
        "Module of torch's structured trace.",
        without="logs of torch.compile are not read",
        off=Feature.OBSERVATION,
        alias="structured_logging",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
