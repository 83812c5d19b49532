"""Torch's private names of ``nn.Module``: hooks and methods that its own code calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, declare, declare_module, load

if TYPE_CHECKING:
    from torch.nn.modules import module as module_hooks

    call_impl: Any
    weights_have_changed: Any
    infer_parameters: Any
    inside_ddp_forward: Any

ENTRIES = (
    *IfMissing("compiled modules are not recognized in calls", Feature.COMPILATION).entries(
        declare("torch.nn:Module._call_impl", "Method that runs hooks around a forward."),
    ),
    *IfMissing("recurrent layers break the graph").entries(
        declare(
            "torch.nn:RNNBase._weights_have_changed", "Traced query of recurrent layers.", alias="weights_have_changed"
        ),
    ),
    *IfMissing("lazy modules break the graph").entries(
        declare(
            "torch.nn.modules.lazy:LazyModuleMixin._infer_parameters",
            "Gives a lazy module its parameters.",
            alias="infer_parameters",
        ),
    ),
    *IfMissing("hooks of all modules would be missed", Feature.COMPILATION).entries(
        declare_module(
            "torch.nn.modules:module",
            "Module with the hooks of all modules.",
            members=(
                "_global_backward_hooks",
                "_global_backward_pre_hooks",
                "_global_forward_hooks",
                "_global_forward_pre_hooks",
                "_global_forward_hooks_always_called",
            ),
            alias="module_hooks",
        ),
    ),
    *IfMissing("such forwards break the graph").entries(
        declare(
            "torch.nn.parallel:DistributedDataParallel._inside_ddp_forward",
            "Marks the forward of a parallel module.",
            alias="inside_ddp_forward",
        ),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
