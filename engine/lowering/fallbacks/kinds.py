"""Kinds of ATen calls in a lowered program: reasons why a node is no kernel."""

from __future__ import annotations

import pathlib

from engine.ir.fallback import FallbackKind, FallbackRequired
from engine.ir.reason_catalog import ReasonCatalog

LOWERING_REASONS = ReasonCatalog(pathlib.Path(__file__).with_name("catalog"))


class LoweringFallback(FallbackKind, reasons=LOWERING_REASONS):
    """Why ATen runs a node. The page of the id has the cause, hints and programs."""

    NO_LOWERING = "no-lowering"
    LIBRARY_CALL = "library-call"
    ALLOCATION = "allocation"
    VALUE_CHECK = "value-check"
    RANDOM_IN_ATEN = "random-in-aten"
    READS_NUMBER = "reads-number"
    DATA_DEPENDENT_SIZE = "data-dependent-size"
    BOOLEAN_INDEX = "boolean-index"
    DATA_DEPENDENT_NUMBER = "data-dependent-number"
    SYMBOLIC_SIZE = "symbolic-size"
    SYMBOLIC_NUMBER = "symbolic-number"
    SYMBOLIC_SHIFT = "symbolic-shift"
    TOO_LARGE = "too-large"
    LARGE_WINDOW = "large-window"
    MANY_TENSORS = "many-tensors"
    LONG_SEQUENCE = "long-sequence"
    EMPTY_TENSOR = "empty-tensor"
    EMPTY_INPUT = "empty-input"
    EMPTY_INDEX = "empty-index"
    UNSUPPORTED_DTYPE = "unsupported-dtype"
    DTYPE_VIEW = "dtype-view"
    INTEGER_OPERANDS = "integer-operands"
    NEEDS_INTEGERS = "needs-integers"
    HALF_PRECISION = "half-precision"
    DOUBLE_PRECISION = "double-precision"
    NO_ATOMIC_ADD = "no-atomic-add"
    NUMBER_OUT_OF_RANGE = "number-out-of-range"
    COMPLEX_NUMBER = "complex-number"
    COMPLEX_CONVERSION = "complex-conversion"
    MIXED_DTYPES = "mixed-dtypes"
    MEMORY_LAYOUT = "memory-layout"
    OVERLAPPING_WRITE = "overlapping-write"
    ZERO_DIM = "zero-dim"
    OPERATOR_MODE = "operator-mode"
    EMBEDDING_OPTION = "embedding-option"
    DETERMINISTIC = "deterministic"
    MIXED_DEVICES = "mixed-devices"
    ERROR_IN_ATEN = "error-in-aten"
    INFERENCE_FAST_PATH = "inference-fast-path"
    FASTER_IN_ATEN = "faster-in-aten"
    FORCED = "forced"
    LOWERING_FAILED = "lowering-failed"


def lowering_hint(kind: str) -> str:
    """Return the first hint of a page, or an empty text for an id that is not given."""
    return LOWERING_REASONS[kind].advice[0] if kind else ""


class NotLowered(FallbackRequired):
    """The call has no lowering. ``reason`` is recorded; ATen runs it."""
