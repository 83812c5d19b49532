"""Torch's private names for functional tensors, which record mutations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import load_into

if TYPE_CHECKING:
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    def __getattr__(name: str) -> Any: ...


ENTRIES = load_into(globals())("""
If missing, graphs are not functionalized (FUNCTIONAL_GRAPHS):
    class torch._subclasses.functional_tensor:FunctionalTensor -- A tensor whose mutations are recorded.
    class torch._subclasses.functional_tensor:FunctionalTensorMode () -- Makes functional tensors of operators' results.
    module torch._functorch:config alias=functorch_config -- Holds the switch that keeps a ``triton_op`` one node.
    function torch:_from_functional_tensor (a) -- Reads the current value of a functional tensor.
    function torch:_functionalize_has_data_mutation (a) -- Asks if an input was mutated.
    function torch:_sync (a) alias=sync_functional -- Applies pending mutations to a view.
If missing, arguments are not understood (COMPILATION):
    function torch:_is_functional_tensor (a) -- Recognizes functional tensors among arguments.
""")
