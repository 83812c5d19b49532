"""Snapshot of torch's global state, taken before a tracing attempt.

It reports what the attempt changed, and restores the state however the attempt ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.introspection.torch_global_state import AUTOCAST_DEVICES, restore_sdpa_backends, sdpa_backends
from engine.torch_private.autograd import is_any_autocast_enabled, set_grad_enabled
from engine.torch_private.torch_function import device_context_module

_Getter = Callable[[], Any]
_Setter = Callable[[Any], Any]


def _autocast() -> tuple[Any, ...]:
    if not is_any_autocast_enabled():
        return ()
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES)


def _set_autocast(setting: tuple[Any, ...]) -> None:
    for device, enabled, dtype in setting or ((d, False, None) for d in AUTOCAST_DEVICES):
        torch.set_autocast_enabled(device, enabled)
        if dtype is not None:
            torch.set_autocast_dtype(device, dtype)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(setting: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(setting[0], warn_only=setting[1])


_SETTINGS: Mapping[str, tuple[_Getter, _Setter]] = {
    "grad mode": (torch.is_grad_enabled, set_grad_enabled),
    "autocast": (_autocast, _set_autocast),
    "autocast cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    "deterministic": (_deterministic, _set_deterministic),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (lambda: device_context_module.CURRENT_DEVICE, torch.set_default_device),
    "enabled attention kernels": (sdpa_backends, restore_sdpa_backends),
    "float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}
"""Settings that tracing may really change, by user-facing name: (getter, setter)."""


@dataclass(frozen=True)
class TorchStateSnapshot:
    """Values of the global settings at one moment, in the order of ``_SETTINGS``."""

    values: tuple[Any, ...]

    @classmethod
    def capture(cls) -> TorchStateSnapshot:
        """Read all settings in a fixed order, to compare or restore them later."""
        return cls(tuple(read() for read, _ in _SETTINGS.values()))

    def changed_settings(self) -> tuple[str, ...]:
        """Return the names of the settings that differ from the snapshot now."""
        return tuple(
            name for (name, (read, _)), was in zip(_SETTINGS.items(), self.values, strict=True) if read() != was
        )

    def restore(self) -> None:
        """Restore the settings that differ from the snapshot."""
        for (read, write), was in zip(_SETTINGS.values(), self.values, strict=True):
            if read() != was:
                write(was)
