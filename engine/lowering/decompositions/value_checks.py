"""Checks of values that an operator makes on the CPU and its decomposition lacks.

The decomposed graph raises eager's error. On a GPU eager does not check, or stops the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _require(holds: torch.Tensor, message: str) -> None:
    """Raise ``message`` unless all elements are true."""
    aten._assert_async.msg(holds.all(), message)


def _check_probabilities(value: torch.Tensor, target: torch.Tensor, *_: Any) -> None:
    """Check the operands of ``binary_cross_entropy``."""
    for name, tensor in (("input", value), ("target", target)):
        _require((tensor >= 0) & (tensor <= 1), f"all elements of {name} should be between 0 and 1")


def _check_zero_points(
    _: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, axis: int, least: int, most: int
) -> None:
    """Check the zero points of a fake quantization by channels; only integers have limits."""
    if not zero.is_floating_point():
        _require((zero >= least) & (zero <= most), "`zero_point` must be between `quant_min` and `quant_max`.")


VALUE_CHECKS: dict[Any, Callable[..., None]] = {
    aten.binary_cross_entropy.default: _check_probabilities,
    aten.fake_quantize_per_channel_affine_cachemask.default: _check_zero_points,
}
"""Check of each operator, called with the operator's arguments."""
