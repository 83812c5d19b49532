"""Torch's private names for the capture of backwards in its C++ engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, Kind, declare, load

if TYPE_CHECKING:
    capture_protocol: Any

ENTRIES = (
    *IfMissing("backwards run in torch's engine", Feature.COMPILED_AUTOGRAD).entries(
        declare(
            "torch._C._dynamo:compiled_autograd",
            "Calls the engine's capture instead of running a backward.",
            kind=Kind.MODULE,
            alias="capture_protocol",
        ),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
