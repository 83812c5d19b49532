"""The fake mode that graphs are traced under: torch's, save that views stay views of the very memory that they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, _BypassDispatchCache


class FakeMode(FakeTensorMode):
    """Keeps out of torch's cache of fake results the operators that return views without being marked as views (``prims.as_strided``).

    A result from the cache would lie over memory of its own; torch's forms of views of tensors without elements come to this.
    """

    def _validate_cache_key(self, func: Any, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if isinstance(func, torch._ops.OpOverload) and func.namespace == "prims" and _returns_view(func):
            raise _BypassDispatchCache("a view that is not marked as one")
        super()._validate_cache_key(func, args, kwargs)


def _returns_view(func: torch._ops.OpOverload) -> bool:
    return any(r.alias_info is not None for r in func._schema.returns)
