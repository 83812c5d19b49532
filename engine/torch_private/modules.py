"""Torch's private names of ``nn.Module``: hooks and methods that its own code calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch.nn.modules import module as module_hooks

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_into(globals())("""
If missing, compiled modules are not recognized in calls (COMPILATION):
    function torch.nn:Module._call_impl -- Method that runs hooks around a forward.
If missing, recurrent layers break the graph:
    function torch.nn:RNNBase._weights_have_changed alias=weights_have_changed -- Traced query of recurrent layers.
If missing, lazy modules break the graph:
    function torch.nn.modules.lazy:LazyModuleMixin._infer_parameters alias=infer_parameters
        -- Gives a lazy module its parameters.
If missing, hooks of all modules would be missed (COMPILATION):
    module torch.nn.modules:module alias=module_hooks members=_global_backward_hooks,_global_backward_pre_hooks,
        _global_forward_hooks,_global_forward_pre_hooks,_global_forward_hooks_always_called
        -- Module with the hooks of all modules.
If missing, such forwards break the graph:
    function torch.nn.parallel:DistributedDataParallel._inside_ddp_forward alias=inside_ddp_forward
        -- Marks the forward of a parallel module.
""")
