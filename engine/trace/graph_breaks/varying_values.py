"""Sizes, numbers and positions of iterators that vary in a resume function, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from engine.ir.sources.base import Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import LocalSource
from engine.ir.traced_frame import ALL_NUMBERS
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Variable
from engine.trace.variables.tensors.sym_node import varies

_VARYING_RESULTS = frozenset(
    ("clock", "data-dependent", "random-generator", "random-value", "size-branch", "tensor-jump")
)
"""Kinds of breaks at an instruction whose result depends on data, chance or time."""
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
    assigned_in_loop: frozenset[str],
    result_dims: frozenset[int],
) -> Mapping[str, frozenset[int]]:
    """Return the dimensions of a resume function's arguments that vary, by source expression.

    They are symbols where the graph breaks, or numbers that a loop around the break assigns. Dimension -1 is the value of a number, or the position of a loop's
    iterator. The first compilation of the resume function makes symbols of them: otherwise it would specialize,
    and the next call would compile again. A name as value stands for a result of the broken instruction.
    """
    dims_by_name = {BROKEN_RESULT: result_dims} if result_dims else {}
    for name, value in arguments:
        if not isinstance(value, str):
            _collect(tx, LocalSource(name), value, dims_by_name, _MAX_DEPTH)
            if name in assigned_in_loop and value.resolved.is_constant and value.python_type() in (int, float):
                dims_by_name[LocalSource(name).expr] = frozenset((-1,))
        elif result_dims:
            dims_by_name[LocalSource(name).expr] = result_dims
    return dims_by_name


def _collect(tx: Tracer, source: Source, value: Variable, dims_by_name: dict[str, frozenset[int]], depth: int) -> None:
    value = value.resolved
    dims: frozenset[int] = frozenset()
    if value.is_lazy:
        dims = tx.request.dynamic_dims.get(value.source.expr, dims) if value.source is not None else dims
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
