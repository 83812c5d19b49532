"""Variable for ``types.MappingProxyType``, a read-only view of a dict."""

from __future__ import annotations

import collections
import gc
from types import MappingProxyType
from typing import Any

from engine.ir.introspection.python_operators import Operator
from engine.ir.sources.base import Source
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import binary_op, compare_op
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.builder import register_builder
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.containers.dict_contents import DictEntry
from engine.trace.variables.containers.dicts import DictVariable, build_dict


class MappingProxyVariable(DictVariable):
    """A read-only view of ``mapping``, always up to date.

    An external proxy also represents its dict: no other source reaches that dict.
    """

    __slots__ = ("mapping",)

    def __init__(self, of: DictVariable, source: Source | None) -> None:
        self.mapping = of
        super().__init__({}, source, MappingProxyType)

    @property
    def entries(self) -> dict[Any, DictEntry]:
        return self.mapping.entries

    @entries.setter
    def entries(self, entries: Any) -> None:
        if entries:
            raise self.unsupported("replacing its contents", "attribute-write")

    child_fields = ("mapping",)

    def set_item(self, tx: Tracer, key: Variable, value: Variable) -> None:
        tx.raise_type_error("'mappingproxy' object does not support item assignment")

    def del_item(self, tx: Tracer, key: Variable) -> None:
        tx.raise_type_error("'mappingproxy' object doesn't support item deletion")

    def get_item(self, tx: Tracer, key: Variable) -> Variable:
        return self.mapping.get_item(tx, key)

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.symbol != "|":
            return NotImplemented
        return binary_op(tx, "|", self.mapping, right)

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        return binary_op(tx, "|", left, self.mapping) if op.symbol == "|" else NotImplemented

    def inplace(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.symbol != "|=":
            return NotImplemented
        return tx.raise_type_error("'|=' is not supported by mappingproxy; use '|' instead")

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return compare_op(tx, op.symbol, self.mapping, right)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if not hasattr(MappingProxyType, name):
            tx.raise_error(AttributeError, f"'mappingproxy' object has no attribute '{name}'")
        if name == "copy" and self.mapping.cls not in (dict, collections.OrderedDict):
            raise self.unsupported("copying its contents", "unsupported-method")
        return self.mapping.call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(MappingProxyType, self.mapping)


@register_builder(MappingProxyType)
def _proxy(tx: Tracer, real: Any, source: Source) -> Variable:
    of = build_dict(tx, real, source)
    tx.objects.viewed_dict_ids.update(map(id, gc.get_referents(real)))
    of.cls = type(next((r for r in gc.get_referents(real) if isinstance(r, dict)), real))
    return MappingProxyVariable(of, source)


@register_rule(MappingProxyType)
def _construct_mapping_proxy(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0]) if len(args) == 1 and not kwargs else None
    if type(of) is not DictVariable:
        raise Unsupported("builtin-arguments", "types.MappingProxyType is created from an object that is not a dict")
    return MappingProxyVariable(of, None)
