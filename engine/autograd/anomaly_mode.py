"""Support ``torch.autograd.detect_anomaly`` in captured backwards.

The outputs of each node are checked for NaN. Errors name the node and the line of its forward.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, cast

import torch
from torch.autograd.function import BackwardCFunction

TRACEBACK_KEY = "traceback_"
"""Key in a node's ``metadata`` of its forward's stack, as lines; set under anomaly mode."""

ANOMALY_REASON = (
    "anomaly mode is on: the backward runs operator by operator, and each node's results are checked for NaN"
)
"""Reason in the record of a backward that runs under anomaly mode."""


class _Thread(threading.local):
    """Index in the walk of the running node."""

    node_index = -1


_thread = _Thread()


class FoundNan(RuntimeError):
    """A node returned NaN in output number ``index``."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def set_running_node(node_index: int) -> None:
    """Set the running node by its index in the walk."""
    _thread.node_index = node_index


def check_nan(outputs: Sequence[Any]) -> None:
    """Check the outputs of a node for NaN if anomaly mode requires that.

    Raises:
        FoundNan: An output contains NaN.
    """
    if not torch.is_anomaly_check_nan_enabled():
        return
    with torch.no_grad():
        for index, output in enumerate(outputs):
            if output is not None and torch.isnan(output)._is_any_true().item():
                raise FoundNan(index)


def run_with_anomaly_mode(run: Callable[[], Any], raise_again: Callable[[int, Exception], None]) -> Any:
    """Return ``run()``; pass an exception and the index of its node to ``raise_again``."""
    outer, _thread.node_index = _thread.node_index, -1
    try:
        return run()
    except Exception as error:
        if _thread.node_index < 0:
            raise
        raise_again(_thread.node_index, error)
        raise
    finally:
        _thread.node_index = outer


def raise_through_torch(
    error: Exception, name: str, metadata: Mapping[str, Any], differentiate: Callable[..., Any]
) -> None:
    """Reproduce the error in torch's engine, in a node with this name and metadata.

    torch then warns and raises with its own messages. ``differentiate(tensors, gradients, inputs)`` runs a backward in
    torch's engine.

    Raises:
        RuntimeError: torch's own error if NaN was found.
        Exception: Otherwise ``error``.
    """

    def backward(_ctx: Any, _grad: Any) -> Any:
        if not isinstance(error, FoundNan):
            raise error
        return tuple([None] * error.index + [torch.tensor(float("nan"))])

    methods = {"forward": staticmethod(lambda ctx, *values: torch.zeros(())), "backward": staticmethod(backward)}
    function: Any = type("Again", (torch.autograd.Function,), methods)
    function._backward_cls = type(name, (BackwardCFunction,), {"_forward_cls": function})
    inputs = [torch.zeros((), requires_grad=True) for _ in range(error.index + 1 if isinstance(error, FoundNan) else 1)]
    with torch.autograd.set_detect_anomaly(False), torch.enable_grad():
        result = cast("torch.Tensor", function.apply(*inputs))
    assert result.grad_fn is not None
    node_metadata: Any = result.grad_fn.metadata  # a dict at run time; torch's stub declares a method
    node_metadata.update(metadata)
    trace = error.__traceback__
    with torch.autograd.set_detect_anomaly(True):
        try:
            differentiate((result,), (torch.ones(()),), (inputs[-1],))
        except Exception as raised:
            raise (error.with_traceback(trace) if raised is error else raised) from error.__cause__


def traceback_metadata(frame: FrameType | None) -> dict[str, Any]:
    """Return the metadata of a node as if this frame had created it."""
    return {TRACEBACK_KEY: traceback.format_stack(frame)}
