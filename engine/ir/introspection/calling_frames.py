"""Python frames that call callables without bytecode, or functions traced as one call."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.utils.checkpoint

_TRANSFORMED_CODES = frozenset(
    id(transform(torch.dot).__code__)
    for transform in (torch.func.vmap, torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.jacfwd)
)
"""Ids of the code objects of functions that ``torch.func`` returns.

``hessian`` returns what ``jacfwd`` returns.
"""

_frame_codes: dict[int, types.CodeType] = {}
"""Code of the calling frames.

The key is the ``id`` of the innermost function's code, or of the callable.
"""


def is_traced_as_one_call(function: types.FunctionType) -> bool:
    """Return True for a function of torch whose bytecode is never traced, only its call.

    These are the functions that ``torch.func`` transformed, and activation checkpointing.
    """
    return id(function.__code__) in _TRANSFORMED_CODES or function is torch.utils.checkpoint.checkpoint


def is_calling_frame(code: types.CodeType) -> bool:
    """Return True for the code of a function that ``make_calling_frame`` made."""
    return code.co_freevars == ("subject",) and code.co_filename == __file__


def make_calling_frame(subject: Callable[..., Any]) -> types.FunctionType:
    """Return a Python function that calls ``subject`` with its own arguments.

    Two callables have frames with two code objects, and so two code caches. Transformed functions of one function
    share them.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return subject(*args, **kwargs)

    call.__name__ = getattr(subject, "__name__", call.__name__)
    call.__qualname__ = subject.__qualname__ if isinstance(subject, types.FunctionType) else call.__name__
    call.__doc__ = subject.__doc__
    made: Any = call
    made.__code__ = _code_for(subject, made)
    return cast("types.FunctionType", made)


def _code_for(subject: Callable[..., Any], call: types.FunctionType) -> types.CodeType:
    inner: Any = subject
    while isinstance(inner, types.FunctionType) and is_traced_as_one_call(inner) and hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    owner = inner.__code__ if isinstance(inner, types.FunctionType) else inner
    code = _frame_codes.get(id(owner))
    if code is None:
        code = call.__code__.replace(co_name=call.__name__, co_qualname=call.__qualname__)
        try:
            weakref.finalize(owner, _frame_codes.pop, id(owner), None).atexit = False
        except TypeError:  # without weak references, nothing says when the id is free again
            return code
        _frame_codes[id(owner)] = code
    return code
