"""Builders of constants from real objects, with their guards."""

from __future__ import annotations

import pathlib
from typing import Any, ClassVar

import torch

from engine.ir.guards.python_values import EqualsMatch, is_numpy_number
from engine.ir.introspection import literal_types
from engine.ir.introspection.python_objects import is_dtensor_placement
from engine.ir.register_once import register_each
from engine.ir.sources.attributes import MethodResultSource
from engine.ir.sources.base import Source
from engine.torch_private.dispatch import DispatchKeySet
from engine.trace.annotations import Tracer
from engine.trace.operators import arithmetic
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable
from engine.trace.variables.builder import guarded_builder, register_builder, register_builder_if
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.tensors.automatic_dynamic import is_dynamic_number, symbolize_number


@register_builder(
    *literal_types.IDENTIFIED_LITERAL_TYPES, complex, str, bytes, *literal_types.TORCH_LITERAL_TYPES, DispatchKeySet
)
def _literal(tx: Tracer, real: Any, source: Source) -> Variable:
    why = f"its value ({_short_repr(real)}) decided what was traced"
    tx.guard(EqualsMatch, source, real, why=why)
    return ConstantVariable(real, source)


@register_builder(int, float)
def _number(tx: Tracer, real: float, source: Source) -> Variable:
    return symbolize_number(tx, real, source) or _literal(tx, real, source)


_build_singleton = guarded_builder(ConstantVariable, "its value ({0!r}) decided what was traced")
register_builder(*literal_types.SINGLETON_TYPES, type(torch.__version__), *literal_types.NUMPY_INFO_TYPES)(
    _build_singleton
)


@register_builder_if(9, lambda real: isinstance(real, literal_types.NUMPY_SCALAR_TYPES))
def _numpy_literal(tx: Tracer, real: Any, source: Source) -> Variable:
    if is_numpy_number(real) and is_dynamic_number(tx, source):
        return DynamicNumpyScalarVariable(tx, real, source)
    return _literal(tx, real, source)


@register_builder(bool)
def _bool(tx: Tracer, real: bool, source: Source) -> Variable:
    return (DynamicBoolVariable if is_dynamic_number(tx, source) else _literal)(tx, real, source)


class _DynamicConstantVariable(ConstantVariable):
    """A constant that changed between calls: a symbol in some uses; others specialize it."""

    __slots__ = ("_is_guarded", "_real_value", "_symbol", "_tx")

    is_copied_by_reference = True
    number_method: ClassVar[str]
    """Method that returns the Python number of which a symbol is made."""

    def __init__(self, tx: Tracer, real: Any, source: Source) -> None:
        self._tx = tx
        self._real_value = real
        self._is_guarded = False
        self._symbol: Variable | None = None
        self.source = source
        tx.guard_type(
            real, source, f"it is a symbol of type {type(real).__name__}, because its value changed between calls"
        )

    @property
    def value(self) -> Any:
        """The specialized number. The first read adds an equality guard."""
        if not self._is_guarded:
            self._is_guarded = True
            assert self.source is not None
            why = f"its value ({_short_repr(self._real_value)}) decided what was traced"
            self._tx.guard(EqualsMatch, self.source, self._real_value, why=why)
        return self._real_value

    def python_type(self) -> type:
        return type(self._real_value)

    def describe(self) -> str:
        return repr(self._real_value)

    def as_symbol(self, tx: Tracer) -> Variable:
        """Return the number as a symbol, or itself if it is specialized or cannot be symbolic."""
        if self._symbol is None and not self._is_guarded:
            assert self.source is not None
            source = MethodResultSource(self.source, self.number_method)
            tx.symbols.known_dynamic_sources.add(source)
            self._symbol = symbolize_number(tx, source.read(self._real_value), source)
        return self if self._symbol is None else self._symbol


class DynamicBoolVariable(_DynamicConstantVariable):
    """A bool that changed between calls: a symbol, 0 or 1, where a tensor is made of it."""

    number_method = "__int__"
    is_dynamic_bool = True


class DynamicNumpyScalarVariable(_DynamicConstantVariable):
    """A numpy scalar that changed between calls: a symbol together with tensors.

    The symbol computes as the Python number.
    """

    number_method = "item"

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        return self.as_symbol(tx)

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        number = self.as_symbol(tx)
        return super().as_node_arg(tx) if number is self else number.as_node_arg(tx)


register_builder_if(39, is_dtensor_placement)(_literal)
register_builder_if(10, literal_types.is_enum_or_numpy_scalar)(
    guarded_builder(ConstantVariable, "its value ({0!s}) decided what was traced")
)


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


@register_each(register_rule, *literal_types.DATETIME_TYPES, *literal_types.PATH_TYPES, pathlib.Path, pathlib.PurePath)
def _construct_literal(cls: type, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return arithmetic.fold_constant_call(tx, cls, args, kwargs)
