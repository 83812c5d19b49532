"""Switches autocast off while the functional graph runs: the casts that it asked for are operators of the graph already."""

from __future__ import annotations

import torch

from engine.aot.wrappers.codegen import WrapperCode
from engine.ir.aot.aot_metadata import AotMetadata
from engine.records.aot import WrapperAction

NAME = "autocast off"


def pre_compile(plan: AotMetadata) -> tuple[WrapperAction, ...]:
    """One action a device type whose autocast was on."""
    why = "its casts are operators of the functional graph; casting twice could change results"
    return tuple(WrapperAction(device, "autocast switched off", why) for device in plan.autocast_devices)


def post_compile(plan: AotMetadata) -> WrapperCode:
    """A guard around the run."""
    if not plan.autocast_devices:
        return WrapperCode()
    return WrapperCode(context_manager="without_autocast()", namespace={"without_autocast": torch._C._DisableAutocast})
