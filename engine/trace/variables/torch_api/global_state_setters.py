"""Setters of torch's global state as graph nodes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.fx

from engine.ir.introspection.torch_global_state import GLOBAL_STATES
from engine.trace.state.torch_state_snapshot import TorchStateSnapshot
from engine.trace.variables.base import NONE, Variable
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.torch_api.torch_generators import Args, Kwargs, emit_state_effect

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


class _RestoreTorchState:
    """Restores torch's global state when tracing ends."""

    def __init__(self) -> None:
        self._before = TorchStateSnapshot.capture()

    def __exit__(self, *_: object) -> None:
        self._before.restore()


_SETTABLE_STATES = (
    "default_dtype",
    "deterministic",
    "deterministic_warn_only",
    "float32_matmul_precision",
    "attention_kernels",
)
"""States that the functions below set. The compiled code guards their values at entry."""


def register_state_setter(switch: Callable[..., None]) -> None:
    """Register a function that sets a piece of torch's global state to a constant.

    It takes effect while tracing and in the graph.
    """

    @register_rule(switch)
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        given, named = (
            tx.as_python_constants(args),
            dict(zip(kwargs, tx.as_python_constants(kwargs.values()), strict=True)),
        )
        for state in _SETTABLE_STATES:
            tx.torch_state.entry_global_state.setdefault(state, GLOBAL_STATES[state].read())
        tx.torch_state.contexts_to_exit.append(_RestoreTorchState())
        tx.fold_constant(switch, *given, **named)
        emit_state_effect(tx, switch.__name__, functools.partial(switch, *given, **named), [])
        return NONE


for _switch in (
    torch.set_default_dtype,
    torch.use_deterministic_algorithms,
    torch.set_deterministic_debug_mode,
    torch.set_float32_matmul_precision,
):
    register_state_setter(_switch)
