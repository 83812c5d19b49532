"""Offsets, extents and overlap of storages."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.aot.aot_metadata import IntOrSymInt, is_same_size


def storage_id(t: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return int(t.untyped_storage()._cdata)


def offset_of(t: torch.Tensor) -> IntOrSymInt:
    """Return the storage offset of a tensor, in elements."""
    return t.storage_offset()


def end_byte(t: torch.Tensor) -> int:
    """Return the storage offset in bytes where a tensor ends; static sizes only."""
    reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    return int(t.storage_offset() + reach) * t.element_size()


def start_byte(t: torch.Tensor) -> int:
    """Return the storage offset in bytes where a tensor starts; static sizes only."""
    return int(t.storage_offset()) * t.element_size()


def is_dense(t: torch.Tensor) -> bool:
    """Return True if a tensor covers each element from first to last once; static sizes only."""
    return not has_internal_overlap(t) and (end_byte(t) - start_byte(t)) == t.numel() * t.element_size()


def is_same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if two tensors over one storage have the same elements and strides.

    Eager compares them like this before it writes.
    """
    return (a.dtype, a.shape, a.stride(), start_byte(a)) == (b.dtype, b.shape, b.stride(), start_byte(b))


_MAX_ENUMERATED_ELEMENTS = 1 << 16
"""Maximum number of elements to compare one by one."""


def is_disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if two tensors over one storage certainly share no element.

    Symbolic sizes are replaced by their size hints.
    """
    a, b = with_hint_sizes(a), with_hint_sizes(b)
    if a._has_symbolic_sizes_strides or b._has_symbolic_sizes_strides:
        return False
    if not a.numel() or not b.numel() or end_byte(a) <= start_byte(b) or end_byte(b) <= start_byte(a):
        return True
    if (
        a.element_size() != b.element_size()
        or max(end_byte(a), end_byte(b)) > _MAX_ENUMERATED_ELEMENTS * a.element_size()
    ):
        return False
    return not (_element_offsets(a) & _element_offsets(b))


def _element_offsets(t: torch.Tensor) -> set[int]:
    """Return each element's offset in the storage, in elements."""
    offsets = {int(t.storage_offset())}
    for n, s in zip(t.shape, t.stride(), strict=True):
        offsets = {p + k * s for p in offsets for k in range(n)}
    return offsets


def size_hint(size: Any) -> int | None:
    """Return the size hint of a size without adding a guard.

    It is None for an unbacked symbol, unless a check fixed its value.
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    hint = size.node.maybe_as_int() if size.node.hint is None else size.node.hint
    return None if hint is None else int(hint)


def with_hint_sizes(t: torch.Tensor) -> torch.Tensor:
    """Return a meta tensor whose layout has the size hints of a symbolic tensor.

    A tensor without symbols or with unbacked symbols is returned as it is.
    """
    if not t._has_symbolic_sizes_strides:
        return t
    hints = [size_hint(s) for s in (*t.shape, *t.stride(), t.storage_offset())]
    known_hints = [s for s in hints if s is not None]
    if len(known_hints) != len(hints):
        return t
    sizes, strides, offset = known_hints[: t.dim()], known_hints[t.dim() : -1], known_hints[-1]
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return torch.empty(max(reach, offset), dtype=t.dtype, device="meta").as_strided(sizes, strides, offset)


def has_internal_overlap(t: torch.Tensor) -> bool:
    """Return True if two elements of a tensor may share memory. Errs on the side of True.

    Symbols are replaced by their size hints.
    """
    strides_and_sizes = [
        (size_hint(s), size_hint(n)) for n, s in zip(t.shape, t.stride(), strict=True) if not is_same_size(n, 1)
    ]
    pairs = [(s, n) for s, n in strides_and_sizes if s is not None and n is not None and n != 1]
    if any(s is None or n is None for s, n in strides_and_sizes):  # unbacked symbols
        return any(s == 0 for s, _ in strides_and_sizes)
    if any(n == 0 for _, n in pairs):
        return False
    reach = 0
    for s, n in sorted(pairs):
        if s <= reach:
            return True
        reach += (n - 1) * s
    return False
