"""Copies the new contents of written inputs back into them, where the user's code had written in place."""

from __future__ import annotations

from engine.aot.wrappers.layer import Layer
from engine.ir.plan import Plan, written
from engine.records.aot import WrapperAction

NAME = "input mutation"


def pre_compile(plan: Plan) -> tuple[WrapperAction, ...]:
    """One action a written input."""
    why = "the functional graph returns its new contents instead of writing in place"
    return tuple(WrapperAction(plan.inputs[n].name, "copied back", why) for n in written(plan))


def post_compile(plan: Plan) -> Layer:
    """One ``copy_`` a written input."""
    return Layer(after=tuple(f"i{n}.copy_(r{plan.inputs[n].result})" for n in written(plan)))
