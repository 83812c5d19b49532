"""Operators of user-defined objects: special methods of their classes."""

from __future__ import annotations

from engine.ir.introspection.python_operators import Operator
from engine.trace.annotations import Tracer
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import ConstantVariable, Variable, unwrap_not_implemented


class UserOperators(Variable):
    """An operand whose class may define special methods in Python."""

    def call_special_method(self, tx: Tracer, name: str, args: list[Variable]) -> Variable:
        """Call a special method; raise Python's TypeError if it is missing."""
        raise NotImplementedError

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return self._call_operator_method(tx, op.method, right)

    inplace = binary

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        return self._call_operator_method(tx, op.reflected, left)

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        if op.symbol != "!=" or self.lookup_special_method(tx, "__ne__") is not None:
            return self._call_operator_method(tx, op.method, right)
        equal = self._call_operator_method(tx, "__eq__", right)
        return NotImplemented if equal is NotImplemented else ConstantVariable(not equal.is_truthy(tx))

    def _call_operator_method(self, tx: Tracer, name: str, other: Variable) -> OperatorResult:
        """Call a special method of two operands; NotImplemented if the class has none."""
        result = self.call_user_method(tx, name, [other])
        return NotImplemented if result is None else unwrap_not_implemented(result)

    def unary(self, tx: Tracer, op: Operator) -> Variable:
        return self.call_special_method(tx, op.method, [])

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        """Return the object if its class handles torch functions: the operator dispatches to it."""
        return self if self.has_torch_function else None
