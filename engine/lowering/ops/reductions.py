"""Reductions and scans: sums, means, extremes, variances, norms, softmax, running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from engine.ir.index import ZERO, Size, contiguous_strides, exact_quotient, flatten, plain, product, unflatten
from engine.ir.loops import Builder, Coordinates, Op, compute_dtype
from engine.lowering.ops.views import as_row, reshape
from engine.lowering.table import (
    Lowering,
    NotLowered,
    Tensor,
    check_loopable,
    dense_stride,
    lowers,
    positive_dim,
    result_value,
    sizes_of,
)

aten = torch.ops.aten
prims = torch.ops.prims

Value = Callable[[Builder, Coordinates], Op]

ENOUGH_PROGRAMS = 128
"""Programs from which a large device is busy: with fewer, long reductions are done in two steps."""
WANTED_PROGRAMS = 512
LEAST_PART = 1024
"""Elements of a row that one program should at least reduce."""
LEAST_COLUMN_PART = 64
LONG_COLUMN = 8192
"""Elements of a column from which so much of it is under way at once that one program keeps a multiprocessor busy."""
LONGEST_RUN = 1 << 17
"""Elements along which one program runs."""
COLUMNS = 64
"""Neighbouring columns that one program reduces together."""


def _parts(outputs: Size, count: Size, *, is_columns: bool) -> int:
    """In how many parts each reduction is cut, 1 where there are enough of them, or sizes are symbols."""
    if not isinstance(outputs, int) or not isinstance(count, int):
        return 1
    programs = max(1, outputs // COLUMNS) if is_columns else outputs
    least = LEAST_COLUMN_PART if is_columns else LEAST_PART
    is_busy = programs >= ENOUGH_PROGRAMS and (not is_columns or count >= LONG_COLUMN)
    if is_busy or programs >= WANTED_PROGRAMS or count < 16 * least:
        return 1
    parts = 1
    while parts * programs < WANTED_PROGRAMS and count // (2 * parts) >= least and parts < least:
        parts *= 2
    return parts


def _parts_of(a: Tensor, dims: tuple[int, ...]) -> int:
    """In how many parts a reduction of a tensor is cut."""
    last = max((d for d, n in enumerate(a.shape) if n != 1), default=0)
    outputs, count = product(n for d, n in enumerate(a.shape) if d not in dims), product(a.shape[d] for d in dims)
    return _parts(outputs, count, is_columns=last not in dims)


def _placed(a: Tensor, dims: tuple[int, ...]) -> Callable[[Coordinates, Coordinates], Coordinates]:
    """From an index of the reduced tensor and one of what is reduced to one of the tensor."""
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)

    def place(index: Coordinates, inner: Coordinates) -> Coordinates:
        found = {**dict(zip(kept, index, strict=True)), **dict(zip(dims, inner, strict=True))}
        return tuple(found[d] for d in range(len(a.shape)))

    return place


def _dims(a: Tensor, dim: Any) -> tuple[int, ...]:
    if not a.shape or dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(len(a.shape)))
    return tuple(sorted({positive_dim(d, len(a.shape)) for d in ((dim,) if isinstance(dim, int) else dim)}))


def _reduced_shape(a: Tensor, dims: tuple[int, ...], keepdim: bool) -> tuple[Size, ...]:
    if keepdim:
        return tuple(1 if d in dims else s for d, s in enumerate(a.shape))
    return tuple(s for d, s in enumerate(a.shape) if d not in dims)


def reduce(
    low: Lowering,
    kind: str,
    a: Tensor,
    dims: tuple[int, ...],
    keepdim: bool,
    dtype: torch.dtype,
    value: Value,
    *,
    name: str = "",
) -> Tensor:
    """Reduce ``value`` (read at indices of ``a``) over dimensions; in two steps where the outputs are few and the inputs many."""
    shape = _reduced_shape(a, dims, False)
    ranges = tuple(a.shape[d] for d in dims)
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    place, parts = _placed(a, dims), _parts_of(a, dims)
    if parts > 1:
        made = _in_two_steps(low, kind, shape, ranges, parts, dtype, lambda b, i, r: value(b, place(i, r)), name)
    else:
        made = low.reduction(kind, shape, ranges, dtype, lambda b, i, r: value(b, place(i, r)), name=name)
    if not keepdim:
        return made
    return made.view(_reduced_shape(a, dims, True), lambda index: tuple(index[d] for d in kept))


def neutral(b: Builder, kind: str, dtype: torch.dtype) -> Op:
    """The value that a reduction ignores."""
    return b.constant(neutral_value(kind, compute_dtype(dtype)), dtype)


def neutral_value(kind: str, dtype: torch.dtype) -> Any:
    """The number that a reduction over a computing dtype ignores."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if dtype == torch.bool:
        return kind == "min"
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if kind == "max" else limits.max


def _in_two_steps(
    low: Lowering,
    kind: str,
    shape: tuple[Size, ...],
    ranges: tuple[Size, ...],
    parts: int,
    dtype: torch.dtype,
    body: Any,
    name: str,
) -> Tensor:
    count = product(ranges)
    assert isinstance(count, int)
    length = -(-count // parts)
    held = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    def partial(b: Builder, index: Coordinates, inner: Coordinates) -> Op:
        flat = index[0] * length + inner[0]
        strides = contiguous_strides(ranges)
        place = tuple(
            flat.div(s) if k == 0 else flat.div(s).mod(n) for k, (s, n) in enumerate(zip(strides, ranges, strict=True))
        )
        if parts * length == count:
            return body(b, index[1:], place)  # type: ignore[no-any-return]
        return b.masked(b.below(flat, count), lambda: body(b, index[1:], place), neutral(b, kind, held))

    label = name or (low.node.name if low.node is not None else "t")
    first = low.reduction(kind, (parts, *shape), (length,), held, partial, name=f"{label}_parts")
    return low.reduction(kind, shape, (parts,), dtype, lambda b, i, r: first.at(b, (*r, *i)), name=name)


def _empty_or(a: Tensor, dims: tuple[int, ...]) -> None:
    check_loopable(a)
    if any(a.shape[d] == 0 for d in dims):
        raise NotLowered("a reduction over no elements is left to ATen")


def _sum_like(kind: str) -> Callable[..., Tensor]:
    def lowered(
        low: Lowering, a: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Tensor:
        result = result_value(low).dtype
        dims = _dims(a, dim)
        check_loopable(a)
        check_loopable(result_value(low))
        if any(a.shape[d] == 0 for d in dims):
            of_nothing = 1 if kind == "prod" else 0
            return low.pointwise(sizes_of(result_value(low)), result, lambda b, i: b.constant(of_nothing, result))
        return reduce(low, kind, a, dims, keepdim, result, lambda b, i: b.cast(a.at(b, i), result))

    return lowered


lowers(aten.sum.dim_IntList, aten.sum.default)(_sum_like("sum"))
lowers(aten.prod.dim_int, aten.prod.default)(_sum_like("prod"))


@lowers(aten.mean.dim, aten.mean.default)
def mean(
    low: Lowering, a: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    dims = _dims(a, dim)
    result = result_value(low).dtype
    check_loopable(a, result_value(low))
    if any(a.shape[d] == 0 for d in dims):
        return low.pointwise(sizes_of(result_value(low)), result, lambda b, i: b.constant(math.nan, result))
    return _mean(low, a, dims, keepdim, result)


def _mean(
    low: Lowering, a: Tensor, dims: tuple[int, ...], keepdim: bool, result: torch.dtype, name: str = ""
) -> Tensor:
    held = compute_dtype(result)
    base = name or (low.node.name if low.node is not None else "mean")
    total = reduce(low, "sum", a, dims, keepdim, held, lambda b, i: b.cast(a.at(b, i), held), name=f"{base}_sum")
    count = product(a.shape[d] for d in dims)
    return low.pointwise(
        total.shape, result, lambda b, i: b.call("div", total.at(b, i), b.size(count, held)), name=name
    )


def _variance(
    low: Lowering, a: Tensor, dims: tuple[int, ...], keepdim: bool, correction: float, result: torch.dtype, name: str
) -> tuple[Tensor, Tensor]:
    """``(variance, mean)``, in two passes over the row: first the mean, then the squared distances from it."""
    held = compute_dtype(result)
    if any(a.shape[d] == 0 for d in dims):
        none = low.pointwise(_reduced_shape(a, dims, keepdim), result, lambda b, i: b.constant(math.nan, result))
        return none, none
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    count = product(a.shape[d] for d in dims)
    parts = _parts_of(a, dims)
    if isinstance(count, int) and parts > 1 and count % parts == 0:
        total, average = _squares_of_parts(low, a, dims, keepdim, parts, held, name)
    else:
        average = _mean(low, a, dims, True, held, name=f"{name}_mean")

        def squared(b: Builder, i: Coordinates) -> Op:
            row = tuple(i[d] if d in kept else ZERO for d in range(len(a.shape)))
            distance = b.call("sub", b.cast(a.at(b, i), held), average.at(b, row))
            return b.call("mul", distance, distance)

        total = reduce(low, "sum", a, dims, keepdim, held, squared, name=f"{name}_squares")

    def divided(b: Builder, i: Coordinates) -> Op:
        if isinstance(count, int):
            return b.call("div", total.at(b, i), b.constant(max(count - correction, 0.0), held))
        return b.call(
            "div",
            total.at(b, i),
            b.call("maximum", b.call("sub", b.size(count, held), b.constant(correction, held)), b.constant(0.0, held)),
        )

    variance = low.pointwise(total.shape, result, divided, name=f"{name}_var")
    mean_shape = _reduced_shape(a, dims, keepdim)
    shown = average if keepdim else average.view(mean_shape, lambda i: _spread(i, kept, len(a.shape)))
    rounded = shown if shown.dtype == result else low.pointwise(mean_shape, result, shown.at)
    return variance, rounded


def _squares_of_parts(
    low: Lowering, a: Tensor, dims: tuple[int, ...], keepdim: bool, parts: int, held: torch.dtype, name: str
) -> tuple[Tensor, Tensor]:
    """``(squared distances from the mean, the mean)``, both from the same of each part, so that what is reduced is read once.

    Each part's squares are those around its own mean, and what its mean is away from that of all (Chan, Golub and LeVeque, 1979).
    """
    shape, ranges = _reduced_shape(a, dims, False), tuple(a.shape[d] for d in dims)
    count = product(ranges)
    assert isinstance(count, int)
    length = count // parts
    place = _placed(a, dims)

    def value(b: Builder, i: Coordinates, r: Coordinates) -> Op:
        flat = i[0] * length + r[0]
        return b.cast(a.at(b, place(i[1:], unflatten(flat, ranges))), held)

    sums = low.reduction("sum", (parts, *shape), (length,), held, value, name=f"{name}_sums")

    def mean_of_part(b: Builder, i: Coordinates) -> Op:
        return b.call("div", sums.at(b, i), b.constant(length, held))

    def squared(b: Builder, i: Coordinates, r: Coordinates) -> Op:
        distance = b.call("sub", value(b, i, r), mean_of_part(b, i))
        return b.call("mul", distance, distance)

    squares = low.reduction("sum", (parts, *shape), (length,), held, squared, name=f"{name}_parts")
    sum_of_all = low.reduction("sum", shape, (parts,), held, lambda b, i, r: sums.at(b, (*r, *i)), name=f"{name}_sum")

    def mean(b: Builder, i: Coordinates) -> Op:
        return b.call("div", sum_of_all.at(b, i), b.constant(count, held))

    def around(b: Builder, i: Coordinates, r: Coordinates) -> Op:
        distance = b.call("sub", mean_of_part(b, (*r, *i)), mean(b, i))
        moved = b.call("mul", b.call("mul", distance, distance), b.constant(length, held))
        return b.call("add", squares.at(b, (*r, *i)), moved)

    total = low.reduction("sum", shape, (parts,), held, around, name=f"{name}_squares")
    average = low.pointwise(shape, held, mean, name=f"{name}_mean")
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)

    def wide(made: Tensor) -> Tensor:
        return made.view(_reduced_shape(a, dims, True), lambda index: tuple(index[d] for d in kept))

    return wide(total) if keepdim else total, wide(average)


def _spread(index: Coordinates, kept: tuple[int, ...], rank: int) -> Coordinates:
    found = dict(zip(kept, index, strict=True))
    return tuple(found.get(d, ZERO) for d in range(rank))


def _correction(unbiased: Any, correction: Any) -> float:
    if correction is not None:
        return float(correction)
    return 1.0 if unbiased is None or unbiased else 0.0


@lowers(aten.var.correction)
def var(low: Lowering, a: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    dims = _dims(a, dim)
    check_loopable(a)
    return _variance(low, a, dims, keepdim, _correction(None, correction), a.dtype, _name(low))[0]


@lowers(aten.var_mean.correction)
def var_mean(
    low: Lowering, a: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = _dims(a, dim)
    check_loopable(a)
    return _variance(low, a, dims, keepdim, _correction(None, correction), a.dtype, _name(low))


@lowers(aten.std.correction)
def std(low: Lowering, a: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    dims = _dims(a, dim)
    check_loopable(a)
    spread = _variance(low, a, dims, keepdim, _correction(None, correction), compute_dtype(a.dtype), _name(low))[0]
    return low.pointwise(spread.shape, a.dtype, lambda b, i: b.call("sqrt", spread.at(b, i)))


def _name(low: Lowering) -> str:
    return low.node.name if low.node is not None else "t"


def extreme(low: Lowering, kind: str, a: Tensor, dims: tuple[int, ...], keepdim: bool, name: str = "") -> Tensor:
    """Largest or smallest value; NaN where any element is NaN, as in eager."""
    held = torch.int32 if a.dtype == torch.bool else a.dtype
    base = name or _name(low)
    if not a.dtype.is_floating_point:
        top = reduce(
            low,
            kind,
            a,
            dims,
            keepdim,
            held,
            lambda b, i: b.cast(a.at(b, i), held),
            name=base if held == a.dtype else f"{base}_int",
        )
        return (
            top
            if held == a.dtype
            else low.pointwise(
                top.shape, a.dtype, lambda b, i: b.call("ne", top.at(b, i), b.constant(0, held), dtype=torch.bool)
            )
        )
    top = reduce(low, kind, a, dims, keepdim, a.dtype, a.at, name=f"{base}_{kind}")
    nan = reduce(
        low,
        "max",
        a,
        dims,
        keepdim,
        torch.int32,
        lambda b, i: b.cast(_is_nan(b, a.at(b, i)), torch.int32),
        name=f"{base}_nan",
    )

    def body(b: Builder, i: Coordinates) -> Op:
        value = top.at(b, i)
        return b.where(
            b.call("ne", nan.at(b, i), b.constant(0, torch.int32), dtype=torch.bool),
            b.constant(math.nan, a.dtype),
            value,
        )

    return low.pointwise(top.shape, a.dtype, body, name=name)


def _is_nan(b: Builder, v: Op) -> Op:
    return b.call("ne", v, v, dtype=torch.bool)


def arg_extreme(
    low: Lowering, kind: str, a: Tensor, dims: tuple[int, ...], keepdim: bool, top: Tensor, name: str = ""
) -> Tensor:
    """Position of the first element equal to ``top`` (kept dims), flat over ``dims``; a NaN counts as the extreme."""
    count = product(a.shape[d] for d in dims)
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    strides = contiguous_strides(tuple(a.shape[d] for d in dims))

    def body(b: Builder, i: Coordinates) -> Op:
        v = a.at(b, i)
        best = top.at(b, tuple(i[d] if d in kept else ZERO for d in range(len(a.shape))))
        hit = b.call("eq", v, best, dtype=torch.bool)
        if a.dtype.is_floating_point:
            hit = b.call("or", hit, _is_nan(b, v), dtype=torch.bool) if kind else hit
            hit = b.where(_is_nan(b, best), _is_nan(b, v), hit)
        place = b.cast(b.position(flatten([i[d] for d in dims], strides)), torch.int64)
        return b.where(hit, place, b.size(count, torch.int64))

    return reduce(low, "min", a, dims, keepdim, torch.int64, body, name=name)


def _extreme_dims(kind: str) -> Callable[..., Tensor]:
    def lowered(low: Lowering, a: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        dims = _dims(a, dim)
        _empty_or(a, dims)
        return extreme(low, kind, a, dims, keepdim)

    return lowered


lowers(aten.amax.default, aten.max.default)(_extreme_dims("max"))
lowers(aten.amin.default, aten.min.default)(_extreme_dims("min"))


def _extreme_with_place(kind: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def lowered(low: Lowering, a: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        dims = _dims(a, dim)
        _empty_or(a, dims)
        top = extreme(low, kind, a, dims, True, name=f"{_name(low)}_value")
        place = arg_extreme(low, kind, a, dims, True, top, name=f"{_name(low)}_index")
        if keepdim:
            return top, place
        return _dropped(top, dims), _dropped(place, dims)

    return lowered


def _dropped(a: Tensor, dims: tuple[int, ...]) -> Tensor:
    kept = tuple(d for d in range(len(a.shape)) if d not in dims)
    rank = len(a.shape)
    return a.view(tuple(a.shape[d] for d in kept), lambda i: _spread(i, kept, rank))


lowers(aten.max.dim)(_extreme_with_place("max"))
lowers(aten.min.dim)(_extreme_with_place("min"))


def _place(kind: str) -> Callable[..., Tensor]:
    def lowered(low: Lowering, a: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        dims = _dims(a, dim)
        _empty_or(a, dims)
        top = extreme(low, kind, a, dims, True, name=f"{_name(low)}_value")
        place = arg_extreme(low, kind, a, dims, True, top)
        return place if keepdim else _dropped(place, dims)

    return lowered


lowers(aten.argmax.default)(_place("max"))
lowers(aten.argmin.default)(_place("min"))


def _truth_of_all(kind: str) -> Callable[..., Tensor]:
    def lowered(low: Lowering, a: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        dims = _dims(a, dim)
        check_loopable(a)
        result = result_value(low).dtype
        if any(a.shape[d] == 0 for d in dims):
            shape = sizes_of(result_value(low))
            return low.pointwise(shape, result, lambda b, i: b.constant(kind == "min", result))

        def body(b: Builder, i: Coordinates) -> Op:
            v = a.at(b, i)
            return b.cast(
                v if v.dtype == torch.bool else b.call("ne", v, b.constant(0, v.dtype), dtype=torch.bool), torch.int32
            )

        found = reduce(low, kind, a, dims, keepdim, torch.int32, body, name=f"{_name(low)}_int")
        return low.pointwise(
            found.shape,
            result,
            lambda b, i: b.cast(b.call("ne", found.at(b, i), b.constant(0, torch.int32), dtype=torch.bool), result),
        )

    return lowered


lowers(aten.any.default, aten.any.dim, aten.any.dims)(_truth_of_all("max"))
lowers(aten.all.default, aten.all.dim, aten.all.dims)(_truth_of_all("min"))


def _softmax_parts(
    low: Lowering, a: Tensor, dim: int, held: torch.dtype
) -> tuple[Tensor, Callable[[Coordinates], Coordinates]]:
    """The row maximum (NaN need not be kept: the exponentials carry it on), and the map from an index to its row."""
    top = reduce(low, "max", a, (dim,), True, held, lambda b, i: b.cast(a.at(b, i), held), name=f"{_name(low)}_max")
    return top, lambda i: (*i[:dim], ZERO, *i[dim + 1 :])


@lowers(aten._softmax.default, aten.softmax.int, aten._safe_softmax.default)
def softmax(low: Lowering, a: Tensor, dim: int, *rest: Any, dtype: torch.dtype | None = None) -> Tensor:
    result = result_value(low).dtype
    dim = positive_dim(dim, len(a.shape))
    if not a.shape:
        return reshape(softmax(low, as_row(a), 0, dtype=dtype), ())
    _empty_or(a, (dim,))
    check_loopable(result_value(low))
    is_safe = low.node is not None and low.node.target is aten._safe_softmax.default
    held = compute_dtype(result)
    top, row = _softmax_parts(low, a, dim, held)

    def exponential(b: Builder, i: Coordinates) -> Op:
        return b.call("exp", b.call("sub", b.cast(a.at(b, i), held), top.at(b, row(i))))

    exps = low.pointwise(a.shape, held, exponential, name=f"{_name(low)}_exp")
    total = reduce(low, "sum", exps, (dim,), True, held, exps.at, name=f"{_name(low)}_sum")

    def body(b: Builder, i: Coordinates) -> Op:
        value = b.call("div", exps.at(b, i), total.at(b, row(i)))
        if not is_safe:
            return value
        empty = b.call("eq", top.at(b, row(i)), b.constant(-math.inf, held), dtype=torch.bool)
        return b.where(empty, b.constant(0.0, held), value)

    return low.pointwise(a.shape, result, body)


@lowers(aten._log_softmax.default, aten.log_softmax.int)
def log_softmax(low: Lowering, a: Tensor, dim: int, *rest: Any, dtype: torch.dtype | None = None) -> Tensor:
    result = result_value(low).dtype
    dim = positive_dim(dim, len(a.shape))
    if not a.shape:
        return reshape(log_softmax(low, as_row(a), 0, dtype=dtype), ())
    _empty_or(a, (dim,))
    check_loopable(result_value(low))
    held = compute_dtype(result)
    top, row = _softmax_parts(low, a, dim, held)
    shifted = low.pointwise(
        a.shape,
        held,
        lambda b, i: b.call("sub", b.cast(a.at(b, i), held), top.at(b, row(i))),
        name=f"{_name(low)}_shifted",
    )
    total = reduce(
        low, "sum", shifted, (dim,), True, held, lambda b, i: b.call("exp", shifted.at(b, i)), name=f"{_name(low)}_sum"
    )
    return low.pointwise(
        a.shape, result, lambda b, i: b.call("sub", shifted.at(b, i), b.call("log", total.at(b, row(i))))
    )


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    low: Lowering, a: Tensor, normalized: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    dims = tuple(range(len(a.shape) - len(normalized), len(a.shape)))
    _empty_or(a, dims)
    held = compute_dtype(a.dtype)
    variance, average = _variance(low, a, dims, True, 0.0, held, _name(low))
    scale = low.pointwise(
        variance.shape,
        held,
        lambda b, i: b.call("rsqrt", b.call("add", variance.at(b, i), b.constant(eps, held))),
        name=f"{_name(low)}_rstd",
    )
    first = dims[0] if dims else len(a.shape)

    def body(b: Builder, i: Coordinates) -> Op:
        row = (*i[:first], *(ZERO for _ in dims))
        value = b.call("mul", b.call("sub", b.cast(a.at(b, i), held), average.at(b, row)), scale.at(b, row))
        if weight is not None:
            value = b.call("mul", value, b.cast(weight.at(b, i[first:]), held))
        if bias is not None:
            value = b.call("add", value, b.cast(bias.at(b, i[first:]), held))
        return value

    outer = [average, scale]
    wanted = result_value(low)[1].dtype
    if wanted != held:
        outer = [low.pointwise(t.shape, wanted, lambda b, i, t=t: t.at(b, i)) for t in outer]  # type: ignore[misc]
    return low.pointwise(a.shape, a.dtype, body, stride=_stride_like(low)), *outer


def _stride_like(low: Lowering) -> tuple[Size, ...]:
    return dense_stride(result_value(low)[0])


@lowers(aten.native_group_norm.default)
def native_group_norm(
    low: Lowering,
    a: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: Any,
    c: Any,
    hw: Any,
    groups: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalise each of ``groups`` groups of channels of each sample."""
    check_loopable(a)
    channels = exact_quotient(plain(c), groups)
    if channels is None or 0 in a.shape:
        raise NotLowered("group norm of this shape is computed by ATen")
    grouped = reshape(a, (plain(n), groups, plain(channels * plain(hw))))
    held = compute_dtype(a.dtype)
    variance, average = _variance(low, grouped, (2,), False, 0.0, held, _name(low))
    scale = low.pointwise(
        variance.shape,
        held,
        lambda b, i: b.call("rsqrt", b.call("add", variance.at(b, i), b.constant(eps, held))),
        name=f"{_name(low)}_rstd",
    )

    def body(b: Builder, i: Coordinates) -> Op:
        row = (i[0], i[1].div(channels))
        value = b.call("mul", b.call("sub", b.cast(a.at(b, i), held), average.at(b, row)), scale.at(b, row))
        if weight is not None:
            value = b.call("mul", value, b.cast(weight.at(b, (i[1],)), held))
        return value if bias is None else b.call("add", value, b.cast(bias.at(b, (i[1],)), held))

    wanted = result_value(low)[1].dtype
    outer = [average, scale]
    if wanted != held:
        outer = [low.pointwise(t.shape, wanted, t.at) for t in outer]
    return low.pointwise(a.shape, a.dtype, body, stride=_stride_like(low)), *outer


@lowers(aten.cumsum.default)
def cumsum(low: Lowering, a: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _running(low, "sum", a, dim)


@lowers(aten.cumprod.default)
def cumprod(low: Lowering, a: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    return _running(low, "prod", a, dim)


@lowers(aten.cummax.default)
def cummax(low: Lowering, a: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running_extreme(low, "max", a, dim)


@lowers(aten.cummin.default)
def cummin(low: Lowering, a: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running_extreme(low, "min", a, dim)


def _running_extreme(low: Lowering, kind: str, a: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The largest (smallest) so far, and where it was last met: the running maximum of the places that hold it."""
    check_loopable(a)
    if a.dtype == torch.bool:  # has no smallest and largest number, which bound what a scan holds
        numbers = low.pointwise(a.shape, torch.int32, lambda b, i: b.cast(a.at(b, i), torch.int32))
        running, places = _running_extreme(low, kind, numbers, dim)
        return low.pointwise(a.shape, torch.bool, lambda b, i: b.cast(running.at(b, i), torch.bool)), places
    dim = _scanned(kind, a, dim)
    if not a.shape or a.shape[dim] == 1:
        first = low.pointwise(a.shape, torch.int64, lambda b, i: b.constant(0, torch.int64))
        return low.pointwise(a.shape, a.dtype, a.at), first
    values = low.scan(kind, a.shape, dim, a.dtype, a.at)

    def place(b: Builder, i: Coordinates) -> Op:
        value = a.at(b, i)
        holds = b.call("eq", value, values.at(b, i), dtype=torch.bool)
        if value.dtype.is_floating_point:
            holds = b.call("or", holds, b.call("ne", value, value, dtype=torch.bool), dtype=torch.bool)
        return b.where(holds, b.cast(b.position(i[dim]), torch.int64), b.constant(0, torch.int64))

    places = low.pointwise(a.shape, torch.int64, place, name=f"{_name(low)}_holders")
    return values, low.scan("max", a.shape, dim, torch.int64, places.at)


@lowers(aten.logcumsumexp.default)
def logcumsumexp(low: Lowering, a: Tensor, dim: int) -> Tensor:
    return _running(low, "logaddexp", a, dim)


def _scanned(kind: str, a: Tensor, dim: int) -> int:
    """The dimension of a running result, where one program does well to walk along it.

    Raises:
        NotLowered: it is so long that many programs had better share it, as a library's do.
    """
    dim = positive_dim(dim, len(a.shape))
    size = a.shape[dim] if a.shape else 1
    if isinstance(size, int) and size > LONGEST_RUN:
        raise NotLowered(
            f"a running {kind} along so long a dimension is computed by ATen, by many programs side by side"
        )
    return dim


def _running(low: Lowering, kind: str, a: Tensor, dim: int) -> Tensor:
    result = result_value(low).dtype
    check_loopable(a, result_value(low))
    dim = _scanned(kind, a, dim)
    if not a.shape or a.shape[dim] in (0, 1):
        return low.pointwise(a.shape, result, lambda b, i: b.cast(a.at(b, i), result))
    return low.scan(kind, a.shape, dim, result, lambda b, i: b.cast(a.at(b, i), result))


@lowers(aten._fused_rms_norm.default)
def rms_norm(
    low: Lowering, a: Tensor, normalized: Sequence[Any], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, ...]:
    dims = tuple(range(len(a.shape) - len(normalized), len(a.shape)))
    _empty_or(a, dims)
    held = compute_dtype(a.dtype)
    small = torch.finfo(a.dtype).eps if eps is None else eps

    def squared(b: Builder, i: Coordinates) -> Op:
        v = b.cast(a.at(b, i), held)
        return b.call("mul", v, v)

    total = reduce(low, "sum", a, dims, True, held, squared, name=f"{_name(low)}_squares")
    count = product(a.shape[d] for d in dims)
    scale = low.pointwise(
        total.shape,
        held,
        lambda b, i: b.call(
            "rsqrt", b.call("add", b.call("div", total.at(b, i), b.size(count, held)), b.constant(small, held))
        ),
        name=f"{_name(low)}_rstd",
    )
    first = dims[0]

    def body(b: Builder, i: Coordinates) -> Op:
        value = b.call("mul", b.cast(a.at(b, i), held), scale.at(b, (*i[:first], *(ZERO for _ in dims))))
        return value if weight is None else b.call("mul", value, b.cast(weight.at(b, i[first:]), held))

    wanted = result_value(low)[1].dtype
    shown = scale if wanted == held else low.pointwise(scale.shape, wanted, scale.at)
    return low.pointwise(a.shape, a.dtype, body, stride=_stride_like(low)), shown
