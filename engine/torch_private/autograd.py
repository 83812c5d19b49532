"""Torch's private names for grad mode, the autograd engine, views, versions and autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd import Variable

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch._C import _current_graph_task_id as current_graph_task_id
    from torch._C import _DisableAutocast as DisableAutocast
    from torch._C import _FunctionBase as FunctionBase
    from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled
    from torch._C import _is_multithreading_enabled as is_multithreading_enabled
    from torch._C import _set_grad_enabled as set_grad_enabled
    from torch._C._autograd import CreationMeta, SavedTensor
    from torch._C._autograd import _get_creation_meta as get_creation_meta
    from torch._C._autograd import _get_current_graph_task_keep_graph as get_current_graph_task_keep_graph
    from torch._C._autograd import _get_sequence_nr as get_sequence_nr
    from torch._C._autograd import _saved_tensors_hooks_disable as saved_tensors_hooks_disable
    from torch._C._autograd import _saved_tensors_hooks_enable as saved_tensors_hooks_enable
    from torch._C._autograd import _saved_tensors_hooks_set_tracing as saved_tensors_hooks_set_tracing
    from torch._C._autograd import _set_creation_meta as set_creation_meta
    from torch._C._autograd import _top_saved_tensors_default_hooks as top_saved_tensors_default_hooks
    from torch._C._autograd import _unsafe_set_version_counter as unsafe_set_version_counter
    from torch.amp.autocast_mode import _enter_autocast as enter_autocast
    from torch.amp.autocast_mode import _exit_autocast as exit_autocast
    from torch.autograd import _is_checkpoint_valid as is_checkpoint_valid
    from torch.autograd import forward_ad

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_into(globals())("""
If missing, grad mode cannot be switched (COMPILATION):
    function torch._C:_set_grad_enabled (mode) -- Switches grad mode; also a node of traced graphs.
If missing, functions made in traced code break the graph:
    class torch._C:_FunctionBase -- Base class of ``autograd.Function`` in C.
If missing, views are not rebuilt as eager makes them (COMPILATION):
    class torch._C._autograd:CreationMeta members=DEFAULT,IN_CUSTOM_FUNCTION,NO_GRAD_MODE
        -- Says how a view was made, which decides on errors of writes to it.
    function torch._C._autograd:_get_creation_meta (a) -- Reads how a view was made.
    function torch._C._autograd:_set_creation_meta (a, b) -- Sets how a view was made.
If missing, saved tensors could be freed early (FUNCTIONAL_GRAPHS):
    function torch._C._autograd:_get_current_graph_task_keep_graph () -- Asks if a backward retains its graph.
If missing, nodes of the backward are not linked to the forward (FUNCTIONAL_GRAPHS):
    function torch._C._autograd:_get_sequence_nr () -- Numbers autograd nodes, to link backward and forward.
If missing, traced code that calls it breaks the graph:
    function torch._C:_is_multithreading_enabled () -- Traced query of autograd's threads.
    function torch._C._autograd:_saved_tensors_hooks_disable (a) -- Traced switch: hooks on saved tensors raise.
    function torch._C._autograd:_saved_tensors_hooks_enable () -- Traced switch: hooks on saved tensors run again.
    function torch.autograd:_is_checkpoint_valid () -- Traced query of torch.utils.checkpoint.
If missing, backwards are not captured (COMPILED_AUTOGRAD):
    function torch._C._autograd:_saved_tensors_hooks_set_tracing (a) -- Lets a captured backward unpack saved tensors.
    value torch.autograd:Variable._execution_engine alias=initial_execution_engine
        -- Autograd's engine, which is replaced while backwards are captured.
    module torch:_C alias=torch_c_module members=_current_autograd_node,_current_graph_task_id
        -- Module whose functions are patched while a captured backward runs.
If missing, hooks on saved tensors would be skipped (FUNCTIONAL_GRAPHS):
    function torch._C._autograd:_top_saved_tensors_default_hooks -- Asks if hooks on saved tensors are active.
If missing, version counters would differ from eager's (COMPILATION):
    function torch._C._autograd:_unsafe_set_version_counter (a, b) -- Restores version counters of tensors.
If missing, saved tensors are unpacked all at once (FUNCTIONAL_GRAPHS):
    class torch._C._autograd:SavedTensor -- A tensor saved by a node in C.
If missing, hooks of undefined gradients would run (FUNCTIONAL_GRAPHS):
    function torch._C:_current_graph_task_id () -- Numbers the running backward.
If missing, a backward that must raise could not (FUNCTIONAL_GRAPHS):
    class torch._C:_functions.DelayedError (a, b) -- Node that raises in its backward.
If missing, autocast would act twice (COMPILATION):
    class torch._C:_DisableAutocast () -- Runs without autocast.
If missing, autocast would be missed by guards (COMPILATION):
    function torch._C:_is_any_autocast_enabled () -- Asks if autocast is active on some device.
If missing, autocast in traced code breaks the graph (COMPILATION):
    function torch.amp.autocast_mode:_enter_autocast -- Node that enters autocast in traced graphs.
    function torch.amp.autocast_mode:_exit_autocast (a) -- Node that leaves autocast in traced graphs.
If missing, forward-mode differentiation would be missed (COMPILATION):
    module torch.autograd:forward_ad members=_current_level -- Level of forward-mode differentiation.
""")


def execution_engine() -> Any:
    """Return autograd's engine, which runs backwards."""
    return Variable._execution_engine


def set_execution_engine(engine: Any) -> None:
    """Replace autograd's engine."""
    Variable._execution_engine = engine
