"""Inlining of ``torch.optim`` functions, although torch marks them ``disable_dynamo``."""

from __future__ import annotations

from types import CodeType, FunctionType

import torch

from engine.ir.reachable import reachable
from engine.trace.variables.callable_registry import DISABLE_DYNAMO_CODE

OPTIM_PACKAGE = "torch.optim"
_DYNAMO_ORIG_CALLABLE = "_torchdynamo_orig_callable"


def is_optimizer_module(module: str | None) -> bool:
    """Return True if a module name belongs to ``torch.optim``."""
    return module is not None and f"{module}.".startswith(f"{OPTIM_PACKAGE}.")


def unwrap_disabled_optimizer_function(fn: FunctionType) -> FunctionType | None:
    """Return the original function of a ``torch.optim`` function under ``disable_dynamo``.

    None for any other function.
    """
    # The wrapper of torch._disable_dynamo creates the disabled function at its first call.
    inner = fn.__dict__.get("__wrapped__" if fn.__code__ is DISABLE_DYNAMO_CODE else _DYNAMO_ORIG_CALLABLE)
    while _DYNAMO_ORIG_CALLABLE in getattr(inner, "__dict__", ()):
        inner = inner.__dict__[_DYNAMO_ORIG_CALLABLE]
    return inner if isinstance(inner, FunctionType) and is_optimizer_module(inner.__module__) else None


def _find_use_grad_code() -> CodeType | None:
    """Return the code around each optimizer's ``step``, whose handler restores grad mode."""
    steps = reachable([torch.optim.SGD.step], lambda f: [f.__wrapped__] if hasattr(f, "__wrapped__") else [])
    codes = (getattr(step, "__code__", None) for step in steps)
    return next((code for code in codes if code is not None and code.co_name == "_use_grad"), None)


USE_GRAD_CODE = _find_use_grad_code()
"""Code with a redundant handler: compiled code restores grad mode if a graph raises."""
