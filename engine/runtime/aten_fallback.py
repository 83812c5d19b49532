"""A call that a card has no room for, whose kernels it will not start, or whose sizes they do not fit, is computed by ATen; a sentence says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class UnexpectedSize(RuntimeError):
    """Sizes that values decide are not what a graph assumes: its kernels would read what is not there."""


Run = Callable[..., Any]
OnFallback = Callable[[BaseException, str, str], None]
"""Hears of a failure: the error, a sentence on it, and what was done instead."""

_STICKY_ERRORS = (
    "illegal",
    "unspecified launch failure",
    "device-side assert",
    "misaligned address",
    "hardware",
    "ECC",
)
"""Words of errors after which a process cannot use the card any more."""
THIS_CALL_NOTE = "this call is computed by ATen, operator by operator"
EVERY_CALL_NOTE = "this graph is computed by ATen from now on, operator by operator"


def with_aten_fallback(run: Run, make_fallback: Callable[[], Run], on_fallback: OnFallback, *, is_boxed: bool) -> Run:
    """``run``, or what ``instead`` makes where it cannot run here. Errors that no other way avoids are raised as they are.

    A boxed program empties the list that it is given, so that nobody can compute from it again: its errors are told, and raised.
    """
    others: list[Run] = []
    is_gone: list[bool] = []

    def other() -> Run:
        if not others:
            others.append(make_fallback())
        return others[0]

    def call(*inputs: Any) -> Any:
        if is_gone:
            return other()(*inputs)
        try:
            return run(*inputs)
        except torch.OutOfMemoryError as error:
            on_fallback(error, describe_oom(error), "" if is_boxed else THIS_CALL_NOTE)
            if is_boxed:
                raise
            failed: BaseException = error.with_traceback(None)  # which holds what the program had made so far
        except UnexpectedSize as error:
            on_fallback(error, f"Kernels do not fit this call: {error}.", "" if is_boxed else THIS_CALL_NOTE)
            if is_boxed:
                raise
            failed = error.with_traceback(None)
        except RuntimeError as error:
            if not is_launch_failure(error):
                raise
            on_fallback(
                error, f"A kernel could not be started: {_first_line(error)}.", "" if is_boxed else EVERY_CALL_NOTE
            )
            if is_boxed:
                raise
            is_gone.append(True)
            return other()(*inputs)
        try:
            return other()(*inputs)
        except torch.OutOfMemoryError:
            raise failed from None

    return call


def is_launch_failure(error: BaseException) -> bool:
    """Whether the driver refused to start a kernel, and everything else still works."""
    text = str(error)
    return "Triton Error [" in text and not any(word in text for word in _STICKY_ERRORS)


def describe_oom(error: BaseException, free: tuple[int, int] | None = None, held: int | None = None) -> str:
    """What a card that is full holds, and whose it is. ``free``: bytes free and in all; ``held``: bytes that this process has."""
    if free is None or held is None:
        try:
            free, held = torch.cuda.mem_get_info(), torch.cuda.memory_reserved()
        except (RuntimeError, AssertionError):  # no CUDA at all
            return f"The card has no room left: {_first_line(error)}."
    left, whole = free
    others = max(whole - left - held, 0)
    sentence = f"The card has no room left: of {_gb(whole)} this process holds {_gb(held)}"
    if others > whole // 20:
        return f"{sentence} and others hold {_gb(others)}: end them, or use another card."
    return f"{sentence}: use smaller batches, or free what is not needed any more."


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
