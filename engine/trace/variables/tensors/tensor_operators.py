"""Operators of tensors: nodes of the graph."""

from __future__ import annotations

import torch
import torch.fx

from engine.ir.introspection.python_operators import Operator
from engine.torch_private.dispatch import is_traceable_wrapper_subclass
from engine.torch_private.fake_tensors import FakeTensor
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.operators.operand import OperatorResult
from engine.trace.variables.base import ConstantVariable, Variable


class TensorOperators(Variable):
    """An operand whose operators become nodes, with numbers and tensors as other operands."""

    @property
    def node_or_none(self) -> torch.fx.Node | None:
        """The node, or None for an input that no node uses yet."""
        raise NotImplementedError

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        operand = right.as_graph_operand(tx)
        return NotImplemented if operand is None else emit_node(tx, "call_function", op.function, [self, operand])

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        operand = left.as_graph_operand(tx)
        return NotImplemented if operand is None else emit_node(tx, "call_function", op.function, [operand, self])

    def inplace(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        # torch.Tensor has no __imatmul__: ``@=`` binds the name to a new tensor.
        return self.binary(tx, op, right) if hasattr(torch.Tensor, op.method) else NotImplemented

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        operand = right.as_graph_operand(tx)
        if operand is not None and operand.is_constant:
            if operand.python_type().__module__ == "numpy" and hasattr(operand.constant, "item"):
                operand = ConstantVariable(operand.constant.item())
            if op.is_equality and not issubclass(operand.python_type(), (int, float, complex)):
                return ConstantVariable(op.symbol == "!=")
        return NotImplemented if operand is None else emit_node(tx, "call_function", op.function, [self, operand])

    def unary(self, tx: Tracer, op: Operator) -> Variable:
        return emit_node(tx, "call_function", op.function, [self])

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        return self

    def is_same_as(self, tx: Tracer, other: Variable) -> bool | None:
        """Return True if one of the tensors is an inner tensor of a wrapper and the same tensor.

        It was read from a wrapper subclass built around the other, or one that has it under another name too.
        """
        node = self.node_or_none
        if not isinstance(other, TensorOperators) or self.fake is not other.fake or node is None:
            return None
        wrapper = node.args[0].meta.get("example_value") if node.target is getattr else None  # type: ignore[union-attr]
        return True if type(wrapper) is not FakeTensor and is_traceable_wrapper_subclass(wrapper) else None
