"""Build the loop kernel of a fusion group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engine.ir.kernels.lowered_program import Buffer
from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar, Size, last_offset, product
from engine.ir.loop_ir.loop_kernel import LoopKernel, LoopNest
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, R
from engine.ir.reachable import reachable
from engine.ir.static_sizes import static_size
from engine.lowering.bytes_and_flops import bytes_moved, flops
from engine.lowering.fusion.fusion_group import FusionGroup
from engine.lowering.transpose_tile import Tile, choose_transpose_tile

if TYPE_CHECKING:
    from engine.lowering.graph_lowering import GraphLowering


INT32_LIMIT = 1 << 31


UNNAMED_OPS = frozenset(("clone", "copy", "to", "convert", "element", "type", "full", "arange", "t", "default"))


def build_loop_kernel(group: FusionGroup, id: str, walk: GraphLowering, buffers: Mapping[str, Buffer]) -> LoopKernel:
    """Build a kernel of one flat outer and one flat inner loop from a fusion group."""
    tile = choose_transpose_tile(group) or Tile(group.outer_vars, group.reduction_vars)
    x = LoopVar("x", product(v.size for v in tile.outer))
    r = LoopVar("r", product(v.size for v in tile.inner)) if tile.inner is not None else None
    values = tile.values(x, r)
    is_wide = needs_int64_index(group, buffers, product(v.size for v in (x, r) if v is not None))
    builder = LoopBuilder(
        group.members,
        frozenset((r,)) if r is not None else frozenset(),
        group.reduction_index().replace(values) if r is not None else IndexExpr(),
        is_wide,
    )
    ops = ops_of_stores(group, builder, values)
    if not depends_on_inner_loop(ops):
        r = None  # A one-hot sum was folded to its single non-zero element.
    return kernel_of_ops(group, id, walk, buffers, ops, x, r, is_wide=is_wide)


def ops_of_stores(
    group: FusionGroup, builder: LoopBuilder, values: Mapping[LoopVar, IndexExpr]
) -> tuple[LoopIROp, ...]:
    """Return the ops that compute and store a group's results.

    ``values``: the group's variables in terms of the kernel's loops.
    """
    for stored, index in sorted(group.stores.items(), key=lambda item: item[0].program_order):
        coordinates = tuple(i.replace(values) for i in index)
        value = builder.load(stored, coordinates)
        if stored.kind != "scatter":
            builder.store(stored, coordinates, value)
    return tuple(builder.ops)


def kernel_of_ops(
    group: FusionGroup,
    id: str,
    walk: GraphLowering,
    buffers: Mapping[str, Buffer],
    ops: tuple[LoopIROp, ...],
    x: LoopVar,
    r: LoopVar | None,
    *,
    is_wide: bool,
    nest: LoopNest | None = None,
) -> LoopKernel:
    """Return the kernel of a fusion group whose ops and loops are known."""
    used = {op.buffer for op in ops if op.buffer}
    mine = {name: buffers[name] for name in buffers if name in used}
    nodes = tuple(
        dict.fromkeys(o for member in sorted(group.members, key=lambda d: d.program_order) for o in member.node_ids)
    )
    rows = r.size if r is not None else 1
    return LoopKernel(
        id,
        f"loop:{walk.context.compilation}:{id}",
        kernel_name_words(nodes),
        ops,
        x,
        r,
        mine,
        nodes,
        is_wide,
        bytes_moved(ops, mine, x.size, rows),
        flops(ops, x.size, rows),
        initial_values={m.name: content for m in group.stores if (content := m.initial_content) is not None},
        nest=nest,
    )


def depends_on_inner_loop(ops: tuple[LoopIROp, ...]) -> bool:
    """Return True if a write depends on the inner loop."""
    read = reachable([op for op in ops if op.name in WRITE_OPS], lambda op: op.inputs(ops))
    return any(R in op.loops or op.name in ("reduce", "scan") for op in read)


def needs_int64_index(group: FusionGroup, buffers: Mapping[str, Buffer], numel: Size) -> bool:
    """Return True if a position in memory may need more than 32 bits."""
    used = [buffers[stored.name] for stored in (*group.input_defs(), *group.stores)]
    return max(static_size(numel) or 0, *(last_offset(b.shape, b.stride) for b in used), 0) >= INT32_LIMIT


def kernel_name_words(nodes: tuple[str, ...]) -> tuple[str, ...]:
    """Return words for the kernel's name, from the names of its nodes."""
    words: list[str] = []
    for node in nodes:
        word = node.rsplit(":", 1)[-1].strip("_")
        head, _, tail = word.rpartition("_")
        word = head if tail.isdigit() and head else word
        word = word.removeprefix("native_")
        if word and word not in words and word not in UNNAMED_OPS and not word.startswith("getitem"):
            words.append(word)
    return tuple(words)
