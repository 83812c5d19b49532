"""Transforms of ``torch.func`` and their wrapped tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Entry, Feature, Kind, load

if TYPE_CHECKING:
    from torch._C import _are_functorch_transforms_active as are_functorch_transforms_active
    from torch._C._functorch import (
        get_unwrapped,
        is_batchedtensor,
        is_functorch_wrapped_tensor,
        is_legacy_batchedtensor,
        peek_interpreter_stack,
        pop_dynamic_layer_stack,
        push_dynamic_layer_stack,
    )

ENTRIES = (
    Entry(
        "torch._C:_are_functorch_transforms_active",
        Kind.FUNCTION,
        "Asks if a transform is active, at calls.",
        without="a compiled function could run inside a transform that it was not traced for",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C._functorch:get_unwrapped",
        Kind.FUNCTION,
        "Reads the tensor inside of a wrapped one.",
        without="arguments under a transform are not understood",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C._functorch:is_batchedtensor",
        Kind.FUNCTION,
        "Recognizes tensors under vmap.",
        without="arguments under a transform are not understood",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C._functorch:is_functorch_wrapped_tensor",
        Kind.FUNCTION,
        "Recognizes tensors under a transform.",
        without="arguments under a transform are not understood",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C._functorch:is_legacy_batchedtensor",
        Kind.FUNCTION,
        "Recognizes batched gradients.",
        without="a batched backward would run compiled",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
    Entry(
        "torch._C._functorch:peek_interpreter_stack",
        Kind.FUNCTION,
        "Asks if a transform is active.",
        without="a transform would be missed",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C._functorch:pop_dynamic_layer_stack",
        Kind.FUNCTION,
        "Takes a transform off the stack while tracing.",
        without="the tracer's own calls would be transformed",
        off=Feature.COMPILATION,
        calls=("()",),
    ),
    Entry(
        "torch._C._functorch:push_dynamic_layer_stack",
        Kind.FUNCTION,
        "Puts a transform back on the stack.",
        without="the tracer's own calls would be transformed",
        off=Feature.COMPILATION,
        calls=("(a)",),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
