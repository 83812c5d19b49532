"""Torch's private names for ``__torch_function__``: its modes, and disabling it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

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

ENTRIES = load_into(globals())("""
If missing, guards would run user code (COMPILATION):
    class torch._C:DisableTorchFunction () -- Reads tensors in guards without running the user's modes.
If missing, reading an argument would run user code (COMPILATION):
    class torch._C:DisableTorchFunctionSubclass () -- Reads tensor subclasses without running their overrides.
If missing, a pass that traces a function is undone:
    class torch._C:_EnableTorchFunction ()
        -- Lets passes of users, and edited graphs, call torch functions on FX proxies.
If missing, tensor subclasses are not recognized (COMPILATION):
    function torch._C:_disabled_torch_function_impl -- Recognizes tensor classes without an override.
If missing, an active mode would be missed (COMPILATION):
    function torch._C:_get_function_stack_at (a) -- Reads the stack of torch-function modes, for guards.
    function torch._C:_len_torch_function_stack () -- Counts the torch-function modes, for guards.
If missing, a disabled mode would run (COMPILATION):
    function torch._C:_is_torch_function_all_disabled () -- Returns if torch-function modes are disabled too.
If missing, a disabled override would run (COMPILATION):
    function torch._C:_is_torch_function_enabled () -- Returns if overrides of subclasses are enabled.
If missing, traced code that calls it breaks the graph:
    function torch._C:_is_torch_function_mode_enabled () -- Traced query: asks if a torch-function mode is active.
If missing, modes would see the tracer's own calls (COMPILATION):
    function torch._C:_pop_torch_function_stack () -- Takes a torch-function mode off the stack while tracing.
    function torch._C:_push_on_torch_function_stack (a) -- Puts a torch-function mode back on the stack.
If missing, a default device is taken for a mode of the user (COMPILATION):
    class torch.utils._device:DeviceContext -- Recognizes the torch-function mode that sets a default device.
If missing, a change of the default device would be missed (COMPILATION):
    module torch.utils:_device alias=device_context_module members=CURRENT_DEVICE -- Module with the default device.
""")
