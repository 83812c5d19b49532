"""Complex operators on the real view: the last dimension, of size 2, is (real, imaginary).

Rotary embeddings with ``view_as_complex`` and FFT filters thus become index arithmetic and a few products.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import IndexExpr, Size
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Coordinates
from engine.ir.node_values import results_of
from engine.lowering.context import LoweredTensor, LoweringContext, fake_result, lowered_tensors
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.promotion import broadcast_loader, canonical_dim, check_strided, check_supported_dtype
from engine.lowering.registry import LOWERINGS, LoweringFn, register_complex_lowering
from engine.lowering.result_strides import REAL_DTYPES, as_real_meta, symbolic_shape
from engine.torch_private.pytree import tree_leaves, tree_map, tree_map_only

aten = torch.ops.aten
prims = torch.ops.prims

ComplexPair = tuple[LoopIROp, LoopIROp]
"""Real and imaginary part of one element."""
PairLoader = Callable[[LoopBuilder, Coordinates], ComplexPair]
ComplexElementwiseFn = Callable[..., ComplexPair]
"""``(builder, *pairs) -> pair``."""


def real_or_imag(a: LoweredTensor, part: int) -> LoweredTensor:
    """Return the real (0) or imaginary (1) part of a complex tensor."""
    return replace(a, is_complex=False).view(a.shape[:-1], lambda i: (*i, IndexExpr({}, part)))


def _pair_loader(a: Any, math_dtype: torch.dtype, shape: tuple[Size, ...]) -> PairLoader:
    """Return a loader of pairs for a tensor or number broadcast to ``shape``."""
    if any(t.is_complex for t in lowered_tensors(a)):
        real, imaginary = (broadcast_loader(real_or_imag(a, part), math_dtype, shape) for part in (0, 1))
        return lambda b, i: (real(b, i), imaginary(b, i))
    if isinstance(a, complex):
        return lambda b, i: (b.constant(a.real, math_dtype), b.constant(a.imag, math_dtype))
    check_supported_dtype(a)
    value = broadcast_loader(a, math_dtype, shape)
    return lambda b, i: (value(b, i), b.constant(0.0, math_dtype))


def _real_dtype(low: LoweringContext, value: torch.Tensor | None = None) -> torch.dtype:
    """Return the dtype of the real and imaginary parts of the current result.

    Raises:
        NotLowered: loops do not support the result's dtype.
    """
    dtype = (fake_result(low) if value is None else value).dtype
    if dtype not in REAL_DTYPES:
        raise NotLowered(LoweringFallback.UNSUPPORTED_DTYPE, f"{str(dtype).removeprefix('torch.')} has no lowering")
    return REAL_DTYPES[dtype]


def from_pairs(
    low: LoweringContext, shape: tuple[Size, ...], math_dtype: torch.dtype, parts: PairLoader
) -> LoweredTensor:
    """Define a complex tensor from the pairs of its elements."""

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        real, imaginary = parts(b, i[:-1])
        which = i[-1]
        if which.is_constant:
            return imaginary if which.const else real
        is_real = b.index_value(which).equals(0)
        return b.where(is_real, real, imaginary)

    return replace(low.pointwise((*shape, 2), math_dtype, body), is_complex=True)


def _complex_elementwise(low: LoweringContext, args: Sequence[Any], compute: ComplexElementwiseFn) -> LoweredTensor:
    math_dtype, shape = _real_dtype(low), symbolic_shape(fake_result(low))
    operands = [_pair_loader(a, math_dtype, shape) for a in args]
    return from_pairs(low, shape, math_dtype, lambda b, i: compute(b, *(o(b, i) for o in operands)))


def _register_elementwise(*operators: Any) -> Callable[[ComplexElementwiseFn], ComplexElementwiseFn]:
    """Register a lowering that applies a function to the pairs of the operators' arguments."""

    def register(compute: ComplexElementwiseFn) -> ComplexElementwiseFn:
        register_complex_lowering(*operators)(lambda low, *args: _complex_elementwise(low, args, compute))
        return compute

    return register


def _per_part(name: str) -> ComplexElementwiseFn:
    return lambda b, *pairs: (b.call(name, *(p[0] for p in pairs)), b.call(name, *(p[1] for p in pairs)))


@_register_elementwise(aten.mul.Tensor, aten.mul.Scalar)
def _complex_mul(b: LoopBuilder, x: ComplexPair, y: ComplexPair) -> ComplexPair:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


@_register_elementwise(aten.div.Tensor, aten.div.Scalar)
def _complex_div(b: LoopBuilder, x: ComplexPair, y: ComplexPair) -> ComplexPair:
    """Divide by the larger part of the divisor, so that no square overflows (Smith, 1962)."""
    first, second = b.call("abs", y[0]), b.call("abs", y[1])
    is_first = first >= second
    large, small = b.where(is_first, y[0], y[1]), b.where(is_first, y[1], y[0])
    ratio = small / large
    scale = b.constant(1.0, large.dtype) / (large + small * ratio)
    near, far = b.where(is_first, x[0], x[1]), b.where(is_first, x[1], x[0])
    real = (near + far * ratio) * scale
    turned = (far - near * ratio) * scale
    imaginary = b.where(is_first, turned, -turned)
    is_none = is_first & first.equals(0.0)
    return b.where(is_none, x[0] / first, real), b.where(is_none, x[1] / second, imaginary)


def _add_scaled(alpha: Any, name: str) -> ComplexElementwiseFn:
    """Add ``alpha`` times a number; a factor of 1 makes NaN of infinities, as in ATen."""
    factor = complex(alpha)

    def compute(b: LoopBuilder, x: ComplexPair, y: ComplexPair) -> ComplexPair:
        scale = b.constant(factor.real, y[0].dtype), b.constant(factor.imag, y[0].dtype)
        return _per_part(name)(b, x, _complex_mul(b, y, scale))

    return compute


@register_complex_lowering(aten.add.Tensor, aten.add.Scalar)
def add(low: LoweringContext, a: Any, other: Any, alpha: Any = 1) -> LoweredTensor:
    return _complex_elementwise(low, (a, other), _add_scaled(alpha, "add"))


@register_complex_lowering(aten.sub.Tensor, aten.sub.Scalar)
def sub(low: LoweringContext, a: Any, other: Any, alpha: Any = 1) -> LoweredTensor:
    return _complex_elementwise(low, (a, other), _add_scaled(alpha, "sub"))


@register_complex_lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(low: LoweringContext, a: Any, other: Any, alpha: Any = 1) -> LoweredTensor:
    return _complex_elementwise(low, (other, a), _add_scaled(alpha, "sub"))


@register_complex_lowering(aten.reciprocal.default)
def reciprocal(low: LoweringContext, a: LoweredTensor) -> LoweredTensor:
    return _complex_elementwise(low, (1.0, a), _complex_div)


_register_elementwise(aten.square.default)(lambda b, x: _complex_mul(b, x, x))
_register_elementwise(aten.neg.default, aten._neg_view.default)(_per_part("neg"))
_register_elementwise(aten._conj.default, aten._conj_physical.default, aten.conj_physical.default)(
    lambda b, x: (x[0], -x[1])
)
_register_elementwise(aten.log.default)(lambda b, x: (b.call("log", b.call("hypot", *x)), b.call("atan2", x[1], x[0])))


@_register_elementwise(aten.exp.default)
def exp(b: LoopBuilder, x: ComplexPair) -> ComplexPair:
    """Compute exp. A zero imaginary part is returned unchanged, even next to infinity."""
    size = b.call("exp", x[0])
    is_real = x[1].equals(0.0)
    across = b.where(is_real, x[1], size * b.call("sin", x[1]))
    return b.where(is_real, size, size * b.call("cos", x[1])), across


@_register_elementwise(aten.sin.default)
def sin(b: LoopBuilder, x: ComplexPair) -> ComplexPair:
    """Compute the sine by the real and hyperbolic functions of the parts."""
    across, along = b.call("cosh", x[1]), b.call("sinh", x[1])
    return b.call("sin", x[0]) * across, b.call("cos", x[0]) * along


@_register_elementwise(aten.sqrt.default)
def _complex_sqrt(b: LoopBuilder, x: ComplexPair) -> ComplexPair:
    """Compute the principal square root without cancellation.

    It is based on half the sum of the modulus and the absolute real part, which never subtracts near numbers.
    """
    real, across, half_ = *x, b.constant(0.5, x[0].dtype)
    length, size = b.call("hypot", real, across) * half_, b.call("abs", real) * half_
    long = b.call("sqrt", length + size)
    short = b.call("abs", across) * half_ / long
    short = b.where(long.equals(0.0), 0.0, short)
    is_left = real < 0.0
    first, second = b.where(is_left, short, long), b.call("copysign", b.where(is_left, long, short), across)
    endless = b.call("abs", across).equals(math.inf)
    return b.where(endless, math.inf, first), b.where(endless, across, second)


@register_complex_lowering(aten.rsqrt.default)
def rsqrt(low: LoweringContext, a: LoweredTensor) -> LoweredTensor:
    return _complex_elementwise(low, (1.0, a), lambda b, one, x: _complex_div(b, one, _complex_sqrt(b, x)))


@register_complex_lowering(aten.addcmul.default)
def addcmul(
    low: LoweringContext, a: LoweredTensor, first: LoweredTensor, second: LoweredTensor, *, value: Any = 1
) -> LoweredTensor:
    scaled = _add_scaled(value, "add")
    return _complex_elementwise(low, (a, first, second), lambda b, x, y, z: scaled(b, x, _complex_mul(b, y, z)))


@register_complex_lowering(aten.copy.default)
def copy(low: LoweringContext, a: LoweredTensor, source: LoweredTensor, non_blocking: bool = False) -> LoweredTensor:
    return _complex_elementwise(low, (source,), lambda b, x: x)


@register_complex_lowering(aten.where.self)
def where(low: LoweringContext, condition: LoweredTensor, a: Any, other: Any) -> LoweredTensor:
    math_dtype, shape = _real_dtype(low), symbolic_shape(fake_result(low))
    test = broadcast_loader(condition, torch.bool, shape)
    then, otherwise = (_pair_loader(v, math_dtype, shape) for v in (a, other))

    def parts(b: LoopBuilder, i: Coordinates) -> ComplexPair:
        chosen, first, second = test(b, i), then(b, i), otherwise(b, i)
        return b.where(chosen, first[0], second[0]), b.where(chosen, first[1], second[1])

    return from_pairs(low, shape, math_dtype, parts)


@register_complex_lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(low: LoweringContext, a: LoweredTensor, mask: LoweredTensor, value: Any) -> LoweredTensor:
    return where(low, mask, value, a)  # type: ignore[no-any-return]


@register_complex_lowering(aten.complex.default)
def complex_(low: LoweringContext, real: LoweredTensor, imaginary: LoweredTensor) -> LoweredTensor:
    math_dtype, shape = _real_dtype(low), symbolic_shape(fake_result(low))
    first, second = broadcast_loader(real, math_dtype, shape), broadcast_loader(imaginary, math_dtype, shape)
    return from_pairs(low, shape, math_dtype, lambda b, i: (first(b, i), second(b, i)))


@register_complex_lowering(aten.polar.default)
def polar(low: LoweringContext, size: LoweredTensor, angle: LoweredTensor) -> LoweredTensor:
    math_dtype, shape = _real_dtype(low), symbolic_shape(fake_result(low))
    first, second = broadcast_loader(size, math_dtype, shape), broadcast_loader(angle, math_dtype, shape)

    def parts(b: LoopBuilder, i: Coordinates) -> ComplexPair:
        length, turn = first(b, i), second(b, i)
        return length * b.call("cos", turn), length * b.call("sin", turn)

    return from_pairs(low, shape, math_dtype, parts)


@register_complex_lowering(aten.view_as_complex.default)
def view_as_complex(low: LoweringContext, a: LoweredTensor) -> LoweredTensor:
    _real_dtype(low)
    return replace(a, is_complex=True)


register_complex_lowering(aten.view_as_real.default)(lambda low, a: replace(a, is_complex=False))


def _real_result(
    low: LoweringContext, a: LoweredTensor, compute: Callable[[LoopBuilder, LoopIROp, LoopIROp], LoopIROp]
) -> LoweredTensor:
    """Define a real tensor from the parts of a complex one."""
    real, imaginary = real_or_imag(a, 0), real_or_imag(a, 1)
    dtype = fake_result(low).dtype
    return low.pointwise(
        real.shape, dtype, lambda b, i: b.cast(compute(b, real.load(b, i), imaginary.load(b, i)), dtype)
    )


register_complex_lowering(aten.abs.default)(lambda low, a: _real_result(low, a, lambda b, x, y: b.call("hypot", x, y)))
register_complex_lowering(aten.angle.default)(
    lambda low, a: _real_result(low, a, lambda b, x, y: b.call("atan2", y, x))
)


def _complex_compare(low: LoweringContext, a: Any, other: Any, name: str, together: str) -> LoweredTensor:
    shape = symbolic_shape(fake_result(low))
    dtypes = {t.dtype for t in lowered_tensors((a, other))}
    math_dtype = torch.float64 if torch.float64 in dtypes else torch.float32
    first, second = _pair_loader(a, math_dtype, shape), _pair_loader(other, math_dtype, shape)

    def body(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        x, y = first(b, i), second(b, i)
        real, imaginary = (b.call(name, p, q, dtype=torch.bool) for p, q in zip(x, y, strict=True))
        return b.call(together, real, imaginary, dtype=torch.bool)

    return low.pointwise(shape, torch.bool, body)


register_complex_lowering(aten.eq.Tensor, aten.eq.Scalar)(
    lambda low, a, other: _complex_compare(low, a, other, "eq", "and")
)
register_complex_lowering(aten.ne.Tensor, aten.ne.Scalar)(
    lambda low, a, other: _complex_compare(low, a, other, "ne", "or")
)
register_complex_lowering(aten.isnan.default)(lambda low, a: _complex_compare(low, a, a, "ne", "or"))
register_complex_lowering(aten.logical_not.default)(lambda low, a: _complex_compare(low, a, 0, "eq", "and"))


def _logical(name: str, together: str) -> None:
    @register_complex_lowering(getattr(aten, name).default)
    def lowered(low: LoweringContext, a: Any, other: Any) -> LoweredTensor:
        shape = symbolic_shape(fake_result(low))
        first, second = _is_not_zero(a, shape), _is_not_zero(other, shape)
        return low.pointwise(
            shape, torch.bool, lambda b, i: b.call(together, first(b, i), second(b, i), dtype=torch.bool)
        )


for _name, _joint in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "ne")):
    _logical(_name, _joint)


def _is_not_zero(a: LoweredTensor, shape: tuple[Size, ...]) -> Callable[[LoopBuilder, Coordinates], LoopIROp]:
    """Return a loader that tests if any part of an element is non-zero.

    The elements are broadcast to ``shape``.
    """
    if not a.is_complex:
        return broadcast_loader(a, torch.bool, shape)
    parts = _pair_loader(a, a.dtype, shape)

    def test(b: LoopBuilder, i: Coordinates) -> LoopIROp:
        real, imaginary = (p.differs(0.0) for p in parts(b, i))
        return real | imaginary

    return test


@register_complex_lowering(aten._to_copy.default, prims.convert_element_type.default)
def to_copy(low: LoweringContext, a: LoweredTensor, dtype: torch.dtype | None = None, **other: Any) -> LoweredTensor:
    """Convert between complex and real dtypes; a real result drops the imaginary part."""
    check_strided(other.get("layout"))
    result = fake_result(low)
    if result.dtype.is_complex:
        return _complex_elementwise(low, (a,), lambda b, x: x)
    kept = real_or_imag(a, 0)
    if result.dtype is torch.bool:
        return _complex_compare(low, a, 0, "ne", "or")
    return low.pointwise(kept.shape, result.dtype, lambda b, i: b.round_to_dtype(kept.load(b, i), result.dtype))


_FILL_VALUES: dict[Any, int] = {
    aten.zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
    aten.ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
}


@register_complex_lowering(
    *_FILL_VALUES, aten.full.default, aten.full_like.default, aten.new_full.default, aten.scalar_tensor.default
)
def full(low: LoweringContext, *args: Any, **_: Any) -> LoweredTensor:
    target = low.current_node.target if low.current_node is not None else None
    fill = _FILL_VALUES.get(target, args[0] if target is aten.scalar_tensor.default else args[-1])
    if not isinstance(fill, (bool, int, float, complex)):
        raise NotLowered(
            LoweringFallback.SYMBOLIC_NUMBER, "a complex tensor with a symbolic fill value has no lowering"
        )
    return _complex_elementwise(low, (complex(fill),), lambda b, x: x)


# ---- Structural operators: lowered on the real view, which has one more dimension ------------------------------


@dataclass(eq=False)
class _RealNode:
    """Replacement of the current node while its complex result is lowered as a real tensor."""

    name: str
    target: Any
    meta: dict[str, Any]
    users: dict[Any, None] = field(default_factory=dict)


@contextlib.contextmanager
def _as_real_result(low: LoweringContext) -> Iterator[None]:
    node = low.current_node
    assert node is not None
    low.current_node = _RealNode(node.name, node.target, {"val": tree_map(as_real_meta, node.meta["val"])})  # type: ignore[assignment]
    try:
        yield
    finally:
        low.current_node = node


AdaptArgs = Callable[[int, list[Any]], list[Any]]
"""``(rank, args after the tensor) -> args`` for the real view with one more dimension."""


def _canonical_dims(*positions: int, default: Sequence[Any] = ()) -> AdaptArgs:
    """Make the dimensions at these argument positions non-negative."""

    def changed(rank: int, args: list[Any]) -> list[Any]:
        filled = [*args, *default[len(args) :]]
        for position in positions:
            argument = filled[position]
            filled[position] = tree_map(lambda d: canonical_dim(d, rank), argument)
        return filled

    return changed


SCALAR_IDENTITY_OPS = (aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default, aten.cumsum.default)
"""On a 0-dim tensor these return the tensor itself."""


def _roll_args(rank: int, args: list[Any]) -> list[Any]:
    """Without dimensions a roll moves elements in memory order: twice as many real numbers."""
    shifts, dims = (*args, ())[:2]
    return [shifts, [canonical_dim(d, rank) for d in dims]] if dims else [[2 * results_of(shifts)[0]], ()]


def _reduction_args(rank: int, args: list[Any]) -> list[Any]:
    dim_argument = args[0] if args else None
    dims = () if dim_argument is None else results_of(dim_argument)
    return [[canonical_dim(d, rank) for d in dims or range(rank)], *args[1:]]


_UNCHANGED = [
    *(op.default for op in (aten.view, aten._unsafe_view, aten.reshape, aten.unsqueeze, aten.squeeze, aten.expand)),
    *(op.default for op in (aten.clone, aten.alias, aten.detach, aten.lift_fresh_copy, aten.contiguous, aten.t)),
]
"""Operators whose arguments are those of the operator on the real view."""

STRUCTURAL_OPS: dict[Any, AdaptArgs] = {
    **dict.fromkeys(_UNCHANGED, lambda rank, args: args),
    aten.squeeze.dim: lambda rank, args: args,
    aten.squeeze.dims: lambda rank, args: args,
    aten.index.Tensor: lambda rank, args: args,
    aten._unsafe_index.Tensor: lambda rank, args: args,
    aten.permute.default: lambda rank, args: [[*(d % max(rank, 1) for d in args[0]), rank]],
    aten.transpose.int: _canonical_dims(0, 1),
    aten.select.int: _canonical_dims(0),
    aten.slice.Tensor: _canonical_dims(0, default=(0,)),
    aten.split.Tensor: _canonical_dims(1, default=(None, 0)),
    aten.split_with_sizes.default: _canonical_dims(1, default=(None, 0)),
    aten.unsafe_split.Tensor: _canonical_dims(1, default=(None, 0)),
    aten.unbind.int: _canonical_dims(0, default=(0,)),
    aten.flip.default: _canonical_dims(0),
    aten.roll.default: _roll_args,
    aten.index_select.default: _canonical_dims(0),
    aten.constant_pad_nd.default: lambda rank, args: [[0, 0, *args[0]], *args[1:]],
    aten.repeat.default: lambda rank, args: [[*args[0], 1]],
    aten.slice_scatter.default: _canonical_dims(1, default=(None, 0)),
    aten.select_scatter.default: _canonical_dims(1),
    aten.sum.dim_IntList: _reduction_args,
    aten.sum.default: _reduction_args,
    aten.mean.dim: _reduction_args,
    aten.mean.default: _reduction_args,
    aten.cumsum.default: _canonical_dims(0),
}


def _as_real(value: Any) -> Any:
    return replace(value, is_complex=False) if any(t.is_complex for t in lowered_tensors(value)) else value


def _as_complex(value: Any) -> Any:
    return tree_map_only(LoweredTensor, lambda t: replace(t, is_complex=True), value)


def _lower_structural(operator: Any, changed: AdaptArgs) -> LoweringFn:
    def lowered(low: LoweringContext, a: LoweredTensor, *args: Any, **kwargs: Any) -> Any:
        _real_dtype(low, next(iter(tree_leaves(fake_result(low)))))
        kept = kwargs.pop("dtype", None)
        is_changed = not a.is_complex or (kept is not None and REAL_DTYPES.get(kept) != a.dtype)
        if is_changed or any(isinstance(v, complex) for v in args):
            raise NotLowered(
                LoweringFallback.COMPLEX_CONVERSION, "a dtype conversion inside this complex operator has no lowering"
            )
        if operator is aten.constant_pad_nd.default and args[1:] not in ((), (0,)):
            raise NotLowered(
                LoweringFallback.COMPLEX_NUMBER,
                "padding of a complex tensor with another number than 0 has no lowering",
            )
        if operator in SCALAR_IDENTITY_OPS and len(a.shape) == 1:
            return _complex_elementwise(low, (a,), lambda b, x: x)
        arguments = [_as_real(v) for v in changed(len(a.shape) - 1, list(args))]
        if low.current_node is not None and low.current_node.target is aten.t.default:
            return a if len(a.shape) < 3 else _transpose(a)
        with _as_real_result(low):
            return _as_complex(LOWERINGS[operator](low, replace(a, is_complex=False), *arguments, **kwargs))

    return lowered


def _transpose(a: LoweredTensor) -> LoweredTensor:
    turned = a.view((a.shape[1], a.shape[0], 2), lambda i: (i[1], i[0], i[2]))
    return replace(turned, is_complex=True)


for _operator, _change in STRUCTURAL_OPS.items():
    register_complex_lowering(_operator)(_lower_structural(_operator, _change))


def _concatenate(
    low: LoweringContext, tensors: Sequence[LoweredTensor], dim: int = 0, *, operator: Any
) -> LoweredTensor:
    math_dtype = _real_dtype(low)
    if any(not t.is_complex or t.dtype != math_dtype for t in tensors):
        raise NotLowered(
            LoweringFallback.COMPLEX_CONVERSION, "concatenation of several dtypes, one of them complex, has no lowering"
        )
    rank = len(fake_result(low).shape)
    with _as_real_result(low):
        real_parts = [replace(t, is_complex=False) for t in tensors]
        real_view: LoweredTensor = LOWERINGS[operator](low, real_parts, canonical_dim(dim, rank))
    return replace(real_view, is_complex=True)


for _operator in (aten.cat.default, aten.stack.default):
    register_complex_lowering(_operator)(functools.partial(_concatenate, operator=_operator))
