"""Evaluates conditions that depend on one loop variable, where its value is known."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from engine.ir.loop_ir.index_expr import LoopVar, constant
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.static_sizes import static_size

_OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "and": operator.and_,
    "or": operator.or_,
}


def value_at(op: LoopIROp, var: LoopVar, position: int) -> Any:
    """Return the value of an op in one iteration of a loop; None if it depends on more."""
    if op.name == "constant":
        return op.value
    if op.name == "index" and op.index is not None:
        index = op.index.replace({var: constant(position)})
        return None if index.terms else static_size(index.const)
    arguments = [value_at(arg, var, position) for arg in op.args]
    evaluate = _OPERATORS.get(op.name)
    return None if evaluate is None or None in arguments else evaluate(*arguments)
