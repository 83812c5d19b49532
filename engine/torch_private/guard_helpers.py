"""Torch's private C helpers that check guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, load

if TYPE_CHECKING:
    GlobalStateGuard: Any
    RootGuardManager: Any
    TensorGuards: Any
    dict_version: Any

ENTRIES = (
    *IfMissing("global state is compared item by item", Feature.GUARD_HELPERS).entries(
        declare_class("torch._C._dynamo.guards:GlobalStateGuard", "Compares plain global state in one call."),
    ),
    *IfMissing("dicts are compared item by item", Feature.GUARD_HELPERS).entries(
        declare_class("torch._C._dynamo.guards:RootGuardManager", "Tree of guards on one value."),
        declare("torch._C._dynamo.guards:dict_version", "Version of a dict, changed by every write."),
    ),
    *IfMissing("tensors are compared one by one", Feature.GUARD_HELPERS).entries(
        declare_class("torch._C._dynamo.guards:TensorGuards", "Compares many tensors in one call."),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
