"""Checks of values that eager makes on the CPU and decompositions lack.

The graph gets an assertion with eager's message before the operator. On a GPU eager does not check either.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.ir.register_once import register_each
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.operators.arithmetic import compare_op
from engine.trace.variables.base import ConstantVariable, Variable, realize
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


def argument(
    tx: Tracer, args: list[Variable], kwargs: dict[str, Variable], position: int, name: str
) -> Variable | None:
    """Return an argument by position or name; None if the call lacks it, which torch reports."""
    given = args[position] if position < len(args) else kwargs.get(name)
    return None if given is None else realize(tx, given)


def check_classes(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> None:
    """Check the values of ``one_hot``; without a number of classes none can be out of range."""
    values, count = argument(tx, args, kwargs, 0, "input"), argument(tx, args, kwargs, 1, "num_classes")
    if count is None or values is None or values.fake is None or values.fake.dtype is not torch.int64:
        return
    if not issubclass(count.python_type(), int) or compare_op(tx, "==", count, ConstantVariable(-1)).is_truthy(tx):
        return
    least = torch.min, "ge", ConstantVariable(0), "Class values must be non-negative."
    _emit_checks(tx, values, (least, (torch.max, "lt", count, "Class values must be smaller than num_classes.")))


def _check_quantiles(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> None:
    """Check the tensor ``q``; eager checks a number on fake tensors, too."""
    message = "quantile() q values must be in the range [0, 1]"
    limits = (torch.min, "ge", ConstantVariable(0), message), (torch.max, "le", ConstantVariable(1), message)
    quantiles = argument(tx, args, kwargs, 1, "q")
    if quantiles is not None:
        _emit_checks(tx, quantiles, limits)


@register_each(register_rule, torch.quantile, torch.nanquantile)
def _quantile(
    function: Callable[..., torch.Tensor], tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]
) -> Variable:
    _check_quantiles(tx, args, kwargs)
    return emit_node(tx, "call_function", function, args, kwargs)


@register_tensor_method("quantile", "nanquantile")
def _quantile_method(tx: Tracer, tensor: Variable, args: list[Variable], kwargs: dict[str, Variable]) -> None:
    _check_quantiles(tx, [tensor, *args], kwargs)
