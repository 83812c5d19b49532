"""Order of the AOT runtime wrappers, outermost first."""

from __future__ import annotations

from engine.aot.wrappers import (
    autograd_function,
    debug_assertions,
    dedup_inputs,
    disable_autocast,
    eager_conditions,
    effect_order,
    error_fallback,
    freed_history,
    input_mutations,
    output_aliases,
    synthetic_bases,
    tensor_subclasses,
)
from engine.aot.wrappers.base import FunctionalCall, TracedCall, Wrapper

TRACED_CALL_WRAPPERS: tuple[Wrapper[TracedCall], ...] = (
    debug_assertions,
    error_fallback,
    tensor_subclasses,
    dedup_inputs,
    synthetic_bases,
)
"""Wrappers that change the traced graph; each is a function around the next one."""

FUNCTIONAL_CALL_WRAPPERS: tuple[Wrapper[FunctionalCall], ...] = (
    eager_conditions,
    output_aliases,
    input_mutations,
    effect_order,
    disable_autocast,
    freed_history,
    autograd_function,
)
"""Wrappers that follow from the functional graph's metadata, joined in one function."""

WRAPPERS = (*TRACED_CALL_WRAPPERS, *FUNCTIONAL_CALL_WRAPPERS)
