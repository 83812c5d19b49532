"""Functional tensors: wrappers of the values that a graph is traced with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from engine.torch_private.functionalization import FunctionalTensor, from_functional_tensor, sync_functional


def functional_tensors(values: Iterable[Any]) -> list[FunctionalTensor]:
    """Return the functional tensors among some values."""
    return [v for v in values if isinstance(v, FunctionalTensor)]


def unwrap_functional(t: FunctionalTensor) -> torch.Tensor:
    """Return the traced value of a functional tensor, after applying pending mutations."""
    sync_functional(t)
    plain: torch.Tensor = from_functional_tensor(t.elem)
    return plain
