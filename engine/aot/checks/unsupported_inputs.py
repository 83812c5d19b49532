"""Inputs that the functional graph cannot take."""

from __future__ import annotations

import torch
import torch.fx

from engine.aot.storage_geometry import (
    storage_id,
)


def check_input_tensor(real: torch.Tensor, *, trains: bool) -> str:
    """Return why a tensor cannot be an input of a functional graph; empty if it can."""
    if type(real) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return f"a {type(real).__name__}, a tensor subclass"
    if real.layout != torch.strided or real.is_quantized or real.is_meta or real.is_mkldnn:
        return "not a strided tensor"
    if trains and real.is_inference():
        return "an inference tensor, which autograd cannot save for backward"
    if real.is_conj() or real.is_neg():
        return "a lazily conjugated or negated view"
    if real._base is not None and storage_id(real._base) != storage_id(real):
        return "a view whose storage differs from the storage of its base"
    return ""
