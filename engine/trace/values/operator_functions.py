"""Rules for the functions of Python's ``operator`` module that do what an operator does."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from engine.trace import operations
from engine.trace.values.base import NONE, ConstantVariable, Variable, realize
from engine.trace.values.rules import register_rule

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]


def _operator_rule(run: Any, symbol: str, count: int) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        made: Variable = run(tx, symbol, *args[:count])
        return made

    return rule


def _register_operators() -> None:
    for symbol, (fn, _) in (*operations.BINARY.items(), *operations.INPLACE.items()):
        register_rule(fn)(_operator_rule(operations.binary_op, symbol, 2))
    for symbol, (compare, _, _) in operations.COMPARE.items():
        register_rule(compare)(_operator_rule(operations.compare_op, symbol, 2))
    for symbol, unary in operations.UNARY.items():
        register_rule(unary)(_operator_rule(operations.unary_op, symbol, 1))
    register_rule(operator.getitem)(lambda tx, args, kwargs: realize(tx, args[0]).get_item(tx, realize(tx, args[1])))
    register_rule(operator.setitem)(_setitem)
    register_rule(operator.not_)(lambda tx, args, kwargs: ConstantVariable(not realize(tx, args[0]).is_truthy(tx)))
    register_rule(operator.truth)(lambda tx, args, kwargs: ConstantVariable(realize(tx, args[0]).is_truthy(tx)))
    register_rule(operator.is_)(
        lambda tx, args, kwargs: ConstantVariable(operations.is_same_object(tx, args[0], args[1]))
    )
    register_rule(operator.is_not)(
        lambda tx, args, kwargs: ConstantVariable(not operations.is_same_object(tx, args[0], args[1]))
    )
    register_rule(operator.contains)(
        lambda tx, args, kwargs: ConstantVariable(realize(tx, args[0]).contains(tx, realize(tx, args[1])))
    )


def _setitem(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    realize(tx, args[0]).set_item(tx, realize(tx, args[1]), args[2])
    return NONE


_register_operators()
