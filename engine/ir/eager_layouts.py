"""How eager lays out what ATen operators return, where torch's fake tensors may tell another layout: one rule an operator.

They differ where dimensions have one element or none, where operands are broadcast, where numbers take part, and where a kernel on the
CPU goes by rules of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from engine.ir.strides import Layout, Unknown, are_same, as_empty_like, by_operands, by_suggestion, in_rows, of_view

Rule = Callable[[tuple[Any, ...], Sequence[Layout]], tuple[Any, ...]]
"""Strides of a result of these sizes, given the layouts of the operands."""


def _like_first(shape: tuple[Any, ...], operands: Sequence[Layout]) -> tuple[Any, ...]:
    if not are_same(operands[0][0], shape):
        raise Unknown
    return as_empty_like(*operands[0])


def _suggested(shape: tuple[Any, ...], operands: Sequence[Layout]) -> tuple[Any, ...]:
    return by_suggestion(shape, operands[0])


def _rows(shape: tuple[Any, ...], operands: Sequence[Layout]) -> tuple[Any, ...]:
    return in_rows(shape)


def _view(shape: tuple[Any, ...], operands: Sequence[Layout]) -> tuple[Any, ...]:
    return of_view(shape, operands[0])


def _like_second(shape: tuple[Any, ...], operands: Sequence[Layout]) -> tuple[Any, ...]:
    return _like_first(shape, operands[1:])


_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        "fill flip frexp hardtanh nan_to_num ones_like zeros_like full_like empty_like rand_like randn_like randint_like sort "
        "_prelu_kernel binary_cross_entropy".split(),
        _like_first,
    ),
    **dict.fromkeys(
        "huber_loss_backward log_sigmoid_forward mse_loss_backward smooth_l1_loss_backward _log_softmax glu_backward "
        "_log_softmax_backward_data masked_fill index_add renorm native_layer_norm native_layer_norm_backward tril triu sum amax "
        "amin var linalg_vector_norm nll_loss2d_forward normal col2im".split(),
        _rows,
    ),
    **dict.fromkeys(
        "channel_shuffle max_unpool2d replication_pad3d replication_pad3d_backward native_batch_norm _native_batch_norm_legit "
        "_batch_norm_with_update".split(),
        _suggested,
    ),
    **dict.fromkeys(
        "complex polar mse_loss smooth_l1_loss elu_backward leaky_relu_backward hardtanh_backward softplus_backward "
        "_prelu_kernel_backward native_dropout_backward".split(),
        by_operands,
    ),
    "binary_cross_entropy_backward": _like_second,
    "binary_cross_entropy_with_logits": _like_second,
    "view": _view,
    "_unsafe_view": _view,
}
"""By name without overload."""

_OF_COMPLEX: dict[str, Rule] = {"angle": _rows, "abs": _like_first}
"""Of those by element: what goes by another rule for complex numbers."""

_OWN_LAYOUT = frozenset("clone _to_copy copy mvlgamma ldexp".split())
"""Operators by element that go by other rules, which fake tensors know."""

_PARAMETERS = frozenset("pow lerp".split())
"""Operators by element whose number is no operand."""


@functools.cache
def rule_of(func: Any) -> Rule | None:
    """How an operator's results lie; None where fake tensors are right, or nothing is known."""
    if not isinstance(func, torch._ops.OpOverload) or func.namespace != "aten":
        return None
    returns = func._schema.returns
    if not _operands(func) or any(r.alias_info is not None for r in returns) != func.is_view:
        return None
    if func is torch.ops.aten.view.dtype:  # its sizes are of other elements
        return None
    known = _rows if str(func) == "aten.pow.Scalar" else _RULES.get(func._opname)
    if known is not None or func._opname in _OWN_LAYOUT or func._schema.is_mutable:
        return known
    return by_operands if torch.Tag.pointwise in func.tags and len(returns) == 1 else None


def eager_strides(
    func: Any, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any], found: torch.Tensor
) -> tuple[Any, ...] | None:
    """Strides that eager gives what an operator returns; None where they are as ``found``, or cannot be told."""
    if kwargs.get("memory_format") not in (None, torch.preserve_format):
        return None
    given = [args[n] if n < len(args) else kwargs.get(name) for n, name in _operands(func)]
    operands = [
        (tuple(v.shape), v.stride()) if isinstance(v, torch.Tensor) else ((), ()) for v in given if v is not None
    ]
    shape, strides = tuple(found.shape), found.stride()
    if func._opname in _OF_COMPLEX and args[0].is_complex():
        rule = _OF_COMPLEX[func._opname]
    try:
        if rule is by_operands and _is_plain(shape, strides, operands):
            return None
        told = rule(shape, operands)
        return None if are_same(told, strides) else told
    except Unknown:
        return None


def _is_plain(shape: tuple[Any, ...], strides: tuple[Any, ...], operands: Sequence[Layout]) -> bool:
    """Whether operands lie as the result does, which has neither dimensions of one element nor of none."""
    if any(type(n) is not int or n < 2 for n in shape):
        return False
    return all(not n or (are_same(n, shape) and are_same(s, strides)) for n, s in operands)


@functools.cache
def _operands(func: Any) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that are tensors, or numbers that are made one."""
    is_number_made_tensor = "scalar" in func._overloadname.lower() and func._opname not in _PARAMETERS
    kinds = (torch.TensorType, torch.NumberType) if is_number_made_tensor else (torch.TensorType,)
    named = enumerate(func._schema.arguments)
    return tuple((n, a.name) for n, a in named if isinstance(_plain(a.type), kinds) and a.name != "alpha")


def _plain(kind: Any) -> Any:
    return kind.getElementType() if isinstance(kind, torch.OptionalType) else kind
