"""Tunings made by hand: settings of kernels on disk, which later compiles use.

They are in the folder of the autotuner's times, each under a digest of the kernel's loops, target and device.
"""

from __future__ import annotations

import functools
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import replace

import torch

from engine.cache.disk_store import DiskStore, DiskStoreError
from engine.errors import BadArgument
from engine.ir.kernels.llvm_machine import code_version
from engine.ir.kernels.lowered_program import CPU_TARGET
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.kernels.tuning_controls import controls_of, with_values
from engine.lowering.choose_blocks import FindTuning, StoredTuning
from engine.lowering.dedup_kernels import structural_key
from engine.options import user_cache_dir
from engine.records.format_amounts import format_seconds
from engine.records.lowering import AutotuneChoice

_INDEX = hashlib.sha256(b"tunings made by hand").hexdigest()
"""Name of a stored text that changes with each tuning; absent if there is no tuning."""


def tunings_key() -> str:
    """Return a text that changes with each stored tuning; empty without any."""
    return _read(_INDEX)


def store_tuning(
    kernel: LoopKernel, target: str, values: Mapping[str, int], seconds: float | None, usual: float | None
) -> None:
    """Store the settings of a kernel, with its time and that of the default.

    Empty ``values`` restore the default settings.

    Raises:
        BadArgument: the user's cache folder cannot be written.
    """
    text = json.dumps({"values": dict(values), "seconds": seconds, "usual": usual})
    try:
        _store().put(_name(kernel, target), text)
        _store().put(_INDEX, secrets.token_hex(8))
    except DiskStoreError as error:
        raise BadArgument(f"The settings cannot be stored for later compiles: {error}.") from error


def stored_tunings(target: str) -> FindTuning | None:
    """Return the function that finds a kernel's tuning; None if no kernel was ever tuned."""
    return functools.partial(_find_tuning, target) if tunings_key() else None


def _find_tuning(target: str, kernel: LoopKernel) -> StoredTuning | None:
    try:
        tuning = json.loads(_read(_name(kernel, target)) or "{}")
        values = tuning.get("values")
        if not values or values.keys() - {c.name for c in controls_of(kernel, target)}:
            return None
        tuned = with_values(kernel, target, values)
    except (ValueError, AttributeError):  # another version of the engine stored it
        return None
    chosen = ", ".join(f"{name} {value}" for name, value in values.items())
    times = (("default", tuning.get("usual")), (chosen, tuning.get("seconds")))
    device = device_name(target)
    if times[1][1] is None:
        reason = "Chosen by hand, not measured."
    else:
        usual = "" if times[0][1] is None else f", the default {format_seconds(times[0][1], 3)}"
        reason = f"Chosen by hand on {device}: {format_seconds(times[1][1], 3)}{usual}."
    return StoredTuning(tuned, AutotuneChoice(kernel.nodes, chosen, reason, times, device, from_disk_cache=True))


def device_name(target: str) -> str:
    """Return the device on which a kernel for this target runs here; empty if there is none."""
    if target == CPU_TARGET:
        return "this CPU"
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _store() -> DiskStore:
    return DiskStore(user_cache_dir() / "tuned")


def _read(name: str) -> str:
    try:
        return _store().get(name) or ""
    except DiskStoreError:
        return ""


def _name(kernel: LoopKernel, target: str) -> str:
    """Return the digest of a kernel's loops, its target and the device."""
    device = code_version() if target == CPU_TARGET else device_name(target)
    loops = structural_key(replace(kernel, block_config=None, vector_config=None))
    return hashlib.sha256(repr((loops, target, device)).encode()).hexdigest()
