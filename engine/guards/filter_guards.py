"""Filter of guards: ``guard_filter_fn`` sees each guard in the form of torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import BadArgument
from engine.ir.compiler_protocol import CompileRequest
from engine.ir.guards.base import Guard
from engine.ir.sources.base import FrameScope, Source

MISSING_VALUE = object()
TORCH_TYPES = {
    "type": "TYPE_MATCH",
    "id": "ID_MATCH",
    "equals": "EQUALS_MATCH",
    "length": "SEQUENCE_LENGTH",
    "dict keys": "DICT_KEYS_MATCH",
    "hasattr": "HASATTR",
    "code": "CLOSURE_MATCH",
    "shape relation": "SHAPE_ENV",
    "same object": "DUPLICATE_INPUT",
    "tensor": "TENSOR_MATCH",
    "tensor subclass": "TENSOR_SUBCLASS_METADATA_MATCH",
}
"""Kind of guard in torch.compile by the kind here, but for properties of tensors."""


@dataclass(frozen=True)
class FilteredSource:
    """The source of a guard, with the methods that torch's own filters call."""

    name: str
    modules: tuple[torch.nn.Module, ...]
    """The modules among the guarded value and the objects that it is read from."""

    def is_unspecialized_nn_module(self) -> bool:
        """Return True if the value is a module or read from one."""
        return bool(self.modules)

    def is_unspecialized_builtin_nn_module(self) -> bool:
        """Return True if a module of a class of torch is among them."""
        return any(type(m).__module__.startswith(("torch.nn.", "torch.ao.")) for m in self.modules)


@dataclass(frozen=True)
class FilteredGuard:
    """Holder of a guard's source, where torch's filters read it."""

    source: FilteredSource


@dataclass(frozen=True)
class FilterEntry:
    """One guard, with the attributes of torch's ``GuardFilterEntry``."""

    name: str
    has_value: bool
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: FilteredGuard


def filter_guards(
    guards: tuple[Guard, ...], keeps: Callable[[Sequence[FilterEntry]], Sequence[bool]], request: CompileRequest
) -> tuple[Guard, ...]:
    """Return the guards that the user's filter keeps.

    Raises:
        BadArgument: the filter raised an error, or returned anything but one flag for each guard.
    """
    if not guards:
        return guards
    function = request.function
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    scope = FrameScope(request.arguments, dict(cells))
    entries = [_entry(guard, scope) for guard in guards]
    try:
        flags = list(keeps(entries))
    except Exception as error:
        raise BadArgument(
            f"guard_filter_fn must return one flag for each guard; it failed with {type(error).__name__}: {error}."
        ) from error
    if len(flags) != len(guards):
        raise BadArgument(f"guard_filter_fn got {len(guards)} guards and must return as many flags, not {len(flags)}.")
    return tuple(guard for guard, is_kept in zip(guards, flags, strict=True) if is_kept)


def _entry(guard: Guard, scope: FrameScope) -> FilterEntry:
    chain = guard.source.chain()
    values = tuple(_value(link, scope) for link in chain) if guard.reads_value else ()
    modules = tuple(v for v in values if isinstance(v, torch.nn.Module))
    has_value = bool(values) and values[-1] is not MISSING_VALUE
    kind = "TENSOR_MATCH" if guard.is_tensor_property else TORCH_TYPES.get(guard.kind, guard.kind.upper())
    return FilterEntry(
        name=guard.source.expr if guard.reads_value else "",
        has_value=has_value,
        value=values[-1] if has_value else None,
        guard_type=kind.replace(" ", "_"),
        derived_guard_types=(),
        is_global=chain[0].expr.startswith("G["),
        orig_guard=FilteredGuard(FilteredSource(guard.source.expr, modules)),
    )


def _value(source: Source, scope: FrameScope) -> Any:
    try:
        return source.resolve(scope)
    except Exception:  # Reads of an unbound variable or a missing item raise: the entry says that it has no value.
        return MISSING_VALUE
