"""Checks of values that eager makes on the CPU and decompositions lack.

The graph gets an assertion with eager's message before the operator. On a GPU eager does not check either.
Some results are also made contiguous, as eager returns them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from engine.ir.introspection.fakeable_tensors import is_wrapper_subclass
from engine.ir.register_once import register_each
from engine.torch_private.autograd import forward_ad
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import SkipFrame
from engine.trace.operators.arithmetic import compare_op
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.tensors.tensor_members import register_tensor_method

Limits = tuple[tuple[Callable[..., torch.Tensor], str, Variable, str], ...]
"""Per check: reduction of the tensor, comparison, limit, message of the error."""


def _emit_checks(tx: Tracer, tensor: Variable, limits: Limits) -> None:
    """Emit the assertions on a tensor's extremes."""
    if tensor.fake is None or tensor.fake.device.type != "cpu" or tensor.fake.numel() == 0:
        return
    for reduce, compare, limit, message in limits:
        extreme = emit_node(tx, "call_function", reduce, [tensor])
        holds = emit_node(tx, "call_method", compare, [extreme, limit])
        emit_node(tx, "call_function", torch.ops.aten._assert_async.msg, [holds, ConstantVariable(message)])


def argument(tx: Tracer, args: Args, kwargs: Kwargs, position: int, name: str) -> Variable | None:
    """Return an argument by position or name; None if the call lacks it, which torch reports."""
    value = args[position] if position < len(args) else kwargs.get(name)
    return None if value is None else realize(tx, value)


def check_classes(tx: Tracer, args: Args, kwargs: Kwargs) -> None:
    """Check the values of ``one_hot``; without a number of classes none can be out of range."""
    values, count = argument(tx, args, kwargs, 0, "input"), argument(tx, args, kwargs, 1, "num_classes")
    if count is None or values is None or values.fake is None or values.fake.dtype is not torch.int64:
        return
    if not issubclass(count.python_type(), int) or compare_op(tx, "==", count, ConstantVariable(-1)).is_truthy(tx):
        return
    least = torch.min, "ge", ConstantVariable(0), "Class values must be non-negative."
    _emit_checks(tx, values, (least, (torch.max, "lt", count, "Class values must be smaller than num_classes.")))


def _check_quantiles(tx: Tracer, args: Args, kwargs: Kwargs) -> None:
    """Check the tensor ``q``; eager checks a number on fake tensors, too."""
    message = "quantile() q values must be in the range [0, 1]"
    limits = (torch.min, "ge", ConstantVariable(0), message), (torch.max, "le", ConstantVariable(1), message)
    quantiles = argument(tx, args, kwargs, 1, "q")
    if quantiles is not None:
        _emit_checks(tx, quantiles, limits)


@register_each(register_rule, torch.quantile, torch.nanquantile)
def _quantile(function: Callable[..., torch.Tensor], tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    _check_quantiles(tx, args, kwargs)
    return emit_node(tx, "call_function", function, args, kwargs)


@register_tensor_method("quantile", "nanquantile")
def _quantile_method(tx: Tracer, tensor: Variable, args: Args, kwargs: Kwargs) -> None:
    _check_quantiles(tx, [tensor, *args], kwargs)


def _register_contiguous_output(
    function: Callable[..., Any],
    where: Callable[[Tracer, torch.Tensor], bool],
    check: Callable[[Tracer, Args, Kwargs], None] | None = None,
) -> None:
    """Register the rule of a function; ``check`` emits the value checks that come before it."""

    @register_rule(function)
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        if check is not None:
            check(tx, args, kwargs)
        result = emit_node(tx, "call_function", function, args, kwargs)
        of = argument(tx, args, kwargs, 0, "input")
        if result.fake is None or of is None or of.fake is None or not where(tx, of.fake):
            return result
        return result if result.fake.is_contiguous() else emit_node(tx, "call_method", "contiguous", [result])


def _uses_kernel_without_indices(tx: Tracer, fake: torch.Tensor) -> bool:
    """Return True if eager uses the CPU kernel without indices, which fake tensors never use.

    It applies if no gradient can need the indices.
    """
    is_asked = (fake.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0 or tx.in_subgraph()
    return fake.device.type == "cpu" and not is_asked and not is_wrapper_subclass(fake)


def _check_pooled_dtype(tx: Tracer, args: Args, kwargs: Kwargs) -> None:
    """Leave the frame to eager, which raises: its kernel without indices takes no integers."""
    pooled = argument(tx, args, kwargs, 0, "input")
    if pooled is None or pooled.fake is None or pooled.fake.dtype.is_floating_point:
        return
    with_indices = argument(tx, args, kwargs, 6, "return_indices")
    if _uses_kernel_without_indices(tx, pooled.fake) and (with_indices is None or not with_indices.is_truthy(tx)):
        raise SkipFrame("raises", f"max_pool1d has no kernel for {pooled.fake.dtype}")


_register_contiguous_output(F.max_pool1d, _uses_kernel_without_indices, _check_pooled_dtype)
_register_contiguous_output(torch.max_pool1d, _uses_kernel_without_indices, _check_pooled_dtype)
_register_contiguous_output(
    F.one_hot, lambda tx, fake: not is_wrapper_subclass(fake) and not tx.in_subgraph(), check_classes
)
