"""Keeps symbols out of torch's caches of placements for operators on DTensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from engine.ir.introspection.symbols import is_symbolic, numbers_in
from engine.torch_private import lazily_loaded
from engine.torch_private.entries import torch_version
from engine.torch_private.symbolic_shapes import GuardOnDataDependentSymNode

_KEYS_HAVE_ALL_KEYWORDS = torch_version() < (2, 13)
"""True if the keys of the C++ cache have keyword arguments that do not affect placements."""
patched_classes: set[type] = set()
"""torch's class of DTensor calls, once it is patched."""
symbolic_calls: list[Any] = []
"""Calls with a symbol in their keys that torch may have added to its C++ cache."""


def patch_placement_caches() -> None:
    """Make torch note DTensor calls with symbols, and not hash unbacked floats.

    Without a hash (TypeError), torch chooses the placements without its Python cache. It expects that error of symbolic sizes, but an
    unbacked float raises another one, as it has no value yet.
    """
    schema = lazily_loaded.OpSchema
    propagator: Any = lazily_loaded.ShardingPropagator
    hash_call: Callable[[Any], int] = schema.__hash__
    propagate: Callable[[Any, Any], Any] = propagator.propagate_op_sharding_non_cached

    @functools.wraps(hash_call)
    def hash_schema(self: Any) -> int:
        try:
            return hash_call(self)
        except GuardOnDataDependentSymNode as error:
            raise TypeError("unhashable type: unbacked number") from error

    @functools.wraps(propagate)
    def propagate_and_note(self: Any, call: Any) -> Any:
        if _has_symbols(call):
            symbolic_calls.append(call.op)
        return propagate(self, call)

    schema.__hash__ = hash_schema  # type: ignore[method-assign]
    propagator.propagate_op_sharding_non_cached = propagate_and_note
    patched_classes.add(schema)


def forget_symbolic_placements() -> None:
    """Clear the thread's C++ cache after a call in ``symbolic_calls``.

    A later lookup compares keys whose hashes fall close by, and that guards on their symbols, also on those of an earlier
    compilation. It happens at random, as the hash of a symbol is its address: to one rank and not to another.
    """
    symbolic_calls.clear()
    lazily_loaded.clear_placement_cache()


def _has_symbols(call: Any) -> bool:
    """Return True if the key in the C++ cache has a symbol.

    It has no numbers in the place of tensors.
    """
    if (info := call.schema_info) is None:
        return False
    positional = list(zip(call.args_schema, call.op._schema.arguments, strict=False))[info.static_argnum :]
    numbers = [v for v, argument in positional if not isinstance(argument.type, torch.TensorType)]
    names = call.kwargs_schema if _KEYS_HAVE_ALL_KEYWORDS else info.static_kwargkey or ()
    numbers += [call.kwargs_schema.get(name) for name in names]
    return any(map(is_symbolic, numbers_in(numbers, lambda _: ())))
