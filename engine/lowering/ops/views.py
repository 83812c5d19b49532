"""Views and rearrangements: index arithmetic on what is already there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.index import (
    ZERO,
    Index,
    Size,
    contiguous_strides,
    flatten,
    is_nonnegative,
    is_same,
    plain,
    product,
    unflatten,
)
from engine.ir.loops import Builder, Coordinates, Op
from engine.lowering.table import (
    Lowering,
    NotLowered,
    Tensor,
    check_loopable,
    element,
    lowers,
    positive_dim,
    promoted,
    result_value,
    sizes_of,
)

aten = torch.ops.aten


def _reshape_map(old: tuple[Size, ...], new: tuple[Size, ...]) -> Any:
    """Index map from the new shape to the old one, through as few divisions as grouping dimensions allows."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(left), j + len(right)
        while not is_same(product(old[k] for k in left), product(new[k] for k in right)):
            a, b = product(old[k] for k in left), product(new[k] for k in right)
            grow_left = (
                is_nonnegative(b - a)
                if isinstance(a, int) and isinstance(b, int)
                else j >= len(new) or (i < len(old) and len(left) <= len(right))
            )
            if grow_left and i < len(old):
                left.append(i)
                i += 1
            elif j < len(new):
                right.append(j)
                j += 1
            elif i < len(old):
                left.append(i)
                i += 1
            else:
                break
        groups.append((left, right))

    def mapping(index: Coordinates) -> Coordinates:
        result: list[Index] = [ZERO] * len(old)
        for left, right in groups:
            if len(left) == 1 and len(right) == 1:
                result[left[0]] = index[right[0]]
                continue
            sizes = tuple(new[k] for k in right)
            flat = flatten([index[k] for k in right], contiguous_strides(sizes))
            for k, value in zip(left, unflatten(flat, tuple(old[k] for k in left)), strict=True):
                result[k] = value
        return tuple(result)

    return mapping


def reshape(a: Tensor, shape: Sequence[Size]) -> Tensor:
    """The same elements in row-major order under another shape (sizes known, no -1)."""
    new = tuple(shape)
    if new == tuple(a.shape):
        return a
    if 0 in new or 0 in a.shape:
        return a.view(new, lambda index: tuple(ZERO for _ in a.shape))
    return a.view(new, _reshape_map(a.shape, new))


def as_row(a: Tensor) -> Tensor:
    """A scalar as one element in a row; any other tensor as it is."""
    return a if a.shape else reshape(a, (1,))


@lowers(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.view_as.default,
)
def view(low: Lowering, a: Tensor, *_: Any, **__: Any) -> Tensor:
    return reshape(a, sizes_of(result_value(low)))


@lowers(aten.permute.default)
def permute(low: Lowering, a: Tensor, dims: Sequence[int]) -> Tensor:
    order = [d % max(len(a.shape), 1) for d in dims]
    inverse = [order.index(d) for d in range(len(order))]
    return a.view(tuple(a.shape[d] for d in order), lambda index: tuple(index[i] for i in inverse))


@lowers(aten.transpose.int)
def transpose(low: Lowering, a: Tensor, first: int, second: int) -> Tensor:
    order = list(range(len(a.shape)))
    if order:
        first, second = first % len(order), second % len(order)
        order[first], order[second] = order[second], order[first]
    return permute(low, a, order)  # type: ignore[no-any-return]


@lowers(aten.t.default)
def t(low: Lowering, a: Tensor) -> Tensor:
    return a if len(a.shape) < 2 else transpose(low, a, 0, 1)


@lowers(aten.expand.default)
def expand(low: Lowering, a: Tensor, size: Sequence[Any], implicit: bool = False) -> Tensor:
    shape = sizes_of(result_value(low))
    return broadcast_to(a, shape)


def broadcast_to(a: Tensor, shape: tuple[Size, ...]) -> Tensor:
    """The tensor repeated along dimensions of size 1 and new leading ones."""
    lead = len(shape) - len(a.shape)
    sizes = a.shape
    return a.view(shape, lambda index: tuple(ZERO if sizes[i] == 1 else index[i + lead] for i in range(len(sizes))))


@lowers(aten.select.int)
def select(low: Lowering, a: Tensor, dim: int, at: Any) -> Tensor:
    dim = positive_dim(dim, len(a.shape))
    place = plain(at)
    if not is_nonnegative(place):
        place = plain(place + a.shape[dim])
    shape = a.shape[:dim] + a.shape[dim + 1 :]
    return a.view(shape, lambda index: (*index[:dim], Index({}, place), *index[dim:]))


@lowers(aten.slice.Tensor)
def slice_(low: Lowering, a: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Tensor:
    dim = positive_dim(dim, len(a.shape))
    size = a.shape[dim]
    begin = plain(start if start is not None else 0)
    if isinstance(begin, int) and begin < 0:
        begin = plain(begin + size)
        begin = max(begin, 0) if isinstance(begin, int) else begin
    if isinstance(begin, int) and isinstance(size, int):
        begin = min(begin, size)
    stride = plain(step)
    return a.view(
        sizes_of(result_value(low)), lambda index: (*index[:dim], index[dim] * stride + begin, *index[dim + 1 :])
    )


def narrowed(a: Tensor, dim: int, start: Size, size: Size) -> Tensor:
    """``size`` elements along ``dim`` from ``start`` on."""
    shape = (*a.shape[:dim], size, *a.shape[dim + 1 :])
    return a.view(shape, lambda index: (*index[:dim], index[dim] + start, *index[dim + 1 :]))


@lowers(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unsafe_split.Tensor)
def split(low: Lowering, a: Tensor, _sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    dim = positive_dim(dim, len(a.shape))
    parts: list[Tensor] = []
    start: Size = 0
    for value in result_value(low):
        size = plain(value.shape[dim])
        parts.append(narrowed(a, dim, start, size))
        start = plain(start + size)
    return tuple(parts)


@lowers(aten.unbind.int)
def unbind(low: Lowering, a: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    dim = positive_dim(dim, len(a.shape))
    return tuple(select(low, a, dim, i) for i in range(len(result_value(low))))


@lowers(aten.flip.default)
def flip(low: Lowering, a: Tensor, dims: Sequence[int]) -> Tensor:
    chosen = {d % max(len(a.shape), 1) for d in dims}
    check_loopable(a)

    def mapping(index: Coordinates) -> Coordinates:
        return tuple(i * -1 + plain(a.shape[d] - 1) if d in chosen else i for d, i in enumerate(index))

    flipped = a.view(a.shape, mapping)
    return low.pointwise(a.shape, a.dtype, flipped.at)


@lowers(aten.diagonal.default)
def diagonal(low: Lowering, a: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    first, second = dim1 % len(a.shape), dim2 % len(a.shape)
    others = [d for d in range(len(a.shape)) if d not in (first, second)]

    def mapping(index: Coordinates) -> Coordinates:
        place = dict(zip(others, index, strict=False))
        place[first] = index[-1] + max(-offset, 0)
        place[second] = index[-1] + max(offset, 0)
        return tuple(place[d] for d in range(len(a.shape)))

    return a.view(sizes_of(result_value(low)), mapping)


@lowers(aten.unfold.default)
def unfold(low: Lowering, a: Tensor, dimension: int, size: int, step: int) -> Tensor:
    if not a.shape:
        raise NotLowered("unfolding a scalar is left to ATen")
    dim = positive_dim(dimension, len(a.shape))
    return a.view(
        sizes_of(result_value(low)), lambda index: (*index[:dim], index[dim] * step + index[-1], *index[dim + 1 : -1])
    )


@lowers(aten.roll.default)
def roll(low: Lowering, a: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor:
    check_loopable(a)
    if not a.shape or not all(isinstance(s, int) for s in shifts):
        raise NotLowered("rolling by symbolic steps is done by ATen")
    if not dims:
        return reshape(roll(low, reshape(a, (product(a.shape),)), shifts, (0,)), a.shape)

    def mapping(index: Coordinates) -> Coordinates:
        moved = list(index)
        for shift, dim in zip(shifts, dims, strict=True):
            place = dim % len(a.shape)
            moved[place] = (moved[place] + plain(-shift % a.shape[place])).mod(a.shape[place])
        return tuple(moved)

    rolled = a.view(a.shape, mapping)
    return low.pointwise(a.shape, a.dtype, rolled.at)


@lowers(aten.cat.default)
def cat(low: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    shape = sizes_of(result_value(low))
    parts = [t for t in tensors if not (len(t.shape) == 1 and t.shape[0] == 0 and len(shape) != 1)]
    check_loopable(*parts)
    dim = positive_dim(dim, len(shape))
    parts = [t for t in parts if t.shape[dim] != 0]
    if len(parts) > 16:
        raise NotLowered("more than 16 tensors are concatenated by ATen")
    dtype = result_value(low).dtype
    starts: list[Size] = [0]
    for part in parts:
        starts.append(plain(starts[-1] + part.shape[dim]))

    def read(b: Builder, index: Coordinates, k: int) -> Op:
        here = (*index[:dim], index[dim] - starts[k], *index[dim + 1 :])
        return b.cast(parts[k].at(b, here), dtype)

    def body(b: Builder, index: Coordinates) -> Op:
        return rest(b, index, 0)

    def rest(b: Builder, index: Coordinates, k: int) -> Op:
        if k == len(parts) - 1:
            if k == 0:
                return read(b, index, 0)
            return b.masked(b.at_least(index[dim], starts[k]), lambda: read(b, index, k), b.constant(0, dtype))
        inside = b.below(index[dim], starts[k + 1])
        if k > 0:
            inside = b.both(b.at_least(index[dim], starts[k]), inside)
        return b.masked(inside, lambda: read(b, index, k), rest(b, index, k + 1))

    return low.pointwise(shape, dtype, body)


@lowers(aten.stack.default)
def stack(low: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    rank = len(tensors[0].shape) + 1
    dim = dim % rank
    lifted = [
        t.view((*t.shape[:dim], 1, *t.shape[dim:]), lambda index: (*index[:dim], *index[dim + 1 :])) for t in tensors
    ]
    return cat(low, lifted, dim)  # type: ignore[no-any-return]


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(low: Lowering, a: Tensor, pad: Sequence[Any], value: Any = 0) -> Tensor:
    check_loopable(a)
    shape = sizes_of(result_value(low))
    before: list[Size] = [0] * len(shape)
    after: list[Size] = [0] * len(shape)
    for k in range(len(pad) // 2):
        dim = len(shape) - 1 - k
        before[dim], after[dim] = plain(pad[2 * k]), plain(pad[2 * k + 1])

    def body(b: Builder, index: Coordinates) -> Op:
        inside: Op | None = None
        for dim, position in enumerate(index):
            shifted = position - before[dim]
            tests = [b.at_least(shifted, 0)] if _may_add(before[dim]) else []
            tests += [b.below(shifted, a.shape[dim])] if _may_add(after[dim]) else []
            for test in tests:
                inside = test if inside is None else b.both(inside, test)
        here = tuple(i - p for i, p in zip(index, before, strict=True))
        if inside is None:
            return a.at(b, here)
        return b.masked(inside, lambda: a.at(b, here), b.constant(value, a.dtype))

    return low.pointwise(shape, a.dtype, body)


def _may_add(count: Size) -> bool:
    """Whether a padding adds something; a negative one takes away."""
    return not isinstance(count, int) or count > 0


@lowers(aten.repeat.default)
def repeat(low: Lowering, a: Tensor, repeats: Sequence[Any]) -> Tensor:
    check_loopable(a)
    shape = sizes_of(result_value(low))
    lead = len(shape) - len(a.shape)
    if 0 in a.shape:
        return low.pointwise(shape, a.dtype, lambda b, index: b.constant(0, a.dtype))

    def body(b: Builder, index: Coordinates) -> Op:
        return a.at(b, tuple(index[lead + d].mod(s) if s != 1 else ZERO for d, s in enumerate(a.shape)))

    return low.pointwise(shape, a.dtype, body)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    low: Lowering, a: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Tensor:
    dim = positive_dim(dim, len(a.shape))
    size, begin, stride = a.shape[dim], plain(start if start is not None else 0), plain(step)
    if isinstance(begin, int) and begin < 0:
        begin = plain(begin + size)
    if isinstance(begin, int):
        begin = max(begin, 0)
    if not is_nonnegative(begin) or not isinstance(stride, int):
        raise NotLowered("a write to a slice that may begin before its tensor is done by ATen")
    check_loopable(a, source)
    count = source.shape[dim]

    def body(b: Builder, index: Coordinates) -> Op:
        shifted = index[dim] - begin
        place = shifted.div(stride)
        inside = b.both(b.at_least(shifted, 0), b.below(place, count))
        if stride != 1:
            inside = b.both(inside, b.call("eq", b.position(shifted.mod(stride)), b.position(ZERO), dtype=torch.bool))
        return b.masked(
            inside, lambda: b.cast(source.at(b, (*index[:dim], place, *index[dim + 1 :])), a.dtype), a.at(b, index)
        )

    return low.pointwise(a.shape, a.dtype, body)


@lowers(aten.select_scatter.default)
def select_scatter(low: Lowering, a: Tensor, source: Tensor, dim: int, at: Any) -> Tensor:
    dim = positive_dim(dim, len(a.shape))
    place = plain(at)
    if not is_nonnegative(place):
        place = plain(place + a.shape[dim])
    check_loopable(a, source)
    value = element(source, a.dtype, source.shape)

    def body(b: Builder, index: Coordinates) -> Op:
        here = b.call("eq", b.position(index[dim]), b.position(Index({}, place)), dtype=torch.bool)
        return b.masked(here, lambda: value(b, (*index[:dim], *index[dim + 1 :])), a.at(b, index))

    return low.pointwise(a.shape, a.dtype, body)


@lowers(aten.tril.default)
def tril(low: Lowering, a: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(low, a, diagonal, is_lower=True)


@lowers(aten.triu.default)
def triu(low: Lowering, a: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle(low, a, diagonal, is_lower=False)


def _triangle(low: Lowering, a: Tensor, diagonal: int, *, is_lower: bool) -> Tensor:
    check_loopable(a)
    promoted((a,))

    def body(b: Builder, index: Coordinates) -> Op:
        row, column = b.position(index[-2] + diagonal), b.position(index[-1])
        keep = b.call("le" if is_lower else "ge", column, row, dtype=torch.bool)
        return b.masked(keep, lambda: a.at(b, index), b.constant(0, a.dtype))

    return low.pointwise(a.shape, a.dtype, body)


@lowers(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(low: Lowering, a: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Tensor:
    """Any walk over the memory of a tensor that fills it in order from its start."""
    check_loopable(a)
    return a.view(sizes_of(result_value(low)), walk_over_memory(a, stride, offset))


def walk_over_memory(a: Tensor, stride: Sequence[Any], offset: Any) -> Callable[[Coordinates], Coordinates]:
    """From an index of ``as_strided``'s result to one of the tensor.

    Raises:
        NotLowered: the tensor does not fill its memory in order, or does not begin where its storage does.
    """
    steps = tuple(plain(s) for s in stride)
    if a.mapping is not None or a.base.stride != contiguous_strides(a.shape):
        raise NotLowered("a walk over memory that is not in the order of a tensor's elements is done by ATen")
    if offset is not None and not a.base.is_computed:
        raise NotLowered("an offset counts from the start of a storage, of which a kernel knows only the tensor in it")
    first = 0 if offset is None else plain(offset)
    return lambda index: unflatten(flatten(index, steps) + first, a.shape)


@lowers(aten.view.dtype)
def view_as_type(low: Lowering, a: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bits read as another type of the same width."""
    check_loopable(a, result_value(low))
    if a.dtype.itemsize != dtype.itemsize or torch.bool in (a.dtype, dtype):
        raise NotLowered("bits that make up more or fewer elements of another type are read by ATen")
    return low.pointwise(a.shape, dtype, lambda b, i: b.bits(a.at(b, i), a.dtype, dtype))
