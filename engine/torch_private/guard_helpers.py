"""Torch's private C helpers that check guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_into(globals())("""
If missing, global state is compared item by item (GUARD_HELPERS):
    class torch._C._dynamo.guards:GlobalStateGuard -- Compares plain global state in one call.
If missing, dicts are compared item by item (GUARD_HELPERS):
    class torch._C._dynamo.guards:RootGuardManager -- Tree of guards on one value.
    function torch._C._dynamo.guards:dict_version -- Version of a dict, changed by every write.
If missing, tensors are compared one by one (GUARD_HELPERS):
    class torch._C._dynamo.guards:TensorGuards -- Compares many tensors in one call.
""")
