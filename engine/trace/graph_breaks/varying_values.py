"""Sizes, numbers and positions of iterators that vary in a resume function, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from engine.ir.guards.python_values import EqualsMatch
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import LocalSource
from engine.ir.traced_frame import ALL_NUMBERS
from engine.trace.annotations import Tracer
from engine.trace.exc import RestartTracing, Unsupported
from engine.trace.variables.base import Variable
from engine.trace.variables.tensors.sym_node import varies

_VARYING_RESULTS = frozenset(
    (
        "clock",
        "data-dependent",
        "outside-iterator",
        "random-generator",
        "random-value",
        "size-branch",
        "tensor-jump",
    )
)
"""Kinds of breaks at an instruction whose result differs between its executions."""
BROKEN_RESULT = ""
"""Key of the result of the instruction at which a resume function starts."""
_MAX_DEPTH = 3
_MAX_ITEMS = 16
"""Maximum number of items of a list or tuple that are looked at."""


def varying_dims_of_result(reason: Unsupported) -> frozenset[int]:
    """Return the dimensions in which the result of a broken instruction varies."""
    return reason.result_dims | {ALL_NUMBERS} if reason.kind in _VARYING_RESULTS else frozenset()


def varying_dims(
    tx: Tracer,
    arguments: Iterable[tuple[str, Variable | str]],
    loop_values: frozenset[int],
    result_dims: frozenset[int],
) -> Mapping[str, frozenset[int]]:
    """Return the dimensions of a resume function's arguments that vary, by source expression.

    They are symbols where the graph breaks, or numbers that a loop around the break assigns: ``loop_values`` has the
    ids of their variables. Dimension -1 is the value of a number, or the position of a loop's iterator. The first compilation of the resume function makes symbols of them: otherwise it would specialize,
    and the next call would compile again. A name as value stands for a result of the broken instruction.
    """
    dims_by_name = {BROKEN_RESULT: result_dims} if result_dims else {}
    for name, value in arguments:
        if not isinstance(value, str):
            _collect(tx, LocalSource(name), value, dims_by_name, _MAX_DEPTH)
            if id(value.resolved) in loop_values and value.resolved.is_constant and value.python_type() in (int, float):
                dims_by_name[LocalSource(name).expr] = frozenset((-1,))
        elif result_dims:
            dims_by_name[LocalSource(name).expr] = result_dims
    return dims_by_name


def restart_if_changed(tx: Tracer, arguments: Iterable[tuple[str, Variable | str]]) -> None:
    """Start over if a resume function passes other sizes to itself than it got.

    The same holds for numbers in attributes that it wrote, such as a counter of its steps.

    Raises:
        RestartTracing: the sizes and numbers that differ are symbols in the next attempt.
    """
    changed: dict[str, frozenset[int]] = {}
    for name, value in arguments:
        if not isinstance(value, str):
            _compare(LocalSource(name), value, tx.request.arguments.get(name), changed, _MAX_DEPTH)
    changed.update(dict.fromkeys(_written_numbers(tx), frozenset((-1,))))
    known = tx.request.dynamic_dims
    new = {e: dims | known.get(e, frozenset()) for e, dims in changed.items() if dims - known.get(e, frozenset())}
    if new and tx.options.dynamic is not False:
        reason = Unsupported("retrace", "sizes or numbers change from one iteration of a loop to the next")
        raise RestartTracing(0, reason, dynamic_dims=new)


def _written_numbers(tx: Tracer) -> list[str]:
    """Return the expressions of guarded attributes that the trace set to other numbers."""
    guards = tx.guards.all()
    guarded = {g.source for g in guards if g.kind == EqualsMatch.kind}
    return [
        source.expr
        for of in tx.side_effects.mutated_variables.values()
        for name, value in getattr(of, "attr_writes", {}).items()
        if value is not None and value.is_constant and value.python_type() in (int, float) and of.source is not None
        if (source := AttrSource(of.source, name)) in guarded and EqualsMatch(source, value.constant) not in guards
    ]


def _compare(source: Source, value: Variable, real: Any, changed: dict[str, frozenset[int]], depth: int) -> None:
    value = value.resolved
    if value.fake is not None and type(real) is torch.Tensor and real.dim() == value.fake.dim():
        sizes = enumerate(zip(value.fake.shape, real.shape, strict=True))
        if dims := frozenset(d for d, (new, old) in sizes if type(new) is int and new != old > 1):
            changed[source.expr] = dims
    elif depth and isinstance(real, (list, tuple)) and value.sequence_contents is value and value.load_items is None:
        for n, (item, old) in enumerate(zip(value.items[:_MAX_ITEMS], real, strict=False)):
            _compare(GetItemSource(source, n), item, old, changed, depth - 1)


def _collect(tx: Tracer, source: Source, value: Variable, dims_by_name: dict[str, frozenset[int]], depth: int) -> None:
    value = value.resolved
    dims: frozenset[int] = frozenset()
    if value.is_lazy:
        dims = tx.request.dynamic_dims.get(value.source.expr, dims) if value.source is not None else dims
        dims_by_name.update((position.expr, frozenset((-1,))) for position in value.position_sources(source))
    elif value.is_symbolic:
        dims = frozenset((-1,)) if value.python_type() is not bool and varies(value.sym) else dims
    elif value.fake is not None:
        is_plain = value.python_type() in (torch.Tensor, torch.nn.Parameter)
        dims = frozenset(d for d, size in enumerate(value.fake.shape) if varies(size)) if is_plain else dims
    elif positions := value.position_sources(source):
        dims_by_name.update((position.expr, frozenset((-1,))) for position in positions)
    elif depth and value.sequence_contents is value and value.load_items is None:
        for n, item in enumerate(value.items[:_MAX_ITEMS]):
            _collect(tx, GetItemSource(source, n), item, dims_by_name, depth - 1)
    if dims:
        dims_by_name[source.expr] = dims
