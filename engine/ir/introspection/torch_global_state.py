"""Torch's global state: the items that guards check, and a snapshot to restore it.

A snapshot is taken before a tracing attempt. It reports what the attempt changed.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.torch_private import global_state, torch_function
from engine.torch_private.autograd import is_any_autocast_enabled, is_multithreading_enabled, set_grad_enabled
from engine.torch_private.dispatch import get_dispatch_stack_at, len_torch_dispatch_stack
from engine.torch_private.entries import is_available
from engine.torch_private.functorch import peek_interpreter_stack, pop_dynamic_layer_stack, push_dynamic_layer_stack
from engine.torch_private.global_state import get_float32_matmul_precision

AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia")
"""Device types whose autocast state is read; on others autocast counts only as enabled."""


@dataclass(frozen=True)
class GlobalStateItem:
    """One item of global state.

    ``label`` is its display name. ``read`` is cheap and runs no user code.
    """

    name: str
    label: str
    read: Callable[[], Any]


def _autocast() -> tuple[Any, ...]:
    """Return the enabled (device, dtype) pairs, then True if casts of weights are cached.

    Empty if autocast is off on every device.
    """
    if not is_any_autocast_enabled():
        return ()
    enabled = [(d, torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES if torch.is_autocast_enabled(d)]
    return (*enabled, torch.is_autocast_cache_enabled())


def _autocast_settings() -> tuple[Any, ...]:
    """Return the dtype of autocast on each device, on or off, and if casts are cached."""
    return (*map(torch.get_autocast_dtype, AUTOCAST_DEVICES), torch.is_autocast_cache_enabled())


def autocast_nesting() -> int:
    """Return how many autocast contexts are active."""
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth


def _torch_function_modes() -> tuple[Any, ...]:
    """Return the stack of torch-function modes, outermost first.

    Modes that the tracer traces are represented by their classes.
    """
    modes = torch_function_modes()
    return tuple(map(type, modes)) if are_traced_modes(modes) else modes


def torch_function_modes() -> tuple[Any, ...]:
    """Return the active torch-function modes, outermost first."""
    count = torch_function.len_torch_function_stack()
    return tuple(torch_function.get_function_stack_at(i) for i in range(count)) if count else ()


def are_traced_modes(modes: tuple[Any, ...]) -> bool:
    """Return True if the tracer traces these modes, so that the graph runs without them.

    A default device (``DeviceContext``) stays active.
    """
    return bool(modes) and not any(isinstance(m, torch_function.DeviceContext) for m in modes)


@contextlib.contextmanager
def without_torch_function_modes() -> Iterator[None]:
    """Disable the traced torch-function modes inside the block."""
    modes = torch_function_modes()
    if not are_traced_modes(modes):
        yield
        return
    for _ in modes:
        torch_function.pop_torch_function_stack()
    try:
        yield
    finally:
        for mode in modes:
            torch_function.push_on_torch_function_stack(mode)


@contextlib.contextmanager
def without_functorch_transforms() -> Iterator[None]:
    """Disable the active ``torch.func`` transforms inside the block."""
    popped = []
    while peek_interpreter_stack() is not None:
        popped.append(pop_dynamic_layer_stack())
    try:
        yield
    finally:
        for transform in reversed(popped):
            push_dynamic_layer_stack(transform)


def _torch_function_enabled() -> bool | None:
    """Return the state of ``__torch_function__``.

    True: enabled. False: disabled for subclasses. None: disabled for modes too.
    """
    return (
        True
        if torch_function.is_torch_function_enabled()
        else None
        if torch_function.is_torch_function_all_disabled()
        else False
    )


def _dispatch_modes() -> tuple[Any, ...]:
    """Return the stack of torch-dispatch modes, outermost first."""
    count = len_torch_dispatch_stack()
    return tuple(get_dispatch_stack_at(i) for i in range(count)) if count else ()


def _functorch_active() -> str | None:
    """Return "active" inside a ``torch.func`` transform, else None.

    The kind and depth of the transform are guarded with the tensors: graphs run under it as traced.
    """
    return None if peek_interpreter_stack() is None else "active"


def _default_device() -> torch.device | None:
    device: torch.device | None = torch_function.device_context_module.CURRENT_DEVICE
    return device


SDPA_BACKENDS = tuple(
    name
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
    if is_available(getattr(global_state, f"get_{name}_sdp_enabled"))
    and is_available(getattr(global_state, f"set_sdp_use_{name}"))
)
"""SDPA backends that can be switched on and off."""
_HAS_SDPA_ORDER = is_available(global_state.get_sdp_priority_order)


def sdpa_backends() -> tuple[Any, ...]:
    """Return the enabled flag of each SDPA backend, then their priority order."""
    order = global_state.get_sdp_priority_order() if _HAS_SDPA_ORDER else ()
    return (*[getattr(global_state, f"get_{name}_sdp_enabled")() for name in SDPA_BACKENDS], tuple(order))


def restore_sdpa_backends(saved: tuple[Any, ...]) -> None:
    """Enable the attention backends in ``saved`` and restore their priority order."""
    *enabled, order = saved
    for name, on in zip(SDPA_BACKENDS, enabled, strict=True):
        getattr(global_state, f"set_sdp_use_{name}")(on)
    if order:
        global_state.set_sdp_priority_order(list(order))


def error_on_graph_break() -> bool:
    """Return True under ``torch._dynamo.error_on_graph_break(True)``."""
    for module_name in ("torch._dynamo.utils", "torch._dynamo.symbolic_convert"):
        ask = getattr(sys.modules.get(module_name), "_get_error_on_graph_break", None)
        if ask is not None:
            return bool(ask())
    return False


_BUILTIN_WARNINGS = (Warning, *(c for c in Warning.__subclasses__() if c.__module__ == "builtins"))


def _builtin_warnings_raise() -> bool:
    """Return True if a warning of one of Python's own classes would be raised as an error.

    A filter for a class of a library matches none of them: each Jupyter kernel has one, for a warning of IPython's.
    """
    return _warnings_raise(is_builtin=True)


def _warnings_raise(*, is_builtin: bool = False) -> bool:
    """Return True if some warning would be raised as an error.

    This is the case if an "error" filter precedes a filter for all warnings.
    """
    for action, message, category, module, line in warnings.filters:
        if action == "error" and (not is_builtin or category in _BUILTIN_WARNINGS):
            return True
        if message is None and module is None and not line and category is Warning:
            return False
    return False


def _is_stream_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_handling_exception() -> bool:
    return sys.exc_info()[1] is not None


GLOBAL_STATES: Mapping[str, GlobalStateItem] = {
    s.name: s
    for s in (
        GlobalStateItem("grad_mode", "grad mode", torch.is_grad_enabled),
        GlobalStateItem("inference_mode", "inference mode", torch.is_inference_mode_enabled),
        GlobalStateItem("autocast", "autocast", _autocast),
        GlobalStateItem("autocast_settings", "dtypes and cache of autocast", _autocast_settings),
        GlobalStateItem("autocast_nesting", "number of autocast contexts", autocast_nesting),
        GlobalStateItem("torch_function_modes", "torch-function mode stack", _torch_function_modes),
        GlobalStateItem("torch_function_enabled", "torch function", _torch_function_enabled),
        GlobalStateItem("dispatch_modes", "dispatch mode stack", _dispatch_modes),
        GlobalStateItem("functorch", "functorch stack", _functorch_active),
        GlobalStateItem("default_device", "default device", _default_device),
        GlobalStateItem("default_dtype", "default dtype", torch.get_default_dtype),
        GlobalStateItem("float32_matmul_precision", "float32 matmul precision", get_float32_matmul_precision),
        GlobalStateItem("attention_kernels", "enabled attention kernels", sdpa_backends),
        GlobalStateItem("anomaly", "anomaly detection", torch.is_anomaly_enabled),
        GlobalStateItem("warn_always", "repeated warnings", torch.is_warn_always_enabled),
        GlobalStateItem("threads", "number of threads", torch.get_num_threads),
        GlobalStateItem("multithreading", "threads of autograd", is_multithreading_enabled),
        GlobalStateItem("cuda_devices", "number of CUDA devices", torch.cuda.device_count),
        GlobalStateItem("cuda_initialized", "CUDA in use", torch.cuda.is_initialized),
        GlobalStateItem("capturing", "CUDA stream capture", _is_stream_capturing),
        GlobalStateItem("deterministic", "deterministic", torch.are_deterministic_algorithms_enabled),
        GlobalStateItem(
            "deterministic_warn_only", "deterministic, warn only", torch.is_deterministic_algorithms_warn_only_enabled
        ),
        GlobalStateItem("warnings_raise", "warnings as errors", _warnings_raise),
        GlobalStateItem("builtin_warnings_raise", "Python's warnings as errors", _builtin_warnings_raise),
        GlobalStateItem("digits", "digit limit for int to str", sys.get_int_max_str_digits),
        GlobalStateItem("handling", "exception being handled", _is_handling_exception),
    )
}
"""All items of global state that guards know, by ``GlobalStateMatch.state_name``."""

FAST_CHECKS: Mapping[tuple[str, Any], tuple[str, Any]] = {
    ("autocast", ()): ("not {}()", is_any_autocast_enabled),
    ("torch_function_modes", ()): ("{}() == 0", torch_function.len_torch_function_stack),
    ("torch_function_enabled", True): ("{}()", torch_function.is_torch_function_enabled),
    ("dispatch_modes", ()): ("{}() == 0", len_torch_dispatch_stack),
    ("functorch", None): ("{}() is None", peek_interpreter_stack),
}
"""(state, usual value) -> a cheaper equivalent expression and the function that it calls."""


def global_state_equal(value: Any, expected: Any) -> bool:
    """Return True if two readings of a state agree.

    Modes are compared by identity, other values by type and value.
    """
    if type(expected) is tuple:
        return type(value) is tuple and len(value) == len(expected) and all(map(global_state_equal, value, expected))
    if type(expected) in (int, str, torch.device):
        return type(value) is type(expected) and bool(value == expected)
    return value is expected


def _autocast_of_devices() -> tuple[Any, ...]:
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


_SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "grad mode": (torch.is_grad_enabled, set_grad_enabled),
    "autocast": (_autocast_of_devices, _set_autocast),
    "autocast cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    "deterministic": (_deterministic, _set_deterministic),
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (lambda: torch_function.device_context_module.CURRENT_DEVICE, torch.set_default_device),
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
