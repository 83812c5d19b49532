"""Torch's private names for functional tensors, which record mutations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Feature, IfMissing, declare, declare_class, declare_module, load

if TYPE_CHECKING:
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    functorch_config: Any
    from_functional_tensor: Any
    functionalize_has_data_mutation: Any
    is_functional_tensor: Any
    sync_functional: Any

ENTRIES = (
    *IfMissing("graphs are not functionalized", Feature.FUNCTIONAL_GRAPHS).entries(
        declare_class("torch._subclasses.functional_tensor:FunctionalTensor", "A tensor whose mutations are recorded."),
        declare_class(
            "torch._subclasses.functional_tensor:FunctionalTensorMode",
            "Makes functional tensors of operators' results.",
            "()",
        ),
        declare_module(
            "torch._functorch:config", "Holds the switch that keeps a ``triton_op`` one node.", alias="functorch_config"
        ),
        declare("torch:_from_functional_tensor", "Reads the current value of a functional tensor.", "(a)"),
        declare("torch:_functionalize_has_data_mutation", "Asks if an input was mutated.", "(a)"),
        declare("torch:_sync", "Applies pending mutations to a view.", "(a)", alias="sync_functional"),
    ),
    *IfMissing("arguments are not understood", Feature.COMPILATION).entries(
        declare("torch:_is_functional_tensor", "Recognizes functional tensors among arguments.", "(a)"),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
