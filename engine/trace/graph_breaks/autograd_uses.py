"""Whether a function asks autograd about single tensors: after a break it may do so of what the graph made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from engine.trace.frame import Frame

_AUTOGRAD_API_NAMES = ("register_hook", "retain_grad", "register_multi_grad_hook", "get_gradient_edge")


def find_autograd_use(frame: Frame) -> str:
    """What a function calls for that, anywhere; empty when it calls nothing of the kind by name."""
    names = frame.code.co_names
    found = next((name for name in _AUTOGRAD_API_NAMES if name in names), "")
    if found:
        return found
    is_grad = ("autograd" in names and "grad" in names) or any(
        frame.globals.values.get(name) is torch.autograd.grad for name in names
    )
    return "torch.autograd.grad" if is_grad else ""
