"""Torch's private names for the capture of backwards in its C++ engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    capture_protocol: Any

ENTRIES = load_into(globals())("""
If missing, backwards run in torch's engine (COMPILED_AUTOGRAD):
    module torch._C._dynamo:compiled_autograd alias=capture_protocol
        -- Calls the engine's capture instead of running a backward.
""")
