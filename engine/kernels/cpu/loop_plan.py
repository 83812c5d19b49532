"""Chooses the loops of a kernel that become vectors and that threads share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from engine.ir.kernels.host_vectors import VectorUnit
from engine.ir.loop_ir.index_expr import ZERO, IndexExpr, LoopVar, Size, lower_bound, product, upper_bound
from engine.ir.loop_ir.loop_kernel import LoopKernel, LoopNest
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, compute_dtype
from engine.ir.static_sizes import static_size, static_sizes
from engine.kernels.dependences import loop_levels

MIN_PARALLEL_ITERATIONS = 64
"""Outer loops are merged until threads have this many iterations to share."""
SHORT_STRIDES = (2, 3, 4)
"""Strides at which whole vectors and shuffles are faster than a gather or a scatter."""
CACHE_LINE = 64
"""Bytes that a load brings into the cache."""
MAX_ROW_BYTES = 1 << 17
"""Most bytes of the rows that a kernel transposes before it reduces them.

They stay in the second cache of a core.
"""
MAX_COPIES = 4
LoopVarsOf = Mapping[int, frozenset[LoopVar]]
"""The loop variables along which each op varies, by its number."""
TileVars = Mapping[tuple[LoopVar, LoopVar], Sequence[LoopIROp]]
"""Transposed loads by the loop of the lanes and the loop along which they are contiguous."""
UNKNOWN_SIZE = 64
"""Stands for a symbolic size where loops are compared."""
CHEAP_OPS = 24
"""Kernels of at most this arithmetic cost per element are unrolled fully."""
STRIP = 4096
"""Columns of a strip, whose accumulators stay in the first caches of a core.

A processor fetches ahead in the long run of a row; a jump to the next row costs the latency of memory.
"""
MIN_STRIP_ROWS = 16
"""Rows from which on strips are faster, and parts of them that threads can share."""
MIN_STRIP_ELEMENTS = 1 << 15
"""Elements from which on strips are faster: fewer stay in the cache between two columns."""


@dataclass(frozen=True)
class LoopPlan:
    """Loops as they are printed.

    ``parallel`` are the outermost loops, merged into one that threads share; ``outer`` are those inside. ``lane_var``
    is the loop whose iterations are vector lanes; None for a scalar kernel. ``copies`` are the vectors per iteration.
    ``tile_var`` is the loop along which the transposed loads are contiguous: they are read in square tiles of
    ``lanes`` vectors, ``tiles`` beside each other. None without such loads. It is an inner loop if the lanes are short
    rows that are reduced. If the lanes are along the rows, whole rows are transposed before they are reduced.
    ``unrolled_var`` is a loop of few iterations that are adjacent in memory, such as the parts of a complex number:
    each is printed inside the vector loop, and one store writes them all. ``strip`` is the number of
    columns that are reduced together, row by row, with accumulators in memory; 0 if each iteration of the vector loop
    reduces its columns down all rows.
    """

    parallel: tuple[LoopVar, ...]
    outer: tuple[LoopVar, ...]
    inner: tuple[LoopVar, ...]
    lane_var: LoopVar | None
    lanes: int
    copies: int
    is_serial: bool = False
    tile_var: LoopVar | None = None
    tiles: int = 1
    unrolled_var: LoopVar | None = None
    strip: int = 0

    @property
    def shares_lanes(self) -> bool:
        """True if threads share the vector loop itself."""
        return not self.parallel and self.lane_var is not None and self.lane_var not in self.inner

    @property
    def extent(self) -> Size:
        """The iterations that threads share; 1 if there are none."""
        if self.shares_lanes:
            assert self.lane_var is not None
            return self.lane_var.size
        return product(v.size for v in self.parallel)


def make_plan(kernel: LoopKernel, live: Sequence[LoopIROp], unit: VectorUnit) -> LoopPlan:
    """Choose the loops of a kernel."""
    nest = kernel.nest
    assert nest is not None
    scans, is_serial = any(op.name == "scan" for op in live), any(_is_scattered(op) for op in live)
    lanes = 1 if unit.bits == 0 else unit.lanes(_common_itemsize(live))
    tiled = _tile_vars(kernel, live, nest, lanes) if lanes > 1 and not (scans or is_serial) else {}
    lane_var = None if lanes == 1 else _choose_lane_var(kernel, live, nest, tiled, scans=scans)
    lanes = 1 if lane_var is None else lanes
    tile_var = None if lane_var is None else _choose_tile_var(tiled, lane_var)
    short_row = None
    if lane_var in nest.inner and not scans and not is_serial and _reduces_short_rows(kernel, live, nest, lanes):
        lane_var, short_row, tile_var = nest.outer[-1], lane_var, None
    unrolled_var = None if scans or is_serial or nest.inner or tile_var else _choose_unrolled_var(live, nest, lane_var)
    around = [v for v in nest.outer if v not in (lane_var, tile_var, unrolled_var)]
    parallel: list[LoopVar] = []
    while around and _can_share(live, around[0], parallel) and not (parallel and _has_enough_iterations(parallel)):
        parallel.append(around.pop(0))
    if tile_var is not None:
        assert lane_var is not None
        own = () if lane_var in nest.inner else (lane_var,)
        shared, within = (tuple(parallel), (*around, tile_var, *own))
        if not _has_enough_iterations(parallel):
            shared, within = (tile_var,), (*parallel, *around, *own)
        tiles = _tiles_of_a_line(kernel, tiled[lane_var, tile_var], tile_var, lanes)
        copies = 1 if own else _choose_copy_count(live, lane_var, lanes)
        return LoopPlan(shared, within, nest.inner, lane_var, lanes, copies, tile_var=tile_var, tiles=tiles)
    copies = 1 if lane_var is None or short_row is not None else _choose_copy_count(live, lane_var, lanes)
    if lane_var is not None and kernel.vector_config is not None:
        copies = min(kernel.vector_config.copies, _vector_count(lane_var, lanes) or kernel.vector_config.copies)
    is_in_strips = not is_serial and short_row is None and _reduces_columns(kernel, live, lane_var, lanes * copies)
    enough = MIN_STRIP_ROWS if is_in_strips else MIN_PARALLEL_ITERATIONS
    if (
        parallel
        and not _has_enough_iterations(parallel, enough)
        and lane_var in nest.outer
        and _is_longer(lane_var, parallel)
    ):
        around, parallel = [*parallel, *around], []
    inner = tuple(v for v in nest.inner if v != lane_var)
    if lane_var in nest.inner:
        inner = (*inner, lane_var)
    if lane_var in nest.outer:
        around.append(lane_var)
    if unrolled_var is not None:
        around.append(unrolled_var)
        copies = max(1, copies // (static_size(unrolled_var.size) or 1))
    is_serial = is_serial and lane_var is None and not parallel
    return LoopPlan(
        tuple(parallel),
        tuple(around),
        inner,
        lane_var,
        lanes,
        copies,
        is_serial,
        tile_var=short_row,
        unrolled_var=unrolled_var,
        strip=STRIP if is_in_strips else 0,
    )


def loop_vars_of(ops: tuple[LoopIROp, ...], nest: LoopNest) -> LoopVarsOf:
    """Return the loop variables along which each op varies."""
    loop_vars: dict[int, frozenset[LoopVar]] = {}
    inner = frozenset(nest.inner)
    for op in ops:
        own = frozenset() if op.index is None or op.name == "check" else op.index.variables()
        own = own.union(*(loop_vars[a.number] for a in op.inputs(ops)))
        loop_vars[op.number] = own - inner if op.name == "reduce" else own | inner if op.name == "scan" else own
    return loop_vars


def lane_stride(index: IndexExpr, var: LoopVar) -> Size | None:
    """Return the stride of an index along a variable; None if it is not constant."""
    stride: Size = 0
    for atom, coefficient in index.terms.items():
        if atom.as_variable() == var:
            stride = coefficient
        elif var in atom.variables():
            return None
    return stride


def is_transposed(op: LoopIROp, lane_var: LoopVar, tile_var: LoopVar, variables: LoopVarsOf | None = None) -> bool:
    """Return True if a load is contiguous along the tile, but not along the lanes.

    With ``variables``, its condition may differ between the lanes, but not along the tile.
    """
    if op.name != "load" or op.index is None or op.index.indirect_ops():
        return False
    if op.mask is not None and (variables is None or tile_var in variables[op.mask.number]):
        return False
    along = lane_stride(op.index, lane_var)
    return along not in (None, 0, 1) and lane_stride(op.index, tile_var) == 1


def _tile_vars(kernel: LoopKernel, live: Sequence[LoopIROp], nest: LoopNest, lanes: int) -> TileVars:
    """Return the transposed loads that tiles can read, by their two loops."""
    variables, long = loop_vars_of(kernel.ops, nest), [v for v in nest.outer if _is_long(v, lanes)]
    if nest.inner:
        rows = [v for v in nest.inner if len(nest.inner) == 1 and _is_long(v, lanes)]
        tiled = {(row, v): [op for op in live if is_transposed(op, row, v)] for row in rows for v in long}
        return {pair: ops for pair, ops in tiled.items() if ops and _are_short_enough(kernel, ops, pair[0], lanes)}
    pairs = [(lane_var, tile_var) for lane_var in long for tile_var in long if lane_var != tile_var]
    tiled = {pair: [op for op in live if is_transposed(op, *pair, variables)] for pair in pairs}
    return {pair: ops for pair, ops in tiled.items() if ops}


def _are_short_enough(kernel: LoopKernel, loads: Sequence[LoopIROp], row: LoopVar, lanes: int) -> bool:
    """Return True if the transposed rows of a tile stay in the caches of a core."""
    sizes, length = [kernel.buffers[op.buffer].dtype.itemsize for op in loads], static_size(row.size)
    height = max(lanes, CACHE_LINE // min(sizes))
    return length is not None and length * height * sum(max(4, size) for size in sizes) <= MAX_ROW_BYTES


def _choose_tile_var(tiled: TileVars, lane_var: LoopVar) -> LoopVar | None:
    """Return the loop along which most transposed loads are contiguous; None without any."""
    counts = {tile_var: len(ops) for (lane, tile_var), ops in tiled.items() if lane == lane_var}
    return max(counts, key=lambda v: counts[v], default=None)


def _is_long(var: LoopVar, lanes: int) -> bool:
    """Return True if a loop has at least one whole vector, as far as is known."""
    size = static_size(var.size)
    return size is None or size >= lanes


def _choose_unrolled_var(live: Sequence[LoopIROp], nest: LoopNest, lane_var: LoopVar | None) -> LoopVar | None:
    """Return the last loop if it is short and contiguous in all results; else None.

    The stride of the lanes must be its size.
    """
    if lane_var is None or len(nest.outer) < 2 or nest.outer[-1] == lane_var:
        return None
    var, stores = nest.outer[-1], [op for op in live if op.name in WRITE_OPS]
    if static_size(var.size) not in SHORT_STRIDES or len({op.buffer for op in stores}) < len(stores):
        return None
    strides = [(lane_stride(op.index, lane_var), lane_stride(op.index, var)) for op in stores if op.index is not None]
    return var if all(pair == (var.size, 1) for pair in strides) else None


def _reduces_short_rows(kernel: LoopKernel, live: Sequence[LoopIROp], nest: LoopNest, lanes: int) -> bool:
    """Return True if a kernel only reduces rows of at most two vectors that adjoin in memory.

    A row for each lane then needs no sum across lanes, and what follows from the results is computed for all lanes.
    """
    if len(nest.inner) != 1 or not nest.outer:
        return False
    row, lane = nest.inner[0], nest.outer[-1]
    length, count = static_size(row.size), static_size(lane.size)
    if length is None or count is None or not 4 <= length <= 2 * lanes or count < 4 * lanes:
        return False
    variables = loop_vars_of(kernel.ops, nest)
    loads = [op for op in live if op.name == "load" and op.index is not None]
    along_rows = [op for op in loads if row in variables[op.number] and not is_transposed(op, lane, row)]
    return (
        any(is_transposed(op, lane, row) for op in loads)
        and all(_is_spread_over_lanes(op, lane) for op in along_rows)
        and all(
            _is_spread_over_lanes(op, lane) and row not in variables[op.number] for op in live if op.name in WRITE_OPS
        )
    )


def _is_spread_over_lanes(op: LoopIROp, lane: LoopVar) -> bool:
    """Return True if adjacent lanes access the same or adjacent elements, unconditionally."""
    assert op.index is not None
    is_plain = op.mask is None and not op.index.indirect_ops()
    return is_plain and lane_stride(op.index, lane) in ((1,) if op.name in WRITE_OPS else (0, 1))


def _reduces_columns(kernel: LoopKernel, live: Sequence[LoopIROp], lane_var: LoopVar | None, width: int) -> bool:
    """Return True if a kernel reduces adjacent columns in one pass over many rows.

    ``width`` is the number of columns in one iteration of the vector loop.
    """
    nest = kernel.nest
    assert nest is not None
    if lane_var not in nest.outer or any(op.name == "scan" for op in live):
        return False
    rows, columns = static_size(product(v.size for v in nest.inner)), static_size(lane_var.size)
    if (rows is not None and rows < MIN_STRIP_ROWS) or (columns is not None and columns <= width):
        return False
    count = static_size(product(v.size for v in (*nest.outer, *nest.inner)))
    if count is not None and count < MIN_STRIP_ELEMENTS:
        return False
    variables, levels = loop_vars_of(kernel.ops, nest), loop_levels(kernel.ops, set())
    reductions = [op for op in live if op.name == "reduce"]
    in_rows = [
        op for op in live if op.name in ("check", *WRITE_OPS) and not variables[op.number].isdisjoint(nest.inner)
    ]
    return (
        bool(reductions)
        and all(
            levels[op.number] == 1 and lane_var in variables[op.number] and compute_dtype(op.dtype) != torch.bool
            for op in reductions
        )
        and all(levels[op.number] == 0 for op in in_rows)
    )


def _tiles_of_a_line(kernel: LoopKernel, loads: Sequence[LoopIROp], tile_var: LoopVar, lanes: int) -> int:
    """Return how many tiles one line of the cache spans.

    It is 1 where more would leave rows beside the tiles.
    """
    smallest = min(kernel.buffers[op.buffer].dtype.itemsize for op in loads)
    tiles, size = max(1, CACHE_LINE // (smallest * lanes)), static_size(tile_var.size)
    return tiles if size is not None and size % (tiles * lanes) < lanes else 1


def _is_scattered(op: LoopIROp) -> bool:
    return op.name == "atomic_add" or (
        op.name in WRITE_OPS and op.index is not None and (op.mask is not None or bool(op.index.indirect_ops()))
    )


def _writes_distinct_elements(op: LoopIROp, var: LoopVar, variables: LoopVarsOf) -> bool:
    """Return True unless an op may write one element in two iterations of a loop."""
    if not _is_scattered(op):
        return True
    assert op.index is not None
    picks = any(var in variables[n] for n in op.index.indirect_ops())
    return lane_stride(op.index, var) == 1 and not picks


def _can_share(live: Sequence[LoopIROp], var: LoopVar, around: Sequence[LoopVar]) -> bool:
    """Return True if no two iterations of a loop write one element.

    The loops inside may have any positions. The variables ``around`` it are the same in both.
    """
    scattered = [op for op in live if _is_scattered(op)]
    if len({op.buffer for op in scattered}) < len(scattered):
        return False
    for op in scattered:
        assert op.index is not None
        steps = [static_size(lane_stride(op.index, v)) for v in (*around, var)]
        inside = op.index.replace(dict.fromkeys((*around, var), ZERO))
        limits = static_sizes((upper_bound(inside), lower_bound(inside)))
        if None in steps or op.index.indirect_ops() or limits is None or limits[0] - limits[1] >= abs(steps[-1] or 0):
            return False
    return True


def _has_enough_iterations(loops: Sequence[LoopVar], enough: int = MIN_PARALLEL_ITERATIONS) -> bool:
    """Return True if these loops have enough iterations for all threads."""
    count = static_size(product(v.size for v in loops))
    return count is None or count >= enough


def _is_longer(var: LoopVar | None, others: Sequence[LoopVar]) -> bool:
    size, count = static_size(var.size) if var is not None else None, static_size(product(v.size for v in others))
    return size is not None and count is not None and size > 16 * count


def _choose_lane_var(
    kernel: LoopKernel, live: Sequence[LoopIROp], nest: LoopNest, tiled: TileVars, *, scans: bool
) -> LoopVar | None:
    """Return the variable along which most memory is accessed contiguously, or in tiles."""
    variables = loop_vars_of(kernel.ops, nest)
    candidates = [*nest.outer, *(() if scans else nest.inner)]
    inner = frozenset(nest.inner)
    in_loop = {v: [op for op in live if v in nest.outer or variables[op.number] & inner] for v in candidates}
    candidates = [v for v in candidates if all(_writes_distinct_elements(op, v, variables) for op in in_loop[v])]
    in_tiles = {v: [op for (lane, _), ops in tiled.items() if lane == v for op in ops] for v in candidates}
    ranked = [(_score(live, variables, v, nest, in_tiles[v]), n, v) for n, v in enumerate(candidates)]
    best = max(ranked, key=lambda entry: entry[:2], default=None)
    return None if best is None or (best[0] <= 0 and scans) else best[2]


def _score(
    live: Sequence[LoopIROp], variables: LoopVarsOf, var: LoopVar, nest: LoopNest, in_tiles: Sequence[LoopIROp]
) -> float:
    """Return how well memory is accessed along a variable, by how often each access runs.

    ``in_tiles``: loads that would be read in tiles, at the cost of shuffles.
    """
    total = 0.0
    accesses = [op for op in live if op.buffer and op.index is not None]
    loops = [v for group in (nest.outer, nest.inner) for v in sorted(group, key=lambda v: v == var)]
    counts = [_runs(variables[op.number], loops) for op in accesses]
    for op, count in zip(accesses, counts, strict=True):
        assert op.index is not None
        weight = (2.0 if op.name in WRITE_OPS else 1.0) * count / max(counts)
        stride = lane_stride(op.index, var)
        picks = any(var in variables[n] for n in op.index.indirect_ops())
        if stride is None or picks:
            total -= weight
        elif stride == 0:
            total += 0.25 * weight
        elif op not in in_tiles:
            total += weight / float(stride) if stride in (1, *SHORT_STRIDES) else -weight
    size = static_size(var.size)
    return total - (8 if size is not None and size < 8 else 0)


def _runs(own: frozenset[LoopVar], loops: Sequence[LoopVar]) -> int:
    """Return how often an op runs: in the innermost of the loops that it varies along."""
    depth = max((n for n, v in enumerate(loops, 1) if v in own), default=0)
    return math.prod(static_size(v.size) or UNKNOWN_SIZE for v in loops[:depth])


def _common_itemsize(live: Iterable[LoopIROp]) -> int:
    """Return the bytes of the values that a kernel mostly computes, for the lanes of a vector."""
    sizes = {op.dtype.itemsize for op in live if op.name not in ("constant", "index", "check")}
    floats = {op.dtype for op in live if op.dtype.is_floating_point}
    if floats == {torch.float64} or (not floats and min(sizes, default=4) == 8):
        return 8
    return max(sizes, default=4) if not floats and max(sizes, default=4) < 4 else 4


def _vector_count(var: LoopVar, lanes: int) -> int | None:
    """Return the vectors that hold all iterations of a loop; None if its size is symbolic."""
    size = static_size(var.size)
    return None if size is None else -(-size // lanes)


def _choose_copy_count(live: Iterable[LoopIROp], var: LoopVar, lanes: int) -> int:
    cost = sum(op.cost for op in live)
    copies = MAX_COPIES if cost <= CHEAP_OPS else 2 if cost <= 2 * CHEAP_OPS else 1
    vectors = _vector_count(var, lanes)
    return vectors if vectors is not None and vectors <= 2 * copies else copies
