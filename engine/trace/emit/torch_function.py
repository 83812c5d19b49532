"""``__torch_function__``: modes and classes may handle an operation before it is a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from engine.trace.annotations import Tracer
from engine.trace.variables.base import Args, Kwargs, Variable, realize

TorchFunctionHandler = Callable[[Tracer, str, Any, Args, Kwargs, list[Variable]], Variable | None]

_HANDLERS: list[TorchFunctionHandler] = []


def register_torch_function_handler(handler: TorchFunctionHandler) -> TorchFunctionHandler:
    """Register the function that calls the user's ``__torch_function__``.

    It gets the operation and its arguments that have the method.
    """
    _HANDLERS.append(handler)
    return handler


def is_torch_function_disabled(tx: Tracer) -> bool:
    """Return True if ``__torch_function__`` of classes is disabled, at frame entry or since."""
    return (
        bool(tx.torch_state.torch_function_disabled_depth)
        or not tx.torch_state.entry_global_state["torch_function_enabled"]
    )


def arguments_with_torch_function(tx: Tracer, values: Iterable[Variable]) -> Iterator[Variable]:
    """Yield the values whose class has ``__torch_function__``, also inside lists and tuples."""
    for value in values:
        real = realize(tx, value)
        if real.has_torch_function:
            yield real
        yield from arguments_with_torch_function(tx, real.argument_items())


def dispatch_torch_function(tx: Tracer, op: str, target: Any, args: Args, kwargs: Kwargs) -> Variable | None:
    """Dispatch an operation to the active modes and classes. None if no handler applies."""
    disabled = is_torch_function_disabled(tx)
    if disabled and not tx.torch_state.function_modes:
        return None
    special = [] if disabled else list(arguments_with_torch_function(tx, (*args, *kwargs.values())))
    if not special and not tx.torch_state.function_modes:
        return None
    (handle,) = _HANDLERS
    return handle(tx, op, target, args, kwargs, special)
