"""Torch's private names of ``torch.compile``: Dynamo, Inductor and their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, declare_module, load

if TYPE_CHECKING:
    from torch._logging import _internal as torch_logging
    from torch._logging import structured as structured_logging

    debug_get_cache_entry_list: Any
    set_guard_complete_hook: Any
    RelationalGuard: Any

ENTRIES = (
    *IfMissing("guards of torch.compile are not shown", Feature.OBSERVATION).entries(
        declare(
            "torch._C._dynamo.eval_frame:_debug_get_cache_entry_list", "Lists the cache entries of a function.", "(a)"
        ),
        declare_class("torch._C._dynamo.guards:RelationalGuard", "Guards on several values."),
    ),
    *IfMissing("cache hits of torch.compile are not recorded", Feature.OBSERVATION).entries(
        declare("torch._C._dynamo.eval_frame:set_guard_complete_hook", "Calls a hook after guards are checked."),
    ),
    *IfMissing("logs of torch.compile are not read", Feature.OBSERVATION).entries(
        declare_module("torch._logging:_internal", "Module of torch's logs.", alias="torch_logging"),
        declare_module("torch._logging:structured", "Module of torch's structured trace.", alias="structured_logging"),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
