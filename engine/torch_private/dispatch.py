"""Torch's private names for dispatch keys, the dispatcher's state and dispatch modes."""

from typing import TYPE_CHECKING

from engine.torch_private.entries import load_into

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

ENTRIES = load_into(globals())("""
If missing, guards on dispatch keys cannot be written (COMPILATION):
    class torch._C:DispatchKey -- Names of dispatch keys in guards and facts of operators.
    function torch._C:_dispatch_key_parse (a) -- Finds a dispatch key by name.
If missing, values of the type are not recognized (COMPILATION):
    class torch._C:DispatchKeySet -- A set of dispatch keys, a constant in traced code.
If missing, tensors cannot be guarded (COMPILATION):
    function torch._C:_dispatch_keys (a) -- Reads the dispatch keys of a tensor for guards.
If missing, a cache key would miss kernels that the user registered (DISK_CACHE):
    function torch._C:_dispatch_dump (a) -- Lists the kernels of an operator, for cache keys.
If missing, facts about operators are unknown (COMPILATION):
    function torch._C:_dispatch_has_kernel (a) -- Asks if an operator is registered.
If missing, a helper could compare keys that are switched off (COMPILATION):
    function torch._C:_dispatch_tls_local_exclude_set () -- Reads the excluded dispatch keys of the thread.
If missing, traced code that reads them breaks the graph:
    function torch._C:_dispatch_tls_local_include_set -- Reads the included dispatch keys of the thread, in traced code.
If missing, the fake state of a call cannot be restored (COMPILATION):
    class torch._C:_AutoDispatchBelowAutograd () -- Runs operators below autograd on fake tensors.
If missing, graphs are not functionalized (FUNCTIONAL_GRAPHS):
    class torch._C:_DisablePythonDispatcher () -- Runs C++ composites instead of Python decompositions.
If missing, an exception inside torch could leave dispatch keys excluded (COMPILATION):
    class torch._C:_PreserveDispatchKeyGuard ()
        -- Restores the dispatch keys of the thread after frames with guards are freed.
If missing, dtypes of fake tensors cannot be compared with real ones (COMPILATION):
    class torch._C:_DisableTorchDispatch () -- Reads fake tensors without their dispatch.
If missing, an active fake mode is not found (COMPILATION):
    class torch._C:_TorchDispatchModeKey -- Names the slots of built-in dispatch modes.
    function torch._C:_get_dispatch_mode (a) -- Finds the active fake mode.
If missing, an active dispatch mode would be missed (COMPILATION):
    function torch._C:_get_dispatch_stack_at (a) -- Reads the stack of dispatch modes, for guards.
    function torch._C:_len_torch_dispatch_stack () -- Counts the active dispatch modes, for guards.
If missing, tensor subclasses are not recognized (COMPILATION):
    function torch._C:_disabled_torch_dispatch_impl -- Recognizes tensor classes without a dispatch of their own.
    function torch.utils._python_dispatch:is_traceable_wrapper_subclass (a)
        -- Recognizes wrapper subclasses such as DTensor.
If missing, operators would specialize symbols (COMPILATION):
    class torch._dispatch.python:enable_python_dispatcher ()
        -- Runs composites as Python decompositions, which take symbols.
If missing, backwards are not captured (COMPILED_AUTOGRAD):
    class torch.utils._python_dispatch:TorchDispatchMode -- Base class of the mode that captures a backward.
If missing, real values cannot be read while tracing (COMPILATION):
    function torch.utils._python_dispatch:_disable_current_modes () -- Computes on real tensors while a graph is traced.
""")
