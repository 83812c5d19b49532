"""Find inputs whose sizes or strides a traced graph changes in place; their old layout."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
import torch.fx.traceback

from engine.aot.storage_geometry import size_hint
from engine.ir.aot.aot_metadata import ViewSpec
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.traced_frame import GraphInput


def original_fake(i: GraphInput) -> torch.Tensor:
    """Return a tensor with the layout that an input had before the traced code changed it.

    It is created in the active fake mode.
    """
    shape, stride = (
        (i.example_value.shape, i.example_value.stride()) if i.original_layout is None else i.original_layout[:2]
    )
    return torch.empty_strided(tuple(shape), tuple(stride), dtype=i.example_value.dtype, device=i.example_value.device)


def is_layout_mutated(fake: torch.Tensor, real: Any) -> bool:
    """Return True if tracing changed an input's sizes, strides or offset.

    Examples are ``t_`` and ``unsqueeze_``. Symbols are compared by their size hints.
    """
    if not isinstance(real, torch.Tensor):
        return False
    if fake.layout != real.layout or fake.ndim != real.ndim:
        return True
    if not fake._has_symbolic_sizes_strides:
        return (fake.shape, fake.stride(), fake.storage_offset()) != (real.shape, real.stride(), real.storage_offset())
    pairs = [
        *zip(fake.shape, real.shape, strict=True),
        *zip(fake.stride(), real.stride(), strict=True),
        (fake.storage_offset(), real.storage_offset()),
    ]
    return any(size_hint(a) not in (None, b) for a, b in pairs)


_LAYOUT_OPS = frozenset(("t", "transpose", "swapaxes", "swapdims", "squeeze", "unsqueeze"))


def mutates_layout(n: torch.fx.Node) -> bool:
    """Return True if a traced node changes sizes or strides of a tensor in place."""
    facts = facts_of_node(n)
    return facts.writes_first and facts.name in _LAYOUT_OPS and n.args[0] in n.all_input_nodes


def mutated_layout(i: GraphInput) -> ViewSpec:
    """Return the layout that an input gets in place.

    The offset is relative to the original offset; both may be symbolic.
    """
    started = i.example_value.storage_offset() if i.original_layout is None else i.original_layout[2]
    return ViewSpec(tuple(i.fake.shape), tuple(i.fake.stride()), i.fake.storage_offset() - started)


def fake_at_entry(i: GraphInput) -> torch.Tensor:
    """Return the fake value of an input, with the layout it has when the call starts."""
    if not is_layout_mutated(i.fake, i.example_value):
        if i.fake.is_inference() and not torch.is_inference_mode_enabled():  # it is only read
            return torch.empty_strided(i.fake.shape, i.fake.stride(), dtype=i.fake.dtype, device=i.fake.device)
        base: torch.Tensor = i.fake.detach()
        return base
    return original_fake(i)
