"""Torch's capture of backwards in its C++ engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    capture_protocol: Any

ENTRIES = (
    Entry(
        "torch._C._dynamo:compiled_autograd",
        Kind.MODULE,
        "Calls the engine's capture instead of running a backward.",
        without="backwards run in torch's engine",
        off=Feature.COMPILED_AUTOGRAD,
        alias="capture_protocol",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
