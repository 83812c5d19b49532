"""Parts into which a reduction is split, so that all programs or threads have work."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

import torch
import torch.fx

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import (
    IndexExpr,
    LoopVar,
    Size,
    adjacent_variables,
    as_size,
    flatten,
    product,
    static_product,
    variable,
)
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.ir.node_values import tensor_meta
from engine.ir.static_sizes import static_size, static_sizes
from engine.lowering.context import LoweredTensor, LoweringContext, strided_view_of
from engine.lowering.fusion.fusion_cost import fusible_sources, is_negligible_size

aten = torch.ops.aten

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


def split_count(outputs: Size, count: Size, *, is_columns: bool, reads_again: bool = False) -> int:
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


def split_count_of(low: LoweringContext, a: LoweredTensor, dims: tuple[int, ...], *, reads_again: bool = False) -> int:
    """Return the number of parts into which the reduction of a tensor is split."""
    outputs, count = product(n for d, n in enumerate(a.shape) if d not in dims), product(a.shape[d] for d in dims)
    if (static_size(count) or 0) < MIN_SPLIT_LENGTH:
        return 1
    reads = _cpu_reads_columns if low.is_cpu else _reads_columns
    is_columns = _innermost_dim(a) not in dims or reads(a, dims)
    return split_count(outputs, count, is_columns=is_columns, reads_again=reads_again and not low.is_cpu)


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


def outer_split(a: LoweredTensor, dims: tuple[int, ...]) -> int:
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


def dims_of_short_runs(a: LoweredTensor, dims: tuple[int, ...]) -> tuple[int, ...]:
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


def in_memory_order(a: LoweredTensor, dims: tuple[int, ...]) -> tuple[int, ...]:
    """Return reduced dimensions by descending stride: the last are adjacent in memory."""
    placed = strided_view_of(a)
    strides = None if placed is None else static_sizes(placed[0][d] for d in dims)
    if strides is None or 0 in strides:
        return dims
    return tuple(d for _, d in sorted(zip(strides, dims, strict=True), key=lambda pair: -pair[0]))


@dataclass(frozen=True)
class RowParts:
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


def parts_of_rows(low: LoweringContext, a: LoweredTensor, dims: tuple[int, ...]) -> RowParts | None:
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
    parts = [RowParts(rows, *pair) for pair in lengths]
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
