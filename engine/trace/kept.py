"""What caches from outside keep of what the traced code makes, and caches that are Python's to use."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from engine.trace.signals import Unsupported

if TYPE_CHECKING:
    from engine.trace.values.base import Value

_LEFT: weakref.WeakSet[Any] = weakref.WeakSet()
"""Caches from outside that were asked how often they were used, or of which something was changed that they hold."""


def is_left(cache: Any) -> bool:
    """Whether Python calls a cache, so that it knows what it holds and how often it was used."""
    return cache in _LEFT


def leave(cache: Any) -> None:
    """From now on Python calls a cache."""
    _LEFT.add(cache)


def forget_left() -> None:
    """Use all caches from outside in graphs again."""
    _LEFT.clear()


class Kept(NamedTuple):
    """Something made while tracing that a cache from outside keeps: later calls of it give the very same object."""

    value: Value
    cache: Any
    version: int
    """How often a tensor had been written to."""
    born: int
    """Which of the root's instructions called the cache."""

    def refused(self, how: str) -> Unsupported:
        """Python must call the cache: the code does with the object what later calls see."""
        leave(self.cache)
        reason = Unsupported("side-effect", f"{self.value.describe()}, which a cache gives to later calls too, {how}")
        reason.born = self.born
        return reason

    def is_written_to(self) -> bool:
        """Whether it is a tensor and was changed in place."""
        return self.version != written_to(self.value)


def written_to(value: Value) -> int:
    """How often a tensor was written to, as far as it counts that; of anything else 0."""
    fake = getattr(value, "fake", None)
    return fake._version if isinstance(fake, torch.Tensor) and not fake.is_inference() else 0
