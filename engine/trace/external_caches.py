"""What caches from outside keep of what the traced code makes, and caches that are Python's to use."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from engine.trace.exc import Unsupported

if TYPE_CHECKING:
    from engine.trace.variables.base import Variable

_OPAQUE_CACHES: weakref.WeakSet[Any] = weakref.WeakSet()
"""Caches from outside that were asked how often they were used, or of which something was changed that they hold."""


def is_opaque_cache(cache: Any) -> bool:
    """Whether Python calls a cache, so that it knows what it holds and how often it was used."""
    return cache in _OPAQUE_CACHES


def mark_cache_opaque(cache: Any) -> None:
    """From now on Python calls a cache."""
    _OPAQUE_CACHES.add(cache)


def reset_opaque_caches() -> None:
    """Use all caches from outside in graphs again."""
    _OPAQUE_CACHES.clear()


class ExternallyCached(NamedTuple):
    """Something made while tracing that a cache from outside keeps: later calls of it give the very same object."""

    variable: Variable
    cache: Any
    version: int
    """How often a tensor had been written to."""
    created_at: int
    """Which of the root's instructions called the cache."""

    def unsupported(self, how: str) -> Unsupported:
        """Python must call the cache: the code does with the object what later calls see."""
        mark_cache_opaque(self.cache)
        reason = Unsupported(
            "side-effect", f"{self.variable.describe()}, which a cache gives to later calls too, {how}"
        )
        reason.created_at = self.created_at
        return reason

    def is_mutated(self) -> bool:
        """Whether it is a tensor and was changed in place."""
        return self.version != version_of(self.variable)


def version_of(value: Variable) -> int:
    """How often a tensor was written to, as far as it counts that; of anything else 0."""
    fake = getattr(value, "fake", None)
    return fake._version if isinstance(fake, torch.Tensor) and not fake.is_inference() else 0
