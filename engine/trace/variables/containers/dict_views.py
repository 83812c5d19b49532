"""Variables for the views of dicts: keys, values and items."""

from __future__ import annotations

import collections
from types import MappingProxyType
from typing import Any

from engine.ir.introspection.python_operators import Operator
from engine.ir.sources.base import Source
from engine.trace.annotations import DictVariable, PyCodegen, Tracer
from engine.trace.operators.arithmetic import identical_or_equal
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callables.methods import builtin_attribute
from engine.trace.variables.containers.iterators import DictOrSetIteratorVariable
from engine.trace.variables.containers.method_table import MethodTable
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.containers.sets import SET_OPERATORS, SetVariable
from engine.trace.variables.stdlib.string_format import entry_proxies


class DictViewVariable(Variable):
    """A view from ``d.keys()``, ``d.values()`` or ``d.items()``, always up to date."""

    dict_variable: DictVariable
    view_kind: str
    source: Source | None = None

    @property
    def is_set_like(self) -> bool:  # type: ignore[override]
        return self.view_kind != "values"

    def format_contents(self, tx: Tracer, proxies: dict[int, Any]) -> Any:
        sample: Any = collections.OrderedDict() if issubclass(self.dict_variable.cls, collections.OrderedDict) else {}
        proxies[id(self)] = view = getattr(sample, self.view_kind)()
        sample.update(entry_proxies(tx, self.dict_variable.entries.values()))
        return view

    def python_type(self) -> type:
        of: Any = collections.OrderedDict() if self.dict_variable.is_ordered else {}
        return type(getattr(of, self.view_kind)())

    def items(self) -> list[Variable]:
        """Return the items that iteration yields now."""
        match self.view_kind:
            case "keys":
                return self.dict_variable.keys()
            case "values":
                return self.dict_variable.values()
            case _:
                return [TupleVariable([k, v]) for k, v in self.dict_variable.entries.values()]

    def as_python_constant(self, tx: Tracer) -> Any:
        return getattr(self.dict_variable.as_python_constant(tx), self.view_kind)()

    def length(self, tx: Tracer) -> Variable:
        return self.dict_variable.length(tx)

    def is_truthy(self, tx: Tracer) -> bool:
        return self.dict_variable.is_truthy(tx)

    def get_iterator(self, tx: Tracer) -> Variable:
        of = self.dict_variable
        sample: Any = collections.OrderedDict() if of.is_ordered else {}
        name = "OrderedDict" if of.is_ordered else "dictionary"
        cls = type(iter(getattr(sample, self.view_kind)()))
        keys = list(of.entries)
        return DictOrSetIteratorVariable([], cls, keys, self._read_entry, lambda: list(of.entries), name, self, of)

    def _read_entry(self, key: Any) -> Variable | None:
        entry = self.dict_variable.entries.get(key)
        if entry is None:
            return None
        return TupleVariable(list(entry)) if self.view_kind == "items" else entry[self.view_kind == "values"]

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return self._operate(tx, op, self, right)

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        return self._operate(tx, op, left, self)

    def _operate(self, tx: Tracer, op: Operator, left: Variable, right: Variable) -> OperatorResult:
        """Apply a set operator to the view and an iterable: the result is always a new set."""
        if op.symbol not in SET_OPERATORS or not self.is_set_like:
            return NotImplemented
        left_set, right_set = (SetVariable.from_items(tx, sequence_items(tx, side)) for side in (left, right))
        return left_set.combine(tx, SET_OPERATORS[op.symbol], right_set)

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        other = right.builtin_contents
        if not other.is_set_like or not self.is_set_like:
            return NotImplemented
        mine, theirs = (set(SetVariable.from_items(tx, sequence_items(tx, side)).elements) for side in (self, other))
        return ConstantVariable(op.function(mine, theirs))

    def contains(self, tx: Tracer, item: Variable) -> bool:
        if self.view_kind == "keys":
            return self.dict_variable.contains(tx, item)
        return any(identical_or_equal(tx, realize(tx, i), item) for i in self.items())

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        if name == "mapping":
            return tx.wrap_static(MappingProxyType).call(tx, [self.dict_variable], {})
        return builtin_attribute(tx, self, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        return VIEW_METHODS.call(self, tx, name, args, kwargs)

    child_fields = ("dict_variable",)

    def reconstruct(self, cg: PyCodegen) -> None:
        of = self.dict_variable
        if of.subclass_instance is None:
            cg.call_method(of, self.view_kind)
            return
        base = collections.OrderedDict if issubclass(of.cls, collections.OrderedDict) else dict
        cg.body.callable_const(getattr(base, self.view_kind))  # the subclass may override the method
        cg.load(of.subclass_instance)
        cg.body.call(1)


VIEW_METHODS = MethodTable()


@VIEW_METHODS.method("isdisjoint", condition=lambda of: of.view_kind == "keys")
def _isdisjoint(self: DictViewVariable, tx: Tracer, other: Variable) -> Variable:
    return SetVariable.from_items(tx, self.items()).call_method(tx, "isdisjoint", [other], {})
