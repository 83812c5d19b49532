"""Rules for the output strides of ATen operators where fake tensors differ from eager.

Differences occur for dimensions of size 0 or 1, broadcast operands and scalar operands, and for CPU kernels
with rules of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from engine.graph.fake_tensors.output_strides import (
    SizesAndStrides,
    UnknownStrides,
    contiguous,
    elementwise_strides,
    empty_like_strides,
    expand_strides,
    sizes_equal,
    suggested_format_strides,
    view_strides,
)
from engine.ir.introspection.operator_facts import facts_of_overload, memo_by_identity
from engine.torch_private.operators import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

StrideRule = Callable[[tuple[Any, ...], Sequence[SizesAndStrides]], tuple[Any, ...]]
"""Computes a result's strides from its sizes and the operands' sizes and strides."""


def _like_first(shape: tuple[Any, ...], operands: Sequence[SizesAndStrides]) -> tuple[Any, ...]:
    if not sizes_equal(operands[0][0], shape):
        raise UnknownStrides
    return empty_like_strides(*operands[0])


def _suggested_memory_format(shape: tuple[Any, ...], operands: Sequence[SizesAndStrides]) -> tuple[Any, ...]:
    return suggested_format_strides(shape, operands[0])


def _contiguous(shape: tuple[Any, ...], operands: Sequence[SizesAndStrides]) -> tuple[Any, ...]:
    return contiguous(shape)


def _view(shape: tuple[Any, ...], operands: Sequence[SizesAndStrides]) -> tuple[Any, ...]:
    return view_strides(shape, operands[0])


def _expand(shape: tuple[Any, ...], operands: Sequence[SizesAndStrides]) -> tuple[Any, ...]:
    return expand_strides(shape, operands[0])


def _like_second(shape: tuple[Any, ...], operands: Sequence[SizesAndStrides]) -> tuple[Any, ...]:
    return _like_first(shape, operands[1:])


_OP_RULES: dict[str, StrideRule] = {
    **dict.fromkeys(
        "fill flip frexp hardtanh nan_to_num ones_like zeros_like full_like empty_like rand_like randn_like randint_like sort "
        "_prelu_kernel binary_cross_entropy index_put index_fill".split(),
        _like_first,
    ),
    **dict.fromkeys(
        "huber_loss_backward log_sigmoid_forward mse_loss_backward smooth_l1_loss_backward _log_softmax glu_backward "
        "_log_softmax_backward_data masked_fill index_add renorm native_layer_norm native_layer_norm_backward tril triu sum amax "
        "amin var linalg_vector_norm nll_loss2d_forward normal col2im index_copy isin diag_embed".split(),
        _contiguous,
    ),
    **dict.fromkeys(
        "channel_shuffle max_unpool2d replication_pad3d replication_pad3d_backward native_batch_norm _native_batch_norm_legit "
        "_batch_norm_with_update upsample_bilinear2d".split(),
        _suggested_memory_format,
    ),
    **dict.fromkeys(
        "complex polar mse_loss smooth_l1_loss elu_backward leaky_relu_backward hardtanh_backward softplus_backward "
        "_prelu_kernel_backward native_dropout_backward".split(),
        elementwise_strides,
    ),
    "binary_cross_entropy_backward": _like_second,
    "binary_cross_entropy_with_logits": _like_second,
    "view": _view,
    "_unsafe_view": _view,
    "roll": _contiguous,
    "expand": _expand,
}
"""Rules by operator name without overload."""

_COMPLEX_OP_RULES: dict[str, StrideRule] = {"angle": _contiguous, "abs": _like_first}
"""Elementwise operators with another rule for complex numbers."""

_RULES_IN_FAKE_TENSOR = frozenset("clone _to_copy copy mvlgamma ldexp".split())
"""Elementwise operators with other rules, which fake tensors implement."""

_SCALAR_IS_NO_OPERAND = frozenset("pow lerp".split())
"""Elementwise operators whose scalar argument is not an operand."""


def stride_rule_for(func: Any) -> StrideRule | None:
    """Return the stride rule of an ATen overload.

    None if fake tensors are correct or no rule is known.
    """
    returns = func._schema.returns
    if not _operand_arguments(func) or any(r.alias_info is not None for r in returns) != func.is_view:
        return None
    if func is torch.ops.aten.view.dtype:  # The sizes count elements of another dtype.
        return None
    rule = _contiguous if str(func) == "aten.pow.Scalar" else _OP_RULES.get(func._opname)
    if rule is not None or func._opname in _RULES_IN_FAKE_TENSOR or facts_of_overload(func).writes:
        return rule
    return elementwise_strides if torch.Tag.pointwise in func.tags and len(returns) == 1 else None


def eager_strides(
    func: Any, rule: StrideRule, args: Sequence[Any], kwargs: Mapping[str, Any], result: torch.Tensor
) -> tuple[Any, ...] | None:
    """Return eager's strides of an operator's result.

    None if they equal the strides of ``result``, or are unknown.
    """
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    values = [args[n] if n < len(args) else kwargs.get(name) for n, name in _operand_arguments(func)]
    values = [v for v in values if v is not None]
    operands: Sequence[SizesAndStrides] = [
        (tuple(v.shape), v.stride()) if isinstance(v, torch.Tensor) else ((), ()) for v in values
    ]
    shape, strides = tuple(result.shape), result.stride()
    if func._opname in _COMPLEX_OP_RULES and args[0].is_complex():
        rule = _COMPLEX_OP_RULES[func._opname]
    if func._opname == "roll" and result.device.type == "cpu":
        rule = functools.partial(_roll_on_cpu, *_roll_parts(*args, **kwargs))
    try:
        if rule is elementwise_strides:
            if _have_equal_strides(shape, strides, operands):
                return None
            if func._opname != "where":  # its condition is never copied
                operands = _as_kernel_reads(values, operands, result)
        expected = rule(shape, operands)
        return None if sizes_equal(expected, strides) else expected
    except UnknownStrides:
        return None


def _as_kernel_reads(
    values: Sequence[Any], layouts: Sequence[SizesAndStrides], result: torch.Tensor
) -> Sequence[SizesAndStrides]:
    """Return the layouts of an elementwise operator's operands in its computation dtype.

    On the CPU an operand of another dtype is copied first, which removes gaps and overlaps.
    """
    dtypes = {value.dtype for value, (size, _) in zip(values, layouts, strict=True) if size}
    if result.device.type != "cpu" or dtypes == {result.dtype}:
        return layouts
    computed = elementwise_dtypes(*values, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)[1]
    if result.dtype.is_floating_point and not (computed.is_floating_point or computed.is_complex):
        computed = result.dtype
    return [
        (size, empty_like_strides(size, strides)) if size and value.dtype != computed else (size, strides)
        for value, (size, strides) in zip(values, layouts, strict=True)
    ]


def _roll_parts(_: torch.Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> tuple[Any, Any]:
    return shifts, dims


def _roll_on_cpu(
    shifts: Sequence[Any], dims: Sequence[int], shape: tuple[Any, ...], operands: Sequence[SizesAndStrides]
) -> tuple[Any, ...]:
    """Return the strides of the CPU kernel, which concatenates two slices for each dimension.

    The result of ``cat`` is channels-last only if both slices are; an empty slice is contiguous. Without
    dimensions the kernel rolls the flattened tensor.
    """
    if not dims:
        return contiguous(shape)
    if any(sizes_equal((size,), (0,)) for size in shape):
        return _like_first(shape, operands)
    strides = tuple(operands[0][1])
    for shift, dim in zip(shifts, dims, strict=False):
        leaves_empty_slice = sizes_equal((shift % shape[dim],), (0,))
        strides = contiguous(shape) if leaves_empty_slice else suggested_format_strides(shape, (shape, strides))
    return strides


def _have_equal_strides(shape: tuple[Any, ...], strides: tuple[Any, ...], operands: Sequence[SizesAndStrides]) -> bool:
    """Return True if operands and result have equal strides and all sizes are at least 2."""
    if any(type(n) is not int or n < 2 for n in shape):
        return False
    return all(not n or (sizes_equal(n, shape) and sizes_equal(s, strides)) for n, s in operands)


@memo_by_identity
def _operand_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Return positions and names of tensor arguments and of scalars that become tensors."""
    is_number_made_tensor = "scalar" in func._overloadname.lower() and func._opname not in _SCALAR_IS_NO_OPERAND
    kinds = (torch.TensorType, torch.NumberType) if is_number_made_tensor else (torch.TensorType,)
    named = enumerate(func._schema.arguments)
    return tuple(
        (n, a.name) for n, a in named if isinstance(_unwrap_optional_type(a.type), kinds) and a.name != "alpha"
    )


def _unwrap_optional_type(kind: Any) -> Any:
    return kind.getElementType() if isinstance(kind, torch.OptionalType) else kind
