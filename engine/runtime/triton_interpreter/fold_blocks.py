"""Reductions and scans of Triton's interpreter that combine whole blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def reduce_by_halves(reduce_elements: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction that combines neighbors along the axis until one is left.

    ``reduce_elements`` calls the combine function once an element; it takes over where the function rejects blocks.
    """

    def reduce(ops: Any, blocks: Any) -> Any:
        import numpy as np

        data = [block.handle.data for block in blocks]
        parts = [values.ravel() if ops.axis is None else np.moveaxis(values, ops.axis, 0) for values in data]
        try:
            while len(parts[0]) > 1:
                parts = _combine(ops, blocks, [part[::2] for part in parts], [part[1::2] for part in parts])
        except Exception:  # the function needs scalars; what it raises on them too is raised there
            return reduce_elements(ops, blocks)
        dims = tuple(range(data[0].ndim)) if ops.axis is None else ops.axis
        results = [np.expand_dims(part[0], dims) if ops.keep_dims else part[0] for part in parts]
        return [ops.to_tensor(result, block.dtype) for result, block in zip(results, blocks, strict=True)]

    return reduce


def scan_by_doubling(scan_elements: Callable[..., Any]) -> Callable[..., Any]:
    """Return a scan that combines each element with the one 1, 2, 4 ... before it.

    ``scan_elements`` calls the combine function once an element; it takes over where the function rejects blocks.
    """

    def scan(ops: Any, blocks: Any) -> Any:
        import numpy as np

        parts = [np.moveaxis(block.handle.data, ops.axis, 0) for block in blocks]
        distance = 1
        try:
            while distance < len(parts[0]):
                combined = _combine(ops, blocks, [np.roll(part, distance, 0) for part in parts], parts)
                parts = [
                    np.concatenate((part[:distance], new[distance:])) for part, new in zip(parts, combined, strict=True)
                ]
                distance *= 2
        except Exception:  # the function needs scalars; what it raises on them too is raised there
            return scan_elements(ops, blocks)
        return [ops.to_tensor(np.moveaxis(p, 0, ops.axis), b.dtype) for p, b in zip(parts, blocks, strict=True)]

    return scan


def _combine(ops: Any, blocks: Any, left: list[Any], right: list[Any]) -> list[Any]:
    """Apply the combine function to pairs of elements; return arrays of the operands' types."""
    operands = [
        ops.to_tensor(part, block.dtype) for side in (left, right) for part, block in zip(side, blocks, strict=True)
    ]
    combined = ops.combine_fn.fn(*operands)
    results = combined if len(left) > 1 else (combined,)
    return [
        result.handle.data.astype(part.dtype).reshape(part.shape) for result, part in zip(results, left, strict=True)
    ]
