"""What there is to learn from a failed guard, for the failures that people meet most often."""

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
    """A few sentences, empty where the failure is of no common kind."""
    return next((text for applies, text in HINTS if applies(finding.guard)), "")


def _reads_through(*kinds: type[Source]) -> Callable[[Guard], bool]:
    return lambda guard: isinstance(guard.source.chain()[0], kinds) or any(isinstance(o, kinds) for o in guard.source)


def _is_state(guard: Guard) -> bool:
    return isinstance(guard, GlobalStateMatch)


def _is_value(guard: Guard) -> bool:
    return isinstance(guard, (EqualsMatch, IdMatch))


HINTS: tuple[tuple[Callable[[Guard], bool], str], ...] = (
    (
        _is_state,
        (
            "Grad mode, autocast, the default dtype and device, and deterministic mode are settings of the whole process that change what an operation "
            "means, so compiled code serves only the setting it was made under. Enter the setting around all calls alike; each one that you really use "
            "costs one entry, once."
        ),
    ),
    (
        lambda g: isinstance(g, RequiresGradMatch),
        (
            "A tensor that requires grad needs a backward graph, one that does not needs none: these are two programs. The difference often creeps in "
            "unseen, because the result of one call, which requires grad, is passed to the next. Detach it there, or accept the two entries."
        ),
    ),
    (
        lambda g: isinstance(g, (DisjointStorage, DistinctObjects, SameObject)),
        (
            "Where two arguments are one tensor, or share storage, a write to one shows in the other; the compiled code was made for the other case. "
            "Which arguments alias is part of what is compiled: keep it the same in all calls, or pass a clone."
        ),
    ),
    (
        lambda g: isinstance(g, DictKeysMatch),
        (
            "A dictionary is taken apart while tracing: which keys it has, and in which order, decides which operations the graph has. Build it with the "
            "same keys in the same order in every call, and give what is absent as None or as an empty tensor."
        ),
    ),
    (
        lambda g: _is_value(g) and _reads_through(ClosureSource, CellContentsSource)(g),
        (
            "A variable of an enclosing function is read when the function is traced, and its value becomes part of the compiled code. When the "
            "enclosing function changes it between calls, each new value is a new program. Pass it as an argument: a number seen to change then becomes a "
            "symbol; or hold it in a tensor."
        ),
    ),
    (
        lambda g: (
            _is_value(g)
            and isinstance(g.source, (AttrSource, InstanceDictGetSource, ModuleMemberSource))
            and not g.user_expr.endswith(".training")
        ),
        (
            "An attribute of an object or module is part of the compiled code, like a constant written into it. One that is assigned in every step (a "
            "counter, a schedule, a cached flag) makes each value a program of its own. Numbers become symbols once they are seen to change; keep "
            "anything else that changes in a tensor or buffer, or outside of the compiled function."
        ),
    ),
    (
        lambda g: _is_value(g) and isinstance(g.source.chain()[0], GlobalSource),
        (
            "A global variable is read when the function is traced, and its value becomes part of the compiled code. Pass what changes between calls as an "
            "argument instead."
        ),
    ),
    (
        lambda g: isinstance(g, ShapeMatch),
        (
            "Compiling starts with the sizes it sees. A size that is seen to change becomes a symbol in the next entry, which then serves all sizes but 0 "
            "and 1. To have one entry from the start, mark the dimension dynamic before the first call."
        ),
    ),
)
"""Which failures a lesson is for, and its text; the first that applies is told."""
