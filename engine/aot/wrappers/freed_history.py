"""Give a freed autograd history to results that the graph passed to ``autograd.grad``."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NoReturn

import torch

from engine.aot.saved_tensors import ALREADY_FREED_MESSAGE
from engine.aot.wrappers.base import FunctionalCall, PreCompileResult
from engine.aot.wrappers.codegen import WrapperCode

NAME = ""
NEEDS = attrgetter("metadata.freed_results")


class FreedHistory(torch.autograd.Function):
    """Identity whose backward raises torch's error for a freed graph."""

    @staticmethod
    def forward(ctx: Any, result: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Return the result; autograd then connects it with the leaves."""
        return result.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> NoReturn:  # noqa: ARG004
        """Raise torch's error for a freed graph."""
        raise RuntimeError(ALREADY_FREED_MESSAGE)


def pre_compile(call: FunctionalCall) -> PreCompileResult[FunctionalCall]:
    """Return a change without actions."""
    return PreCompileResult(call, ())


def post_compile(change: PreCompileResult[FunctionalCall]) -> WrapperCode:
    """Return code that connects these results with the inputs that they depend on."""
    lines = [
        f"    r{n} = freed_history(r{n}, {', '.join(f'i{k}' for k in inputs) or 'hidden_leaf'})"
        for n, inputs in change.call.metadata.freed_results
    ]
    names = {
        "enable_grad": torch.enable_grad,
        "freed_history": FreedHistory.apply,
        "hidden_leaf": torch.empty(0, requires_grad=True),
    }
    return WrapperCode(after=("with enable_grad():", *lines), namespace=names)
