"""Disable autocast while the functional graph runs; the graph already has the casts."""

from __future__ import annotations

from operator import attrgetter

from engine.aot.wrappers.base import FunctionalCall, PreCompileResult
from engine.aot.wrappers.codegen import WrapperCode
from engine.records.aot import WrapperAction
from engine.torch_private.autograd import DisableAutocast

NAME = "autocast off"
NEEDS = attrgetter("metadata.autocast_devices")


def pre_compile(call: FunctionalCall) -> PreCompileResult[FunctionalCall]:
    """Return one action per device type with autocast enabled."""
    why = "the casts are already in the functional graph; a second cast could change results"
    actions = tuple(WrapperAction(device, "autocast disabled", why) for device in call.metadata.autocast_devices)
    return PreCompileResult(call, actions)


def post_compile(change: PreCompileResult[FunctionalCall]) -> WrapperCode:
    """Return code that disables autocast around the graph's run."""
    return WrapperCode(context_manager="without_autocast()", namespace={"without_autocast": DisableAutocast})
