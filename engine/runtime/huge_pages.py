"""Memory of large CPU results: huge pages, so that first writes cause few page faults."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable
from typing import Any

import torch

MIN_BYTES = 1 << 23
"""Minimum bytes of a result in huge pages; the C library maps new memory for each one."""


def empty_in_huge_pages(size: tuple[int, ...], stride: tuple[int, ...], **options: Any) -> torch.Tensor:
    """Return an uninitialized tensor whose pages are huge, where the system allows it."""
    tensor = torch.empty_strided(size, stride, **options)
    advise = _advise()
    if advise is not None:
        start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (tensor.data_ptr() + tensor.untyped_storage().nbytes() - start) // mmap.PAGESIZE * mmap.PAGESIZE
        if length > 0:
            advise(start, length, mmap.MADV_HUGEPAGE)
    return tensor


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    """Return ``madvise`` of the C library; None on a system without huge pages."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes, madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    advise: Callable[[int, int, int], int] = madvise
    return advise
