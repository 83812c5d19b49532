"""Torch's private names for the capture of backwards in its C++ engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, declare_module, load

if TYPE_CHECKING:
    capture_protocol: Any

ENTRIES = (
    *IfMissing("backwards run in torch's engine", Feature.COMPILED_AUTOGRAD).entries(
        declare_module(
            "torch._C._dynamo:compiled_autograd",
            "Calls the engine's capture instead of running a backward.",
            alias="capture_protocol",
        ),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
