"""Torch's private names for ``torch.func`` transforms and their wrapped tensors."""

from typing import TYPE_CHECKING

from engine.torch_private.entries import load_into

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

ENTRIES = load_into(globals())("""
If missing, a compiled function could run inside a transform that it was not traced for (COMPILATION):
    function torch._C:_are_functorch_transforms_active () -- Asks if a transform is active, at calls.
If missing, arguments under a transform are not understood (COMPILATION):
    function torch._C._functorch:get_unwrapped (a) -- Reads the tensor inside of a wrapped one.
    function torch._C._functorch:is_batchedtensor (a) -- Recognizes tensors under vmap.
    function torch._C._functorch:is_functorch_wrapped_tensor (a) -- Recognizes tensors under a transform.
If missing, a batched backward would run compiled (COMPILATION):
    function torch._C._functorch:is_legacy_batchedtensor (a) -- Recognizes batched gradients.
If missing, a transform would be missed (COMPILATION):
    function torch._C._functorch:peek_interpreter_stack () -- Asks if a transform is active.
If missing, the tracer's own calls would be transformed (COMPILATION):
    function torch._C._functorch:pop_dynamic_layer_stack () -- Takes a transform off the stack while tracing.
    function torch._C._functorch:push_dynamic_layer_stack (a) -- Puts a transform back on the stack.
""")
