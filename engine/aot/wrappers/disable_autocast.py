"""Disable autocast while the functional graph runs; the graph already has the casts."""

from __future__ import annotations

import torch

from engine.aot.wrappers.codegen import WrapperCode
from engine.ir.aot.aot_metadata import AotMetadata
from engine.records.aot import WrapperAction

NAME = "autocast off"


def pre_compile(plan: AotMetadata) -> tuple[WrapperAction, ...]:
    """Return one action per device type with autocast enabled."""
    why = "the casts are already in the functional graph; a second cast could change results"
    return tuple(WrapperAction(device, "autocast disabled", why) for device in plan.autocast_devices)


def post_compile(plan: AotMetadata) -> WrapperCode:
    """Return code that disables autocast around the graph's run."""
    if not plan.autocast_devices:
        return WrapperCode()
    return WrapperCode(context_manager="without_autocast()", namespace={"without_autocast": torch._C._DisableAutocast})
