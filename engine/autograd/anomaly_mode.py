"""Anomaly mode in a captured backward: NaN looked for in what each node returns, errors blamed on the node, and on the line of its forward."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, cast

import torch
from torch.autograd.function import BackwardCFunction

TRACEBACK_KEY = "traceback_"
"""Key of a node's ``metadata``: the stack that made it, as lines of text. torch keeps it under anomaly mode."""

ANOMALY_REASON = "anomaly mode: operator by operator, each node's results looked at"
"""What is told of a backward that runs so."""


class _Thread(threading.local):
    """The place in the walk of the node that runs."""

    node_index = -1


_thread = _Thread()


class FoundNan(RuntimeError):
    """A node returned NaN in its output of this ``index``."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def set_running_node(place: int) -> None:
    """From here on it is about the node at this place in the walk."""
    _thread.node_index = place


def check_nan(outputs: Sequence[Any]) -> None:
    """Look at a node's results, where anomaly mode asks for that.

    Raises:
        FoundNan: one of them has NaN.
    """
    if not torch.is_anomaly_check_nan_enabled():
        return
    with torch.no_grad():
        for index, output in enumerate(outputs):
            if output is not None and torch.isnan(output)._is_any_true().item():
                raise FoundNan(index)


def run_with_anomaly_mode(run: Callable[[], Any], raise_again: Callable[[int, Exception], None]) -> Any:
    """What ``run`` returns; an exception goes, with the place of the node that raised it, through ``reraise_in_torch``."""
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
    """Let torch's engine meet the same in a node of this name and history: it warns and raises in its own words.

    ``differentiate(tensors, gradients, inputs)`` runs a backward in torch's engine.

    Raises:
        RuntimeError: torch's own, where NaN was found.
        Exception: else ``error``.
    """

    def backward(_ctx: Any, _grad: Any) -> Any:
        if not isinstance(error, FoundNan):
            raise error
        return tuple([None] * error.index + [torch.tensor(float("nan"))])

    methods = {"forward": staticmethod(lambda ctx, *values: torch.zeros(())), "backward": staticmethod(backward)}
    function: Any = type("Again", (torch.autograd.Function,), methods)
    function._backward_cls = type(name, (BackwardCFunction,), {"_forward_cls": function})
    given = [torch.zeros((), requires_grad=True) for _ in range(error.index + 1 if isinstance(error, FoundNan) else 1)]
    with torch.autograd.set_detect_anomaly(False), torch.enable_grad():
        made = cast("torch.Tensor", function.apply(*given))
    assert made.grad_fn is not None
    kept: Any = made.grad_fn.metadata  # a dict: torch declares a method
    kept.update(metadata)
    place = error.__traceback__
    with torch.autograd.set_detect_anomaly(True):
        try:
            differentiate((made,), (torch.ones(()),), (given[-1],))
        except Exception as found:
            raise (error.with_traceback(place) if found is error else found) from error.__cause__


def traceback_metadata(frame: FrameType | None) -> dict[str, Any]:
    """A node's metadata as if it were made in this frame."""
    return {TRACEBACK_KEY: traceback.format_stack(frame)}
