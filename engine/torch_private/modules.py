"""Modules: hooks and methods that torch's own code calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    from torch.nn.modules import module as module_hooks

    call_impl: Any
    weights_have_changed: Any
    infer_parameters: Any
    inside_ddp_forward: Any

ENTRIES = (
    Entry(
        "torch.nn:Module._call_impl",
        Kind.FUNCTION,
        "Method that runs hooks around a forward.",
        without="compiled modules are not recognized in calls",
        off=Feature.COMPILATION,
    ),
    Entry(
        "torch.nn:RNNBase._weights_have_changed",
        Kind.FUNCTION,
        "Traced query of recurrent layers.",
        without="recurrent layers break the graph",
        alias="weights_have_changed",
    ),
    Entry(
        "torch.nn.modules.lazy:LazyModuleMixin._infer_parameters",
        Kind.FUNCTION,
        "Gives a lazy module its parameters.",
        without="lazy modules break the graph",
        alias="infer_parameters",
    ),
    Entry(
        "torch.nn.modules:module",
        Kind.MODULE,
        "Module with the hooks of all modules.",
        without="hooks of all modules would be missed",
        off=Feature.COMPILATION,
        members=(
            "_global_backward_hooks",
            "_global_backward_pre_hooks",
            "_global_forward_hooks",
            "_global_forward_pre_hooks",
            "_global_forward_hooks_always_called",
        ),
        alias="module_hooks",
    ),
    Entry(
        "torch.nn.parallel:DistributedDataParallel._inside_ddp_forward",
        Kind.FUNCTION,
        "Marks the forward of a parallel module.",
        without="such forwards break the graph",
        alias="inside_ddp_forward",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
