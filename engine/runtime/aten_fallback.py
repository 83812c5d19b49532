"""ATen fallback on out of memory, a failed kernel launch or unexpected sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from engine.errors import error_line
from engine.ir.graph_callable import Run
from engine.ir.rerun_after_error import WRITTEN_MARK


class UnexpectedSize(RuntimeError):
    """Raised when a data-dependent size is not the one that the graph assumes.

    Kernels would read out of bounds.
    """


class OutOfBounds(IndexError):
    """A CPU kernel found an index out of bounds or a division by zero."""


class GeneratedRun:
    """A run of generated Python, which a call may enter without a call of the run itself."""

    function: Run | None = None
    """The generated function; None if the next call of the run generates it."""


_NOT_GENERATED = GeneratedRun()


OnFallback = Callable[[BaseException, str, str], None]
"""Called on a failure with the error, a message, and the fallback taken."""

_STICKY_ERRORS = (
    "illegal",
    "unspecified launch failure",
    "device-side assert",
    "misaligned address",
    "hardware",
    "ECC",
)
"""Words of sticky CUDA errors, after which the process cannot use the GPU."""
THIS_CALL_NOTE = "ATen runs this call, operator by operator"
EVERY_CALL_NOTE = "ATen runs this graph from now on, operator by operator"


def with_aten_fallback(run: Run, make_fallback: Callable[[], Run], on_fallback: OnFallback, *, is_boxed: bool) -> Run:
    """Return ``run`` with a fallback to the run that ``make_fallback`` returns.

    Out of memory and unexpected sizes fall back for this call; a failed launch falls back for good. Other errors are
    raised. A boxed program empties its input list, so it has no fallback: its errors are reported and raised.
    """
    has_failed = False
    fallback = functools.cache(make_fallback)
    generated = run if isinstance(run, GeneratedRun) else _NOT_GENERATED

    def call(*inputs: Any) -> Any:
        nonlocal has_failed
        if has_failed:
            return fallback()(*inputs)
        sentence = ""
        try:
            return (generated.function or run)(*inputs)
        except torch.OutOfMemoryError as error:
            is_final = is_boxed or WRITTEN_MARK in error.__dict__
            on_fallback(error, describe_oom(error), "" if is_final else THIS_CALL_NOTE)
            if is_final:
                raise
            failed: BaseException = error.with_traceback(None)  # the traceback retains the intermediates
        except OutOfBounds as error:
            if is_boxed:
                raise
            failed = error.with_traceback(None)
        except UnexpectedSize as error:
            sentence = f"The kernels are not valid for this call: {error}."
            if is_boxed:
                on_fallback(error, sentence, "")
                raise
            failed = error.with_traceback(None)
        except RuntimeError as error:
            if not is_launch_failure(error):
                raise
            is_final = is_boxed or WRITTEN_MARK in error.__dict__
            on_fallback(
                error, f"A kernel could not be launched: {error_line(error)}.", "" if is_final else EVERY_CALL_NOTE
            )
            if is_final:
                raise
            has_failed = True
            return fallback()(*inputs)
        try:
            results = fallback()(*inputs)
        except torch.OutOfMemoryError:
            raise failed from None
        if sentence:  # If ATen raises too, the error is the call's own.
            on_fallback(failed, sentence, THIS_CALL_NOTE)
        return results

    return call


def is_launch_failure(error: BaseException) -> bool:
    """Return True if the driver failed to launch a kernel and the GPU is still usable."""
    text = str(error)
    return "Triton Error [" in text and not any(phrase in text for phrase in _STICKY_ERRORS)


def describe_oom(error: BaseException) -> str:
    """Describe who holds the memory of a full GPU."""
    try:
        (free_bytes, total), reserved = torch.cuda.mem_get_info(), torch.cuda.memory_reserved()
    except (RuntimeError, AssertionError):  # no CUDA
        return f"The GPU is out of memory: {error_line(error)}."
    by_others = max(total - free_bytes - reserved, 0)
    sentence = f"The GPU is out of memory: this process uses {_gb(reserved)} of {_gb(total)}"
    if by_others > total // 20:
        return f"{sentence} and other processes use {_gb(by_others)}. End them, or use another GPU."
    return f"{sentence}. Use smaller batches, or delete tensors that you no longer need."


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
