"""Views and rearrangements as index arithmetic on existing tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import (
    ZERO,
    IndexExpr,
    Size,
    as_size,
    contiguous_strides,
    flatten,
    is_nonnegative,
    product,
    sizes_equal,
    unflatten,
)
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.ir.static_sizes import static_size, static_sizes
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.promotion import broadcast_loader, canonical_dim, check_fill_value, check_supported_dtype
from engine.lowering.registry import register_lowering
from engine.lowering.result_strides import symbolic_shape
from engine.torch_private.symbolic_shapes import statically_known_true

aten = torch.ops.aten


def _reshape_map(old: tuple[Size, ...], new: tuple[Size, ...]) -> Any:
    """Return an index map from the new shape to the old one, with few divisions.

    Dimensions that correspond are grouped, and only groups are divided.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left, right = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + len(left), j + len(right)
        while not sizes_equal(product(old[k] for k in left), product(new[k] for k in right)):
            a, b = product(old[k] for k in left), product(new[k] for k in right)
            grow_left = (
                is_nonnegative(b - a)
                if static_sizes((a, b)) is not None
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
        result: list[IndexExpr] = [ZERO] * len(old)
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


def reshape(a: LoweredTensor, shape: Sequence[Size]) -> LoweredTensor:
    """View the elements in row-major order under another shape (known sizes, no -1)."""
    new = tuple(shape)
    if new == tuple(a.shape):
        return a
    if 0 in new or 0 in a.shape:
        return a.view(new, lambda index: tuple(ZERO for _ in a.shape))
    return a.view(new, _reshape_map(a.shape, new))


def at_least_1d(a: LoweredTensor) -> LoweredTensor:
    """Return a 0-dim tensor as a row of one element; other tensors unchanged."""
    return a if a.shape else reshape(a, (1,))


@register_lowering(
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
def view(low: LoweringContext, a: LoweredTensor, *_: Any, **__: Any) -> LoweredTensor:
    return reshape(a, symbolic_shape(fake_result(low)))


@register_lowering(aten.permute.default)
def permute(low: LoweringContext, a: LoweredTensor, dims: Sequence[int]) -> LoweredTensor:
    order = [d % max(len(a.shape), 1) for d in dims]
    inverse = [order.index(d) for d in range(len(order))]
    return a.view(tuple(a.shape[d] for d in order), lambda index: tuple(index[i] for i in inverse))


@register_lowering(aten.transpose.int)
def transpose(low: LoweringContext, a: LoweredTensor, first: int, second: int) -> LoweredTensor:
    order = list(range(len(a.shape)))
    if order:
        first, second = first % len(order), second % len(order)
        order[first], order[second] = order[second], order[first]
    return permute(low, a, order)  # type: ignore[no-any-return]


@register_lowering(aten.t.default)
def t(low: LoweringContext, a: LoweredTensor) -> LoweredTensor:
    return a if len(a.shape) < 2 else transpose(low, a, 0, 1)


@register_lowering(aten.expand.default)
def expand(low: LoweringContext, a: LoweredTensor, size: Sequence[Any], implicit: bool = False) -> LoweredTensor:
    shape = symbolic_shape(fake_result(low))
    return broadcast_to(a, shape)


def broadcast_to(a: LoweredTensor, shape: tuple[Size, ...]) -> LoweredTensor:
    """Repeat a tensor along dimensions of size 1 and new leading dimensions."""
    lead = len(shape) - len(a.shape)
    sizes = a.shape
    return a.view(shape, lambda index: tuple(ZERO if sizes[i] == 1 else index[i + lead] for i in range(len(sizes))))


@register_lowering(aten.select.int)
def select(low: LoweringContext, a: LoweredTensor, dim: int, at: Any) -> LoweredTensor:
    dim = canonical_dim(dim, len(a.shape))
    position = _from_front(low, 2, at, a.shape[dim], dim)
    shape = a.shape[:dim] + a.shape[dim + 1 :]
    return a.view(shape, lambda index: (*index[:dim], IndexExpr({}, position), *index[dim:]))


@register_lowering(aten.slice.Tensor)
def slice_(
    low: LoweringContext, a: LoweredTensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> LoweredTensor:
    dim = canonical_dim(dim, len(a.shape))
    size = a.shape[dim]
    begin = _from_front(low, 2, start, size, dim)
    static = static_sizes((begin, size))
    begin = begin if static is None else min(static)
    stride = as_size(step)
    return a.view(
        symbolic_shape(fake_result(low)), lambda index: (*index[:dim], index[dim] * stride + begin, *index[dim + 1 :])
    )


def narrow(a: LoweredTensor, dim: int, start: Size, size: Size) -> LoweredTensor:
    """View ``size`` elements along ``dim`` from ``start`` on."""
    shape = (*a.shape[:dim], size, *a.shape[dim + 1 :])
    return a.view(shape, lambda index: (*index[:dim], index[dim] + start, *index[dim + 1 :]))


@register_lowering(aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default, aten.unsafe_split.Tensor)
def split(low: LoweringContext, a: LoweredTensor, _sizes: Any, dim: int = 0) -> tuple[LoweredTensor, ...]:
    dim = canonical_dim(dim, len(a.shape))
    parts: list[LoweredTensor] = []
    start: Size = 0
    for value in fake_result(low):
        size = as_size(value.shape[dim])
        parts.append(narrow(a, dim, start, size))
        start = as_size(start + size)
    return tuple(parts)


@register_lowering(aten.unbind.int)
def unbind(low: LoweringContext, a: LoweredTensor, dim: int = 0) -> tuple[LoweredTensor, ...]:
    dim = canonical_dim(dim, len(a.shape))
    return tuple(select(low, a, dim, i) for i in range(len(fake_result(low))))


@register_lowering(aten.flip.default)
def flip(low: LoweringContext, a: LoweredTensor, dims: Sequence[int]) -> LoweredTensor:
    chosen = {d % max(len(a.shape), 1) for d in dims}

    def mapping(index: Coordinates) -> Coordinates:
        return tuple(i * -1 + as_size(a.shape[d] - 1) if d in chosen else i for d, i in enumerate(index))

    flipped = a.view(a.shape, mapping)
    return low.pointwise(a.shape, a.dtype, flipped.load)


@register_lowering(aten.diagonal.default)
def diagonal(low: LoweringContext, a: LoweredTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> LoweredTensor:
    first, second = dim1 % len(a.shape), dim2 % len(a.shape)
    others = [d for d in range(len(a.shape)) if d not in (first, second)]

    def mapping(index: Coordinates) -> Coordinates:
        position = dict(zip(others, index, strict=False))
        position[first] = index[-1] + max(-offset, 0)
        position[second] = index[-1] + max(offset, 0)
        return tuple(position[d] for d in range(len(a.shape)))

    return a.view(symbolic_shape(fake_result(low)), mapping)


@register_lowering(aten.unfold.default)
def unfold(low: LoweringContext, a: LoweredTensor, dimension: int, size: int, step: int) -> LoweredTensor:
    if not a.shape:
        raise NotLowered(LoweringFallback.ZERO_DIM, "unfold of a 0-dim tensor has no lowering")
    dim = canonical_dim(dimension, len(a.shape))
    return a.view(
        symbolic_shape(fake_result(low)),
        lambda index: (*index[:dim], index[dim] * step + index[-1], *index[dim + 1 : -1]),
    )


@register_lowering(aten.roll.default)
def roll(low: LoweringContext, a: LoweredTensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> LoweredTensor:
    if not a.shape or static_sizes(shifts) is None:
        raise NotLowered(
            LoweringFallback.SYMBOLIC_SHIFT, "roll of a 0-dim tensor or by a symbolic shift has no lowering"
        )
    if not dims:
        return reshape(roll(low, reshape(a, (product(a.shape),)), shifts, (0,)), a.shape)

    def mapping(index: Coordinates) -> Coordinates:
        moved = list(index)
        for shift, dim in zip(shifts, dims, strict=True):
            position = dim % len(a.shape)
            moved[position] = (moved[position] + as_size(-shift % a.shape[position])).mod(a.shape[position])
        return tuple(moved)

    rolled = a.view(a.shape, mapping)
    return low.pointwise(a.shape, a.dtype, rolled.load)


@register_lowering(aten.cat.default)
def cat(low: LoweringContext, tensors: Sequence[LoweredTensor], dim: int = 0) -> LoweredTensor:
    shape = symbolic_shape(fake_result(low))
    parts = [t for t in tensors if not (len(t.shape) == 1 and t.shape[0] == 0 and len(shape) != 1)]
    dim = canonical_dim(dim, len(shape))
    parts = [t for t in parts if t.shape[dim] != 0]
    if len(parts) > 16:
        raise NotLowered(LoweringFallback.MANY_TENSORS, "concatenation of more than 16 tensors has no lowering")
    dtype = fake_result(low).dtype
    starts: list[Size] = [0]
    for part in parts:
        starts.append(as_size(starts[-1] + part.shape[dim]))

    def read(b: LoopBuilder, index: Coordinates, k: int) -> LoopIROp:
        here = (*index[:dim], index[dim] - starts[k], *index[dim + 1 :])
        return b.cast(parts[k].load(b, here), dtype)

    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        return rest(b, index, 0)

    def rest(b: LoopBuilder, index: Coordinates, k: int) -> LoopIROp:
        if k == len(parts) - 1:
            if k == 0:
                return read(b, index, 0)
            return b.masked(b.index_ge(index[dim], starts[k]), lambda: read(b, index, k), b.constant(0, dtype))
        inside = b.index_lt(index[dim], starts[k + 1])
        if k > 0:
            inside = b.index_ge(index[dim], starts[k]) & inside
        return b.masked(inside, lambda: read(b, index, k), rest(b, index, k + 1))

    return low.pointwise(shape, dtype, body)


@register_lowering(aten.stack.default)
def stack(low: LoweringContext, tensors: Sequence[LoweredTensor], dim: int = 0) -> LoweredTensor:
    rank = len(tensors[0].shape) + 1
    dim = dim % rank
    lifted = [
        t.view((*t.shape[:dim], 1, *t.shape[dim:]), lambda index: (*index[:dim], *index[dim + 1 :])) for t in tensors
    ]
    return cat(low, lifted, dim)  # type: ignore[no-any-return]


@register_lowering(aten.constant_pad_nd.default)
def constant_pad_nd(low: LoweringContext, a: LoweredTensor, pad: Sequence[Any], value: Any = 0) -> LoweredTensor:
    check_fill_value(a.dtype, value)
    shape = symbolic_shape(fake_result(low))
    before: list[Size] = [0] * len(shape)
    after: list[Size] = [0] * len(shape)
    for k in range(len(pad) // 2):
        dim = len(shape) - 1 - k
        before[dim], after[dim] = as_size(pad[2 * k]), as_size(pad[2 * k + 1])

    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        inside: LoopIROp | None = None
        for dim, position in enumerate(index):
            shifted = position - before[dim]
            tests = [b.index_ge(shifted, 0)] if _may_pad(before[dim]) else []
            tests += [b.index_lt(shifted, a.shape[dim])] if _may_pad(after[dim]) else []
            for test in tests:
                inside = test if inside is None else inside & test
        here = tuple(i - p for i, p in zip(index, before, strict=True))
        if inside is None:
            return a.load(b, here)
        return b.masked(inside, lambda: a.load(b, here), b.constant(value, a.dtype))

    return low.pointwise(shape, a.dtype, body)


def _may_pad(count: Size) -> bool:
    """Return True if a padding may add elements; a negative padding removes some."""
    static = static_size(count)
    return static is None or static > 0


def _from_front(low: LoweringContext, argument: int, index: Any, size: Size, dim: int) -> Size:
    """Return an index into ``dim`` counted from the front.

    ``index`` is an argument of the current node, whose first argument is indexed.

    Raises:
        NotLowered: its sign is unknown.
    """
    position = as_size(0 if index is None else index)
    if (static := static_size(position)) is not None:
        counted = as_size(static + size) if static < 0 else static
        return counted if (static := static_size(counted)) is None else max(static, 0)
    if is_nonnegative(position):
        return position
    if low.current_node is not None:
        operands: Any = (low.current_node.args[0], low.current_node.args[argument])
        indexed, number = torch.fx.map_arg(operands, lambda node: node.meta["val"])
        if statically_known_true(number >= 0):
            return position
        if statically_known_true(number < 0) and statically_known_true(number + indexed.shape[dim] >= 0):
            return as_size(position + size)
    raise NotLowered(LoweringFallback.SYMBOLIC_SHIFT, "an index of unknown sign has no lowering")


@register_lowering(aten.repeat.default)
def repeat(low: LoweringContext, a: LoweredTensor, repeats: Sequence[Any]) -> LoweredTensor:
    shape = symbolic_shape(fake_result(low))
    lead = len(shape) - len(a.shape)
    if 0 in a.shape:
        return low.pointwise(shape, a.dtype, lambda b, index: b.constant(0, a.dtype))

    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        return a.load(b, tuple(index[lead + d].mod(s) if s != 1 else ZERO for d, s in enumerate(a.shape)))

    return low.pointwise(shape, a.dtype, body)


@register_lowering(aten.slice_scatter.default)
def slice_scatter(
    low: LoweringContext,
    a: LoweredTensor,
    source: LoweredTensor,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: Any = 1,
) -> LoweredTensor:
    dim = canonical_dim(dim, len(a.shape))
    begin, stride = _from_front(low, 3, start, a.shape[dim], dim), static_size(as_size(step))
    if stride is None:
        raise NotLowered(LoweringFallback.SYMBOLIC_SHIFT, "a write to a slice with a symbolic step has no lowering")
    count = source.shape[dim]
    if begin == 0 and stride == 1 and sizes_equal(count, a.shape[dim]):
        return low.pointwise(a.shape, a.dtype, source.loader(a.dtype))

    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        shifted = index[dim] - begin
        position = shifted.div(stride)
        inside = b.index_ge(shifted, 0) & b.index_lt(position, count)
        if stride != 1:
            inside = inside & b.index_value(shifted.mod(stride)).equals(b.index_value(ZERO))
        return b.masked(
            inside,
            lambda: b.cast(source.load(b, (*index[:dim], position, *index[dim + 1 :])), a.dtype),
            a.load(b, index),
        )

    return low.pointwise(a.shape, a.dtype, body)


@register_lowering(aten.select_scatter.default)
def select_scatter(low: LoweringContext, a: LoweredTensor, source: LoweredTensor, dim: int, at: Any) -> LoweredTensor:
    dim = canonical_dim(dim, len(a.shape))
    position = _from_front(low, 3, at, a.shape[dim], dim)
    value = broadcast_loader(source, a.dtype, source.shape)

    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        here = b.index_value(index[dim]).equals(b.index_value(IndexExpr({}, position)))
        return b.masked(here, lambda: value(b, (*index[:dim], *index[dim + 1 :])), a.load(b, index))

    return low.pointwise(a.shape, a.dtype, body)


@register_lowering(aten.tril.default)
def tril(low: LoweringContext, a: LoweredTensor, diagonal: int = 0) -> LoweredTensor:
    return _triangle(low, a, diagonal, is_lower=True)


@register_lowering(aten.triu.default)
def triu(low: LoweringContext, a: LoweredTensor, diagonal: int = 0) -> LoweredTensor:
    return _triangle(low, a, diagonal, is_lower=False)


def _triangle(low: LoweringContext, a: LoweredTensor, diagonal: int, *, is_lower: bool) -> LoweredTensor:
    def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
        row, column = b.index_value(index[-2] + diagonal), b.index_value(index[-1])
        keep = b.call("le" if is_lower else "ge", column, row, dtype=torch.bool)
        return b.masked(keep, lambda: a.load(b, index), b.constant(0, a.dtype))

    return low.pointwise(a.shape, a.dtype, body)


@register_lowering(aten.as_strided.default, aten.as_strided_copy.default)
def as_strided(
    low: LoweringContext, a: LoweredTensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> LoweredTensor:
    """View the memory of a contiguous tensor, from its start, under any strides."""
    check_supported_dtype(a)
    return a.view(symbolic_shape(fake_result(low)), as_strided_index_map(a, size, stride, offset))


def as_strided_index_map(
    a: LoweredTensor, size: Sequence[Any], stride: Sequence[Any], offset: Any
) -> Callable[[Coordinates], Coordinates]:
    """Return the map from an index of ``as_strided``'s result to one of the tensor.

    Raises:
        NotLowered: the tensor is not contiguous, an offset counts from a storage that the kernel does not know, or
            the result reaches elements of the storage that are not the tensor's.
    """
    steps = tuple(as_size(s) for s in stride)
    if a.index_map is not None or a.definition.stride != contiguous_strides(a.shape):
        raise NotLowered(LoweringFallback.MEMORY_LAYOUT, "as_strided over a non-contiguous tensor has no lowering")
    if offset is not None and not a.definition.is_computed:
        raise NotLowered(
            LoweringFallback.MEMORY_LAYOUT,
            "as_strided with a storage offset has no lowering: a kernel does not know the start of the storage",
        )
    first = 0 if offset is None else as_size(offset)
    last = sum(((as_size(n) - 1) * step for n, step in zip(size, steps, strict=True)), first)
    if not a.definition.is_computed and not is_nonnegative(product(a.shape) - 1 - last):
        raise NotLowered(
            LoweringFallback.MEMORY_LAYOUT, "as_strided past the elements of its tensor, or perhaps so, has no lowering"
        )
    return lambda index: unflatten(flatten(index, steps) + first, a.shape)


@register_lowering(aten.view.dtype)
def view_dtype(low: LoweringContext, a: LoweredTensor, dtype: torch.dtype) -> LoweredTensor:
    """Reinterpret the bits as another dtype of the same width."""
    check_supported_dtype(a, fake_result(low))
    if a.dtype.itemsize != dtype.itemsize or torch.bool in (a.dtype, dtype):
        raise NotLowered(LoweringFallback.DTYPE_VIEW, "a view as a dtype of another size, or as bool, has no lowering")
    return low.pointwise(a.shape, dtype, lambda b, i: b.bitcast(a.load(b, i), a.dtype, dtype))
