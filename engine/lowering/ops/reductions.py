"""Reductions: sum, mean, variance, min, max, argmin, argmax, any, all."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.fx

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import (
    ZERO,
    IndexExpr,
    LoopVar,
    Size,
    adjacent_variables,
    as_size,
    contiguous_strides,
    flatten,
    product,
    static_product,
    unflatten,
    variable,
)
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.ir.loop_ir.tensor_def import Coordinates, TensorDef
from engine.ir.node_values import results_of, tensor_meta
from engine.ir.register_once import register_each
from engine.ir.static_sizes import static_size, static_sizes
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result, strided_view_of
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.fusion.fusion_cost import fusible_sources, is_negligible_size
from engine.lowering.promotion import canonical_dim, stored_loader
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten


prims = torch.ops.prims


ElementFn = Callable[[LoopBuilder, Coordinates], LoopIROp]
ReducedElementFn = Callable[[LoopBuilder, Coordinates, Coordinates], LoopIROp]
"""``(builder, index of the result, position in the reduced ranges) -> element``."""


MIN_BUSY_PROGRAMS = 128
"""Programs that keep a large device busy. With fewer, long reductions are split."""


TARGET_PROGRAMS = 512


MIN_SPLIT_ELEMENTS = 1024
"""Fewest elements of a row that one program of a split reduction reduces."""


MIN_COLUMN_SPLIT_ELEMENTS = 64


LONG_COLUMN = 8192
"""Columns of this length have enough loads in flight for one program per multiprocessor."""


LONG_ROW = 32768
"""Longer rows do not fit in the registers of one program."""


MAX_RUN = 16
"""Maximum number of adjacent elements that are few for a line of memory."""


COLUMNS_PER_PROGRAM = 64
"""Adjacent columns that one program reduces together."""


MAX_PARTS_TOGETHER = 4
"""Maximum factor by which there are more parts if columns are few."""


MIN_SPLIT_LENGTH = 16 * MIN_COLUMN_SPLIT_ELEMENTS
"""Shorter reductions are never split."""


MIN_ROW_ELEMENTS = 64
"""Fewest elements of a row that a CPU reduces by itself."""


MIN_ROWS = 8
"""Fewest rows that the threads of a CPU share."""


MIN_PART_ROWS, MAX_PART_ROWS = 16, 128
"""Rows that a CPU adds in one part of a column sum.

Sums of more would show the rounding of float32.
"""


PARTS_OF_ROWS = 16
"""Parts that the threads of a CPU share, if rows are few."""


MIN_ELEMENTS_OF_PARTS = 1 << 15
"""Fewest elements for which it pays to add rows to parts: one more kernel adds the parts."""


FLOATS = (torch.float32, torch.float64)
_OVER_DIMS = frozenset((aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default))


def _split_count(outputs: Size, count: Size, *, is_columns: bool, reads_again: bool = False) -> int:
    """Return the number of parts into which each reduction is split.

    It is 1 if there are enough reductions, or if sizes are symbolic. ``reads_again``: a program would read a long row
    more than once.
    """
    static = static_sizes((outputs, count))
    if static is None:
        return 1
    outputs, count = static
    programs = max(1, outputs // COLUMNS_PER_PROGRAM) if is_columns else outputs
    least = MIN_COLUMN_SPLIT_ELEMENTS if is_columns else MIN_SPLIT_ELEMENTS
    is_read_again = reads_again and not is_columns and count > LONG_ROW
    is_busy = programs >= MIN_BUSY_PROGRAMS * (1 + is_read_again) and (not is_columns or count >= LONG_COLUMN)
    if is_busy or programs >= TARGET_PROGRAMS or count < 16 * least:
        return 1
    parts = 1
    # One program reduces parts of few columns together.
    together = min(MAX_PARTS_TOGETHER, max(1, COLUMNS_PER_PROGRAM // 2 // max(1, outputs))) if is_columns else 1
    most = TARGET_PROGRAMS * together if is_columns else least
    while parts * programs < TARGET_PROGRAMS * together and count // (2 * parts) >= least and parts < most:
        parts *= 2
    # Parts of equal length need no masks.
    return next((n for n in range(parts, parts // 2, -1) if count % n == 0), parts)


def _split_count_of(low: LoweringContext, a: LoweredTensor, dims: tuple[int, ...], *, reads_again: bool = False) -> int:
    """Return the number of parts into which the reduction of a tensor is split."""
    outputs, count = product(n for d, n in enumerate(a.shape) if d not in dims), product(a.shape[d] for d in dims)
    if (static_size(count) or 0) < MIN_SPLIT_LENGTH:
        return 1
    reads = _cpu_reads_columns if low.is_cpu else _reads_columns
    is_columns = _innermost_dim(a) not in dims or reads(a, dims)
    return _split_count(outputs, count, is_columns=is_columns, reads_again=reads_again and not low.is_cpu)


def _reads_columns(a: LoweredTensor, dims: tuple[int, ...]) -> bool:
    """Return True if programs of a GPU should reduce adjacent columns of what is read.

    Pointwise values are fused into their reduction, so the reads decide, whatever layout the values have. If rows are
    few, one read along a dimension that remains suffices: a tile of columns reads along rows as fast.
    """
    variables, positions = _positions_read(a, fusible_sources(a.definition))
    units = [adjacent_variables(position) for position in positions]
    along_rows, along_columns = (
        sum(
            not unit.isdisjoint(v for d, v in enumerate(variables) if (d in dims) == is_row and v.size != 1)
            for unit in units
        )
        for is_row in (True, False)
    )
    outputs = static_product(n for d, n in enumerate(a.shape) if d not in dims)
    return along_columns > (0 if outputs is not None and outputs < TARGET_PROGRAMS else along_rows)


def _cpu_reads_columns(a: LoweredTensor, dims: tuple[int, ...]) -> bool:
    """Return True if a pointwise value reads memory along a dimension that remains."""
    if a.definition.kind != "pointwise":
        return False
    strides = _strides_read(a, {a.definition})
    return any(along[d] == 1 for along in strides for d in range(len(a.shape)) if d not in dims)


def _outer_split(a: LoweredTensor, dims: tuple[int, ...]) -> int:
    """Return the number of outer reduced dimensions whose rows are the parts of a split.

    Parts must be whole rows if the rows are not contiguous in memory, as in a slice. 0: split at any element.
    """
    shape = static_sizes(a.shape[d] for d in dims)
    if shape is None:
        return 0
    long = [n for n in range(1, len(dims)) if math.prod(shape[n:]) >= MIN_ROW_ELEMENTS]
    count = next((n for n in long if math.prod(shape[:n]) >= MIN_BUSY_PROGRAMS // 2), max(long, default=0))
    strides = _strides_read(a, fusible_sources(a.definition))
    is_run = all(
        along[d] == along[e] * n for along in strides for d, e, n in zip(dims, dims[1:], shape[1:], strict=False)
    )
    return 0 if is_run or math.prod(shape[:count]) < MIN_ROWS else count


def _strides_read(a: LoweredTensor, fused: Collection[TensorDef]) -> list[list[Size]]:
    """Return the stride along each dimension of each large read of memory."""
    variables, positions = _positions_read(a, fused)
    return [[position.terms.get(v, 0) for v in variables] for position in positions]


def _positions_read(a: LoweredTensor, fused: Collection[TensorDef]) -> tuple[tuple[LoopVar, ...], list[IndexExpr]]:
    """Return a variable for each dimension, and the position in memory of each large read."""
    variables = tuple(LoopVar(f"v{d}", n) for d, n in enumerate(a.shape))
    builder = LoopBuilder(fused)
    a.load(builder, tuple(variable(v) for v in variables))
    large = [
        read for read in builder.memory_reads if not is_negligible_size(product(read.source.shape), product(a.shape))
    ]
    return variables, [flatten(read.index, read.source.stride) for read in large]


def _dims_of_short_runs(a: LoweredTensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return the reduced dimension along which rows are adjacent in short runs only.

    So are the channels of a group in channels last: the program of a row would use a part of each line of memory.
    """
    shape, strides = static_sizes(a.shape), _strides_read(a, fusible_sources(a.definition))
    if shape is None or not strides or math.prod(shape[d] for d in dims) < LONG_ROW:
        return ()
    short = tuple(d for d in dims if 1 < shape[d] <= MAX_RUN and all(along[d] == 1 for along in strides))
    return short if len(dims) > len(short) else ()


def _innermost_dim(a: LoweredTensor) -> int:
    """Return the dimension whose elements are adjacent in memory, else the last one."""
    dims = [d for d, n in enumerate(a.shape) if n != 1]
    placed = strided_view_of(a)
    adjacent = [d for d in dims if placed is not None and placed[0][d] == 1]
    return adjacent[-1] if adjacent else max(dims, default=0)


def _in_memory_order(a: LoweredTensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return reduced dimensions by descending stride: the last are adjacent in memory."""
    placed = strided_view_of(a)
    strides = None if placed is None else static_sizes(placed[0][d] for d in dims)
    if strides is None or 0 in strides:
        return dims
    return tuple(d for _, d in sorted(zip(strides, dims, strict=True), key=lambda pair: -pair[0]))


def _full_index(a: LoweredTensor, dims: tuple[int, ...]) -> Callable[[Coordinates, Coordinates], Coordinates]:
    """Return a map from (result index, reduction index) to an index of the tensor."""
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)

    def full_index(index: Coordinates, inner: Coordinates) -> Coordinates:
        coordinate_of_dim = {**dict(zip(kept, index, strict=True)), **dict(zip(dims, inner, strict=True))}
        return tuple(coordinate_of_dim[d] for d in range(len(a.shape)))

    return full_index


def _canonical_dims(a: LoweredTensor, dim: Any) -> tuple[int, ...]:
    dims = () if dim is None else results_of(dim)
    return tuple(sorted({canonical_dim(d, len(a.shape)) for d in dims} if a.shape else ())) or tuple(
        range(len(a.shape))
    )


def _reduced_shape(a: LoweredTensor, dims: tuple[int, ...], keepdim: bool) -> tuple[Size, ...]:
    if keepdim:
        return tuple(1 if d in dims else s for d, s in enumerate(a.shape))
    return tuple(s for d, s in enumerate(a.shape) if d not in dims)


def reduce(
    low: LoweringContext,
    kind: str,
    a: LoweredTensor,
    dims: tuple[int, ...],
    keepdim: bool,
    dtype: torch.dtype,
    value: ElementFn,
    *,
    name: str = "",
) -> LoweredTensor:
    """Reduce ``value``, loaded at indices of ``a``, over dimensions.

    The reduction is split in two steps if the outputs are few and the inputs are many.
    """
    dims = dims if low.is_cpu else _in_memory_order(a, dims)
    shape = _reduced_shape(a, dims, False)
    ranges = tuple(a.shape[d] for d in dims)
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    full_index, parts = _full_index(a, dims), _split_count_of(low, a, dims)
    outer = _outer_split(a, dims) if low.is_cpu and parts > 1 else 0
    row_parts = _parts_of_rows(low, a, dims) if kind == "sum" and compute_dtype(dtype) in FLOATS else None

    def body(b: LoopBuilder, index: Coordinates, position: Coordinates) -> LoopIROp:
        return value(b, full_index(index, position))

    if row_parts is not None:
        result = _add_rows_to_parts(low, a.shape, len(dims), row_parts, dtype, body, name)
    elif outer:
        result = _reduce_in_two_steps(low, kind, shape, ranges[:outer], ranges[outer:], dtype, body, name)
    elif parts > 1:
        length, partial = _split_ranges(kind, ranges, parts, dtype, body)
        result = _reduce_in_two_steps(low, kind, shape, (parts,), (length,), dtype, partial, name)
    else:
        result = low.reduction(kind, shape, ranges, dtype, body, name=name)
    if not keepdim:
        return result
    return result.view(_reduced_shape(a, dims, True), lambda index: tuple(index[d] for d in kept))


def reduction_identity(b: LoopBuilder, kind: str, dtype: torch.dtype) -> LoopIROp:
    """Return the identity of a reduction as an op."""
    return b.constant(reduction_identity_value(kind, compute_dtype(dtype)), dtype)


def reduction_identity_value(kind: str, dtype: torch.dtype) -> Any:
    """Return the identity of a reduction as a number of the compute dtype."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if dtype == torch.bool:
        return kind == "min"
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


def _split_ranges(
    kind: str, ranges: tuple[Size, ...], parts: int, dtype: torch.dtype, body: ReducedElementFn
) -> tuple[int, ReducedElementFn]:
    """Return the length of each of ``parts`` parts, and ``body`` at (part, offset in it)."""
    count = static_product(ranges)
    assert count is not None
    length = -(-count // parts)

    def partial(b: LoopBuilder, index: Coordinates, inner: Coordinates) -> LoopIROp:
        flat = inner[0] * length + inner[1]
        if parts * length == count:
            return body(b, index, unflatten(flat, ranges))
        strides = contiguous_strides(ranges)
        position = tuple(
            flat.div(s) if k == 0 else flat.div(s).mod(n) for k, (s, n) in enumerate(zip(strides, ranges, strict=True))
        )
        identity = reduction_identity(b, kind, compute_dtype(dtype))
        return b.masked(b.index_lt(flat, count), lambda: body(b, index, position), identity)

    return length, partial


def _reduce_in_two_steps(
    low: LoweringContext,
    kind: str,
    shape: tuple[Size, ...],
    outer: tuple[Size, ...],
    inner: tuple[Size, ...],
    dtype: torch.dtype,
    body: ReducedElementFn,
    name: str,
) -> LoweredTensor:
    """Reduce ``body`` over the ``inner`` ranges, then the results over the ``outer`` ranges."""

    def partial(b: LoopBuilder, index: Coordinates, position: Coordinates) -> LoopIROp:
        return body(b, index[len(outer) :], (*index[: len(outer)], *position))

    label = name or low.node_name
    first = low.reduction(kind, (*outer, *shape), inner, compute_dtype(dtype), partial, name=f"{label}_parts")
    return low.reduction(kind, shape, outer, dtype, lambda b, i, r: first.load(b, (*r, *i)), name=name)


@dataclass(frozen=True)
class _RowParts:
    """Parts of the rows of a column sum.

    A part is ``length`` positions of dimension ``dim`` of ``rows``, with all positions of later ones.
    """

    rows: tuple[int, ...]
    dim: int
    length: int

    @property
    def height(self) -> int:
        """The rows of one part."""
        return self.length * math.prod(self.rows[self.dim + 1 :])


def _parts_of_rows(low: LoweringContext, a: LoweredTensor, dims: tuple[int, ...]) -> _RowParts | None:
    """Return the parts of a column sum if a CPU kernel reduces these rows, too.

    One kernel can then do both: after a row's own reductions, it adds the row to the sums of its part.
    """
    shape, node = static_sizes(a.shape), low.current_node
    if not low.is_cpu or node is None or shape is None or dims != tuple(range(len(dims))) or len(dims) == len(shape):
        return None
    columns = math.prod(shape[len(dims) :])
    if math.prod(shape) < MIN_ELEMENTS_OF_PARTS or columns < MIN_ROW_ELEMENTS:
        return None
    count, found = math.prod(shape) // columns, (_reduced_rows(other, shape, len(dims)) for other in node.graph.nodes)
    rows = next((rows for rows in found if rows is not None), None)
    strides = [along[-1] for along in _strides_read(a, fusible_sources(a.definition))] if rows is not None else []
    if rows is None or 1 not in strides or not set(strides) <= {0, 1}:
        return None
    lengths = ((dim, length) for dim, n in enumerate(rows) for length in range(1, n + 1) if n % length == 0)
    parts = [_RowParts(rows, *pair) for pair in lengths]
    heights = {part.height: part for part in parts if MIN_PART_ROWS <= part.height <= MAX_PART_ROWS}
    wanted = max(2 * MIN_PART_ROWS, count // PARTS_OF_ROWS)
    height = max((n for n in heights if n <= wanted), default=min(heights, default=0))
    return heights.get(height)


def _reduced_rows(node: torch.fx.Node, shape: tuple[int, ...], rank: int) -> tuple[int, ...] | None:
    """Return the sizes that number the rows which a node reduces; None for other rows.

    ``rank``: the dimensions of ``shape`` that number its rows. The node's may be others, with as many rows.
    """
    value, read = tensor_meta(node), next(map(tensor_meta, node.all_input_nodes), None)
    if value is None or read is None:
        return None
    own, reduced = (static_sizes(map(as_size, tensor.shape)) for tensor in (read, value))
    count = math.prod(shape[:rank])
    if node.target in _OVER_DIMS and {0, -read.dim()} & set(cast("list[int]", (*node.args, ())[1] or ())):
        return None  # it reduces columns: a square matrix has as many as rows
    if own is None or reduced is None or math.prod(own) != math.prod(shape) or math.prod(reduced) != count:
        return None
    rows = (own[:n] for n in range(1, len(own)) if reduced[:n] == own[:n] and math.prod(own[:n]) == count)
    return next(rows, None)


def _add_rows_to_parts(
    low: LoweringContext,
    shape: tuple[Size, ...],
    rank: int,
    parts: _RowParts,
    dtype: torch.dtype,
    body: ReducedElementFn,
    name: str,
) -> LoweredTensor:
    """Sum down columns: add each row to the sums of its part, then add the parts."""
    rows, dim = parts.rows, parts.dim
    kept, outer = shape[rank:], (*rows[:dim], rows[dim] // parts.length)

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        row, column = i[: len(rows)], i[len(rows) :]
        position = unflatten(flatten(row, contiguous_strides(rows)), shape[:rank])
        return (*row[:dim], row[dim].div(parts.length), *column), body(b, column, position)

    label, partial = f"{name or low.node_name}_parts", (*outer, *kept)
    sums = low.scatter(partial, (*rows, *kept), compute_dtype(dtype), 0.0, write, is_added=True, name=label)
    return low.reduction("sum", kept, outer, dtype, lambda b, i, r: sums.load(b, (*r, *i)), name=name)


def check_reducible(a: LoweredTensor, dims: tuple[int, ...]) -> None:
    """Raise if a reduction over these dimensions has no elements.

    Raises:
        NotLowered: a dimension has size 0.
    """
    if any(a.shape[d] == 0 for d in dims):
        raise NotLowered(LoweringFallback.EMPTY_INPUT, "a reduction over no elements has no lowering")


def _sum_or_prod(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, keepdim: bool = False, *, kind: str, **_: Any
) -> LoweredTensor:
    result = fake_result(low).dtype
    dims = _canonical_dims(a, dim)
    if any(a.shape[d] == 0 for d in dims):
        return low.full(symbolic_shape(fake_result(low)), result, 1 if kind == "prod" else 0)
    if result == torch.bool:
        return _any_or_all(low, a, dim, keepdim, kind="min" if kind == "prod" else "max")
    return reduce(low, kind, a, dims, keepdim, result, stored_loader(a, result, a.shape))


register_lowering(aten.sum.dim_IntList, aten.sum.default)(functools.partial(_sum_or_prod, kind="sum"))


register_lowering(aten.prod.dim_int, aten.prod.default)(functools.partial(_sum_or_prod, kind="prod"))


@register_lowering(aten.mean.dim, aten.mean.default)
def mean(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> LoweredTensor:
    dims = _canonical_dims(a, dim)
    result = fake_result(low).dtype
    if any(a.shape[d] == 0 for d in dims):
        return low.full(symbolic_shape(fake_result(low)), result, math.nan)
    return _mean(low, a, dims, keepdim, result)


def _mean(
    low: LoweringContext, a: LoweredTensor, dims: tuple[int, ...], keepdim: bool, result: torch.dtype, name: str = ""
) -> LoweredTensor:
    math_dtype = compute_dtype(result)
    base = name or low.node_name
    total = reduce(low, "sum", a, dims, keepdim, math_dtype, a.loader(math_dtype), name=f"{base}_sum")
    count = product(a.shape[d] for d in dims)
    return low.pointwise(total.shape, result, lambda b, i: total.load(b, i) / b.size(count, math_dtype), name=name)


def _variance(
    low: LoweringContext,
    a: LoweredTensor,
    dims: tuple[int, ...],
    keepdim: bool,
    correction: float,
    result: torch.dtype,
    name: str,
) -> tuple[LoweredTensor, LoweredTensor]:
    """Return ``(variance, mean)`` by two passes: the mean, then squared distances from it."""
    math_dtype = compute_dtype(result)
    if any(a.shape[d] == 0 for d in dims):
        none = low.full(_reduced_shape(a, dims, keepdim), result, math.nan)
        return none, none
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    count = product(a.shape[d] for d in dims)
    parts = _split_count_of(low, a, dims, reads_again=True)
    dims = dims if low.is_cpu else _in_memory_order(a, dims)
    short = () if low.is_cpu else _dims_of_short_runs(a, dims)
    split = tuple(d for d in dims if d not in short)
    static_count, length = static_size(count), static_size(product(a.shape[d] for d in split))
    if short:
        columns = product(n for d, n in enumerate(a.shape) if d not in split)
        parts = _split_count(columns, product(a.shape[d] for d in split), is_columns=True)
    if length is not None and (short or parts > 1) and length % parts == 0:
        total, average = _split_variance(low, a, short, split, keepdim, parts, math_dtype, name)
    else:
        average = _mean(low, a, dims, True, math_dtype, name=f"{name}_mean")

        def squared(b: LoopBuilder, i: Coordinates) -> LoopIROp:
            row = tuple(i[d] if d in kept else ZERO for d in range(len(a.shape)))
            distance = b.cast(a.load(b, i), math_dtype) - average.load(b, row)
            return distance * distance

        total = reduce(low, "sum", a, dims, keepdim, math_dtype, squared, name=f"{name}_squares")

    def divided(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        if static_count is not None:
            return total.load(b, i) / max(static_count - correction, 0.0)
        return total.load(b, i) / b.call("maximum", b.size(count, math_dtype) - correction, 0.0)

    variance = low.pointwise(total.shape, result, divided, name=f"{name}_var")
    mean_shape = _reduced_shape(a, dims, keepdim)
    mean = average if keepdim else average.view(mean_shape, lambda i: _insert_reduced_dims(i, kept, len(a.shape)))
    rounded = mean if mean.dtype == result else low.pointwise(mean_shape, result, mean.load)
    return variance, rounded


def _split_variance(
    low: LoweringContext,
    a: LoweredTensor,
    whole: tuple[int, ...],
    split: tuple[int, ...],
    keepdim: bool,
    parts: int,
    math_dtype: torch.dtype,
    name: str,
) -> tuple[LoweredTensor, LoweredTensor]:
    """Return ``(sum of squared distances from the mean, mean)``, combined from parts.

    The dimensions ``split`` are reduced in parts, and their results over the dimensions ``whole``. The input is read
    once. The squares of each part are around its own mean; the distance of that mean from the total
    mean is added (Chan, Golub and LeVeque, 1979).
    """
    dims = (*whole, *split)
    shape, beside, ranges = _reduced_shape(a, dims, False), [a.shape[d] for d in whole], [a.shape[d] for d in split]
    count, split_count = static_product((*beside, *ranges)), static_product(ranges)
    assert count is not None
    assert split_count is not None
    length, full_index = split_count // parts, _full_index(a, dims)

    def value(b: LoopBuilder, i: Coordinates, r: Coordinates) -> LoopIROp:
        row, column = i[1 : len(shape) + 1], i[len(shape) + 1 :]
        position = unflatten(i[0] * length + r[0], tuple(ranges))
        return b.cast(a.load(b, full_index(row, (*column, *position))), math_dtype)

    sums = low.reduction("sum", (parts, *shape, *beside), (length,), math_dtype, value, name=f"{name}_sums")

    def mean_of_part(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return sums.load(b, i) / length

    def squared(b: LoopBuilder, i: Coordinates, r: Coordinates) -> LoopIROp:
        distance = value(b, i, r) - mean_of_part(b, i)
        return distance * distance

    squares = low.reduction("sum", (parts, *shape, *beside), (length,), math_dtype, squared, name=f"{name}_parts")
    sum_of_all = low.reduction(
        "sum", shape, (parts, *beside), math_dtype, lambda b, i, r: sums.load(b, (r[0], *i, *r[1:])), name=f"{name}_sum"
    )

    def mean(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return sum_of_all.load(b, i) / count

    def around(b: LoopBuilder, i: Coordinates, r: Coordinates) -> LoopIROp:
        part = (r[0], *i, *r[1:])
        distance = mean_of_part(b, part) - mean(b, i)
        moved = distance * distance * length
        return squares.load(b, part) + moved

    total = low.reduction("sum", shape, (parts, *beside), math_dtype, around, name=f"{name}_squares")
    average = low.pointwise(shape, math_dtype, mean, name=f"{name}_mean")
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)

    def wide(reduced: LoweredTensor) -> LoweredTensor:
        return reduced.view(_reduced_shape(a, dims, True), lambda index: tuple(index[d] for d in kept))

    return wide(total) if keepdim else total, wide(average)


def _insert_reduced_dims(index: Coordinates, kept: tuple[int, ...], rank: int) -> Coordinates:
    coordinate_of_dim = dict(zip(kept, index, strict=True))
    return tuple(coordinate_of_dim.get(d, ZERO) for d in range(rank))


@register_lowering(aten.var.correction)
def var(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> LoweredTensor:
    spread: LoweredTensor = var_mean(low, a, dim, correction=correction, keepdim=keepdim)[0]
    return spread


@register_lowering(aten.var_mean.correction)
def var_mean(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[LoweredTensor, LoweredTensor]:
    dims = _canonical_dims(a, dim)
    return _variance(low, a, dims, keepdim, 1.0 if correction is None else float(correction), a.dtype, low.node_name)


@register_lowering(aten.std.correction)
def std(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> LoweredTensor:
    dims = _canonical_dims(a, dim)
    spread = _variance(
        low, a, dims, keepdim, 1.0 if correction is None else float(correction), compute_dtype(a.dtype), low.node_name
    )[0]
    return low.pointwise(spread.shape, a.dtype, lambda b, i: b.call("sqrt", spread.load(b, i)))


def min_or_max(
    low: LoweringContext, kind: str, a: LoweredTensor, dims: tuple[int, ...], keepdim: bool, name: str = ""
) -> LoweredTensor:
    """Reduce to the maximum or minimum; NaN if any element is NaN, as in eager."""
    base = name or low.node_name
    if a.dtype == torch.bool:
        top = reduce(low, kind, a, dims, keepdim, torch.int32, a.loader(torch.int32), name=f"{base}_int")
        return low.pointwise(top.shape, a.dtype, lambda b, i: top.load(b, i).differs(0))
    if not a.dtype.is_floating_point:
        return reduce(low, kind, a, dims, keepdim, a.dtype, a.load, name=base)
    top = reduce(low, kind, a, dims, keepdim, a.dtype, a.load, name=f"{base}_{kind}")

    def is_nan(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        return b.cast(a.load(b, i).is_nan(), torch.int32)

    nan = reduce(low, "max", a, dims, keepdim, torch.int32, is_nan, name=f"{base}_nan")

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        value = top.load(b, i)
        return b.where(nan.load(b, i).differs(0), math.nan, value)

    return low.pointwise(top.shape, a.dtype, body, name=name)


def arg_min_or_max(
    low: LoweringContext,
    kind: str,
    a: LoweredTensor,
    dims: tuple[int, ...],
    keepdim: bool,
    top: LoweredTensor,
    name: str = "",
) -> LoweredTensor:
    """Return the index of the first element equal to ``top``, flat over ``dims``.

    ``top`` has size 1 in ``dims``. A NaN counts as the extreme.
    """
    count = product(a.shape[d] for d in dims)
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    strides = contiguous_strides(tuple(a.shape[d] for d in dims))

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        v = a.load(b, i)
        best = top.load(b, tuple(i[d] if d in kept else ZERO for d in range(len(a.shape))))
        hit = v.equals(best)
        if a.dtype.is_floating_point:
            hit = hit | v.is_nan() if kind else hit
            hit = b.where(best.is_nan(), v.is_nan(), hit)
        position = b.cast(b.index_value(flatten([i[d] for d in dims], strides)), torch.int64)
        return b.where(hit, position, b.size(count, torch.int64))

    return reduce(low, "min", a, dims, keepdim, torch.int64, body, name=name)


def _min_or_max_value(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, keepdim: bool = False, *, kind: str
) -> LoweredTensor:
    dims = _canonical_dims(a, dim)
    check_reducible(a, dims)
    return min_or_max(low, kind, a, dims, keepdim)


register_lowering(aten.amax.default, aten.max.default)(functools.partial(_min_or_max_value, kind="max"))


register_lowering(aten.amin.default, aten.min.default)(functools.partial(_min_or_max_value, kind="min"))


def _extreme_and_index(
    low: LoweringContext, kind: str, a: LoweredTensor, dim: Any, keepdim: bool, index_name: str
) -> tuple[LoweredTensor, LoweredTensor]:
    """Return the maximum or minimum along dimensions and the index of its first occurrence."""
    dims = _canonical_dims(a, dim)
    check_reducible(a, dims)
    top = min_or_max(low, kind, a, dims, True, name=f"{low.node_name}_value")
    position = arg_min_or_max(low, kind, a, dims, True, top, name=index_name)
    if keepdim:
        return top, position
    return _drop_dims(top, dims), _drop_dims(position, dims)


def _drop_dims(a: LoweredTensor, dims: tuple[int, ...]) -> LoweredTensor:
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    rank = len(a.shape)
    return a.view(tuple(a.shape[d] for d in kept), lambda i: _insert_reduced_dims(i, kept, rank))


@register_each(register_lowering, aten.max.dim, aten.min.dim)
def _min_max_with_index(
    operator: Any, low: LoweringContext, a: LoweredTensor, dim: int, keepdim: bool = False
) -> tuple[LoweredTensor, LoweredTensor]:
    kind = "max" if operator is aten.max.dim else "min"
    return _extreme_and_index(low, kind, a, dim, keepdim, f"{low.node_name}_index")


@register_each(register_lowering, aten.argmax.default, aten.argmin.default)
def _arg_min_max(
    operator: Any, low: LoweringContext, a: LoweredTensor, dim: int | None = None, keepdim: bool = False
) -> LoweredTensor:
    kind = "max" if operator is aten.argmax.default else "min"
    return _extreme_and_index(low, kind, a, dim, keepdim, "")[1]


def _any_or_all(
    low: LoweringContext, a: LoweredTensor, dim: Any = None, keepdim: bool = False, *, kind: str
) -> LoweredTensor:
    dims = _canonical_dims(a, dim)
    result = fake_result(low).dtype
    if any(a.shape[d] == 0 for d in dims):
        return low.full(symbolic_shape(fake_result(low)), result, kind == "min")

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        v = a.load(b, i)
        return b.cast(v if v.dtype == torch.bool else v.differs(0), torch.int32)

    reduced = reduce(low, kind, a, dims, keepdim, torch.int32, body, name=f"{low.node_name}_int")
    return low.pointwise(reduced.shape, result, lambda b, i: b.cast(reduced.load(b, i).differs(0), result))


register_lowering(aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default)(
    functools.partial(_any_or_all, kind="max")
)


register_lowering(aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default)(
    functools.partial(_any_or_all, kind="min")
)
