"""Interpreter limits of ``sys``: recursion depth, and digits in int-to-str conversion."""

from __future__ import annotations

import sys

import torch

from engine.ir.guards.global_state import GlobalStateMatch
from engine.ir.sources.roots import ConstantSource
from engine.trace.annotations import Tracer
from engine.trace.exc import SkipFrame
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable
from engine.trace.variables.callable_registry import register_rule


@register_rule(sys.getrecursionlimit)
def _recursion_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return ConstantVariable(tx.call_stack.recursion_limit)


@register_rule(sys.get_int_max_str_digits)
def _digits_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    limit = sys.get_int_max_str_digits()
    tx.guard(GlobalStateMatch, ConstantSource(torch, "torch"), "digits", limit, why="it was read")
    return ConstantVariable(limit)


@register_rule(sys.set_int_max_str_digits)
def _set_digits_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    # The tracer converts numbers to strings under the current limit.
    raise SkipFrame("interpreter-limit", "the digit limit for int to str is set")


@register_rule(sys.setrecursionlimit)
def _set_recursion_limit(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    # Compiled code needs more stack than the original calls. Only plain Python respects the new limit.
    raise SkipFrame("interpreter-limit", "the recursion limit is set")
