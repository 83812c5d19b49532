"""Complex numbers: a complex tensor is a real one with a last dimension of two, the real and the imaginary parts.

Rotary embeddings written with ``view_as_complex`` and filters of Fourier transforms are index arithmetic and a few products this way.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from engine.ir.index import Index, Size
from engine.ir.loops import Builder, Coordinates, Op
from engine.lowering.table import (
    REAL,
    TABLE,
    Lower,
    Lowering,
    NotLowered,
    Tensor,
    check_loopable,
    element,
    lowers_complex,
    parts_like,
    positive_dim,
    result_value,
    sizes_of,
)

aten = torch.ops.aten
prims = torch.ops.prims

Pair = tuple[Op, Op]
"""The real and the imaginary part of one element."""
Parts = Callable[[Builder, Coordinates], Pair]
Compute = Callable[..., Pair]
"""``(builder, *pairs) -> pair``."""


def half(a: Tensor, part: int) -> Tensor:
    """The real (0) or imaginary (1) parts of a complex tensor."""
    return replace(a, is_complex=False).view(a.shape[:-1], lambda i: (*i, Index({}, part)))


def _parts(a: Any, held: torch.dtype, shape: tuple[Size, ...]) -> Parts:
    """The elements of a tensor or number broadcast to ``shape``, as pairs."""
    if isinstance(a, Tensor) and a.is_complex:
        real, imaginary = element(half(a, 0), held, shape), element(half(a, 1), held, shape)
        return lambda b, i: (real(b, i), imaginary(b, i))
    if isinstance(a, complex):
        return lambda b, i: (b.constant(a.real, held), b.constant(a.imag, held))
    check_loopable(a)
    value = element(a, held, shape)
    return lambda b, i: (value(b, i), b.constant(0.0, held))


def _held(low: Lowering, value: torch.Tensor | None = None) -> torch.dtype:
    """The type of the parts of the result at work."""
    dtype = (result_value(low) if value is None else value).dtype
    if dtype not in REAL:
        raise NotLowered(f"{str(dtype).removeprefix('torch.')} is computed by ATen")
    return REAL[dtype]


def joined(low: Lowering, shape: tuple[Size, ...], held: torch.dtype, parts: Parts) -> Tensor:
    """A complex tensor from the pairs of its elements."""

    def body(b: Builder, i: Coordinates) -> Op:
        real, imaginary = parts(b, i[:-1])
        which = i[-1]
        if which.is_constant:
            return imaginary if which.const else real
        is_real = b.call("eq", b.position(which), b.constant(0, b.index_dtype), dtype=torch.bool)
        return b.where(is_real, real, imaginary)

    return replace(low.pointwise((*shape, 2), held, body), is_complex=True)


def _complex_elementwise(low: Lowering, args: Sequence[Any], compute: Compute) -> Tensor:
    held, shape = _held(low), sizes_of(result_value(low))
    operands = [_parts(a, held, shape) for a in args]
    return joined(low, shape, held, lambda b, i: compute(b, *(o(b, i) for o in operands)))


def _each(name: str) -> Compute:
    return lambda b, *pairs: (b.call(name, *(p[0] for p in pairs)), b.call(name, *(p[1] for p in pairs)))


def _product(b: Builder, x: Pair, y: Pair) -> Pair:
    def of(first: Op, second: Op) -> Op:
        return b.call("mul", first, second)

    return (
        b.call("sub", of(x[0], y[0]), of(x[1], y[1])),
        b.call("add", of(x[0], y[1]), of(x[1], y[0])),
    )


def _quotient(b: Builder, x: Pair, y: Pair) -> Pair:
    """By the larger part of the divisor, so that no square overflows (Smith, 1962)."""
    first, second = b.call("abs", y[0]), b.call("abs", y[1])
    is_first = b.call("ge", first, second, dtype=torch.bool)
    large, small = b.where(is_first, y[0], y[1]), b.where(is_first, y[1], y[0])
    ratio = b.call("div", small, large)
    scale = b.call("div", b.constant(1.0, large.dtype), b.call("add", large, b.call("mul", small, ratio)))
    near, far = b.where(is_first, x[0], x[1]), b.where(is_first, x[1], x[0])
    real = b.call("mul", b.call("add", near, b.call("mul", far, ratio)), scale)
    turned = b.call("mul", b.call("sub", far, b.call("mul", near, ratio)), scale)
    imaginary = b.where(is_first, turned, b.call("neg", turned))
    is_none = b.both(
        is_first,
        b.call("eq", first, b.constant(0.0, first.dtype), dtype=torch.bool),
    )
    return (
        b.where(is_none, b.call("div", x[0], first), real),
        b.where(is_none, b.call("div", x[1], second), imaginary),
    )


def _scaled_by(alpha: Any, name: str) -> Compute:
    def compute(b: Builder, x: Pair, y: Pair) -> Pair:
        if alpha != 1:
            factor = complex(alpha)
            y = _product(b, y, (b.constant(factor.real, y[0].dtype), b.constant(factor.imag, y[0].dtype)))
        return _each(name)(b, x, y)

    return compute


@lowers_complex(aten.add.Tensor, aten.add.Scalar)
def add(low: Lowering, a: Any, other: Any, alpha: Any = 1) -> Tensor:
    return _complex_elementwise(low, (a, other), _scaled_by(alpha, "add"))


@lowers_complex(aten.sub.Tensor, aten.sub.Scalar)
def sub(low: Lowering, a: Any, other: Any, alpha: Any = 1) -> Tensor:
    return _complex_elementwise(low, (a, other), _scaled_by(alpha, "sub"))


@lowers_complex(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(low: Lowering, a: Any, other: Any, alpha: Any = 1) -> Tensor:
    return _complex_elementwise(low, (other, a), _scaled_by(alpha, "sub"))


@lowers_complex(aten.mul.Tensor, aten.mul.Scalar)
def mul(low: Lowering, a: Any, other: Any) -> Tensor:
    return _complex_elementwise(low, (a, other), _product)


@lowers_complex(aten.div.Tensor, aten.div.Scalar)
def div(low: Lowering, a: Any, other: Any) -> Tensor:
    return _complex_elementwise(low, (a, other), _quotient)


@lowers_complex(aten.reciprocal.default)
def reciprocal(low: Lowering, a: Tensor) -> Tensor:
    return _complex_elementwise(low, (1.0, a), _quotient)


@lowers_complex(aten.square.default)
def square(low: Lowering, a: Tensor) -> Tensor:
    return _complex_elementwise(low, (a,), lambda b, x: _product(b, x, x))


@lowers_complex(aten.neg.default)
def neg(low: Lowering, a: Tensor) -> Tensor:
    return _complex_elementwise(low, (a,), _each("neg"))


@lowers_complex(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default)
def conj(low: Lowering, a: Tensor) -> Tensor:
    return _complex_elementwise(low, (a,), lambda b, x: (x[0], b.call("neg", x[1])))


@lowers_complex(aten.exp.default)
def exp(low: Lowering, a: Tensor) -> Tensor:
    def compute(b: Builder, x: Pair) -> Pair:
        """The imaginary part stays what it is where it is nothing, also beside infinity."""
        size = b.call("exp", x[0])
        is_real = b.call("eq", x[1], b.constant(0.0, size.dtype), dtype=torch.bool)
        across = b.where(is_real, x[1], b.call("mul", size, b.call("sin", x[1])))
        return b.where(is_real, size, b.call("mul", size, b.call("cos", x[1]))), across

    return _complex_elementwise(low, (a,), compute)


@lowers_complex(aten.log.default)
def log(low: Lowering, a: Tensor) -> Tensor:
    def compute(b: Builder, x: Pair) -> Pair:
        return b.call("log", b.call("hypot", *x)), b.call("atan2", x[1], x[0])

    return _complex_elementwise(low, (a,), compute)


def _root(b: Builder, x: Pair) -> Pair:
    """The principal one: half the sum of length and size of the real part is never the difference of near numbers."""
    real, across, half_ = *x, b.constant(0.5, x[0].dtype)
    length, size = b.call("mul", b.call("hypot", real, across), half_), b.call("mul", b.call("abs", real), half_)
    long = b.call("sqrt", b.call("add", length, size))
    short = b.call("div", b.call("mul", b.call("abs", across), half_), long)
    zero = b.constant(0.0, real.dtype)
    short = b.where(b.call("eq", long, zero, dtype=torch.bool), zero, short)
    is_left = b.call("lt", real, zero, dtype=torch.bool)
    first, second = b.where(is_left, short, long), b.call("copysign", b.where(is_left, long, short), across)
    endless = b.call("eq", b.call("abs", across), b.constant(math.inf, real.dtype), dtype=torch.bool)
    return b.where(endless, b.constant(math.inf, real.dtype), first), b.where(endless, across, second)


@lowers_complex(aten.sqrt.default)
def sqrt(low: Lowering, a: Tensor) -> Tensor:
    return _complex_elementwise(low, (a,), _root)


@lowers_complex(aten.rsqrt.default)
def rsqrt(low: Lowering, a: Tensor) -> Tensor:
    return _complex_elementwise(low, (1.0, a), lambda b, one, x: _quotient(b, one, _root(b, x)))


@lowers_complex(aten.sin.default)
def sin(low: Lowering, a: Tensor) -> Tensor:
    def compute(b: Builder, x: Pair) -> Pair:
        across, along = b.call("cosh", x[1]), b.call("sinh", x[1])
        return b.call("mul", b.call("sin", x[0]), across), b.call("mul", b.call("cos", x[0]), along)

    return _complex_elementwise(low, (a,), compute)


@lowers_complex(aten.addcmul.default)
def addcmul(low: Lowering, a: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Tensor:
    scaled = _scaled_by(value, "add")
    return _complex_elementwise(low, (a, first, second), lambda b, x, y, z: scaled(b, x, _product(b, y, z)))


@lowers_complex(aten.copy.default)
def copy(low: Lowering, a: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return _complex_elementwise(low, (source,), lambda b, x: x)


@lowers_complex(aten.where.self)
def where(low: Lowering, condition: Tensor, a: Any, other: Any) -> Tensor:
    held, shape = _held(low), sizes_of(result_value(low))
    test, then, otherwise = element(condition, torch.bool, shape), _parts(a, held, shape), _parts(other, held, shape)

    def parts(b: Builder, i: Coordinates) -> Pair:
        chosen, first, second = test(b, i), then(b, i), otherwise(b, i)
        return b.where(chosen, first[0], second[0]), b.where(chosen, first[1], second[1])

    return joined(low, shape, held, parts)


@lowers_complex(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(low: Lowering, a: Tensor, mask: Tensor, value: Any) -> Tensor:
    return where(low, mask, value, a)  # type: ignore[no-any-return]


@lowers_complex(aten.complex.default)
def complex_(low: Lowering, real: Tensor, imaginary: Tensor) -> Tensor:
    held, shape = _held(low), sizes_of(result_value(low))
    first, second = element(real, held, shape), element(imaginary, held, shape)
    return joined(low, shape, held, lambda b, i: (first(b, i), second(b, i)))


@lowers_complex(aten.polar.default)
def polar(low: Lowering, size: Tensor, angle: Tensor) -> Tensor:
    held, shape = _held(low), sizes_of(result_value(low))
    first, second = element(size, held, shape), element(angle, held, shape)

    def parts(b: Builder, i: Coordinates) -> Pair:
        length, turn = first(b, i), second(b, i)
        return b.call("mul", length, b.call("cos", turn)), b.call("mul", length, b.call("sin", turn))

    return joined(low, shape, held, parts)


@lowers_complex(aten.view_as_complex.default)
def view_as_complex(low: Lowering, a: Tensor) -> Tensor:
    _held(low)
    return replace(a, is_complex=True)


@lowers_complex(aten.view_as_real.default)
def view_as_real(low: Lowering, a: Tensor) -> Tensor:
    return replace(a, is_complex=False)


def _of_parts(low: Lowering, a: Tensor, compute: Callable[[Builder, Op, Op], Op]) -> Tensor:
    """A real tensor from a complex one."""
    real, imaginary = half(a, 0), half(a, 1)
    dtype = result_value(low).dtype
    return low.pointwise(real.shape, dtype, lambda b, i: b.cast(compute(b, real.at(b, i), imaginary.at(b, i)), dtype))


@lowers_complex(aten.abs.default)
def abs_(low: Lowering, a: Tensor) -> Tensor:
    return _of_parts(low, a, lambda b, x, y: b.call("hypot", x, y))


@lowers_complex(aten.angle.default)
def angle(low: Lowering, a: Tensor) -> Tensor:
    return _of_parts(low, a, lambda b, x, y: b.call("atan2", y, x))


@lowers_complex(aten.eq.Tensor, aten.eq.Scalar)
def eq(low: Lowering, a: Any, other: Any) -> Tensor:
    return _compared(low, a, other, "eq", "and")


@lowers_complex(aten.ne.Tensor, aten.ne.Scalar)
def ne(low: Lowering, a: Any, other: Any) -> Tensor:
    return _compared(low, a, other, "ne", "or")


def _compared(low: Lowering, a: Any, other: Any, name: str, together: str) -> Tensor:
    shape = sizes_of(result_value(low))
    dtypes = {t.dtype for t in (a, other) if isinstance(t, Tensor)}
    held = torch.float64 if torch.float64 in dtypes else torch.float32
    first, second = _parts(a, held, shape), _parts(other, held, shape)

    def body(b: Builder, i: Coordinates) -> Op:
        x, y = first(b, i), second(b, i)
        real, imaginary = (b.call(name, p, q, dtype=torch.bool) for p, q in zip(x, y, strict=True))
        return b.call(together, real, imaginary, dtype=torch.bool)

    return low.pointwise(shape, torch.bool, body)


@lowers_complex(aten.isnan.default)
def isnan(low: Lowering, a: Tensor) -> Tensor:
    return _compared(low, a, a, "ne", "or")


def _logical(name: str, together: str) -> None:
    @lowers_complex(getattr(aten, name).default)
    def lowered(low: Lowering, a: Any, other: Any) -> Tensor:
        shape = sizes_of(result_value(low))
        first, second = _is_not_zero(a, shape), _is_not_zero(other, shape)
        return low.pointwise(
            shape, torch.bool, lambda b, i: b.call(together, first(b, i), second(b, i), dtype=torch.bool)
        )


for _name, _joint in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "ne")):
    _logical(_name, _joint)


@lowers_complex(aten.logical_not.default)
def logical_not(low: Lowering, a: Tensor) -> Tensor:
    return _compared(low, a, 0, "eq", "and")


def _is_not_zero(a: Tensor, shape: tuple[Size, ...]) -> Callable[[Builder, Coordinates], Op]:
    """Whether any part of an element is something, broadcast to ``shape``."""
    if not a.is_complex:
        return element(a, torch.bool, shape)
    parts = _parts(a, a.dtype, shape)

    def test(b: Builder, i: Coordinates) -> Op:
        real, imaginary = (b.call("ne", p, b.constant(0.0, p.dtype), dtype=torch.bool) for p in parts(b, i))
        return b.call("or", real, imaginary, dtype=torch.bool)

    return test


@lowers_complex(aten._to_copy.default, prims.convert_element_type.default)
def to_copy(low: Lowering, a: Tensor, dtype: torch.dtype | None = None, **other: Any) -> Tensor:
    """Between complex types and from real ones; to a real one the imaginary parts go."""
    if other.get("layout") not in (None, torch.strided):
        raise NotLowered("other layouts are made by ATen")
    result = result_value(low)
    if result.dtype.is_complex:
        return _complex_elementwise(low, (a,), lambda b, x: x)
    check_loopable(result)
    kept = half(a, 0)
    if result.dtype is torch.bool:
        return _compared(low, a, 0, "ne", "or")
    return low.pointwise(kept.shape, result.dtype, lambda b, i: b.round(kept.at(b, i), result.dtype))


@lowers_complex(
    aten.full.default,
    aten.full_like.default,
    aten.new_full.default,
    aten.zeros.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.ones.default,
    aten.ones_like.default,
    aten.new_ones.default,
    aten.scalar_tensor.default,
)
def full(low: Lowering, *args: Any, **_: Any) -> Tensor:
    name = str(low.node.target) if low.node is not None else ""
    fill = 0 if "zeros" in name else 1 if "ones" in name else args[0] if "scalar_tensor" in name else args[-1]
    if not isinstance(fill, (bool, int, float, complex)):
        raise NotLowered("a complex tensor is filled with a number that follows from sizes by ATen")
    return _complex_elementwise(low, (complex(fill),), lambda b, x: x)


# ---- what does not look at the numbers: the same for a real tensor with one dimension more -------------------------


@dataclass(eq=False)
class _Node:
    """Stands for the node at work while its complex result is made as a real tensor."""

    name: str
    target: Any
    meta: dict[str, Any]
    users: dict[Any, None] = field(default_factory=dict)


@contextlib.contextmanager
def _as_real(low: Lowering) -> Iterator[None]:
    node = low.node
    assert node is not None
    low.node = _Node(node.name, node.target, {"val": pytree.tree_map(parts_like, node.meta["val"])})  # type: ignore[assignment]
    try:
        yield
    finally:
        low.node = node


Changed = Callable[[int, list[Any]], list[Any]]
"""``(rank, arguments after the tensor) -> the same`` for a tensor with one dimension more at its end."""


def _dims(*places: int, default: Sequence[Any] = ()) -> Changed:
    """Dimensions at these places among the arguments, counted from the front."""

    def changed(rank: int, args: list[Any]) -> list[Any]:
        filled = [*args, *default[len(args) :]]
        for place in places:
            given = filled[place]
            is_many = isinstance(given, (list, tuple))
            filled[place] = [positive_dim(d, rank) for d in given] if is_many else positive_dim(given, rank)
        return filled

    return changed


REDUCTIONS = (aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default, aten.cumsum.default)
"""Of a single number they are that number."""


def _reduced(rank: int, args: list[Any]) -> list[Any]:
    given = args[0] if args else None
    dims = [given] if isinstance(given, int) else list(given or range(rank))
    return [[positive_dim(d, rank) for d in dims], *args[1:]]


STRUCTURAL: dict[Any, Changed] = {
    **dict.fromkeys(
        (
            aten.view.default,
            aten._unsafe_view.default,
            aten.reshape.default,
            aten.unsqueeze.default,
            aten.squeeze.default,
            aten.squeeze.dim,
            aten.squeeze.dims,
            aten.expand.default,
            aten.clone.default,
            aten.alias.default,
            aten.detach.default,
            aten.lift_fresh_copy.default,
            aten.contiguous.default,
            aten.index.Tensor,
            aten._unsafe_index.Tensor,
        ),
        lambda rank, args: args,
    ),
    aten.permute.default: lambda rank, args: [[*(d % max(rank, 1) for d in args[0]), rank]],
    aten.transpose.int: _dims(0, 1),
    aten.t.default: lambda rank, args: args,
    aten.select.int: _dims(0),
    aten.slice.Tensor: _dims(0, default=(0,)),
    aten.split.Tensor: _dims(1, default=(None, 0)),
    aten.split_with_sizes.default: _dims(1, default=(None, 0)),
    aten.unsafe_split.Tensor: _dims(1, default=(None, 0)),
    aten.unbind.int: _dims(0, default=(0,)),
    aten.flip.default: _dims(0),
    aten.roll.default: _dims(1, default=(None, ())),
    aten.index_select.default: _dims(0),
    aten.constant_pad_nd.default: lambda rank, args: [[0, 0, *args[0]], *args[1:]],
    aten.repeat.default: lambda rank, args: [[*args[0], 1]],
    aten.slice_scatter.default: _dims(1, default=(None, 0)),
    aten.select_scatter.default: _dims(1),
    aten.sum.dim_IntList: _reduced,
    aten.sum.default: _reduced,
    aten.mean.dim: _reduced,
    aten.mean.default: _reduced,
    aten.cumsum.default: _dims(0),
}


def _as_complex(value: Any) -> Any:
    return tuple(map(_as_complex, value)) if isinstance(value, tuple) else replace(value, is_complex=True)


def _structural(operator: Any, changed: Changed) -> Lower:
    def lowered(low: Lowering, a: Tensor, *args: Any, **kwargs: Any) -> Any:
        _held(low, next(iter(pytree.tree_leaves(result_value(low)))))
        kept = kwargs.pop("dtype", None)
        is_changed = not a.is_complex or (kept is not None and REAL.get(kept) != a.dtype)
        if is_changed or any(isinstance(v, complex) for v in args):
            raise NotLowered("a change of type on the way is made by ATen")
        if operator is aten.constant_pad_nd.default and args[1:] not in ((), (0,)):
            raise NotLowered("padding by another number than 0, whose imaginary part is 0, is done by ATen")
        if operator in REDUCTIONS and len(a.shape) == 1:
            return _complex_elementwise(low, (a,), lambda b, x: x)
        given = [
            replace(v, is_complex=False) if isinstance(v, Tensor) and v.is_complex else v
            for v in changed(len(a.shape) - 1, list(args))
        ]
        if low.node is not None and low.node.target is aten.t.default:
            return a if len(a.shape) < 3 else _transposed(a)
        with _as_real(low):
            return _as_complex(TABLE[operator](low, replace(a, is_complex=False), *given, **kwargs))

    return lowered


def _transposed(a: Tensor) -> Tensor:
    turned = a.view((a.shape[1], a.shape[0], 2), lambda i: (i[1], i[0], i[2]))
    return replace(turned, is_complex=True)


for _operator, _change in STRUCTURAL.items():
    lowers_complex(_operator)(_structural(_operator, _change))


@lowers_complex(aten.cat.default)
def cat(low: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return _together(low, aten.cat.default, tensors, positive_dim(dim, len(result_value(low).shape)))


@lowers_complex(aten.stack.default)
def stack(low: Lowering, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return _together(low, aten.stack.default, tensors, positive_dim(dim, len(result_value(low).shape)))


def _together(low: Lowering, operator: Any, tensors: Sequence[Tensor], dim: int) -> Tensor:
    held = _held(low)
    if any(not t.is_complex or t.dtype != held for t in tensors):
        raise NotLowered("tensors of several types are put together by ATen")
    with _as_real(low):
        made: Tensor = TABLE[operator](low, [replace(t, is_complex=False) for t in tensors], dim)
    return replace(made, is_complex=True)
