"""Offsets, extents and overlap of storages."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.aot.aot_metadata import IntOrSymInt, is_same_size


def storage_id(t: torch.Tensor) -> int:
    """Identity of a tensor's storage."""
    return int(t.untyped_storage()._cdata)


def offset_of(t: torch.Tensor) -> IntOrSymInt:
    """Where it starts in its storage, in elements."""
    return t.storage_offset()


def end_byte(t: torch.Tensor) -> int:
    """Where the memory that it sees ends, in bytes from the start of its storage; for static sizes."""
    reach = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
    return int(t.storage_offset() + reach) * t.element_size()


def start_byte(t: torch.Tensor) -> int:
    """Where it starts, in bytes from the start of its storage; for static sizes."""
    return int(t.storage_offset()) * t.element_size()


def is_dense(t: torch.Tensor) -> bool:
    """Whether it sees every element between its first and its last once; for static sizes."""
    return not has_internal_overlap(t) and (end_byte(t) - start_byte(t)) == t.numel() * t.element_size()


def is_same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors over one storage see the same elements by the same strides, as eager compares them before it writes."""
    return (a.dtype, a.shape, a.stride(), start_byte(a)) == (b.dtype, b.shape, b.stride(), start_byte(b))


_MAX_ENUMERATED_ELEMENTS = 1 << 16
"""Elements of which each is looked at."""


def is_disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors over one storage surely share no element; sizes with symbols are taken for what they are in this call."""
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
    """Where the elements lie in the storage."""
    places = {int(t.storage_offset())}
    for n, s in zip(t.shape, t.stride(), strict=True):
        places = {p + k * s for p in places for k in range(n)}
    return places


def size_hint(size: Any) -> int | None:
    """A size in the call that is being compiled, asking for no guard; None where only the running graph knows."""
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    return None if hint is None else int(hint)


def with_hint_sizes(t: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as one with symbols is in this call, over no memory; one without symbols, or with unknown ones, itself."""
    if not t._has_symbolic_sizes_strides:
        return t
    place = [size_hint(s) for s in (*t.shape, *t.stride(), t.storage_offset())]
    known = [s for s in place if s is not None]
    if len(known) != len(place):
        return t
    sizes, strides, offset = known[: t.dim()], known[t.dim() : -1], known[-1]
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    return torch.empty(max(reach, offset), dtype=t.dtype, device="meta").as_strided(sizes, strides, offset)


def has_internal_overlap(t: torch.Tensor) -> bool:
    """Whether two elements of a tensor may be the same memory; errs towards yes. Symbols are taken for what they are in this call."""
    here = [(size_hint(s), size_hint(n)) for n, s in zip(t.shape, t.stride(), strict=True) if not is_same_size(n, 1)]
    pairs = [(s, n) for s, n in here if s is not None and n is not None and n != 1]
    if any(s is None or n is None for s, n in here):  # known to the running graph only
        return any(s == 0 for s, _ in here)
    if any(n == 0 for _, n in pairs):
        return False
    reach = 0
    for s, n in sorted(pairs):
        if s <= reach:
            return True
        reach += (n - 1) * s
    return False
