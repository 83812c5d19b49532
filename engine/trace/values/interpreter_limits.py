"""Rules for the limits that ``sys`` tells and sets: the depth of recursion, the digits of numbers in text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from engine.ir.origin import Fixed
from engine.ir.state_guard import GlobalState
from engine.trace.signals import Skip
from engine.trace.values.base import Const, Value
from engine.trace.values.rules import special

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


@special(sys.getrecursionlimit)
def _recursion_limit(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return Const(tx.recursion_limit)


@special(sys.get_int_max_str_digits)
def _digits_limit(tx: Tracer, args: Args, kwargs: Words) -> Value:
    limit = sys.get_int_max_str_digits()
    tx.guard(GlobalState(Fixed(torch, "torch"), "digits", limit, cause=tx.cause("it was asked for")))
    return Const(limit)


@special(sys.set_int_max_str_digits)
def _set_digits_limit(tx: Tracer, args: Args, kwargs: Words) -> Value:
    # Texts of numbers are made while tracing, under the limit as it is.
    raise Skip("unknown-call", "the limit of digits in texts of numbers is set")


@special(sys.setrecursionlimit)
def _set_recursion_limit(tx: Tracer, args: Args, kwargs: Words) -> Value:
    # Compiled code and its dispatch are deeper than the calls they stand for: only Python's own depth fits the limit that is asked for.
    raise Skip("unknown-call", "the recursion limit is set")
