"""Torch's private names for dispatch keys, the dispatcher's state and dispatch modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, load

if TYPE_CHECKING:
    from torch._C import DispatchKey, DispatchKeySet
    from torch._C import _AutoDispatchBelowAutograd as AutoDispatchBelowAutograd
    from torch._C import _disabled_torch_dispatch_impl as disabled_torch_dispatch_impl
    from torch._C import _DisablePythonDispatcher as DisablePythonDispatcher
    from torch._C import _DisableTorchDispatch as DisableTorchDispatch
    from torch._C import _dispatch_dump as dispatch_dump
    from torch._C import _dispatch_has_kernel as dispatch_has_kernel
    from torch._C import _dispatch_key_parse as dispatch_key_parse
    from torch._C import _dispatch_keys as dispatch_keys
    from torch._C import _dispatch_tls_local_exclude_set as dispatch_tls_local_exclude_set
    from torch._C import _dispatch_tls_local_include_set as dispatch_tls_local_include_set
    from torch._C import _get_dispatch_mode as get_dispatch_mode
    from torch._C import _get_dispatch_stack_at as get_dispatch_stack_at
    from torch._C import _len_torch_dispatch_stack as len_torch_dispatch_stack
    from torch._C import _PreserveDispatchKeyGuard as PreserveDispatchKeyGuard
    from torch._C import _TorchDispatchModeKey as TorchDispatchModeKey
    from torch._dispatch.python import enable_python_dispatcher
    from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
    from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes

ENTRIES = (
    *IfMissing("guards on dispatch keys cannot be written", Feature.COMPILATION).entries(
        declare_class("torch._C:DispatchKey", "Names of dispatch keys in guards and facts of operators."),
        declare("torch._C:_dispatch_key_parse", "Finds a dispatch key by name.", "(a)"),
    ),
    *IfMissing("values of the type are not recognized", Feature.COMPILATION).entries(
        declare_class("torch._C:DispatchKeySet", "A set of dispatch keys, a constant in traced code."),
    ),
    *IfMissing("tensors cannot be guarded", Feature.COMPILATION).entries(
        declare("torch._C:_dispatch_keys", "Reads the dispatch keys of a tensor for guards.", "(a)"),
    ),
    *IfMissing("a cache key would miss kernels that the user registered", Feature.DISK_CACHE).entries(
        declare("torch._C:_dispatch_dump", "Lists the kernels of an operator, for cache keys.", "(a)"),
    ),
    *IfMissing("facts about operators are unknown", Feature.COMPILATION).entries(
        declare("torch._C:_dispatch_has_kernel", "Asks if an operator is registered.", "(a)"),
    ),
    *IfMissing("a helper could compare keys that are switched off", Feature.COMPILATION).entries(
        declare("torch._C:_dispatch_tls_local_exclude_set", "Reads the excluded dispatch keys of the thread.", "()"),
    ),
    *IfMissing("traced code that reads them breaks the graph").entries(
        declare(
            "torch._C:_dispatch_tls_local_include_set",
            "Reads the included dispatch keys of the thread, in traced code.",
        ),
    ),
    *IfMissing("the fake state of a call cannot be restored", Feature.COMPILATION).entries(
        declare_class("torch._C:_AutoDispatchBelowAutograd", "Runs operators below autograd on fake tensors.", "()"),
    ),
    *IfMissing("graphs are not functionalized", Feature.FUNCTIONAL_GRAPHS).entries(
        declare_class(
            "torch._C:_DisablePythonDispatcher", "Runs C++ composites instead of Python decompositions.", "()"
        ),
    ),
    *IfMissing("an exception inside torch could leave dispatch keys excluded", Feature.COMPILATION).entries(
        declare_class(
            "torch._C:_PreserveDispatchKeyGuard",
            "Restores the dispatch keys of the thread after frames with guards are freed.",
            "()",
        ),
    ),
    *IfMissing("dtypes of fake tensors cannot be compared with real ones", Feature.COMPILATION).entries(
        declare_class("torch._C:_DisableTorchDispatch", "Reads fake tensors without their dispatch.", "()"),
    ),
    *IfMissing("an active fake mode is not found", Feature.COMPILATION).entries(
        declare_class("torch._C:_TorchDispatchModeKey", "Names the slots of built-in dispatch modes."),
        declare("torch._C:_get_dispatch_mode", "Finds the active fake mode.", "(a)"),
    ),
    *IfMissing("an active dispatch mode would be missed", Feature.COMPILATION).entries(
        declare("torch._C:_get_dispatch_stack_at", "Reads the stack of dispatch modes, for guards.", "(a)"),
        declare("torch._C:_len_torch_dispatch_stack", "Counts the active dispatch modes, for guards.", "()"),
    ),
    *IfMissing("tensor subclasses are not recognized", Feature.COMPILATION).entries(
        declare("torch._C:_disabled_torch_dispatch_impl", "Recognizes tensor classes without a dispatch of their own."),
        declare(
            "torch.utils._python_dispatch:is_traceable_wrapper_subclass",
            "Recognizes wrapper subclasses such as DTensor.",
            "(a)",
        ),
    ),
    *IfMissing("operators would specialize symbols", Feature.COMPILATION).entries(
        declare_class(
            "torch._dispatch.python:enable_python_dispatcher",
            "Runs composites as Python decompositions, which take symbols.",
            "()",
        ),
    ),
    *IfMissing("backwards are not captured", Feature.COMPILED_AUTOGRAD).entries(
        declare_class(
            "torch.utils._python_dispatch:TorchDispatchMode", "Base class of the mode that captures a backward."
        ),
    ),
    *IfMissing("real values cannot be read while tracing", Feature.COMPILATION).entries(
        declare(
            "torch.utils._python_dispatch:_disable_current_modes",
            "Computes on real tensors while a graph is traced.",
            "()",
        ),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
