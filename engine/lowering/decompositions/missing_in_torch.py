"""Decompositions that torch lacks.

They cover pairwise distances and their gradient, the gradient of weight norm, ``diag_embed`` and fake quantization.
That of ``eye`` in torch counts in the smallest integer type, such as uint16, which ATen does not count in. That of batch
norm saves statistics in the input's dtype.

Some decompositions of torch lack checks that the operator makes on the CPU: with them the graph raises eager's error.
On a GPU eager does not check, or stops the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from engine.graph.fake_tensors.eager_results import has_float_statistics
from engine.ir.introspection.operator_facts import facts_of
from engine.lowering.decompositions import interpolation
from engine.torch_private.operators import decomposition_table

aten = torch.ops.aten


def _cdist_backward(grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, p: float, distance: torch.Tensor) -> Any:
    """Return the gradient of pairwise distances (..., P, R) for the first point set.

    The point sets are (..., P, M) and (..., R, M).
    """
    apart = a.unsqueeze(-2) - b.unsqueeze(-3)
    towards, length = grad.unsqueeze(-1), distance.unsqueeze(-1)
    if p == 0.0:
        return torch.zeros_like(a)
    if p == 1.0:
        return (towards * apart.sign()).sum(-2)
    if math.isinf(p):
        return (towards * apart.sign() * (apart.abs() == length)).sum(-2)
    if p == 2.0:
        return torch.where(length == 0.0, 0.0, towards * apart / length).sum(-2)
    if p < 2.0:
        part = apart.sign() * apart.abs() ** (p - 1.0) * towards / length ** (p - 1.0)
        return torch.where((length == 0.0) | ((apart == 0.0) & (p < 1.0)), 0.0, part).sum(-2)
    return torch.where(length == 0.0, 0.0, apart * apart.abs() ** (p - 2.0) * towards / length ** (p - 1.0)).sum(-2)


def _pdist(a: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """Return the distances of all pairs of rows, ordered by the first row."""
    first, second = torch.triu_indices(a.shape[0], a.shape[0], 1, device=a.device).unbind()
    distances: torch.Tensor = torch.linalg.vector_norm(a[first] - a[second], p, 1)
    return distances


def _weight_norm_backward(
    grad: torch.Tensor, direction: torch.Tensor, length: torch.Tensor, norms: torch.Tensor, dim: int
) -> Any:
    """Return the gradients of ``direction / norm * length``.

    The norm reduces all dimensions but ``dim``.
    """
    math_dtype = norms.dtype
    dims = [d for d in range(direction.dim()) if d != dim % direction.dim()]
    wide, moved = direction.to(math_dtype), grad.to(math_dtype)
    along = (moved * wide).sum(dims, keepdim=True)
    norm, scale = norms.reshape(along.shape), length.to(math_dtype).reshape(along.shape)
    turned = scale / norm * (moved - wide * along / (norm * norm))
    return turned.to(direction.dtype), (along / norm).to(length.dtype).reshape(length.shape)


def _diag_embed(a: torch.Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> torch.Tensor:
    """Put the last dimension on a diagonal of two new dimensions."""
    rank, size = a.dim() + 1, a.shape[-1] + abs(offset)
    position = torch.arange(size, device=a.device)
    row, column = dim1 % rank, dim2 % rank
    padded = torch.nn.functional.pad(a, (max(offset, 0), max(-offset, 0)))
    is_there = position[None, :] == position[:, None] + offset
    # In each column the diagonal element is the one with the column's number.
    square = torch.where(is_there, padded.unsqueeze(-2), torch.zeros((), dtype=a.dtype, device=a.device))
    return square.movedim((-2, -1), (row, column)).contiguous()


def _eye(
    rows: int, columns: int | None = None, *, dtype: torch.dtype | None = None, device: Any = None, **_: Any
) -> torch.Tensor:
    row, column = (torch.arange(n, device=device) for n in (rows, rows if columns is None else columns))
    return (row.unsqueeze(-1) == column).to(dtype or torch.get_default_dtype())


def _fake_quantize(
    a: torch.Tensor, scale: torch.Tensor | float, zero: torch.Tensor | float, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to a quantization grid; also return a mask of the values within its range."""
    wide = a if a.dtype == torch.float64 else a.to(torch.float32)
    steps = (wide * (1.0 / scale)).round() + zero
    rounded = (steps.clamp(least, most) - zero) * scale
    return rounded.to(a.dtype), (steps >= least) & (steps <= most)


def _fake_quantize_if_enabled(
    a: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, enabled: torch.Tensor, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fake-quantize only if ``enabled`` holds a non-zero number."""
    value, inside = _fake_quantize(a, scale, zero, least, most)
    is_on = enabled != 0
    return torch.where(is_on, value, a), inside | ~is_on


def _fake_quantize_per_channel(
    a: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, axis: int, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fake-quantize with one scale and zero point per index along ``axis``."""
    shape = [-1 if d == axis % a.dim() else 1 for d in range(a.dim())]
    return _fake_quantize(a, scale.reshape(shape), zero.reshape(shape), least, most)


FOREACH_OPS = (
    "abs", "add", "addcdiv", "addcmul", "ceil", "clamp_max", "clamp_min", "copy", "cos", "div", "erf", "exp", "expm1", "floor", "frac",
    "lerp", "log", "log10", "log1p", "log2", "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign",
    "sin", "sqrt", "sub", "tanh", "trunc",
)  # fmt: skip
"""Names of the operators that ``_foreach_`` operators apply to each tensor of a list."""


def _copy_to_dtype(tensor: torch.Tensor, source: torch.Tensor, *_: Any) -> torch.Tensor:
    return source.to(tensor.dtype)


def _foreach_op(name: str) -> Callable[..., list[torch.Tensor]]:
    """Return a foreach operator as one call per tensor, which is how eager runs it on a CPU."""
    function: Callable[..., torch.Tensor] = _copy_to_dtype if name == "copy" else getattr(torch, name)

    def call(tensors: list[torch.Tensor], *more: Any, alpha: Any = 1, value: Any = None, **named: Any) -> Any:
        more = (*more, *named.values())
        columns = [v if isinstance(v, (list, tuple)) else [v] * len(tensors) for v in more]
        rows = [list(row) for row in zip(tensors, *columns, strict=True)] if columns else [[t] for t in tensors]
        if name in ("addcdiv", "addcmul"):
            weights = [row.pop() if len(row) > 3 else (1 if value is None else value) for row in rows]
            return [function(*row, value=w) for row, w in zip(rows, weights, strict=True)]
        return [function(*row, alpha=alpha) if alpha != 1 else function(*row) for row in rows]

    return call


def _foreach_norm(tensors: list[torch.Tensor], ord: float = 2, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    return [torch.linalg.vector_norm(t, ord, dtype=dtype) for t in tensors]


def _foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    decompositions: dict[Any, Callable[..., Any]] = {aten._foreach_norm.Scalar: _foreach_norm}
    for name in FOREACH_OPS:
        packet = getattr(aten, f"_foreach_{name}")
        for overload in packet.overloads():
            is_listed = not facts_of(getattr(packet, overload)).has_out and not (
                name in ("addcdiv", "addcmul") and overload == "Tensor"
            )
            if is_listed and overload != "ScalarAndTensor":
                decompositions[getattr(packet, overload)] = _foreach_op(name)
    return decompositions


def _check_and_unscale(
    grads: list[torch.Tensor], found_inf: torch.Tensor, factor: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Multiply gradients by a factor; set ``found_inf`` to 1 if a gradient has an inf or NaN."""
    for grad in grads:
        found_inf = torch.where(torch.isfinite(grad).all(), found_inf, 1.0)
    # With factor 1, even inf and NaN stay unchanged.
    return [torch.where(factor == 1.0, g, (g * factor).to(g.dtype)) for g in grads], found_inf


def _update_scale(
    scale: torch.Tensor, steps: torch.Tensor, found_inf: torch.Tensor, growth: float, backoff: float, interval: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient scaler's next scale, and its good steps since the last change."""
    went_wrong, more = found_inf != 0, steps + 1
    is_due = more == interval
    grown = scale * growth
    kept = torch.where(is_due & torch.isfinite(grown), grown, scale)
    return torch.where(went_wrong, scale * backoff, kept), torch.where(went_wrong | is_due, 0, more)


def _batch_norm(input: torch.Tensor, *rest: Any) -> Any:
    """Normalize in float32 where the saved statistics are float32."""
    decomposed = decomposition_table[aten._native_batch_norm_legit_functional.default]
    if not (rest[4] and has_float_statistics(input, rest[:4])):
        return decomposed(input, *rest)
    output, *statistics = decomposed(input.float(), *rest)
    return (output.to(input.dtype), *statistics)


MISSING_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    **_foreach_decompositions(),
    **interpolation.INTERPOLATION_DECOMPOSITIONS,
    aten._amp_foreach_non_finite_check_and_unscale.default: _check_and_unscale,
    aten._amp_update_scale.default: _update_scale,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._cdist_backward.default: _cdist_backward,
    aten._pdist_forward.default: _pdist,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten.diag_embed.default: _diag_embed,
    aten.eye.default: _eye,
    aten.eye.m: _eye,
    aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _fake_quantize_if_enabled,
    aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize_per_channel,
}
"""Decomposition of each operator."""


aten = torch.ops.aten


def _require(holds: torch.Tensor, message: str) -> None:
    """Raise ``message`` unless all elements are true."""
    aten._assert_async.msg(holds.all(), message)


def _check_probabilities(value: torch.Tensor, target: torch.Tensor, *_: Any) -> None:
    """Check the operands of ``binary_cross_entropy``."""
    for name, tensor in (("input", value), ("target", target)):
        _require((tensor >= 0) & (tensor <= 1), f"all elements of {name} should be between 0 and 1")


def _check_zero_points(
    _: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, axis: int, least: int, most: int
) -> None:
    """Check the zero points of a fake quantization by channels; only integers have limits."""
    if not zero.is_floating_point():
        _require((zero >= least) & (zero <= most), "`zero_point` must be between `quant_min` and `quant_max`.")


VALUE_CHECKS: dict[Any, Callable[..., None]] = {
    aten.binary_cross_entropy.default: _check_probabilities,
    aten.fake_quantize_per_channel_affine_cachemask.default: _check_zero_points,
}
"""Check of each operator, called with the operator's arguments."""
