"""``grid_sample`` in two and three dimensions, and the gradients for input and grid."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, Size
from engine.ir.loop_ir.ops import LoopIROp, compute_dtype, conjunction
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.decompositions.interpolation import CUBIC_COEFFICIENT
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.ops.reductions import reduce
from engine.lowering.ops.scatter import scatter_into
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape

aten = torch.ops.aten

LINEAR, NEAREST, BICUBIC = 0, 1, 2
"""Interpolation modes, numbered as in ATen."""
TAP_COUNTS = (2, 1, 4)
"""Neighbors along each dimension, by interpolation mode."""
ZEROS, BORDER, REFLECTION = 0, 1, 2
"""Padding modes, numbered as in ATen."""


@dataclass(frozen=True)
class Tap:
    """One neighbor along one dimension: position, weight, and the weight's derivative.

    The derivative is with respect to the grid's value.
    """

    position: LoopIROp
    weight: LoopIROp
    derivative: LoopIROp

    @property
    def parts(self) -> tuple[LoopIROp, LoopIROp, LoopIROp]:
        """Position, weight and derivative."""
        return self.position, self.weight, self.derivative


@dataclass(frozen=True)
class Neighbor:
    """One neighbor: input index, bounds test (None: always inside), weight, derivatives.

    There is one derivative for each dimension.
    """

    index: Coordinates
    inside: LoopIROp | None
    weight: LoopIROp
    derivatives: tuple[LoopIROp, ...]


@dataclass(frozen=True)
class GridSampler:
    """Reads an input (N, C, sizes) at a grid (N, positions, rank).

    The grid's last dimension has the coordinates in reverse order of ``sizes``: x, y and then z.
    """

    sizes: tuple[Size, ...]
    grid: LoweredTensor
    mode: int
    padding: int
    align_corners: bool
    compute_dtype: torch.dtype

    @property
    def rank(self) -> int:
        """Number of spatial dimensions of the input."""
        return len(self.sizes)

    def neighbors(self, b: LoopBuilder, where: Coordinates) -> Iterator[Neighbor]:
        """Yield the neighbors of the grid point at ``where``, an index that begins with the batch."""
        for taps in itertools.product(*self._taps_per_dim(b, where)):
            yield self._combine_taps(b, taps)

    @property
    def neighbor_count(self) -> int:
        """Number of neighbors of a grid point."""
        return int(TAP_COUNTS[self.mode] ** self.rank)

    def neighbor(self, b: LoopBuilder, where: Coordinates, number: IndexExpr) -> Neighbor:
        """Return one neighbor of a grid point by its number."""
        taps, width = [], TAP_COUNTS[self.mode]
        for d, side in enumerate(self._taps_per_dim(b, where)):
            chosen, which = side[-1], number.div(width**d).mod(width)
            for k in reversed(range(width - 1)):
                is_here = b.index_value(which).equals(k)
                chosen = Tap(*(b.where(is_here, a, o) for a, o in zip(side[k].parts, chosen.parts, strict=True)))
            taps.append(chosen)
        return self._combine_taps(b, tuple(taps))

    def _taps_per_dim(self, b: LoopBuilder, where: Coordinates) -> list[list[Tap]]:
        return [self._taps_along(b, where, d, size) for d, size in enumerate(self.sizes)]

    def _combine_taps(self, b: LoopBuilder, taps: tuple[Tap, ...]) -> Neighbor:
        tested = zip(taps, self.sizes, strict=True) if self.padding == ZEROS or self.mode == LINEAR else ()
        inside = conjunction(
            (tap.position >= 0.0) & (tap.position < b.size(size, self.compute_dtype)) for tap, size in tested
        )
        index = tuple(
            b.indirect_index(b.cast(t.position, torch.int64), n, wraps=False, is_checked=False)
            for t, n in zip(taps, self.sizes, strict=True)
        )
        changes = tuple(
            functools.reduce(operator.mul, (t.derivative if e == d else t.weight for e, t in enumerate(taps)))
            for d in range(self.rank)
        )
        return Neighbor(index, inside, functools.reduce(operator.mul, (t.weight for t in taps)), changes)

    def _taps_along(self, b: LoopBuilder, where: Coordinates, dim: int, size: Size) -> list[Tap]:
        along = b.cast(self.grid.load(b, (*where, IndexExpr({}, self.rank - 1 - dim))), self.compute_dtype)
        count = b.size(size, self.compute_dtype)
        position = (along + 1.0) * ((count - 1.0) * 0.5) if self.align_corners else ((along + 1.0) * count - 1.0) * 0.5
        slope = (count - 1.0) * 0.5 if self.align_corners else count * 0.5
        if self.mode == BICUBIC:
            return self._cubic_taps(b, position, slope, count)
        position, slope = self._apply_padding_mode(b, position, slope, count)
        if self.mode == NEAREST:
            return [
                Tap(b.call("round", position), b.constant(1.0, self.compute_dtype), b.constant(0.0, self.compute_dtype))
            ]
        first = b.call("floor", position)
        share = position - first
        return [Tap(first, 1.0 - share, -slope), Tap(first + 1.0, share, slope)]

    def _cubic_taps(self, b: LoopBuilder, position: LoopIROp, slope: LoopIROp, count: LoopIROp) -> list[Tap]:
        first = b.call("floor", position)
        share = position - first
        taps = []
        for k, weigh in ((-1, _cubic_outer), (0, _cubic_inner), (1, _cubic_inner), (2, _cubic_outer)):
            weight, change = weigh(share - float(k) if k < 1 else float(k) - share)
            bounded = self._apply_padding_mode(b, first + float(k), slope, count)[0]
            taps.append(Tap(bounded, weight, change * (slope if k < 1 else -slope)))
        return taps

    def _apply_padding_mode(
        self, b: LoopBuilder, position: LoopIROp, slope: LoopIROp, count: LoopIROp
    ) -> tuple[LoopIROp, LoopIROp]:
        if self.padding == ZEROS:
            return position, slope
        if self.padding == REFLECTION:
            position, turned = _reflect(b, position, count, align=self.align_corners)
            slope = slope * turned
        last = count - 1.0
        is_free = (position > 0.0) & (position < last)
        raised = b.where(position > 0.0, position, 0.0)  # NaN becomes 0
        return b.where(raised < last, raised, last), b.where(is_free, slope, 0.0)


def _reflect(b: LoopBuilder, position: LoopIROp, count: LoopIROp, *, align: bool) -> tuple[LoopIROp, LoopIROp]:
    """Reflect a position at both ends as often as needed; return it and its sign.

    The sign is -1 where the position runs backward, and 0 along a dimension of size 1 with aligned corners.
    """
    start, span = (0.0, count - 1.0) if align else (-0.5, count)
    span = b.where(span > 0.0, span, 1.0)
    moved = position - start
    length = b.call("abs", moved)
    half = b.call("floor", length / span) * 0.5
    rest = b.call("fmod", length, span)
    is_even = half.equals(b.call("floor", half))
    forwards = b.where(moved < 0.0, b.constant(-1.0, moved.dtype), 1.0)
    if align:
        forwards = b.where(count > 1.0, forwards, 0.0)
        rest = b.where(count > 1.0, rest, 0.0)
    return b.where(is_even, rest + start, span - rest + start), b.where(is_even, forwards, -forwards)


def _cubic_inner(x: LoopIROp) -> tuple[LoopIROp, LoopIROp]:
    """Return the cubic kernel and its slope at a distance of at most 1 (Keys, 1981)."""
    a = CUBIC_COEFFICIENT
    return ((x * (a + 2.0)) - (a + 3.0)) * x * x + 1.0, (x * (3.0 * (a + 2.0)) - 2.0 * (a + 3.0)) * x


def _cubic_outer(x: LoopIROp) -> tuple[LoopIROp, LoopIROp]:
    a = CUBIC_COEFFICIENT
    return ((x * a - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a, (x * (3.0 * a) - 10.0 * a) * x + 8.0 * a


def _make_sampler(a: LoweredTensor, grid: LoweredTensor, mode: int, padding: int, align: bool) -> GridSampler:
    if any(n == 0 for n in a.shape):
        raise NotLowered(LoweringFallback.EMPTY_INPUT, "grid_sample has a lowering only for nonempty tensors")
    math_dtype = compute_dtype(a.dtype)
    return GridSampler(a.shape[2:], grid, mode, padding, align, math_dtype)


def _load_neighbor(
    b: LoopBuilder, a: LoweredTensor, lead: Coordinates, near: Neighbor, math_dtype: torch.dtype
) -> LoopIROp:
    def read() -> LoopIROp:
        return b.cast(a.load(b, (*lead, *near.index)), math_dtype)

    return read() if near.inside is None else b.masked(near.inside, read, b.constant(0.0, math_dtype))


@register_lowering(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    low: LoweringContext, a: LoweredTensor, grid: LoweredTensor, mode: int, padding: int, align: bool
) -> LoweredTensor:
    sampler = _make_sampler(a, grid, mode, padding, align)

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        near = sampler.neighbors(b, (i[0], *i[2:]))
        parts = (_load_neighbor(b, a, i[:2], n, sampler.compute_dtype) * n.weight for n in near)
        return functools.reduce(operator.add, parts)

    return low.pointwise(symbolic_shape(fake_result(low)), a.dtype, body)


@register_lowering(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    low: LoweringContext,
    grad: LoweredTensor,
    a: LoweredTensor,
    grid: LoweredTensor,
    mode: int,
    padding: int,
    align: bool,
    output_mask: Sequence[bool],
) -> tuple[LoweredTensor | None, LoweredTensor]:
    """Scatter-add the input's gradient to the neighbors; sum the grid's over the channels."""
    sampler = _make_sampler(a, grid, mode, padding, align)
    math_dtype = sampler.compute_dtype
    picture = _grad_input(low, grad, a, sampler) if output_mask[0] else None
    value = fake_result(low)[1]
    if mode == NEAREST:
        return picture, low.full(grid.shape, value.dtype, 0.0)
    rank, name = sampler.rank, low.node_name

    def side(dim: int) -> LoweredTensor:
        def moved(b: LoopBuilder, i: Coordinates) -> LoopIROp:
            near = sampler.neighbors(b, (i[0], *i[2:]))
            parts = (_load_neighbor(b, a, i[:2], n, math_dtype) * n.derivatives[dim] for n in near)
            return functools.reduce(operator.add, parts) * b.cast(grad.load(b, i), math_dtype)

        return reduce(low, "sum", grad, (1,), False, math_dtype, moved, name=f"{name}_{dim}")

    sides = [side(rank - 1 - k) for k in range(rank)]

    def joined(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        chosen = sides[-1].load(b, i[:-1])
        for k in reversed(range(rank - 1)):
            is_here = b.index_value(i[-1]).equals(k)
            chosen = b.where(is_here, sides[k].load(b, i[:-1]), chosen)
        return chosen

    return picture, low.pointwise(grid.shape, value.dtype, joined)


def _grad_input(low: LoweringContext, grad: LoweredTensor, a: LoweredTensor, sampler: GridSampler) -> LoweredTensor:
    """Scatter-add the gradient of each grid point to its neighbors, by their weights.

    The neighbors are an additional loop dimension.
    """
    math_dtype = sampler.compute_dtype
    zeros = low.full(a.shape, a.dtype, 0.0, name="zeros")

    def write(b: LoopBuilder, i: Coordinates) -> tuple[Coordinates, LoopIROp]:
        near = sampler.neighbor(b, (i[1], *i[3:]), i[0])
        value = b.cast(grad.load(b, i[1:]), math_dtype) * near.weight
        if near.inside is not None:
            value = b.where(near.inside, value, 0.0)
        return (*i[1:3], *near.index), value

    return scatter_into(low, zeros, (sampler.neighbor_count, *grad.shape), write, is_added=True)
