"""Give freed memory back to the operating system."""

from __future__ import annotations

import ctypes
import os

_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
"""A function of glibc; other C libraries return memory by themselves or not at all."""


def trim_heap() -> None:
    """Return the pages of freed blocks to the operating system.

    After large temporary tensors glibc keeps them, which counts against the memory limit of a learner's container.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)
