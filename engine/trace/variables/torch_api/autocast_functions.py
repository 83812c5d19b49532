"""Rules for the functions that ``torch.autocast`` calls: each sets or reads one switch.

Reads are guarded. A write takes effect while tracing and is a node of the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.torch_global_state import AUTOCAST_DEVICES, GLOBAL_STATES
from engine.ir.register_once import register_table
from engine.trace.annotations import Tracer
from engine.trace.emit.effects import emit_effect, switch_state
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.torch_api.torch_functions import guard_global_state

_STATES = ("autocast", "autocast_settings", "autocast_nesting")


def _restorer() -> Callable[[], None]:
    """Return a function that restores the present state of autocast."""
    devices = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES]
    is_cache_enabled = torch.is_autocast_cache_enabled()

    def restore() -> None:
        for device, enabled, dtype in devices:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(is_cache_enabled)

    return restore


_SWITCHES: dict[Any, Any] = {
    torch.set_autocast_enabled: None,
    torch.set_autocast_dtype: None,
    torch.set_autocast_cpu_enabled: None,
    torch.set_autocast_cpu_dtype: None,
    torch.set_autocast_gpu_dtype: None,
    torch.set_autocast_cache_enabled: None,
    torch.autocast_increment_nesting: torch.autocast_decrement_nesting,
    torch.autocast_decrement_nesting: torch.autocast_increment_nesting,
}


@register_table(register_rule, _SWITCHES)
def _switch_autocast(
    switch: Callable[..., Any], undo: Callable[[], Any] | None, tx: Tracer, args: Args, kwargs: Kwargs
) -> Variable:
    """Register a function that changes the state; ``undo`` reverts it if it is a counter."""
    run = functools.partial(switch, *tx.as_python_constants(args), **tx.as_python_keywords(kwargs))
    for state in _STATES:
        value = tx.torch_state.entry_global_state.setdefault(state, GLOBAL_STATES[state].read())
        guard_global_state(tx, state, value)
    return switch_state(tx, switch.__name__, run, undo or _restorer())


@register_rule(torch.clear_autocast_cache)
def _clear_cache(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Clear the cache in the graph only: while tracing it holds no tensor of the graph."""
    emit_effect(tx, GraphCallable("clear_autocast_cache", torch.clear_autocast_cache, changes_state=True))
    return NONE


for _ask in (
    torch.get_autocast_dtype,
    torch.get_autocast_cpu_dtype,
    torch.get_autocast_gpu_dtype,
    torch.is_autocast_cache_enabled,
):

    def _read(tx: Tracer, args: Args, kwargs: Kwargs, ask: Any = _ask) -> Variable:
        guard_global_state(tx, "autocast_settings", GLOBAL_STATES["autocast_settings"].read())
        return ConstantVariable(ask(*tx.as_python_constants(args), **tx.as_python_keywords(kwargs)))

    register_rule(_ask)(_read)
