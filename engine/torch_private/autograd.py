"""Grad mode, autograd's engine, views, versions and autocast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.autograd import Variable

from engine.torch_private.entries import Entry, Feature, Kind, load

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
    Entry(
        "torch._C:_set_grad_enabled",
        Kind.FUNCTION,
        "Switches grad mode; also a node of traced graphs.",
        without="grad mode cannot be switched",
        off=Feature.COMPILATION,
        calls=("(mode)",),
    ),
    Entry(
        "torch._C:_FunctionBase",
        Kind.CLASS,
        "Base class of ``autograd.Function`` in C.",
        without="functions made in traced code break the graph",
    ),
    Entry(
        "torch._C._autograd:CreationMeta",
        Kind.CLASS,
        "Says how a view was made, which decides on errors of writes to it.",
        without="views are not rebuilt as eager makes them",
        off=Feature.COMPILATION,
        members=("DEFAULT", "IN_CUSTOM_FUNCTION", "NO_GRAD_MODE"),
    ),
    Entry(
        "torch._C._autograd:_get_creation_meta",
        Kind.FUNCTION,
        "Reads how a view was made.",
        without="views are not rebuilt as eager makes them",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C._autograd:_set_creation_meta",
        Kind.FUNCTION,
        "Sets how a view was made.",
        without="views are not rebuilt as eager makes them",
        off=Feature.COMPILATION,
        calls=("(a, b)",),
    ),
    Entry(
        "torch._C._autograd:_get_current_graph_task_keep_graph",
        Kind.FUNCTION,
        "Asks if a backward retains its graph.",
        without="saved tensors could be freed early",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("()",),
    ),
    Entry(
        "torch._C._autograd:_get_sequence_nr",
        Kind.FUNCTION,
        "Numbers autograd nodes, to link backward and forward.",
        without="nodes of the backward are not linked to the forward",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("()",),
    ),
    Entry(
        "torch._C:_is_multithreading_enabled",
        Kind.FUNCTION,
        "Traced query of autograd's threads.",
        without="traced code that calls it breaks the graph",
        calls=("()",),
    ),
    Entry(
        "torch._C._autograd:_saved_tensors_hooks_disable",
        Kind.FUNCTION,
        "Traced switch: hooks on saved tensors raise.",
        without="traced code that calls it breaks the graph",
        calls=("(a)",),
    ),
    Entry(
        "torch._C._autograd:_saved_tensors_hooks_enable",
        Kind.FUNCTION,
        "Traced switch: hooks on saved tensors run again.",
        without="traced code that calls it breaks the graph",
        calls=("()",),
    ),
    Entry(
        "torch._C._autograd:_saved_tensors_hooks_set_tracing",
        Kind.FUNCTION,
        "Lets a captured backward unpack saved tensors.",
        without="backwards are not captured",
        off=Feature.COMPILED_AUTOGRAD,
        calls=("(a)",),
    ),
    Entry(
        "torch._C._autograd:_top_saved_tensors_default_hooks",
        Kind.FUNCTION,
        "Asks if hooks on saved tensors are active.",
        without="hooks on saved tensors would be skipped",
        off=Feature.FUNCTIONAL_GRAPHS,
    ),
    Entry(
        "torch._C._autograd:_unsafe_set_version_counter",
        Kind.FUNCTION,
        "Restores version counters of tensors.",
        without="version counters would differ from eager's",
        off=Feature.COMPILATION,
        calls=("(a, b)",),
    ),
    Entry(
        "torch._C._autograd:SavedTensor",
        Kind.CLASS,
        "A tensor saved by a node in C.",
        without="saved tensors are unpacked all at once",
        off=Feature.FUNCTIONAL_GRAPHS,
    ),
    Entry(
        "torch._C:_current_graph_task_id",
        Kind.FUNCTION,
        "Numbers the running backward.",
        without="hooks of undefined gradients would run",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("()",),
    ),
    Entry(
        "torch._C:_functions.DelayedError",
        Kind.CLASS,
        "Node that raises in its backward.",
        without="a backward that must raise could not",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("(a, b)",),
    ),
    Entry(
        "torch._C:_DisableAutocast",
        Kind.CLASS,
        "Runs without autocast.",
        without="autocast would act twice",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C:_is_any_autocast_enabled",
        Kind.FUNCTION,
        "Asks if autocast is active on some device.",
        without="autocast would be missed by guards",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch.amp.autocast_mode:_enter_autocast",
        Kind.FUNCTION,
        "Node that enters autocast in traced graphs.",
        without="autocast in traced code breaks the graph",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch.amp.autocast_mode:_exit_autocast",
        Kind.FUNCTION,
        "Node that leaves autocast in traced graphs.",
        without="autocast in traced code breaks the graph",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch.autograd:_is_checkpoint_valid",
        Kind.FUNCTION,
        "Traced query of torch.utils.checkpoint.",
        without="traced code that calls it breaks the graph",
        calls=("()",),
    ),
    Entry(
        "torch.autograd:Variable._execution_engine",
        Kind.VALUE,
        "Autograd's engine, which is replaced while backwards are captured.",
        without="backwards are not captured",
        off=Feature.COMPILED_AUTOGRAD,
        alias="initial_execution_engine",
    ),
    Entry(
        "torch.autograd:forward_ad",
        Kind.MODULE,
        "Level of forward-mode differentiation.",
        without="forward-mode differentiation would be missed",
        off=Feature.COMPILATION,
        members=("_current_level",),
    ),
    Entry(
        "torch:_C",
        Kind.MODULE,
        "Module whose functions are patched while a captured backward runs.",
        without="backwards are not captured",
        off=Feature.COMPILED_AUTOGRAD,
        members=("_current_autograd_node", "_current_graph_task_id"),
        alias="torch_c_module",
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


def forward_ad_level() -> int:
    """Return the level of forward-mode differentiation, or -1 outside of it."""
    level: int = forward_ad._current_level
    return level
