"""``__torch_function__``: its modes, and disabling it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

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
    Entry(
        "torch._C:DisableTorchFunction",
        Kind.CLASS,
        "Reads tensors in guards without running the user's modes.",
        without="guards would run user code",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:DisableTorchFunctionSubclass",
        Kind.CLASS,
        "Reads tensor subclasses without running their overrides.",
        without="reading an argument would run user code",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_EnableTorchFunction",
        Kind.CLASS,
        "Lets passes of users, and edited graphs, call torch functions on FX proxies.",
        without="a pass that traces a function is undone",
        calls=("()",),
    ),
    Entry(
        "torch._C:_disabled_torch_function_impl",
        Kind.FUNCTION,
        "Recognizes tensor classes without an override.",
        without="tensor subclasses are not recognized",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._C:_get_function_stack_at",
        Kind.FUNCTION,
        "Reads the stack of torch-function modes, for guards.",
        without="an active mode would be missed",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C:_len_torch_function_stack",
        Kind.FUNCTION,
        "Counts the torch-function modes, for guards.",
        without="an active mode would be missed",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_is_torch_function_all_disabled",
        Kind.FUNCTION,
        "Returns if torch-function modes are disabled too.",
        without="a disabled mode would run",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_is_torch_function_enabled",
        Kind.FUNCTION,
        "Returns if overrides of subclasses are enabled.",
        without="a disabled override would run",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_is_torch_function_mode_enabled",
        Kind.FUNCTION,
        "Traced query: asks if a torch-function mode is active.",
        without="traced code that calls it breaks the graph",
        calls=("()",),
    ),
    Entry(
        "torch._C:_pop_torch_function_stack",
        Kind.FUNCTION,
        "Takes a torch-function mode off the stack while tracing.",
        without="modes would see the tracer's own calls",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_push_on_torch_function_stack",
        Kind.FUNCTION,
        "Puts a torch-function mode back on the stack.",
        without="modes would see the tracer's own calls",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch.utils._device:DeviceContext",
        Kind.CLASS,
        "Recognizes the torch-function mode that sets a default device.",
        without="a default device is taken for a mode of the user",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch.utils:_device",
        Kind.MODULE,
        "Module with the default device.",
        without="a change of the default device would be missed",
        off=Feature.COMPILATION,
        members=("CURRENT_DEVICE",),
        alias="device_context_module",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
