"""Inputs that the functional graph cannot take."""

from __future__ import annotations

import torch

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.layout_mutation import is_layout_mutated
from engine.aot.storage_geometry import storage_id
from engine.ir.fallback import Fallback


def check_unsupported_inputs(call: CheckedCall) -> Fallback | None:
    """Return a fallback if a value cannot be an input of a functional graph."""
    for i in call.inputs:
        real = i.example_value
        if not i.has_real_tensor:
            continue
        if unsupported := _why_unsupported(real, trains=call.trains):
            kind, description = unsupported
            return Fallback(kind, f"{i.name} is {description}")
        if real.requires_grad and is_layout_mutated(i.fake, real):
            return Fallback(
                AotFallback.LAYOUT_MUTATION_NEEDS_GRAD,
                f"an in-place operation changes the shape or strides of {i.name}, which requires grad",
            )
    return None


def _why_unsupported(real: torch.Tensor, *, trains: bool) -> tuple[AotFallback, str] | None:
    if type(real) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return AotFallback.SUBCLASS_INPUT, f"a {type(real).__name__}, a tensor subclass"
    if real.layout != torch.strided or real.is_quantized or real.is_meta or real.is_mkldnn:
        return AotFallback.NON_STRIDED_INPUT, "not a strided tensor"
    if trains and real.is_inference():
        description = "an inference tensor, which autograd cannot save for backward"
        return AotFallback.INFERENCE_INPUT_NEEDS_GRAD, description
    if real.is_conj() or real.is_neg():
        return AotFallback.LAZY_CONJUGATE_INPUT, "a lazily conjugated or negated view"
    if real._base is not None and storage_id(real._base) != storage_id(real):
        return AotFallback.REPLACED_STORAGE_INPUT, "a view whose storage differs from the storage of its base"
    return None
