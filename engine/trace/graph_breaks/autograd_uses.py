"""Find autograd API calls on single tensors in code that may run after a graph break.

Such code may use these APIs on outputs of the graph.
"""

from __future__ import annotations

import torch

from engine.trace.annotations import Frame

_AUTOGRAD_API_NAMES = ("register_hook", "retain_grad", "register_multi_grad_hook", "get_gradient_edge")


def find_autograd_use(frame: Frame) -> str:
    """Return the autograd API name that the frame's code uses anywhere, or "" if none.

    The search is by name only.
    """
    names = frame.code.co_names
    use = next((name for name in _AUTOGRAD_API_NAMES if name in names), "")
    if use:
        return use
    is_grad = ("autograd" in names and "grad" in names) or any(
        frame.globals.values.get(name) is torch.autograd.grad for name in names
    )
    return "torch.autograd.grad" if is_grad else ""
