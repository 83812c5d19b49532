"""Torch's private names for ``torch.func`` transforms and their wrapped tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.torch_private.entries import Feature, IfMissing, Kind, declare, load

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
    *IfMissing(
        "a compiled function could run inside a transform that it was not traced for", Feature.COMPILATION
    ).entries(
        declare("torch._C:_are_functorch_transforms_active", "Asks if a transform is active, at calls.", "()"),
    ),
    *IfMissing("arguments under a transform are not understood", Feature.COMPILATION).entries(
        declare("torch._C._functorch:get_unwrapped", "Reads the tensor inside of a wrapped one.", "(a)"),
        declare("torch._C._functorch:is_batchedtensor", "Recognizes tensors under vmap.", "(a)"),
        declare("torch._C._functorch:is_functorch_wrapped_tensor", "Recognizes tensors under a transform.", "(a)"),
    ),
    *IfMissing("a batched backward would run compiled", Feature.COMPILATION).entries(
        declare("torch._C._functorch:is_legacy_batchedtensor", "Recognizes batched gradients.", "(a)"),
    ),
    *IfMissing("a transform would be missed", Feature.COMPILATION).entries(
        declare("torch._C._functorch:peek_interpreter_stack", "Asks if a transform is active.", "()"),
    ),
    *IfMissing("the tracer's own calls would be transformed", Feature.COMPILATION).entries(
        declare("torch._C._functorch:pop_dynamic_layer_stack", "Takes a transform off the stack while tracing.", "()"),
        declare("torch._C._functorch:push_dynamic_layer_stack", "Puts a transform back on the stack.", "(a)"),
    ),
)

if not TYPE_CHECKING:
    load(globals(), ENTRIES)
