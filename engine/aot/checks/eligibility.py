"""Run every eligibility check and return why a graph cannot be functionalized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from engine.aot.checks.anomaly_mode import check_anomaly_mode
from engine.aot.checks.as_strided_bounds import check_as_strided_bounds
from engine.aot.checks.base import Check, CheckedCall
from engine.aot.checks.bool_alias_writes import check_bool_alias_writes
from engine.aot.checks.dtype_errors import check_dtype_errors
from engine.aot.checks.inference_tensor_views import check_inference_tensor_views
from engine.aot.checks.inference_tensor_writes import check_inference_tensor_writes
from engine.aot.checks.inter_output_grads import check_inter_output_grads
from engine.aot.checks.missing_kernels import check_missing_kernels
from engine.aot.checks.no_grad_views import check_no_grad_views
from engine.aot.checks.out_dtypes import check_out_dtypes
from engine.aot.checks.overlapping_writes import check_overlapping_writes
from engine.aot.checks.python_callables import check_python_callables
from engine.aot.checks.unsafe_views import check_unsafe_views
from engine.aot.checks.unsupported_inputs import check_unsupported_inputs
from engine.aot.checks.unsupported_ops import check_unsupported_ops
from engine.aot.checks.untracked_writes import check_untracked_writes
from engine.ir.fallback import Fallback

CHECKS: Mapping[Check, Callable[[CheckedCall], Any]] = {
    check_anomaly_mode: attrgetter("trains"),
    check_inter_output_grads: attrgetter("autograd_use"),
    check_unsupported_inputs: bool,
    check_unsupported_ops: bool,
    check_overlapping_writes: attrgetter("writes"),
    check_dtype_errors: bool,
    check_out_dtypes: attrgetter("writes"),
    check_untracked_writes: attrgetter("tracks_gradients"),
    check_no_grad_views: attrgetter("writes"),
    check_as_strided_bounds: attrgetter("addresses_storage"),
    check_bool_alias_writes: attrgetter("writes"),
    check_inference_tensor_views: attrgetter("has_inference_inputs"),
    check_inference_tensor_writes: attrgetter("has_inference_inputs"),
    check_unsafe_views: attrgetter("hides_aliases"),
    check_python_callables: attrgetter("changes_objects"),
    check_missing_kernels: bool,
}
"""All checks, each with the property of a call without which it finds nothing.

``bool`` stands for every call. The first check that finds a reason decides.
``check_missing_kernels`` runs kernels, so it comes last.
"""


def why_not_functional(call: CheckedCall) -> Fallback | None:
    """Return why this call must run as traced; None if it can be functionalized."""
    for check, applies in CHECKS.items():
        if applies(call) and (fallback := check(call)) is not None:
            return fallback
    return None
