"""Symbols of a lowered program: where each is read, and what is known about its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import sympy
import torch

from engine.ir.loop_ir.index_expr import Size, as_size, symbols_of
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.torch_private.symbolic_shapes import statically_known_true
from engine.torch_private.sympy_functions import ToFloat

SYMBOLIC_SCALARS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_EXPRESSIONS: dict[type, Callable[[Any], Any]] = {
    torch.SymInt: as_size,
    # Algebra makes ``s - s`` the integer 0.
    torch.SymFloat: lambda value: ToFloat(value.node.expr) if value.node.expr.is_integer else value.node.expr,
    torch.SymBool: lambda value: value.node.expr,
}
"""Expression of a symbolic scalar, by its type."""


def expression_of(value: Any) -> Any:
    """Return a symbolic scalar as a size or sympy expression; other values unchanged."""
    return _EXPRESSIONS.get(type(value), lambda expressions: expressions)(value)


class ProgramSymbols:
    """Definitions of symbols; dimension -1 of a definition means the value of a number."""

    def __init__(self) -> None:
        self.inputs: dict[str, tuple[int, int]] = {}
        """Input and dimension that define a symbol."""
        self.hints: dict[str, int] = {}
        """Size hint of each symbol."""
        self.unbacked: dict[str, tuple[TensorDef, int]] = {}
        """Definition of each unbacked symbol: an ATen result and a dimension."""
        self.assumed_values: dict[str, Size] = {}
        """Assumed value of each number that a node reads from a tensor, by node name."""
        self.assumed_relations: list[Any] = []
        """Relations that the graph returns and assumes."""

    def bind_input(self, value: Any, position: int, dim: int = -1) -> None:
        """Record the symbol that an input, or a dimension of it, defines."""
        name = _symbol_name(expression_of(value))
        if name:
            self.inputs.setdefault(name, (position, dim))
            if value.node.is_int() and value.node.has_hint():
                self.hints[name] = int(value.node.hint)

    def bind_result(self, result: TensorDef) -> None:
        """Record the size symbols that only the result of an ATen call defines."""
        for dim, size in enumerate(result.shape):
            name = _symbol_name(size)
            if name and name not in self.inputs:
                self.unbacked.setdefault(name, (result, dim))

    def bind_number(self, value: Any, number: TensorDef) -> None:
        """Record the symbol that a number read from a tensor defines, or its assumed value."""
        expression = value.node.expr
        symbol = next(iter(expression.free_symbols), None)
        is_new = str(symbol) not in self.inputs and str(symbol) not in self.unbacked
        # A SymBool defines a symbol too: its expression has the form Eq(symbol, 1).
        if is_new and (expression == symbol or value.node.is_bool()):
            self.unbacked[str(symbol)] = (number, -1)
        elif value.node.is_int():
            self.assumed_values[number.name] = as_size(expression)

    def bind_output(self, value: Any, relation: Any) -> None:
        """Record the relation of a returned SymBool if the graph assumes it.

        Else it is a result: a condition that the caller's code branches on.
        """
        if isinstance(value, torch.SymBool) and symbols_of((relation,)) and statically_known_true(value):
            self.assumed_relations.append(relation)

    @property
    def assumptions(self) -> dict[str, Any]:
        """Fields of the lowered program that hold what the graph assumes."""
        return {"assumed_numbers": self.assumed_values, "assumed_relations": tuple(self.assumed_relations)}

    def unknown(self, values: Iterable[object]) -> frozenset[str]:
        """Return the symbols in sizes that nothing has defined yet."""
        return symbols_of(values) - self.inputs.keys() - self.unbacked.keys()


def _symbol_name(expression: Any) -> str:
    """Return the name of a symbol; empty for numbers and other expressions."""
    return str(expression) if isinstance(expression, sympy.Symbol) else ""
