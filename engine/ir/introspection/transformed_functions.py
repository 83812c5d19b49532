"""Functions of torch whose calls are traced whole: transforms, checkpointing, ``apply``.

``autograd.Function.apply`` is a class method in Python until torch 2.13, then in C.
"""

from __future__ import annotations

import types
from typing import Any

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


_DESCRIPTOR: Any = vars(torch.autograd.Function)["apply"]

APPLY: Any = getattr(_DESCRIPTOR, "__func__", _DESCRIPTOR)
"""The function of the class method, or the C class method itself."""


def applied_function(obj: Any) -> type[torch.autograd.Function] | None:
    """Return the ``autograd.Function`` whose ``apply`` this bound method is, or None."""
    kind = type(obj)
    if kind is types.MethodType:
        return obj.__self__ if obj.__func__ is APPLY else None
    if kind is not types.BuiltinFunctionType or obj.__name__ != "apply":
        return None
    cls = obj.__self__
    is_function = isinstance(cls, type) and issubclass(cls, torch.autograd.Function)
    return cls if is_function and obj == bind_apply(cls) else None


def bind_apply(cls: type[torch.autograd.Function]) -> Any:
    """Return torch's own ``apply`` bound to a Function class, even if the class overrides it."""
    return _DESCRIPTOR.__get__(None, cls)
