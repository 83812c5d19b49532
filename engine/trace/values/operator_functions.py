"""Rules for the functions of Python's ``operator`` module that do what an operator does."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from engine.trace import operations
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.rules import special

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


def _operator_rule(run: Any, symbol: str, count: int) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        made: Value = run(tx, symbol, *args[:count])
        return made

    return rule


def _register_operators() -> None:
    for symbol, (fn, _) in (*operations.BINARY.items(), *operations.INPLACE.items()):
        special(fn)(_operator_rule(operations.binary, symbol, 2))
    for symbol, (compare, _, _) in operations.COMPARE.items():
        special(compare)(_operator_rule(operations.compare, symbol, 2))
    for symbol, unary in operations.UNARY.items():
        special(unary)(_operator_rule(operations.unary, symbol, 1))
    special(operator.getitem)(lambda tx, args, kwargs: force(tx, args[0]).get_item(tx, force(tx, args[1])))
    special(operator.setitem)(_setitem)
    special(operator.not_)(lambda tx, args, kwargs: Const(not force(tx, args[0]).truth(tx)))
    special(operator.truth)(lambda tx, args, kwargs: Const(force(tx, args[0]).truth(tx)))
    special(operator.is_)(lambda tx, args, kwargs: Const(operations.is_same(tx, args[0], args[1])))
    special(operator.is_not)(lambda tx, args, kwargs: Const(not operations.is_same(tx, args[0], args[1])))
    special(operator.contains)(lambda tx, args, kwargs: Const(force(tx, args[0]).contains(tx, force(tx, args[1]))))


def _setitem(tx: Tracer, args: Args, kwargs: Words) -> Value:
    force(tx, args[0]).set_item(tx, force(tx, args[1]), args[2])
    return NONE


_register_operators()
