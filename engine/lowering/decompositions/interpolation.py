"""Decompositions of interpolation and replication padding.

They cover the backwards of these operators, linear and anti-aliased interpolation. Taps describe one dimension: for each
output position, the input positions that it reads (or that its gradient is added to) and their weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.ir.static_sizes import static_size, static_sizes

aten = torch.ops.aten

CUBIC_COEFFICIENT, ANTIALIAS_CUBIC_COEFFICIENT = -0.75, -0.5
"""Keys' cubic convolution coefficient (1981), as in eager: plain and anti-aliased."""

MAX_GATHERED_SIDE = 1 << 14
"""Largest side of an image for which float32 positions are exact to two decimals."""


@dataclass(frozen=True)
class InterpolationTaps:
    """Interpolation taps along one dimension.

    ``indices`` (taps, outputs) are positions in the input. ``weights`` has this shape too; None if each weight is 1.
    """

    indices: torch.Tensor
    weights: torch.Tensor | None = None


def scatter_add_taps(grad: torch.Tensor, shape: Sequence[Any], sides: Sequence[InterpolationTaps]) -> torch.Tensor:
    """Scatter-add ``grad`` into zeros of ``shape``, by weighted taps of the last dimensions."""
    rank, lead = len(sides), grad.dim() - len(sides)
    math_dtype = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else grad.dtype
    value, indices = grad.to(math_dtype), []
    for k in range(rank):
        value = value.unsqueeze(lead + 2 * k)
    for k, side in enumerate(sides):
        spread = [1] * (2 * rank)
        spread[2 * k : 2 * k + 2] = side.indices.shape
        indices.append(side.indices.reshape(spread))
        if side.weights is not None:
            value = value * side.weights.to(math_dtype).reshape(spread)
    ranges = [n for side in sides for n in side.indices.shape]
    value = value.expand(*grad.shape[:lead], *ranges)
    zeros = torch.zeros(tuple(shape), dtype=math_dtype, device=grad.device)
    total: torch.Tensor = aten._unsafe_index_put(zeros, [None] * lead + indices, value, True)
    return total.to(grad.dtype)


def _computes_in_float32(grad: torch.Tensor) -> bool:
    return grad.dtype in (torch.float16, torch.bfloat16, torch.float32)


def _float_arange(count: Any, grad: torch.Tensor) -> torch.Tensor:
    math_dtype = torch.float32 if _computes_in_float32(grad) else torch.float64
    return torch.arange(count, dtype=math_dtype, device=grad.device)


def _source_step(size: Any, count: Any, align: bool, scale: float | None) -> float:
    """Return the distance between the source positions of adjacent outputs."""
    if align:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / count


def _nearest_taps(grad: torch.Tensor, size: Any, count: Any, scale: float | None, offset: float) -> InterpolationTaps:
    position = ((_float_arange(count, grad) + offset) * _source_step(size, count, False, scale)).floor().to(torch.int64)
    return InterpolationTaps(position.clamp(max=size - 1)[None])


def _scale_per_dim(scales: Sequence[float | None], counts: Sequence[Any]) -> list[float | None]:
    """Return a scale for each dimension: None where the call has none."""
    return [*scales, *[None] * (len(counts) - len(scales))]


def adds_whole_blocks(shape: Any, counts: Any, scales: Sequence[Any]) -> bool:
    """Return True if nearest interpolation repeats each element as a block, exactly.

    ``shape`` is the input's. The sides of a block must be powers of two: dividing a position by another number may
    round wrongly.
    """
    sizes = list(shape)[-len(counts) :]
    dim_scales = _scale_per_dim(scales, counts)
    for size, count, scale in zip(sizes, counts, dim_scales, strict=True):
        small, large = static_size(size), static_size(count)
        if not small or not large or large % small:
            return False
        side = large // small
        if side & (side - 1) or (scale is not None and scale != side):
            return False
    return True


def _sum_of_blocks(grad: torch.Tensor, shape: Sequence[Any], rank: int) -> torch.Tensor:
    """Return the sum of ``grad`` over each block that is an element of ``shape``."""
    split = [n for size, many in zip(shape[-rank:], grad.shape[-rank:], strict=True) for n in (size, many // size)]
    lead = len(shape) - rank
    total = grad.reshape(*shape[:lead], *split).sum([lead + 2 * k + 1 for k in range(rank)])
    return total.to(grad.dtype)


def _nearest_backward(offset: float) -> Callable[..., torch.Tensor]:
    scatter = _upsample_backward(lambda g, n, c, s: _nearest_taps(g, n, c, s, offset), aligns=False)

    def backward(grad: torch.Tensor, counts: Sequence[Any], shape: Sequence[Any], *scales: Any) -> torch.Tensor:
        if adds_whole_blocks(shape, counts, scales):
            return _sum_of_blocks(grad, shape, len(counts))
        return scatter(grad, counts, shape, *scales)

    return backward


def _linear_taps(grad: torch.Tensor, size: Any, count: Any, align: bool, scale: float | None) -> InterpolationTaps:
    first, second, share = _linear_neighbors(grad, size, count, align, scale)
    return InterpolationTaps(torch.stack((first, second)), torch.stack((1.0 - share, share)))


def _linear_neighbors(
    a: torch.Tensor, size: Any, count: Any, align: bool, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the positions of the two neighbors of each output, and the weight of the second."""
    return _neighbors_of(_float_arange(count, a), size, _source_step(size, count, align, scale), align)


def _neighbors_of(
    position: torch.Tensor, size: Any, step: float, align: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = position * step if align else ((position + 0.5) * step - 0.5).clamp(min=0.0)
    first = source.to(torch.int64)
    return first, (first + 1).clamp(max=size - 1), source - first


def _linear_upsample_backward(
    grad: torch.Tensor, counts: Sequence[Any], shape: Sequence[Any], align: bool, *scales: float | None
) -> torch.Tensor:
    """Sum the outputs that read each input position, one dimension after the other.

    Adding each output to its neighbors instead would take an atomic operation for each. Where sizes are symbols, or
    positions too large for float32, that is done nevertheless.
    """
    sizes, static_counts = static_sizes(list(shape)[-len(counts) :]), static_sizes(counts)
    if sizes is None or static_counts is None or max(*sizes, *static_counts) > MAX_GATHERED_SIDE:
        return _upsample_backward(_linear_taps, aligns=True)(grad, counts, shape, align, *scales)
    dim_scales = _scale_per_dim(scales, counts)
    value = grad.to(_float_arange(1, grad).dtype)
    for dim in range(-1, -len(counts) - 1, -1):
        value = _apply_taps(value, dim, _readers(value, sizes[dim], static_counts[dim], align, dim_scales[dim]))
    return value.to(grad.dtype)


def _readers(grad: torch.Tensor, size: int, count: int, align: bool, scale: float | None) -> InterpolationTaps:
    """Return the outputs that read each input position, and others with weight 0."""
    step, shift = _source_step(size, count, align, scale), 0.0 if align else 0.5
    slope = 1.0 / step if step else 0.0
    input_place = _float_arange(size, grad)
    start = ((input_place - (1.0 - shift)) * slope - shift - 0.01).floor().clamp(min=0.0)
    starts = [max(0, math.floor((n - 1.0 + shift) * slope - shift - 0.01)) for n in range(size)]
    ends = [min(count - 1, math.ceil((n + 1.0 + shift) * slope - shift)) for n in range(size - 1)] + [count - 1]
    longest = max(1, *(end - begin + 1 for begin, end in zip(starts, ends, strict=True)))
    position = start + _float_arange(longest, grad)[:, None]
    first, second, share = _neighbors_of(position, size, step, align)
    weights = torch.where(first == input_place, 1.0 - share, 0.0) + torch.where(second == input_place, share, 0.0)
    return InterpolationTaps(position.clamp(max=count - 1).to(torch.int64), torch.where(position < count, weights, 0.0))


def _linear_upsample(a: torch.Tensor, counts: Sequence[Any], align: bool, *scales: float | None) -> torch.Tensor:
    """Interpolate linearly in the last dimensions.

    A sum of products, as in eager: next to an infinity, differences would be NaN.
    """
    sizes, dim_scales = a.shape[-len(counts) :], _scale_per_dim(scales, counts)
    if static_sizes(sizes) is not None and static_sizes(sizes) == static_sizes(counts):
        return a.clone()  # eager copies, too
    sides = [_linear_neighbors(a, n, c, align, s) for n, c, s in zip(sizes, counts, dim_scales, strict=True)]
    value = _sum_of_neighbors(a, sides)
    return (value if a.is_floating_point() else value.round()).to(a.dtype)


def _sum_of_neighbors(a: torch.Tensor, sides: Sequence[Any], positions: tuple[torch.Tensor, ...] = ()) -> torch.Tensor:
    """Sum the weighted neighbors along the sides after those of ``positions``."""
    if len(positions) == len(sides):
        read = aten._unsafe_index(a, [None] * (a.dim() - len(sides)) + list(positions))
        widened: torch.Tensor = read.to(_float_arange(1, a).dtype)
        return widened
    first, second, share = (v.reshape(-1, *[1] * (len(sides) - len(positions) - 1)) for v in sides[len(positions)])
    near, far = (_sum_of_neighbors(a, sides, (*positions, position)) for position in (first, second))
    total: torch.Tensor = near * (1.0 - share) + far * share
    return total


def _cubic_taps(grad: torch.Tensor, size: Any, count: Any, align: bool, scale: float | None) -> InterpolationTaps:
    step, position = _source_step(size, count, align, scale), _float_arange(count, grad)
    source = position * step if align else (position + 0.5) * step - 0.5
    first = source.floor()
    share = source - first
    weights = [_cubic_weight(share + 1.0, CUBIC_COEFFICIENT), _cubic_weight(share, CUBIC_COEFFICIENT)]
    weights += [_cubic_weight(1.0 - share, CUBIC_COEFFICIENT), _cubic_weight(2.0 - share, CUBIC_COEFFICIENT)]
    near = first.to(torch.int64)
    return InterpolationTaps(torch.stack([(near + k).clamp(0, size - 1) for k in (-1, 0, 1, 2)]), torch.stack(weights))


def _cubic_weight(x: torch.Tensor, a: float) -> torch.Tensor:
    """Return the weight at distance ``x`` in [0, 2] of cubic convolution with parameter ``a``."""
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((x - 5.0) * x + 8.0) * x * a - 4.0 * a
    return torch.where(x <= 1.0, near, far)


def _replication_taps(grad: torch.Tensor, size: Any, before: Any, after: Any) -> InterpolationTaps:
    position = torch.arange(size + before + after, device=grad.device) - before
    return InterpolationTaps(position.clamp(0, size - 1)[None])


def _upsample_backward(side: Callable[..., InterpolationTaps], *, aligns: bool) -> Callable[..., torch.Tensor]:
    """Build the backward of an interpolation from its taps along one dimension."""

    def backward(grad: torch.Tensor, counts: Sequence[Any], shape: Sequence[Any], *more: Any) -> torch.Tensor:
        sizes = list(shape)[-len(counts) :]
        settings, scales = ((more[0],), more[1:]) if aligns else ((), more)
        dim_scales = _scale_per_dim(scales, counts)
        sides = [side(grad, n, c, *settings, s) for n, c, s in zip(sizes, counts, dim_scales, strict=True)]
        return scatter_add_taps(grad, shape, sides)

    return backward


def _replication_pad_backward(grad: torch.Tensor, a: torch.Tensor, padding: Sequence[Any]) -> torch.Tensor:
    rank = len(padding) // 2
    ends = [(padding[2 * k], padding[2 * k + 1]) for k in range(rank)][::-1]
    sides = [_replication_taps(grad, n, *end) for n, end in zip(a.shape[-rank:], ends, strict=True)]
    return scatter_add_taps(grad, a.shape, sides)


def _antialiased_upsample(reach: float, weight: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Build an anti-aliased interpolation: the kernel widens when it downscales.

    The width is resampled first, then the height.
    """

    def forward(a: torch.Tensor, counts: Sequence[int], align: bool, *scales: float | None) -> torch.Tensor:
        dim_scales = _scale_per_dim(scales, counts)
        math_dtype = torch.float32 if _computes_in_float32(a) else a.dtype
        value = a.to(math_dtype)
        for dim, count, scale in list(zip((-2, -1), counts, dim_scales, strict=True))[::-1]:
            value = _apply_taps(
                value, dim, _antialias_taps(value, int(a.shape[dim]), int(count), align, scale, reach, weight)
            )
        return value.to(a.dtype)

    return forward


def _antialias_taps(
    a: torch.Tensor, size: int, count: int, align: bool, scale: float | None, reach: float, weight: Any
) -> InterpolationTaps:
    step = _source_step(size, count, align, scale)
    wide = reach * max(step, 1.0)
    center = (_float_arange(count, a) + 0.5) * step
    start = (center - wide + 0.5).clamp(min=0.0).to(torch.int64)
    end = (center + wide + 0.5).to(torch.int64).clamp(max=size)
    position = start + torch.arange(math.ceil(wide) * 2 + 1, device=a.device)[:, None]
    weights = torch.where(position < end, weight(((position - center + 0.5) / max(step, 1.0)).abs()), 0.0)
    return InterpolationTaps(position.clamp(max=size - 1), weights / weights.sum(0))


def _apply_taps(a: torch.Tensor, dim: int, taps: InterpolationTaps) -> torch.Tensor:
    assert taps.weights is not None
    read: torch.Tensor = aten._unsafe_index(a, [None] * (a.dim() + dim) + [taps.indices])
    return (read * taps.weights.reshape(*taps.weights.shape, *[1] * (-dim - 1))).sum(dim - 1)


def _overloads(*names: str) -> list[Any]:
    """Return the default overloads of ATen operators."""
    return [getattr(aten, name).default for name in names]


_LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
INTERPOLATION_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    **{op: _nearest_backward(0.0) for op in _overloads(*(f"upsample_nearest{n}d_backward" for n in (1, 2, 3)))},
    **{op: _nearest_backward(0.5) for op in _overloads(*(f"_upsample_nearest_exact{n}d_backward" for n in (1, 2, 3)))},
    **dict.fromkeys(_overloads(*_LINEAR), _linear_upsample),
    **dict.fromkeys(_overloads(*(f"{name}_backward" for name in _LINEAR)), _linear_upsample_backward),
    **dict.fromkeys(_overloads(*(f"replication_pad{n}d_backward" for n in (1, 2, 3))), _replication_pad_backward),
    aten.upsample_bicubic2d_backward.default: _upsample_backward(_cubic_taps, aligns=True),
    aten._upsample_bilinear2d_aa.default: _antialiased_upsample(1.0, lambda x: (1.0 - x).clamp(min=0.0)),
    aten._upsample_bicubic2d_aa.default: _antialiased_upsample(
        2.0, lambda x: torch.where(x < 2.0, _cubic_weight(x, ANTIALIAS_CUBIC_COEFFICIENT), 0.0)
    ),
}
"""Decomposition of each operator."""
