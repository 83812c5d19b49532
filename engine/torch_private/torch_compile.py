"""Torch's private names of ``torch.compile``: Dynamo, Inductor and their logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch._logging import _internal as torch_logging
    from torch._logging import structured as structured_logging

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_into(globals())("""
If missing, guards of torch.compile are not shown (OBSERVATION):
    function torch._C._dynamo.eval_frame:_debug_get_cache_entry_list (a) -- Lists the cache entries of a function.
    class torch._C._dynamo.guards:RelationalGuard -- Guards on several values.
If missing, cache hits of torch.compile are not recorded (OBSERVATION):
    function torch._C._dynamo.eval_frame:set_guard_complete_hook -- Calls a hook after guards are checked.
If missing, logs of torch.compile are not read (OBSERVATION):
    module torch._logging:_internal alias=torch_logging -- Module of torch's logs.
    module torch._logging:structured alias=structured_logging -- Module of torch's structured trace.
""")
