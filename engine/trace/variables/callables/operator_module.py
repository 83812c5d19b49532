"""Rules for functions of the ``operator`` module that apply a Python operator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from engine.ir.guards.python_values import OperatorArgsMatch
from engine.ir.introspection import python_objects
from engine.ir.introspection.python_operators import BINARY, COMPARE, INPLACE, UNARY
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.operators import arithmetic
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import CallRule, register_rule
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.objects.constructor_registry import C_CLASS_CONSTRUCTORS


def _operator_rule(run: Any, symbol: str, count: int) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        result: Variable = run(tx, symbol, *args[:count])
        return result

    return rule


for _run, _count, _operators in (
    (arithmetic.binary_op, 2, BINARY | INPLACE),
    (arithmetic.compare_op, 2, COMPARE),
    (arithmetic.unary_op, 1, UNARY),
):
    for _symbol, _op in _operators.items():
        register_rule(_op.function)(_operator_rule(_run, _symbol, _count))


def _count_of(tx: Tracer, of: Variable, item_to_count: Variable) -> int:
    return sum(arithmetic.identical_or_equal(tx, realize(tx, item), item_to_count) for item in sequence_items(tx, of))


def _index_of(tx: Tracer, of: Variable, item_to_find: Variable) -> Any:
    for n, item in enumerate(sequence_items(tx, of)):
        if arithmetic.identical_or_equal(tx, realize(tx, item), item_to_find):
            return n
    return tx.raise_error(ValueError, "sequence.index(x): x not in sequence")


_OPERATIONS: dict[Any, Callable[..., Any]] = {
    operator.getitem: lambda tx, of, key: of.get_item(tx, key),
    operator.setitem: lambda tx, of, key, value: of.set_item(tx, key, value),
    operator.delitem: lambda tx, of, key: of.del_item(tx, key),
    operator.contains: lambda tx, of, item: of.contains(tx, item),
    operator.not_: lambda tx, of: not of.is_truthy(tx),
    operator.truth: lambda tx, of: of.is_truthy(tx),
    operator.is_: arithmetic.is_same_object,
    operator.is_not: lambda tx, left, right: not arithmetic.is_same_object(tx, left, right),
    operator.concat: lambda tx, left, right: arithmetic.binary_op(tx, "+", left, right),
    operator.countOf: _count_of,
    operator.indexOf: _index_of,
}
"""Other functions of operands, each with what computes a variable or a constant."""


def _operation_rule(operation: Callable[..., Any]) -> CallRule:
    return lambda tx, args, kwargs: tx.from_python(operation(tx, *(realize(tx, a) for a in args[:2]), *args[2:]))


for _function, _operation in _OPERATIONS.items():
    register_rule(_function)(_operation_rule(_operation))


register_rule(operator.call)(lambda tx, args, kwargs: realize(tx, args[0]).call(tx, list(args[1:]), kwargs))


class OperatorGetterVariable(Variable):
    """``operator.itemgetter``, ``attrgetter`` or ``methodcaller`` with its arguments."""

    cls: type
    args: Args
    kwargs: Kwargs
    source: Source | None = None

    def as_python_constant(self, tx: Tracer) -> Any:
        keywords = tx.as_python_keywords(self.kwargs)
        return self.cls(*tx.as_python_constants(self.args), **keywords)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0])
        if not args or len(args) > 1 or kwargs:
            tx.fold_constant(operator.itemgetter(0), *[None] * len(args), **dict.fromkeys(kwargs))
        if self.cls is operator.methodcaller:
            name = str(realize(tx, self.args[0]).as_python_constant(tx))
            return realize(tx, of.get_attr(tx, name)).call(tx, list(self.args[1:]), self.kwargs)
        values = [self._get_one(tx, of, realize(tx, a)) for a in self.args]
        return values[0] if len(values) == 1 else TupleVariable(values)

    def _get_one(self, tx: Tracer, of: Variable, key: Variable) -> Variable:
        if self.cls is operator.itemgetter:
            return of.get_item(tx, key)
        for part in str(key.as_python_constant(tx)).split("."):
            of = realize(tx, of.get_attr(tx, part))
        return of

    def child_variables(self) -> list[Variable]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(self.cls, *self.args, **self.kwargs)


def _construct_getter(tx: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Variable:
    constants = [None] * len(args)
    if cls is not operator.itemgetter:  # the others check their arguments, which are names
        constants = [realize(tx, a).as_python_constant(tx) if tx.is_python_constant(a) else None for a in args]
    tx.fold_constant(lambda: cls(*constants, **dict.fromkeys(kwargs)) and None)
    return OperatorGetterVariable(cls, list(args), kwargs)


_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


for _cls in _GETTERS:
    C_CLASS_CONSTRUCTORS[_cls] = _construct_getter


@register_builder(*_GETTERS, why="it was called")
def _getter(tx: Tracer, real: Any, source: Source) -> Variable:
    args, pairs = parts = python_objects.operator_callable_args(real)
    keywords = dict(pairs)
    if all(type(a) in (int, str, bool, type(None)) for a in (*args, *keywords.values())):
        tx.guard(OperatorArgsMatch, source, parts, why="it was called")
    else:
        tx.guard_identity(real, source, "it was called")
    values = [tx.from_python(a) for a in args]
    return OperatorGetterVariable(type(real), values, {k: tx.from_python(v) for k, v in keywords.items()}, source)
