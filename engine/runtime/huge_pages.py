"""Memory of large CPU results: huge pages, so that first writes cause few page faults."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch

MIN_BYTES = 1 << 23
"""Minimum bytes of a result in huge pages; the C library maps new memory for each one."""
SETTING = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
"""File with the system's choices, the one in force in brackets."""


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


def product_into(result: torch.Tensor, product: Callable[..., Any], *args: Any, **options: Any) -> torch.Tensor:
    """Write a product to a new tensor; return that with a version counter of 0."""
    product(*args, **options, out=result)
    return result.data


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    """Return ``madvise`` of the C library; None unless the system asks for advice."""
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    with contextlib.suppress(OSError, AttributeError):
        if "[madvise]" not in SETTING.read_text(encoding="ascii"):
            return None
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes, madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
        advise: Callable[[int, int, int], int] = madvise
        return advise
    return None
