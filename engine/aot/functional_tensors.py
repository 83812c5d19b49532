"""Functional tensors: wrappers of traced values, also inside tensor subclasses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from engine.ir.node_values import tensors_in
from engine.torch_private.dispatch import is_traceable_wrapper_subclass
from engine.torch_private.functionalization import FunctionalTensor, from_functional_tensor, sync_functional


def functional_tensors(values: Iterable[Any]) -> list[FunctionalTensor]:
    """Return the functional tensors among some values."""
    return [v for v in values if isinstance(v, FunctionalTensor)]


def unwrap_functional(t: FunctionalTensor) -> torch.Tensor:
    """Return the traced value of a functional tensor, after applying pending mutations."""
    sync_functional(t)
    plain: torch.Tensor = from_functional_tensor(t.elem)
    return plain


def innermost_tensors(t: Any) -> Iterator[Any]:
    """Yield the plain tensors inside a wrapper subclass; a plain tensor itself."""
    if not is_traceable_wrapper_subclass(t):
        yield t
        return
    for part in tensors_in([getattr(t, name) for name in t.__tensor_flatten__()[0]]):
        yield from innermost_tensors(part)
