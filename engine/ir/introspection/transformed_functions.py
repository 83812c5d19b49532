"""Functions of torch whose calls are traced whole: transforms and checkpointing."""

from __future__ import annotations

import types

import torch
import torch.utils.checkpoint

_TRANSFORMED_CODES = frozenset(
    id(transform(torch.dot).__code__)
    for transform in (torch.func.vmap, torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.jacfwd)
)
"""Ids of the code objects of functions that ``torch.func`` returns.

``hessian`` returns what ``jacfwd`` returns.
"""


def is_traced_as_one_call(function: types.FunctionType) -> bool:
    """Return True for a function of torch whose bytecode is never traced, only its call.

    These are the functions that ``torch.func`` transformed, and activation checkpointing.
    """
    return id(function.__code__) in _TRANSFORMED_CODES or function is torch.utils.checkpoint.checkpoint
