"""Guards and values that the tests of this stage share."""

from __future__ import annotations

from typing import Any

import torch

from engine.guards.codegen import compile_check
from engine.ir.guards.base import Guard
from engine.ir.guards.global_state import GLOBAL_STATES, TORCH_SOURCE, GlobalStateMatch
from engine.ir.guards.tensors import TensorMatch, dispatch_keys_of
from engine.ir.sources.base import FrameScope, Source
from engine.ir.sources.roots import LocalSource


def current_global_state_guards() -> tuple[GlobalStateMatch, ...]:
    """Return one guard for each item of torch's global state, with its current value."""
    return tuple(GlobalStateMatch(TORCH_SOURCE, state.name, state.read()) for state in GLOBAL_STATES.values())


def tensor_match(origin: Source, tensor: torch.Tensor, symbols: tuple[int, ...] = ()) -> TensorMatch:
    """What tracing takes from a tensor; ``symbols`` are dimensions that are not static."""
    return TensorMatch(
        origin,
        type(tensor),
        tensor.dtype,
        tensor.device,
        tensor.layout,
        tensor.requires_grad,
        tuple(None if i in symbols else s for i, s in enumerate(tensor.shape)),
        tuple(tensor.stride()) if tensor.layout is torch.strided else (),
        dispatch_keys_of(tensor),
    )


def two_tensors() -> tuple[Guard, ...]:
    """Guards of a function of two small tensors, as the tracer makes them."""
    x = torch.zeros(4, 16)
    return (*current_global_state_guards(), tensor_match(LocalSource("x"), x), tensor_match(LocalSource("y"), x))


def guard_passes(guard: Guard, **values: Any) -> bool:
    """Whether a check with this one guard admits these arguments."""
    return compile_check((guard,), tuple(values)).check((), *values.values())


def frame_scope(**values: Any) -> FrameScope:
    """A scope with these arguments."""
    return FrameScope(values)
