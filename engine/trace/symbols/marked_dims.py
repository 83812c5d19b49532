"""Checks dimensions that the user marked as dynamic with torch's functions."""

from __future__ import annotations

from engine import errors
from engine.torch_private.symbolic_shapes import ConstraintViolationError
from engine.trace.annotations import Tracer
from engine.trace.symbols.symbol_records import place_of
from engine.trace.variables.tensors.automatic_dynamic import dims_marked_in_torch

_STRICT_MARKS = ("_dynamo_dynamic_indices", "_dynamo_strict_unbacked_indices")
"""Marks whose dimensions traced code must not specialize."""


class _ConstraintViolation(errors.ConstraintViolation, ConstraintViolationError):
    """The error that a handler of torch's own class catches too."""


def check_marked_dims(tx: Tracer) -> None:
    """Check that traced code specialized no dimension that the user marked.

    Raises:
        errors.ConstraintViolation: it did.
    """
    env = tx.symbols.shape_env
    marked = {
        (value.source, dim)
        for value, _ in tx.inputs.input_tensors
        if value.real_object is not None
        for dim in dims_marked_in_torch(value.real_object, _STRICT_MARKS)
    }
    if not marked:
        return
    for symbol, cause in env.specialization_causes.items():
        became = env.replace(symbol)
        places = [place for s in env.var_to_sources.get(symbol, ()) if (place := place_of(s)) in marked]
        if places and became.is_number:
            source, dim = places[0]
            raise _ConstraintViolation(source.expr, dim, int(became), () if cause.span is None else (cause.span,))
