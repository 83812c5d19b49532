"""Places in sorted rows: bucketize and searchsorted, as a binary search that is written out."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.loops import Builder, Coordinates, Op
from engine.lowering.table import Lowering, NotLowered, Tensor, check_loopable, lowers, promoted, result_value, sizes_of

aten = torch.ops.aten

LONGEST = 1 << 16
"""Rows up to this length are searched by a kernel: each doubling adds a step to its text."""


def searched(
    low: Lowering, rows: Tensor, values: Any, sorter: Tensor | None, dtype: torch.dtype, *, right: bool
) -> Tensor:
    """The first place in the row of ``rows`` whose element is at least (``right``: more than) each value.

    Raises:
        NotLowered: rows are too long, or their length is not known.
    """
    check_loopable(rows, values)
    count = rows.shape[-1]
    if not isinstance(count, int) or not 0 < count <= LONGEST:
        raise NotLowered("a search in a row of symbolic, no or very great length is done by ATen")
    held = promoted((rows, values))[0] if isinstance(values, Tensor) else rows.dtype
    if isinstance(values, float) and not rows.dtype.is_floating_point:
        raise NotLowered("a fractional number among whole ones is searched by ATen")
    is_single = len(rows.shape) == 1

    def body(b: Builder, i: Coordinates) -> Op:
        wanted = b.cast(values.at(b, i), held) if isinstance(values, Tensor) else b.constant(values, held)
        lead = () if is_single else i[:-1]

        def row_at(place: Op) -> Op:
            where = b.picked(place, count, wraps=False, is_checked=False)
            if sorter is not None:
                where = b.picked(sorter.at(b, (*lead, where)), count, wraps=False)
            return b.cast(rows.at(b, (*lead, where)), held)

        start, end = b.constant(0, torch.int64), b.constant(count, torch.int64)
        one, two = b.constant(1, torch.int64), b.constant(2, torch.int64)
        for _ in range(count.bit_length()):
            middle = b.call("truncdiv", b.call("add", start, end), two)
            is_open = b.call("lt", start, end, dtype=torch.bool)
            found = b.masked(is_open, lambda at=middle: row_at(at), wanted)  # type: ignore[misc]
            # Not the opposite comparison: a value that is no number belongs behind all others.
            is_far = b.call("gt" if right else "ge", found, wanted, dtype=torch.bool)
            onward = b.both(is_open, b.call("not", is_far))
            start, end = (
                b.where(onward, b.call("add", middle, one), start),
                b.where(b.both(is_open, is_far), middle, end),
            )
        return b.cast(start, dtype)

    return low.pointwise(values.shape if isinstance(values, Tensor) else (), dtype, body)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    low: Lowering, values: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return searched(low, boundaries, values, None, result_value(low).dtype, right=right)


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    low: Lowering,
    rows: Tensor,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    return searched(low, rows, values, sorter, result_value(low).dtype, right=right or side == "right")


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(low: Lowering, repeats: Tensor, *, output_size: Any = None) -> Tensor:
    """The number of each element as often as it says: the first whose running sum is beyond the place."""
    if output_size is None or len(repeats.shape) != 1:
        raise NotLowered("how long the result is depends on the data")
    name, (size,) = low.node.name if low.node is not None else "repeated", sizes_of(result_value(low))
    count = repeats.shape[0]
    if not isinstance(count, int) or count > LONGEST:
        raise NotLowered("so many repeated elements are counted by ATen")
    wide = torch.int64
    each = low.pointwise((count,), wide, lambda b, i: b.cast(repeats.at(b, i), wide), name=f"{name}_counts")
    ends = low.scan("sum", (count,), 0, wide, each.at) if count > 1 else each
    places = low.pointwise((size,), wide, lambda b, i: b.cast(b.position(i[0]), wide), name=f"{name}_places")
    return searched(low, ends, places, None, result_value(low).dtype, right=True)
