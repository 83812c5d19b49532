"""Torch's C helpers that check guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    GlobalStateGuard: Any
    RootGuardManager: Any
    TensorGuards: Any
    dict_version: Any

ENTRIES = (
    Entry(
        "torch._C._dynamo.guards:GlobalStateGuard",
        Kind.CLASS,
        "Compares plain global state in one call.",
        without="global state is compared item by item",
        off=Feature.GUARD_HELPERS,
    ),
    Entry(
        "torch._C._dynamo.guards:RootGuardManager",
        Kind.CLASS,
        "Tree of guards on one value.",
        without="dicts are compared item by item",
        off=Feature.GUARD_HELPERS,
    ),
    Entry(
        "torch._C._dynamo.guards:TensorGuards",
        Kind.CLASS,
        "Compares many tensors in one call.",
        without="tensors are compared one by one",
        off=Feature.GUARD_HELPERS,
    ),
    Entry(
        "torch._C._dynamo.guards:dict_version",
        Kind.FUNCTION,
        "Version of a dict, changed by every write.",
        without="dicts are compared item by item",
        off=Feature.GUARD_HELPERS,
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
