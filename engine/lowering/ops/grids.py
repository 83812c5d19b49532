"""Pictures read at the places that a grid names, in two and three dimensions, and the gradients for picture and grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.index import Index, Size
from engine.ir.loops import Builder, Coordinates, Op, compute_dtype
from engine.lowering.arithmetic import Value
from engine.lowering.ops.reductions import reduce
from engine.lowering.ops.scatters import scattered
from engine.lowering.resampling import CUBIC
from engine.lowering.table import Lowering, NotLowered, Tensor, check_loopable, lowers, result_value, sizes_of

aten = torch.ops.aten

LINEAR, NEAREST, BICUBIC = 0, 1, 2
"""Between which neighbours a place is taken to lie."""
TAPS = (2, 1, 4)
"""Neighbours along each dimension, by that."""
ZEROS, BORDER, REFLECTED = 0, 1, 2
"""What lies outside of the picture."""


@dataclass(frozen=True)
class Tap:
    """One neighbour along one dimension: where it is, how much it counts, and how fast that grows with the grid's value."""

    place: Value
    weight: Value
    change: Value

    @property
    def parts(self) -> tuple[Value, Value, Value]:
        """All three."""
        return self.place, self.weight, self.change


@dataclass(frozen=True)
class Neighbour:
    """One neighbour: its index in the picture, whether it is inside (None: surely), its weight, and its changes along each dimension."""

    index: Coordinates
    inside: Op | None
    weight: Value
    changes: tuple[Value, ...]


@dataclass(frozen=True)
class Sampler:
    """How a picture (N, C, sizes) is read at a grid (N, places, rank), whose last dimension names the last size first."""

    sizes: tuple[Size, ...]
    grid: Tensor
    mode: int
    padding: int
    align: bool
    held: torch.dtype

    @property
    def rank(self) -> int:
        """Dimensions of the picture."""
        return len(self.sizes)

    def neighbours(self, b: Builder, where: Coordinates) -> Iterator[Neighbour]:
        """The neighbours of the place that the grid names at ``where``, sample first."""
        for taps in itertools.product(*self._sides(b, where)):
            yield self._neighbour(b, taps)

    @property
    def count(self) -> int:
        """How many neighbours a place has."""
        return int(TAPS[self.mode] ** self.rank)

    def neighbour(self, b: Builder, where: Coordinates, number: Index) -> Neighbour:
        """One of the neighbours, by its number."""
        taps, width = [], TAPS[self.mode]
        for d, side in enumerate(self._sides(b, where)):
            chosen, which = side[-1], number.div(width**d).mod(width)
            for k in reversed(range(width - 1)):
                is_here = Value(b, b.call("eq", b.position(which), b.constant(k, b.index_dtype), dtype=torch.bool))
                chosen = Tap(*(is_here.where(a, o) for a, o in zip(side[k].parts, chosen.parts, strict=True)))
            taps.append(chosen)
        return self._neighbour(b, tuple(taps))

    def _sides(self, b: Builder, where: Coordinates) -> list[list[Tap]]:
        return [self._taps(b, where, d, size) for d, size in enumerate(self.sizes)]

    def _neighbour(self, b: Builder, taps: tuple[Tap, ...]) -> Neighbour:
        inside: Op | None = None
        for tap, size in zip(taps, self.sizes, strict=True) if self.padding == ZEROS or self.mode == LINEAR else ():
            test = ((tap.place >= 0.0) & (tap.place < Value(b, b.size(size, self.held)))).op
            inside = test if inside is None else b.both(inside, test)
        index = tuple(
            b.picked(b.cast(t.place.op, torch.int64), n, wraps=False, is_checked=False)
            for t, n in zip(taps, self.sizes, strict=True)
        )
        changes = tuple(
            _product([t.change if e == d else t.weight for e, t in enumerate(taps)]) for d in range(self.rank)
        )
        return Neighbour(index, inside, _product([t.weight for t in taps]), changes)

    def _taps(self, b: Builder, where: Coordinates, dim: int, size: Size) -> list[Tap]:
        along = Value(b, b.cast(self.grid.at(b, (*where, Index({}, self.rank - 1 - dim))), self.held))
        count = Value(b, b.size(size, self.held))
        place = (along + 1.0) * ((count - 1.0) * 0.5) if self.align else ((along + 1.0) * count - 1.0) * 0.5
        slope = (count - 1.0) * 0.5 if self.align else count * 0.5
        if self.mode == BICUBIC:
            return self._cubic(place, slope, count)
        place, slope = self._bounded(place, slope, count)
        if self.mode == NEAREST:
            return [Tap(place.call("round"), place.number(1.0), place.number(0.0))]
        first = place.call("floor")
        share = place - first
        return [Tap(first, 1.0 - share, -slope), Tap(first + 1.0, share, slope)]

    def _cubic(self, place: Value, slope: Value, count: Value) -> list[Tap]:
        first = place.call("floor")
        share = place - first
        taps = []
        for k, weigh in ((-1, _far), (0, _near), (1, _near), (2, _far)):
            weight, change = weigh(share - float(k) if k < 1 else float(k) - share)
            bounded = self._bounded(first + float(k), slope, count)[0]
            taps.append(Tap(bounded, weight, change * (slope if k < 1 else -slope)))
        return taps

    def _bounded(self, place: Value, slope: Value, count: Value) -> tuple[Value, Value]:
        """Where a place comes to lie by the padding, and how fast it moves there."""
        if self.padding == ZEROS:
            return place, slope
        if self.padding == REFLECTED:
            place, turned = _reflected(place, count, align=self.align)
            slope = slope * turned
        last = count - 1.0
        is_free = (place > 0.0) & (place < last)
        return place.clamped(0.0, last), is_free.where(slope, 0.0)


def _product(parts: Sequence[Value]) -> Value:
    result = parts[0]
    for part in parts[1:]:
        result = result * part
    return result


def _reflected(place: Value, count: Value, *, align: bool) -> tuple[Value, Value]:
    """A place thrown back at both ends as often as it takes, and 1 or -1: whether it then runs forwards."""
    start, span = (0.0, count - 1.0) if align else (-0.5, count)
    span = (span > 0.0).where(span, 1.0)
    moved = place - start
    length = moved.call("abs")
    half = (length / span).call("floor") * 0.5
    rest = length.call("fmod", span)
    is_even = half.equals(half.call("floor"))
    forwards = (moved < 0.0).where(moved.number(-1.0), 1.0)
    if align:
        forwards = (count > 1.0).where(forwards, 0.0)
        rest = (count > 1.0).where(rest, 0.0)
    return is_even.where(rest + start, span - rest + start), is_even.where(forwards, -forwards)


def _near(x: Value) -> tuple[Value, Value]:
    """The cubic kernel at a distance of at most 1, and its slope (Keys, 1981)."""
    a = CUBIC
    return ((x * (a + 2.0)) - (a + 3.0)) * x * x + 1.0, (x * (3.0 * (a + 2.0)) - 2.0 * (a + 3.0)) * x


def _far(x: Value) -> tuple[Value, Value]:
    """The same at a distance from 1 to 2."""
    a = CUBIC
    return ((x * a - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a, (x * (3.0 * a) - 10.0 * a) * x + 8.0 * a


def _sampler(a: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Sampler:
    check_loopable(a, grid)
    if not a.dtype.is_floating_point or any(n == 0 for n in a.shape):
        raise NotLowered("such pictures are read by ATen")
    held = compute_dtype(a.dtype)
    return Sampler(a.shape[2:], grid, mode, padding, align, held)


def _read(b: Builder, a: Tensor, lead: Coordinates, near: Neighbour, held: torch.dtype) -> Value:
    def read() -> Op:
        return b.cast(a.at(b, (*lead, *near.index)), held)

    return Value(b, read() if near.inside is None else b.masked(near.inside, read, b.constant(0.0, held)))


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(low: Lowering, a: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    sampler = _sampler(a, grid, mode, padding, align)

    def body(b: Builder, i: Coordinates) -> Op:
        total: Any = None
        for near in sampler.neighbours(b, (i[0], *i[2:])):
            part = _read(b, a, i[:2], near, sampler.held) * near.weight
            total = part if total is None else total + part
        return total.op  # type: ignore[no-any-return]

    return low.pointwise(sizes_of(result_value(low)), a.dtype, body)


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    low: Lowering,
    grad: Tensor,
    a: Tensor,
    grid: Tensor,
    mode: int,
    padding: int,
    align: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """The gradient is added to each neighbour by its weight; the grid gets what the neighbours change by, summed over channels."""
    sampler = _sampler(a, grid, mode, padding, align)
    held = sampler.held
    picture = _for_picture(low, grad, a, sampler) if wanted[0] else None
    value = result_value(low)[1]
    if mode == NEAREST:
        return picture, low.pointwise(grid.shape, value.dtype, lambda b, i: b.constant(0.0, value.dtype))
    rank, name = sampler.rank, low.node.name if low.node is not None else "grid"

    def side(dim: int) -> Tensor:
        def moved(b: Builder, i: Coordinates) -> Op:
            total: Any = None
            for near in sampler.neighbours(b, (i[0], *i[2:])):
                part = _read(b, a, i[:2], near, held) * near.changes[dim]
                total = part if total is None else total + part
            return (total * Value(b, b.cast(grad.at(b, i), held))).op  # type: ignore[no-any-return]

        return reduce(low, "sum", grad, (1,), False, held, moved, name=f"{name}_{dim}")

    sides = [side(rank - 1 - k) for k in range(rank)]

    def joined(b: Builder, i: Coordinates) -> Op:
        chosen = sides[-1].at(b, i[:-1])
        for k in reversed(range(rank - 1)):
            is_here = b.call("eq", b.position(i[-1]), b.constant(k, b.index_dtype), dtype=torch.bool)
            chosen = b.where(is_here, sides[k].at(b, i[:-1]), chosen)
        return chosen

    return picture, low.pointwise(grid.shape, value.dtype, joined)


def _for_picture(low: Lowering, grad: Tensor, a: Tensor, sampler: Sampler) -> Tensor:
    """Zeros, to each place's neighbours in which its gradient is added; the neighbours are a dimension more to walk."""
    held = sampler.held
    zeros = low.pointwise(a.shape, a.dtype, lambda b, i: b.constant(0.0, a.dtype), name="zeros")

    def write(b: Builder, i: Coordinates) -> tuple[Coordinates, Op]:
        near = sampler.neighbour(b, (i[1], *i[3:]), i[0])
        value = (Value(b, b.cast(grad.at(b, i[1:]), held)) * near.weight).op
        if near.inside is not None:
            value = b.where(near.inside, value, b.constant(0.0, held))
        return (*i[1:3], *near.index), value

    return scattered(low, zeros, (sampler.count, *grad.shape), write, is_added=True)
