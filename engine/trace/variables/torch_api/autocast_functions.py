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
from engine.trace.annotations import Tracer
from engine.trace.emit.effects import emit_effect
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.torch_api.torch_functions import guard_global_state

_STATES = ("autocast", "autocast_settings", "autocast_nesting")


class _RestoreAutocast:
    """Restores the state of autocast when tracing ends."""

    def __init__(self) -> None:
        self._devices = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES]
        self._is_cache_enabled = torch.is_autocast_cache_enabled()

    def __exit__(self, *_: object) -> None:
        for device, enabled, dtype in self._devices:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._is_cache_enabled)


class _Undo:
    """Calls a function when tracing ends."""

    def __init__(self, undo: Callable[[], Any]) -> None:
        self._undo = undo

    def __exit__(self, *_: object) -> None:
        self._undo()


def _run_now_and_in_graph(tx: Tracer, switch: Callable[..., Any], undo: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Call a function now and in the graph; ``undo`` is exited when tracing ends."""
    if tx.in_subgraph():
        raise Unsupported("higher-order-side-effect", f"{switch.__name__} is called in a higher-order operator's body")
    given, named = tx.as_python_constants(args), tx.as_python_keywords(kwargs)
    for state in _STATES:
        value = tx.torch_state.entry_global_state.setdefault(state, GLOBAL_STATES[state].read())
        guard_global_state(tx, state, value)
    tx.torch_state.contexts_to_exit.append(undo)
    found = tx.fold_constant(switch, *given, **named)
    run = functools.partial(switch, *given, **named)
    emit_effect(tx, GraphCallable(switch.__name__, run, changes_state=True))
    tx.side_effects.mutation_count += 1
    return found


def _register_setter(switch: Callable[..., None]) -> None:
    @register_rule(switch)
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return _run_now_and_in_graph(tx, switch, _RestoreAutocast(), args, kwargs)


for _switch in (
    torch.set_autocast_enabled,
    torch.set_autocast_dtype,
    torch.set_autocast_cpu_enabled,
    torch.set_autocast_cpu_dtype,
    torch.set_autocast_gpu_dtype,
    torch.set_autocast_cache_enabled,
):
    _register_setter(_switch)


@register_rule(torch.autocast_increment_nesting)
def _increment(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    undo = _Undo(torch.autocast_decrement_nesting)
    return _run_now_and_in_graph(tx, torch.autocast_increment_nesting, undo, args, kwargs)


@register_rule(torch.autocast_decrement_nesting)
def _decrement(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    undo = _Undo(torch.autocast_increment_nesting)
    return _run_now_and_in_graph(tx, torch.autocast_decrement_nesting, undo, args, kwargs)


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
