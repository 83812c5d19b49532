"""Checks sizes that the user marked as dynamic with torch's functions, or gave ranges for."""

from __future__ import annotations

import torch

from engine import errors
from engine.torch_private.symbolic_shapes import ConstraintViolationError
from engine.torch_private.torch_function import DisableTorchFunctionSubclass
from engine.trace.annotations import Tracer
from engine.trace.symbols.symbol_locations import location_of
from engine.trace.variables.tensors.automatic_dynamic import (
    SPECIALIZATIONS_ATTR,
    check_in_range,
    dims_marked_in_torch,
    may_be_marked,
    size_ranges,
)

_STRICT_MARKS = ("_dynamo_dynamic_indices", "_dynamo_strict_unbacked_indices")
"""Marks whose dimensions traced code must not specialize."""


class _ConstraintViolation(errors.ConstraintViolation, ConstraintViolationError):
    """``ConstraintViolation`` that is also an instance of torch's own error class."""


def check_marked_dims(tx: Tracer) -> None:
    """Check that marked dimensions are in range, and that traced code specialized none.

    Raises:
        errors.ConstraintViolation: one is outside, or was specialized.
    """
    env = tx.symbols.shape_env
    inputs = [
        (v.real_object, v.source)
        for v, _ in tx.inputs.input_tensors
        if v.real_object is not None and (tx.options.dynamic_ranges or may_be_marked(v.real_object))
    ]
    for real, source in inputs:
        if source is not None:
            with DisableTorchFunctionSubclass():
                for dim, (low, high) in size_ranges(tx, real, source).items():
                    check_in_range(source, torch.Tensor.size(real, dim), low, high, dim)
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
        locations = [location for s in env.var_to_sources.get(symbol, ()) if (location := location_of(s)) in marked]
        if locations and became.is_number:
            source, dim = locations[0]
            raise _ConstraintViolation(source.expr, dim, int(became), () if cause.span is None else (cause.span,))
