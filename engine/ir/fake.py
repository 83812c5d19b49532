"""The fake mode that graphs are traced under: torch's, save that views stay views of the very memory that they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, _BypassDispatchCache
from torch.fx.experimental.symbolic_shapes import ShapeEnv


def fake_mode(shape_env: ShapeEnv) -> FakeTensorMode:
    """A mode that keeps out of torch's cache of fake results the operators that return views without being marked as views (``prims.as_strided``).

    A result from the cache would lie over memory of its own; torch's forms of views of tensors without elements come to this. The class
    stays torch's: rules of higher-order operators are looked up by it.
    """
    mode = FakeTensorMode(shape_env=shape_env)
    validate = mode._validate_cache_key

    def validate_views_too(func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if isinstance(func, torch._ops.OpOverload) and func.namespace == "prims" and _returns_view(func):
            raise _BypassDispatchCache("a view that is not marked as one")
        validate(func, args, kwargs)

    mode._validate_cache_key = validate_views_too  # type: ignore[method-assign]
    return mode


def _returns_view(func: torch._ops.OpOverload) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)
