"""Torch's private names for grad mode, the autograd engine, views, versions and autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd import Variable

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, declare_module, declare_value, load

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

    DelayedError: Any
    initial_execution_engine: Any
    torch_c_module: Any

ENTRIES = (
    *IfMissing("grad mode cannot be switched", Feature.COMPILATION).entries(
        declare("torch._C:_set_grad_enabled", "Switches grad mode; also a node of traced graphs.", "(mode)"),
    ),
    *IfMissing("functions made in traced code break the graph").entries(
        declare_class("torch._C:_FunctionBase", "Base class of ``autograd.Function`` in C."),
    ),
    *IfMissing("views are not rebuilt as eager makes them", Feature.COMPILATION).entries(
        declare_class(
            "torch._C._autograd:CreationMeta",
            "Says how a view was made, which decides on errors of writes to it.",
            members=("DEFAULT", "IN_CUSTOM_FUNCTION", "NO_GRAD_MODE"),
        ),
        declare("torch._C._autograd:_get_creation_meta", "Reads how a view was made.", "(a)"),
        declare("torch._C._autograd:_set_creation_meta", "Sets how a view was made.", "(a, b)"),
    ),
    *IfMissing("saved tensors could be freed early", Feature.FUNCTIONAL_GRAPHS).entries(
        declare("torch._C._autograd:_get_current_graph_task_keep_graph", "Asks if a backward retains its graph.", "()"),
    ),
    *IfMissing("nodes of the backward are not linked to the forward", Feature.FUNCTIONAL_GRAPHS).entries(
        declare("torch._C._autograd:_get_sequence_nr", "Numbers autograd nodes, to link backward and forward.", "()"),
    ),
    *IfMissing("traced code that calls it breaks the graph").entries(
        declare("torch._C:_is_multithreading_enabled", "Traced query of autograd's threads.", "()"),
        declare(
            "torch._C._autograd:_saved_tensors_hooks_disable", "Traced switch: hooks on saved tensors raise.", "(a)"
        ),
        declare(
            "torch._C._autograd:_saved_tensors_hooks_enable", "Traced switch: hooks on saved tensors run again.", "()"
        ),
        declare("torch.autograd:_is_checkpoint_valid", "Traced query of torch.utils.checkpoint.", "()"),
    ),
    *IfMissing("backwards are not captured", Feature.COMPILED_AUTOGRAD).entries(
        declare(
            "torch._C._autograd:_saved_tensors_hooks_set_tracing",
            "Lets a captured backward unpack saved tensors.",
            "(a)",
        ),
        declare_value(
            "torch.autograd:Variable._execution_engine",
            "Autograd's engine, which is replaced while backwards are captured.",
            alias="initial_execution_engine",
        ),
        declare_module(
            "torch:_C",
            "Module whose functions are patched while a captured backward runs.",
            members=("_current_autograd_node", "_current_graph_task_id"),
            alias="torch_c_module",
        ),
    ),
    *IfMissing("hooks on saved tensors would be skipped", Feature.FUNCTIONAL_GRAPHS).entries(
        declare("torch._C._autograd:_top_saved_tensors_default_hooks", "Asks if hooks on saved tensors are active."),
    ),
    *IfMissing("version counters would differ from eager's", Feature.COMPILATION).entries(
        declare("torch._C._autograd:_unsafe_set_version_counter", "Restores version counters of tensors.", "(a, b)"),
    ),
    *IfMissing("saved tensors are unpacked all at once", Feature.FUNCTIONAL_GRAPHS).entries(
        declare_class("torch._C._autograd:SavedTensor", "A tensor saved by a node in C."),
    ),
    *IfMissing("hooks of undefined gradients would run", Feature.FUNCTIONAL_GRAPHS).entries(
        declare("torch._C:_current_graph_task_id", "Numbers the running backward.", "()"),
    ),
    *IfMissing("a backward that must raise could not", Feature.FUNCTIONAL_GRAPHS).entries(
        declare_class("torch._C:_functions.DelayedError", "Node that raises in its backward.", "(a, b)"),
    ),
    *IfMissing("autocast would act twice", Feature.COMPILATION).entries(
        declare_class("torch._C:_DisableAutocast", "Runs without autocast.", "()"),
    ),
    *IfMissing("autocast would be missed by guards", Feature.COMPILATION).entries(
        declare("torch._C:_is_any_autocast_enabled", "Asks if autocast is active on some device.", "()"),
    ),
    *IfMissing("autocast in traced code breaks the graph", Feature.COMPILATION).entries(
        declare("torch.amp.autocast_mode:_enter_autocast", "Node that enters autocast in traced graphs."),
        declare("torch.amp.autocast_mode:_exit_autocast", "Node that leaves autocast in traced graphs.", "(a)"),
    ),
    *IfMissing("forward-mode differentiation would be missed", Feature.COMPILATION).entries(
        declare_module(
            "torch.autograd:forward_ad", "Level of forward-mode differentiation.", members=("_current_level",)
        ),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)


def execution_engine() -> Any:
    """Return autograd's engine, which runs backwards."""
    return Variable._execution_engine


def set_execution_engine(engine: Any) -> None:
    """Replace autograd's engine."""
    Variable._execution_engine = engine
