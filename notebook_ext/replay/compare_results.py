"""Descriptions of a cell's results, to compare them across processes."""

from __future__ import annotations

from typing import Any

import torch

MAX_ELEMENTS = 1_000_000
"""Number of elements of a tensor that are compared; of a larger one the first."""
TOLERANCE = 1e-4
"""Relative difference of equal results: an edit may change the order of a sum."""


def describe_values(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return rows (name, description) of the tensors and numbers in a value."""
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.layout is not torch.strided or value.device.type == "meta":
            return [(name, f"{value.dtype}{list(value.shape)}")]
        flat = value.detach().reshape(-1)[:MAX_ELEMENTS].double()
        finite = flat[flat.isfinite()]
        sums = [float(finite.sum()), float(finite.abs().sum()), float(finite.square().sum())]
        return [(name, [f"{value.dtype}{list(value.shape)}", flat.numel() - finite.numel(), *sums])]
    if isinstance(value, (bool, int, float, str)):
        return [(name, value if isinstance(value, float) else repr(value)[:200])]
    if isinstance(value, (list, tuple)):
        return [row for i, item in enumerate(value[:50]) for row in describe_values(f"{name}[{i}]", item)]
    return []


def first_difference(before: list[Any], after: list[Any]) -> str:
    """Return the first value of the cell that the edited cell changes or does not make."""
    edited = dict(map(tuple, after))
    for name, value in before:
        if name not in edited:
            return f"{name} is missing"
        if not _close(value, edited[name]):
            return f"{name} changes"
    return ""


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        scale = max(abs(a[3]), abs(b[3]), 1e-12)
        return a[:2] == b[:2] and all(
            abs(x - y) <= TOLERANCE * max(scale, abs(x)) for x, y in zip(a[2:], b[2:], strict=True)
        )
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
    return bool(a == b)
