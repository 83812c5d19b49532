"""Rules for the limits that ``sys`` tells and sets: the depth of recursion, the digits of numbers in text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.sources.roots import ConstantSource
from engine.trace.exc import SkipFrame
from engine.trace.variables.base import ConstantVariable, Variable
from engine.trace.variables.callable_registry import register_rule

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]


@register_rule(sys.getrecursionlimit)
def _recursion_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return ConstantVariable(tx.recursion_limit)


@register_rule(sys.get_int_max_str_digits)
def _digits_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    limit = sys.get_int_max_str_digits()
    tx.add_guard(
        GlobalStateMatch(ConstantSource(torch, "torch"), "digits", limit, cause=tx.guard_cause("it was asked for"))
    )
    return ConstantVariable(limit)


@register_rule(sys.set_int_max_str_digits)
def _set_digits_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    # Texts of numbers are made while tracing, under the limit as it is.
    raise SkipFrame("unknown-call", "the limit of digits in texts of numbers is set")


@register_rule(sys.setrecursionlimit)
def _set_recursion_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    # Compiled code and its dispatch are deeper than the calls they stand for: only Python's own depth fits the limit that is asked for.
    raise SkipFrame("unknown-call", "the recursion limit is set")
