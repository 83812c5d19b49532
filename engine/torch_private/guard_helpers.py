"""Torch's private C helpers that check guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, Kind, declare, load

if TYPE_CHECKING:
    GlobalStateGuard: Any
    RootGuardManager: Any
    TensorGuards: Any
    dict_version: Any

ENTRIES = (
    *IfMissing("global state is compared item by item", Feature.GUARD_HELPERS).entries(
        declare(
            "torch._C._dynamo.guards:GlobalStateGuard", "Compares plain global state in one call.", kind=Kind.CLASS
        ),
    ),
    *IfMissing("dicts are compared item by item", Feature.GUARD_HELPERS).entries(
        declare("torch._C._dynamo.guards:RootGuardManager", "Tree of guards on one value.", kind=Kind.CLASS),
        declare("torch._C._dynamo.guards:dict_version", "Version of a dict, changed by every write."),
    ),
    *IfMissing("tensors are compared one by one", Feature.GUARD_HELPERS).entries(
        declare("torch._C._dynamo.guards:TensorGuards", "Compares many tensors in one call.", kind=Kind.CLASS),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
