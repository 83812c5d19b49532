"""Fake tensors of inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.ir.introspection.fakeable_tensors import as_fakeable, plain_like_functorch_tensor
from engine.ir.introspection.stale_view_grad_fn import preserve_stale_grad_fn
from engine.ir.sources.base import Source
from engine.torch_private.functorch import is_functorch_wrapped_tensor
from engine.trace.annotations import Tracer
from engine.trace.variables.tensors.automatic_dynamic import (
    follow_specializations,
    symbolic_context,
    unify_inner_shapes,
)


def fakeify(tx: Tracer, tensor: torch.Tensor, source: Source) -> torch.Tensor:
    """Return the fake tensor of an input.

    It is an inference tensor only if the input is one, whatever mode the tracer is in.
    """
    if torch.is_inference_mode_enabled() and not tensor.is_inference():
        with torch.inference_mode(False):
            return fakeify(tx, tensor, source)
    with preserve_stale_grad_fn(tensor):
        plain = plain_like_functorch_tensor(tensor) if is_functorch_wrapped_tensor(tensor) else as_fakeable(tensor)
        context = symbolic_context(tx, plain, source)
        if context is None:
            return tx.symbols.fake_mode.from_tensor(plain, static_shapes=True, source=source)
        fake = tx.symbols.fake_mode.from_tensor(plain, source=source, symbolic_context=context)
        unify_inner_shapes(fake, plain)
        follow_specializations(tensor, fake)
        return fake


def symbolic_layout(fake: torch.Tensor) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Return sizes, strides and storage offset, with symbols."""
    return tuple(fake.shape), tuple(fake.stride()), fake.storage_offset() if fake.layout is torch.strided else 0
