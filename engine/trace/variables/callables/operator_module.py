"""Rules for functions of the ``operator`` module that apply a Python operator."""

from __future__ import annotations

import operator
from typing import Any

from engine.ir.guards.python_values import OperatorArgsMatch
from engine.ir.introspection import python_objects
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.operators import arithmetic
from engine.trace.operators.table import BINARY, COMPARE, INPLACE, UNARY
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder_if
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.objects.class_lookup import first_import_of_class
from engine.trace.variables.objects.constructor_registry import C_CLASS_CONSTRUCTORS


def _operator_rule(run: Any, symbol: str, count: int) -> Any:
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        made: Variable = run(tx, symbol, *args[:count])
        return made

    return rule


def _register_operators() -> None:
    for run, count, operators in (
        (arithmetic.binary_op, 2, BINARY | INPLACE),
        (arithmetic.compare_op, 2, COMPARE),
        (arithmetic.unary_op, 1, UNARY),
    ):
        for symbol, op in operators.items():
            register_rule(op.function)(_operator_rule(run, symbol, count))
    register_rule(operator.getitem)(lambda tx, args, kwargs: realize(tx, args[0]).get_item(tx, realize(tx, args[1])))
    register_rule(operator.setitem)(_setitem)
    register_rule(operator.not_)(lambda tx, args, kwargs: ConstantVariable(not realize(tx, args[0]).is_truthy(tx)))
    register_rule(operator.truth)(lambda tx, args, kwargs: ConstantVariable(realize(tx, args[0]).is_truthy(tx)))
    register_rule(operator.is_)(
        lambda tx, args, kwargs: ConstantVariable(arithmetic.is_same_object(tx, args[0], args[1]))
    )
    register_rule(operator.is_not)(
        lambda tx, args, kwargs: ConstantVariable(not arithmetic.is_same_object(tx, args[0], args[1]))
    )
    register_rule(operator.contains)(
        lambda tx, args, kwargs: ConstantVariable(realize(tx, args[0]).contains(tx, realize(tx, args[1])))
    )


def _setitem(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    realize(tx, args[0]).set_item(tx, realize(tx, args[1]), args[2])
    return NONE


_register_operators()


class OperatorGetterVariable(Variable):
    """``operator.itemgetter``, ``attrgetter`` or ``methodcaller`` with its arguments."""

    __slots__ = ("args", "cls", "first_import_cls", "kwargs", "source")

    def __init__(self, cls: type, args: Args, kwargs: Kwargs, source: Source | None = None) -> None:
        self.cls = cls
        self.first_import_cls: type = first_import_of_class(cls) or cls
        self.args = args
        self.kwargs = kwargs
        self.source = source

    def as_python_constant(self, tx: Tracer) -> Any:
        words = tx.as_python_keywords(self.kwargs)
        return self.cls(*tx.as_python_constants(self.args), **words)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        of = realize(tx, args[0])
        if not args or len(args) > 1 or kwargs:
            tx.fold_constant(operator.itemgetter(0), *[None] * len(args), **dict.fromkeys(kwargs))
        if self.first_import_cls is operator.methodcaller:
            name = str(realize(tx, self.args[0]).as_python_constant(tx))
            return realize(tx, of.get_attr(tx, name)).call(tx, list(self.args[1:]), self.kwargs)
        found = [self._get_one(tx, of, realize(tx, a)) for a in self.args]
        return found[0] if len(found) == 1 else TupleVariable(found)

    def _get_one(self, tx: Tracer, of: Variable, wanted: Variable) -> Variable:
        if self.first_import_cls is operator.itemgetter:
            return of.get_item(tx, wanted)
        for part in str(wanted.as_python_constant(tx)).split("."):
            of = realize(tx, of.get_attr(tx, part))
        return of

    def child_variables(self) -> list[Variable]:
        return [*self.args, *self.kwargs.values()]

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(self.cls, *self.args, **self.kwargs)


def _construct_getter(tx: Tracer, cls: Any, args: Args, kwargs: Kwargs) -> Variable:
    by_name = (first_import_of_class(cls) or cls) is not operator.itemgetter
    known = (
        [realize(tx, a).as_python_constant(tx) if tx.is_python_constant(a) else None for a in args]
        if by_name
        else [None] * len(args)
    )
    tx.fold_constant(lambda: cls(*known, **dict.fromkeys(kwargs)) and None)
    return OperatorGetterVariable(cls, list(args), kwargs)


_GETTERS = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


for _cls in _GETTERS:
    C_CLASS_CONSTRUCTORS[_cls] = _construct_getter


@register_builder_if(21, lambda real: type(real) in _GETTERS or first_import_of_class(type(real)) in _GETTERS)
def _getter(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_type(real, origin, "it was called")
    args, pairs = parts = python_objects.operator_callable_args(real)
    words = dict(pairs)
    if all(type(a) in (int, str, bool, type(None)) for a in (*args, *words.values())):
        tx.guard(OperatorArgsMatch, origin, parts, why="it was called")
    else:
        tx.guard_identity(real, origin, "it was called")
    values = [tx.from_python(a) for a in args]
    return OperatorGetterVariable(type(real), values, {k: tx.from_python(v) for k, v in words.items()}, origin)


def _count_of(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return ConstantVariable(
        sum(
            arithmetic.identical_or_equal(tx, realize(tx, i), realize(tx, args[1])) for i in sequence_items(tx, args[0])
        )
    )


def _index_of(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    for n, item in enumerate(sequence_items(tx, args[0])):
        if arithmetic.identical_or_equal(tx, realize(tx, item), realize(tx, args[1])):
            return ConstantVariable(n)
    return tx.raise_error(ValueError, "sequence.index(x): x not in sequence")  # type: ignore[no-any-return]


def _concat(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return arithmetic.binary_op(tx, "+", args[0], args[1])


def _delitem(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    realize(tx, args[0]).del_item(tx, realize(tx, args[1]))
    return ConstantVariable(None)


def _call(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return realize(tx, args[0]).call(tx, list(args[1:]), kwargs)


register_rule(operator.call)(_call)


register_rule(operator.countOf)(_count_of)


register_rule(operator.indexOf)(_index_of)


register_rule(operator.concat)(_concat)


register_rule(operator.delitem)(_delitem)
