"""Torch's private names for ``__torch_function__``: its modes, and disabling it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, declare_module, load

if TYPE_CHECKING:
    from torch._C import DisableTorchFunction, DisableTorchFunctionSubclass
    from torch._C import _disabled_torch_function_impl as disabled_torch_function_impl
    from torch._C import _EnableTorchFunction as EnableTorchFunction
    from torch._C import _get_function_stack_at as get_function_stack_at
    from torch._C import _is_torch_function_all_disabled as is_torch_function_all_disabled
    from torch._C import _is_torch_function_enabled as is_torch_function_enabled
    from torch._C import _is_torch_function_mode_enabled as is_torch_function_mode_enabled
    from torch._C import _len_torch_function_stack as len_torch_function_stack
    from torch._C import _pop_torch_function_stack as pop_torch_function_stack
    from torch._C import _push_on_torch_function_stack as push_on_torch_function_stack
    from torch.utils._device import DeviceContext

    device_context_module: Any

ENTRIES = (
    *IfMissing("guards would run user code", Feature.COMPILATION).entries(
        declare_class(
            "torch._C:DisableTorchFunction", "Reads tensors in guards without running the user's modes.", "()"
        ),
    ),
    *IfMissing("reading an argument would run user code", Feature.COMPILATION).entries(
        declare_class(
            "torch._C:DisableTorchFunctionSubclass", "Reads tensor subclasses without running their overrides.", "()"
        ),
    ),
    *IfMissing("a pass that traces a function is undone").entries(
        declare_class(
            "torch._C:_EnableTorchFunction",
            "Lets passes of users, and edited graphs, call torch functions on FX proxies.",
            "()",
        ),
    ),
    *IfMissing("tensor subclasses are not recognized", Feature.COMPILATION).entries(
        declare("torch._C:_disabled_torch_function_impl", "Recognizes tensor classes without an override."),
    ),
    *IfMissing("an active mode would be missed", Feature.COMPILATION).entries(
        declare("torch._C:_get_function_stack_at", "Reads the stack of torch-function modes, for guards.", "(a)"),
        declare("torch._C:_len_torch_function_stack", "Counts the torch-function modes, for guards.", "()"),
    ),
    *IfMissing("a disabled mode would run", Feature.COMPILATION).entries(
        declare("torch._C:_is_torch_function_all_disabled", "Returns if torch-function modes are disabled too.", "()"),
    ),
    *IfMissing("a disabled override would run", Feature.COMPILATION).entries(
        declare("torch._C:_is_torch_function_enabled", "Returns if overrides of subclasses are enabled.", "()"),
    ),
    *IfMissing("traced code that calls it breaks the graph").entries(
        declare(
            "torch._C:_is_torch_function_mode_enabled", "Traced query: asks if a torch-function mode is active.", "()"
        ),
    ),
    *IfMissing("modes would see the tracer's own calls", Feature.COMPILATION).entries(
        declare("torch._C:_pop_torch_function_stack", "Takes a torch-function mode off the stack while tracing.", "()"),
        declare("torch._C:_push_on_torch_function_stack", "Puts a torch-function mode back on the stack.", "(a)"),
    ),
    *IfMissing("a default device is taken for a mode of the user", Feature.COMPILATION).entries(
        declare_class(
            "torch.utils._device:DeviceContext", "Recognizes the torch-function mode that sets a default device."
        ),
    ),
    *IfMissing("a change of the default device would be missed", Feature.COMPILATION).entries(
        declare_module(
            "torch.utils:_device",
            "Module with the default device.",
            members=("CURRENT_DEVICE",),
            alias="device_context_module",
        ),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
