"""Dispatch keys, the dispatcher's thread-local state and dispatch modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Entry, Feature, Kind, load

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
    Entry(
        "torch._C:DispatchKey",
        Kind.CLASS,
        "Names of dispatch keys in guards and facts of operators.",
        without="guards on dispatch keys cannot be written",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._C:DispatchKeySet",
        Kind.CLASS,
        "A set of dispatch keys, a constant in traced code.",
        without="values of the type are not recognized",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._C:_dispatch_keys",
        Kind.FUNCTION,
        "Reads the dispatch keys of a tensor for guards.",
        without="tensors cannot be guarded",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C:_dispatch_dump",
        Kind.FUNCTION,
        "Lists the kernels of an operator, for cache keys.",
        without="a cache key would miss kernels that the user registered",
        off=Feature.DISK_CACHE,
        calls=("(a)",),
    ),
    Entry(
        "torch._C:_dispatch_has_kernel",
        Kind.FUNCTION,
        "Asks if an operator is registered.",
        without="facts about operators are unknown",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C:_dispatch_tls_local_exclude_set",
        Kind.FUNCTION,
        "Reads the excluded dispatch keys of the thread.",
        without="a helper could compare keys that are switched off",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_dispatch_tls_local_include_set",
        Kind.FUNCTION,
        "Reads the included dispatch keys of the thread, in traced code.",
        without="traced code that reads them breaks the graph",
    ),
    Entry(
        "torch._C:_AutoDispatchBelowAutograd",
        Kind.CLASS,
        "Runs operators below autograd on fake tensors.",
        without="the fake state of a call cannot be restored",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_DisablePythonDispatcher",
        Kind.CLASS,
        "Runs C++ composites instead of Python decompositions.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("()",),
    ),
    Entry(
        "torch._C:_PreserveDispatchKeyGuard",
        Kind.CLASS,
        "Restores the dispatch keys of the thread after frames with guards are freed.",
        without="an exception inside torch could leave dispatch keys excluded",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_DisableTorchDispatch",
        Kind.CLASS,
        "Reads fake tensors without their dispatch.",
        without="dtypes of fake tensors cannot be compared with real ones",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_TorchDispatchModeKey",
        Kind.CLASS,
        "Names the slots of built-in dispatch modes.",
        without="an active fake mode is not found",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._C:_dispatch_key_parse",
        Kind.FUNCTION,
        "Finds a dispatch key by name.",
        without="guards on dispatch keys cannot be written",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C:_get_dispatch_mode",
        Kind.FUNCTION,
        "Finds the active fake mode.",
        without="an active fake mode is not found",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C:_get_dispatch_stack_at",
        Kind.FUNCTION,
        "Reads the stack of dispatch modes, for guards.",
        without="an active dispatch mode would be missed",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C:_len_torch_dispatch_stack",
        Kind.FUNCTION,
        "Counts the active dispatch modes, for guards.",
        without="an active dispatch mode would be missed",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_disabled_torch_dispatch_impl",
        Kind.FUNCTION,
        "Recognizes tensor classes without a dispatch of their own.",
        without="tensor subclasses are not recognized",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch._dispatch.python:enable_python_dispatcher",
        Kind.CLASS,
        "Runs composites as Python decompositions, which take symbols.",
        without="operators would specialize symbols",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch.utils._python_dispatch:TorchDispatchMode",
        Kind.CLASS,
        "Base class of the mode that captures a backward.",
        without="backwards are not captured",
        off=Feature.COMPILED_AUTOGRAD,
    ),
    Entry(
        "torch.utils._python_dispatch:_disable_current_modes",
        Kind.FUNCTION,
        "Computes on real tensors while a graph is traced.",
        without="real values cannot be read while tracing",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch.utils._python_dispatch:is_traceable_wrapper_subclass",
        Kind.FUNCTION,
        "Recognizes wrapper subclasses such as DTensor.",
        without="tensor subclasses are not recognized",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
