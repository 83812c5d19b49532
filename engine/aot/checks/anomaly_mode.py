"""Anomaly mode in a call that needs gradients."""

from __future__ import annotations

import torch

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.ir.fallback import Fallback


def check_anomaly_mode(call: CheckedCall) -> Fallback | None:
    """Return a fallback if anomaly mode must report an operator of the backward."""
    if not torch.is_anomaly_enabled():
        return None
    return Fallback(
        AotFallback.ANOMALY_MODE, "anomaly mode reports the operator that returned NaN, which needs eager autograd"
    )
