"""Buffers that end at a guard page: an access past the end stops the process at once."""

from __future__ import annotations

import ctypes
import mmap

import torch

from engine.runtime.verify.kernels_in_worker import BufferArgument, RedzonedBuffer

ALIGNMENT = 16
"""Bytes that the first element is aligned to, as in torch's allocator for kernels."""
_NO_ACCESS, _READ_ONLY = 0, 1
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect if hasattr(mmap, "PROT_READ") else None


class GuardedBuffer(RedzonedBuffer):
    """A buffer between two pages without access; the rest of its own pages is a redzone.

    A buffer that the kernel must not write is read-only.
    """

    def __init__(self, pointer: BufferArgument) -> None:
        super().__init__(pointer)
        if not pointer.written:
            start = self._memory.data_ptr()
            _protect(start, self._memory.nbytes, _READ_ONLY)

    @staticmethod
    def _allocate(extent: int, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        page, size = mmap.PAGESIZE, dtype.itemsize
        inner = -(-(extent * size + 1) // page) * page
        pages = mmap.mmap(-1, inner + 2 * page)
        memory = torch.frombuffer(pages, dtype=torch.uint8)
        first = memory.data_ptr()
        for guard in (first, first + page + inner):
            _protect(guard, page, _NO_ACCESS)
        start = (inner - extent * size) // max(ALIGNMENT, size) * max(ALIGNMENT, size)
        return memory[page : page + inner].view(dtype), start // size


def _protect(address: int, size: int, access: int) -> None:
    if _mprotect is not None and _mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), access):
        raise OSError(ctypes.get_errno(), "the pages of a kernel's argument cannot be protected")
