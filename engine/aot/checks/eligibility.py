"""Run every eligibility check and return why a graph cannot be functionalized."""

from __future__ import annotations

from engine.aot.checks.as_strided_bounds import check_as_strided_bounds
from engine.aot.checks.base import Check, CheckedCall
from engine.aot.checks.dtype_errors import check_dtype_errors
from engine.aot.checks.eager_autograd import check_anomaly_mode, check_inter_output_grads
from engine.aot.checks.missing_kernels import check_missing_kernels
from engine.aot.checks.overlapping_writes import check_overlapping_writes
from engine.aot.checks.shared_memory import (
    check_bool_alias_writes,
    check_inference_tensor_views,
    check_no_grad_views,
    check_unsafe_views,
    check_untracked_writes,
)
from engine.aot.checks.unsupported_ops import check_python_callables, check_unsupported_inputs, check_unsupported_ops
from engine.ir.fallback import Fallback

CHECKS: tuple[Check, ...] = (
    check_anomaly_mode,
    check_inter_output_grads,
    check_unsupported_inputs,
    check_unsupported_ops,
    check_overlapping_writes,
    check_dtype_errors,
    check_untracked_writes,
    check_no_grad_views,
    check_as_strided_bounds,
    check_bool_alias_writes,
    check_inference_tensor_views,
    check_unsafe_views,
    check_python_callables,
    check_missing_kernels,
)
"""All checks, in order; the first that finds a reason decides.

``check_missing_kernels`` runs kernels, so it comes last.
"""


def why_not_functional(call: CheckedCall) -> Fallback | None:
    """Return why this call must run as traced; None if it can be functionalized."""
    return next((fallback for check in CHECKS if (fallback := check(call)) is not None), None)
