"""Instance norm that updates running statistics, with the update as operators of its own.

On a GPU the library's batch norm behind it writes the statistics of a temporary, which no schema declares: the
functional graph would lose the update.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F

from engine.torch_private.autograd import set_grad_enabled


def update_statistics(
    x: torch.Tensor, running_mean: torch.Tensor | None, running_var: torch.Tensor | None, momentum: float
) -> None:
    """Update running statistics by the mean over the batch of each sample's update."""
    dims = list(range(2, x.dim()))
    var, mean = torch.var_mean(x.detach().float() if x.dtype in (torch.float16, torch.bfloat16) else x.detach(), dims)
    for running, batch_statistic in ((running_mean, mean), (running_var, var)):
        if running is not None:
            running.copy_(((1 - momentum) * running + momentum * batch_statistic).mean(0))


def instance_norm_with_statistics(original: Any) -> Any:
    """Return ``F.instance_norm`` or ``torch.instance_norm`` with separate updates on a GPU."""

    @functools.wraps(original)
    def call(
        input: torch.Tensor,
        running_mean: torch.Tensor | None = None,
        running_var: torch.Tensor | None = None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
        *rest: Any,
        **named: Any,
    ) -> torch.Tensor:
        has_statistics = running_mean is not None or running_var is not None
        updates = has_statistics and use_input_stats and input.device.type != "cpu" and input.dim() > 2
        statistics = (None, None) if updates else (running_mean, running_var)
        result: torch.Tensor = original(
            input, *statistics, weight, bias, use_input_stats, momentum, eps, *rest, **named
        )
        if updates:
            was_on = torch.is_grad_enabled()
            set_grad_enabled(False)
            update_statistics(input, running_mean, running_var, momentum)
            set_grad_enabled(was_on)
        return result

    return call


INSTANCE_NORMS: dict[Any, Any] = {f: instance_norm_with_statistics(f) for f in (F.instance_norm, torch.instance_norm)}
"""Replacements, by the torch function that they replace."""
