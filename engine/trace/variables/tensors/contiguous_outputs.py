"""Functions whose fake result is not contiguous although eager's is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from engine.torch_private.autograd import forward_ad
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.variables.base import Variable
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.tensors.eager_value_errors import argument, check_classes
from engine.trace.variables.tensors.wrapper_subclasses import is_wrapper_subclass


def _register_contiguous_output(
    function: Callable[..., Any],
    where: Callable[[Tracer, torch.Tensor], bool],
    check: Callable[[Tracer, list[Variable], dict[str, Variable]], None] | None = None,
) -> None:
    """Register the rule of a function; ``check`` emits the value checks that come before it."""

    @register_rule(function)
    def rule(tx: Tracer, args: list[Variable], kwargs: dict[str, Variable]) -> Variable:
        if check is not None:
            check(tx, args, kwargs)
        found = emit_node(tx, "call_function", function, args, kwargs)
        of = argument(tx, args, kwargs, 0, "input")
        if found.fake is None or of is None or of.fake is None or not where(tx, of.fake):
            return found
        return found if found.fake.is_contiguous() else emit_node(tx, "call_method", "contiguous", [found])


def _uses_kernel_without_indices(tx: Tracer, fake: torch.Tensor) -> bool:
    """Return True if eager uses the CPU kernel without indices, which fake tensors never use.

    It applies if no gradient can need the indices.
    """
    is_asked = (fake.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0 or tx.in_subgraph()
    return fake.device.type == "cpu" and not is_asked and not is_wrapper_subclass(fake)


def _is_plain_tensor(tx: Tracer, fake: torch.Tensor) -> bool:
    return not is_wrapper_subclass(fake) and not tx.in_subgraph()


_register_contiguous_output(F.max_pool1d, _uses_kernel_without_indices)
_register_contiguous_output(torch.max_pool1d, _uses_kernel_without_indices)
_register_contiguous_output(F.one_hot, _is_plain_tensor, check_classes)
