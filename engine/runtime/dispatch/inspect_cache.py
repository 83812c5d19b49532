"""Inspection of a compiled function without running it: guards and cache hits."""

from __future__ import annotations

import functools
from typing import Any

import torch

from engine.errors import BadArgument
from engine.records.guards import CallExplanation, GuardsRecord
from engine.runtime.dispatch.codegen import bind_call_arguments
from engine.runtime.dispatch.compiled_modules import compiled_forward
from engine.runtime.dispatch.dispatcher import DispatcherState, dispatcher_state_of, reset
from engine.runtime.dispatch.what_if import explain_entries

__all__ = ["explain_call", "guards_by_entry", "is_compiled", "reset"]


def _resolve_dispatcher(f: Any) -> tuple[DispatcherState, tuple[Any, ...], dict[str, Any]]:
    """Return the dispatcher state that a call of ``f`` reaches, and the arguments ``f`` adds.

    Raises:
        BadArgument: ``f`` is not compiled.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    subject = f
    while True:
        state = dispatcher_state_of(subject)
        if state is not None:
            return state, args, kwargs
        if isinstance(subject, functools.partial):
            args, kwargs, subject = (*subject.args, *args), {**subject.keywords, **kwargs}, subject.func
            continue
        forward = compiled_forward(subject) if isinstance(subject, torch.nn.Module) else None
        subject = subject if forward is None else forward
        if not hasattr(subject, "__func__"):
            raise BadArgument(
                f"{getattr(f, '__qualname__', type(f).__name__)} is not compiled. Pass the function that engine.compile returned."
            )
        args, subject = (subject.__self__, *args), subject.__func__


def is_compiled(f: Any) -> bool:
    """Return True if this engine compiled the function or module."""
    try:
        _resolve_dispatcher(f)
    except BadArgument:
        return False
    return True


def guards_by_entry(f: Any) -> dict[str, GuardsRecord]:
    """Return the guards of each cache entry by its id, in lookup order.

    Raises:
        BadArgument: ``f`` is not compiled.
    """
    state, _, _ = _resolve_dispatcher(f)
    return {entry.id: state.compiler.guard_queries.record(entry) for entry in state.entries}


def explain_call(f: Any, *args: Any, **kwargs: Any) -> CallExplanation:
    """Return which entry the call would hit and, guard by guard, why the others fail.

    Runs nothing and does not reorder entries. A ``TensorSpec`` may replace a tensor anywhere in the arguments.

    Raises:
        BadArgument: ``f`` is not compiled.
        TypeError: the arguments do not match ``f``'s signature.
    """
    state, first, more = _resolve_dispatcher(f)
    scope = state.scope(bind_call_arguments(state.function, (*first, *args), {**more, **kwargs}))
    return explain_entries(state, scope)
