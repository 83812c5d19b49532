"""Hints for the most common guard failures."""

from __future__ import annotations

from collections.abc import Callable

from engine.guards.explain import GuardEvaluation
from engine.ir.guards.aliasing import DisjointStorage, DistinctObjects, SameObject
from engine.ir.guards.base import Guard
from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.guards.python_values import DictKeysMatch, EqualsMatch, IdMatch
from engine.ir.guards.tensors import RequiresGradMatch, ShapeMatch
from engine.ir.sources.attributes import AttrSource, CellContentsSource, InstanceDictGetSource, ModuleMemberSource
from engine.ir.sources.base import Source
from engine.ir.sources.roots import ClosureSource, GlobalSource


def hint_for(finding: GuardEvaluation) -> str:
    """Return the hint for a failed guard, or "" for an uncommon failure."""
    return next((text for applies, text in HINTS if applies(finding.guard)), "")


def _reads_through(*kinds: type[Source]) -> Callable[[Guard], bool]:
    return lambda guard: any(isinstance(o, kinds) for o in (guard.source.chain()[0], *guard.source))


def _is_guard_of(*kinds: type[Guard]) -> Callable[[Guard], bool]:
    return lambda guard: isinstance(guard, kinds)


_is_state, _is_value = _is_guard_of(GlobalStateMatch), _is_guard_of(EqualsMatch, IdMatch)


HINTS: tuple[tuple[Callable[[Guard], bool], str], ...] = (
    (
        _is_state,
        (
            "Grad mode, autocast, default dtype, default device and deterministic mode are settings of the whole process. They change what an operation "
            "does, so a cache entry is valid for one setting only. Use the same setting around all calls. Each setting that you need "
            "costs one cache entry."
        ),
    ),
    (
        _is_guard_of(RequiresGradMatch),
        (
            "A tensor that requires grad needs a backward graph; a tensor that does not needs none. These are two programs. A frequent cause: "
            "the result of one call requires grad and is passed to the next call. Detach it there, or accept two cache entries."
        ),
    ),
    (
        _is_guard_of(DisjointStorage, DistinctObjects, SameObject),
        (
            "If two arguments are the same tensor, or share memory, a write to one changes the other. The cache entry was compiled for other aliasing. "
            "Pass the same combination of aliases in all calls, or pass a clone."
        ),
    ),
    (
        _is_guard_of(DictKeysMatch),
        (
            "The tracer reads a dictionary item by item. Its keys and their order decide which operations the graph has. Build it with the "
            "same keys in the same order in every call. Pass None or an empty tensor for a missing item."
        ),
    ),
    (
        lambda g: _is_value(g) and _reads_through(ClosureSource, CellContentsSource)(g),
        (
            "The tracer reads a variable of an enclosing function, and its value becomes part of the compiled code. If the "
            "enclosing function changes it between calls, each new value causes a recompile. Pass it as an argument: a number that changes becomes a "
            "symbol. Or store it in a tensor."
        ),
    ),
    (
        lambda g: (
            _is_value(g)
            and isinstance(g.source, (AttrSource, InstanceDictGetSource, ModuleMemberSource))
            and not g.user_expr.endswith(".training")
        ),
        (
            "The value of an attribute is part of the compiled code, like a constant. If the attribute is assigned in every step (a "
            "counter, a schedule, a cached flag), each value causes a recompile. A number that changes becomes a symbol. Store "
            "other changing values in a tensor or buffer, or outside the compiled function."
        ),
    ),
    (
        lambda g: _is_value(g) and isinstance(g.source.chain()[0], GlobalSource),
        (
            "The tracer reads a global variable, and its value becomes part of the compiled code. Pass a value that changes between calls as an "
            "argument instead."
        ),
    ),
    (
        _is_guard_of(ShapeMatch),
        (
            "The first compilation is specialized for the sizes of the first call. A size that changes becomes a symbol in the next cache entry, which works for all sizes except 0 "
            "and 1. For one cache entry from the start, call engine.mark_dynamic before the first call."
        ),
    ),
)
"""(condition on the guard, hint); the first match is used."""
