"""Checks dimensions that the user marked as dynamic with torch's functions."""

from __future__ import annotations

import torch

from engine import errors
from engine.ir.sources.base import Source
from engine.torch_private.symbolic_shapes import ConstraintViolationError
from engine.trace.annotations import Tracer
from engine.trace.symbols.symbol_records import place_of
from engine.trace.variables.tensors.automatic_dynamic import (
    SPECIALIZATIONS_ATTR,
    dims_marked_in_torch,
    ranges_marked_in_torch,
)

_STRICT_MARKS = ("_dynamo_dynamic_indices", "_dynamo_strict_unbacked_indices")
"""Marks whose dimensions traced code must not specialize."""


class _ConstraintViolation(errors.ConstraintViolation, ConstraintViolationError):
    """The error that a handler of torch's own class catches too."""


class _SizeOutOfRange(errors.SizeOutOfRange, ConstraintViolationError):
    """The error that a handler of torch's own class catches too."""


def _check_range(tensor: torch.Tensor, source: Source) -> None:
    for dim, (low, high) in ranges_marked_in_torch(tensor).items():
        size = tensor.shape[dim]
        if (low is not None and size < low) or (high is not None and size > high):
            raise _SizeOutOfRange(source.expr, dim, size, low, high)


def check_marked_dims(tx: Tracer) -> None:
    """Check that marked dimensions are in range, and that traced code specialized none.

    Raises:
        errors.ConstraintViolation: one is outside, or was specialized.
    """
    env = tx.symbols.shape_env
    inputs = [(v.real_object, v.source) for v, _ in tx.inputs.input_tensors if v.real_object is not None]
    for real, source in inputs:
        if source is not None:
            _check_range(real, source)
    marked = {
        (source, dim)
        for real, source in inputs
        for dim in dims_marked_in_torch(real, _STRICT_MARKS)
        if not getattr(real, SPECIALIZATIONS_ATTR, {}).get(dim)
    }
    if not marked:
        return
    for symbol, cause in env.specialization_causes.items():
        became = env.replace(symbol)
        places = [place for s in env.var_to_sources.get(symbol, ()) if (place := place_of(s)) in marked]
        if places and became.is_number:
            source, dim = places[0]
            raise _ConstraintViolation(source.expr, dim, int(became), () if cause.span is None else (cause.span,))
