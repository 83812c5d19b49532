"""Comparisons for the checks of exercises."""

from __future__ import annotations

import math
import numbers

import torch

from engine.records.session import Session

__all__ = ["as_number", "data_dependent_sizes", "is_close"]


def as_number(answer: object, name: str = "answer") -> float:
    """Return an answer as a number; a tensor with one element counts as its value.

    ``name``: what the message calls it.

    Raises:
        AssertionError: it is missing, or not a number.
    """
    if answer is None and name == "answer":
        raise AssertionError("put a number into answer.")
    if isinstance(answer, torch.Tensor) and answer.numel() == 1:
        answer = answer.item()
    if isinstance(answer, bool) or not isinstance(answer, numbers.Real):  # NumPy registers its scalars
        raise AssertionError(f"{name} should be a number, not {type(answer).__name__}.")  # noqa: TRY004
    if math.isnan(answer):
        raise AssertionError(f"{name} should be a number, not NaN.")
    return float(answer)


def is_close(result: object, wanted: torch.Tensor, tolerance: float = 1e-5) -> bool:
    """Return True for a tensor of the same shape and dtype with close values; NaN equals NaN."""
    if not isinstance(result, torch.Tensor) or result.shape != wanted.shape or result.dtype != wanted.dtype:
        return False
    return torch.allclose(result.detach(), wanted.detach(), rtol=tolerance, atol=tolerance, equal_nan=True)


def data_dependent_sizes(session: Session) -> list[str]:
    """Return the operations whose result has a size that depends on values, in order.

    In a graph traced for static shapes, every other size is a number.
    """
    return [
        node.text
        for compilation in session.compilations
        for node in (compilation.graphs[0].nodes if compilation.graphs else ())
        if any(not str(size).isdigit() for size in node.shape or ())
    ]
