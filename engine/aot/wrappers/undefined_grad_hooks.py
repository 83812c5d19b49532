"""Suppress hooks on tensors whose gradient is undefined.

A compiled call is one autograd node. Autograd continues from it to all inputs, with None for undefined gradients,
and calls their hooks with None. In eager, the nodes end where the gradients end, and no hook is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from engine.torch_private.autograd import current_graph_task_id, execution_engine

_task: Callable[[], int] = current_graph_task_id


class _SuppressedHook:
    """Hook that skips calls with None during one backward."""

    def __init__(self, hook: Callable[[Any], Any], task: int) -> None:
        self.hook = hook
        self.task = task

    def __call__(self, gradient: Any) -> Any:
        return None if gradient is None and _task() == self.task else self.hook(gradient)


class _SuppressedPostAccumulateHook(_SuppressedHook):
    """Post-accumulate-grad hook that is skipped if one backward added nothing."""

    def __init__(self, hook: Callable[[Any], Any], task: int, tensor: torch.Tensor) -> None:
        super().__init__(hook, task)
        self._grad_before = _state(tensor)

    def __call__(self, tensor: torch.Tensor) -> Any:
        return None if _task() == self.task and _state(tensor) == self._grad_before else self.hook(tensor)


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    gradient = tensor.grad if tensor.is_leaf else None
    return id(gradient), 0 if gradient is None else gradient._version


def suppress_undefined_grad_hooks(tensors: Iterable[torch.Tensor]) -> None:
    """Suppress hooks of ``tensors`` until the current backward ends.

    A hook still runs if its tensor gets a gradient from elsewhere.
    """
    task = _task()
    changed: list[tuple[dict[int, Any], int, _SuppressedHook]] = []

    def keep(hooks: Any, quiet: Callable[[Callable[[Any], Any]], _SuppressedHook]) -> None:
        for key, hook in list(hooks.items()) if hooks else ():
            if isinstance(hook, _SuppressedHook) and hook.task == task:
                continue
            # Replace a suppressed hook that an earlier backward left because it raised.
            hooks[key] = suppressed = quiet(hook.hook if isinstance(hook, _SuppressedHook) else hook)
            changed.append((hooks, key, suppressed))

    for tensor in tensors:
        keep(tensor._backward_hooks, partial(_SuppressedHook, task=task))
        keep(tensor._post_accumulate_grad_hooks, partial(_SuppressedPostAccumulateHook, task=task, tensor=tensor))
    if changed:
        execution_engine().queue_callback(lambda: _restore_hooks(changed))


def _restore_hooks(changed: Iterable[tuple[dict[int, Any], int, _SuppressedHook]]) -> None:
    for hooks, key, quiet in changed:
        if hooks.get(key) is quiet:
            hooks[key] = quiet.hook
