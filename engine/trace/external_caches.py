"""External caches, such as ``lru_cache`` functions created before the call.

The module records variables that they retain, and caches that Python must call.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

from engine.trace.annotations import Variable
from engine.trace.exc import Unsupported

_OPAQUE_CACHES: weakref.WeakSet[Any] = weakref.WeakSet()
"""Opaque caches: their statistics were read, or an object that they hold was mutated."""


def is_opaque_cache(cache: Any) -> bool:
    """Return True if Python calls the cache, so that its entries and statistics are right."""
    return cache in _OPAQUE_CACHES


def mark_cache_opaque(cache: Any) -> None:
    """Mark a cache as opaque: from now on Python calls it."""
    _OPAQUE_CACHES.add(cache)


def reset_opaque_caches() -> None:
    """Clear the set of opaque caches: the tracer inlines them again."""
    _OPAQUE_CACHES.clear()


class ExternallyCached(NamedTuple):
    """A variable created while tracing that an external cache holds.

    Later calls of the cache return the same object.
    """

    variable: Variable
    cache: Any
    version: int
    """Version of the tensor when it was cached; 0 for other variables."""
    created_at: int
    """Number of the root frame's instruction that called the cache."""

    def graph_break(self, description: str) -> Unsupported:
        """Return the reason for a graph break at the cached call.

        The code uses the object in a way that later calls can observe. Therefore the cache becomes opaque.
        """
        mark_cache_opaque(self.cache)
        what = f"{self.variable.describe()}, which a cache also returns to later calls, {description}"
        return Unsupported("function-cache", what, created_at=self.created_at)

    def is_mutated(self) -> bool:
        """Return True if the variable is a tensor that was mutated in place."""
        return self.version != version_of(self.variable)


def version_of(value: Variable) -> int:
    """Return the version counter of a tensor; 0 for inference tensors and anything else."""
    fake = getattr(value, "fake", None)
    return fake._version if isinstance(fake, torch.Tensor) and not fake.is_inference() else 0
