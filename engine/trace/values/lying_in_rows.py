"""Functions whose result torch lays out otherwise for the tracer's tensors than for plain ones: in rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from engine.trace.graph_builder import emit
from engine.trace.values.base import Value, force
from engine.trace.values.rules import special
from engine.trace.values.tensor import TensorValue, is_subclass

if TYPE_CHECKING:
    from engine.trace.state import Tracer


def _laid_out_in_rows(function: Callable[..., Any], where: Callable[[Tracer, torch.Tensor], bool]) -> None:
    @special(function)
    def rule(tx: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = emit(tx, "call_function", function, args, kwargs)
        of = force(tx, args[0] if args else kwargs["input"])
        if not isinstance(found, TensorValue) or not isinstance(of, TensorValue) or not where(tx, of.fake):
            return found
        return found if found.fake.is_contiguous() else emit(tx, "call_method", "contiguous", [found])


def _is_unasked(tx: Tracer, fake: torch.Tensor) -> bool:
    """Whether eager takes the kernel that keeps no indices, which it does for no fake: there is nothing that could ask for them."""
    is_asked = (fake.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0 or tx.is_nested()
    return fake.device.type == "cpu" and not is_asked and not is_subclass(fake)


def _is_plain(tx: Tracer, fake: torch.Tensor) -> bool:
    return not is_subclass(fake) and not tx.is_nested()


_laid_out_in_rows(F.max_pool1d, _is_unasked)
_laid_out_in_rows(torch.max_pool1d, _is_unasked)
_laid_out_in_rows(F.one_hot, _is_plain)
