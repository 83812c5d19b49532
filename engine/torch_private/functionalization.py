"""Functional tensors, to which mutations are rewritten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    functorch_config: Any
    from_functional_tensor: Any
    functionalize_has_data_mutation: Any
    is_functional_tensor: Any
    sync_functional: Any

ENTRIES = (
    Entry(
        "torch._subclasses.functional_tensor:FunctionalTensor",
        Kind.CLASS,
        "A tensor whose mutations are recorded.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
    ),
    Entry(
        "torch._subclasses.functional_tensor:FunctionalTensorMode",
        Kind.CLASS,
        "Makes functional tensors of operators' results.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("()",),
    ),
    Entry(
        "torch._functorch:config",
        Kind.MODULE,
        "Holds the switch that keeps a ``triton_op`` one node.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        alias="functorch_config",
    ),
    Entry(
        "torch:_from_functional_tensor",
        Kind.FUNCTION,
        "Reads the current value of a functional tensor.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("(a)",),
    ),
    Entry(
        "torch:_functionalize_has_data_mutation",
        Kind.FUNCTION,
        "Asks if an input was mutated.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("(a)",),
    ),
    Entry(
        "torch:_is_functional_tensor",
        Kind.FUNCTION,
        "Recognizes functional tensors among arguments.",
        without="arguments are not understood",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch:_sync",
        Kind.FUNCTION,
        "Applies pending mutations to a view.",
        without="graphs are not functionalized",
        off=Feature.FUNCTIONAL_GRAPHS,
        calls=("(a)",),
        alias="sync_functional",
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
