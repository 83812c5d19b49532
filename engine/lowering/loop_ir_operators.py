"""Python operators on loop-IR ops, to write formulas over elements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.ops import LoopIROp

Operand: TypeAlias = "OpExpr | float"


@dataclass(frozen=True, eq=False)
class OpExpr:
    """An element with arithmetic operators that emit loop-IR ops; numbers take on its dtype."""

    builder: LoopBuilder
    op: LoopIROp

    def _as_op(self, value: Operand) -> LoopIROp:
        return value.op if isinstance(value, OpExpr) else self.builder.constant(value, self.op.dtype)

    def _wrap(self, op: LoopIROp) -> OpExpr:
        return replace(self, op=op)

    def _compare(self, name: str, other: Operand) -> OpExpr:
        return self._wrap(self.builder.call(name, self.op, self._as_op(other), dtype=torch.bool))

    def call(self, name: str, *others: Operand) -> OpExpr:
        """Emit another loop-IR op on this element."""
        return self._wrap(self.builder.call(name, self.op, *map(self._as_op, others)))

    def cast(self, dtype: torch.dtype) -> OpExpr:
        """Cast this element to another dtype."""
        return self._wrap(self.builder.cast(self.op, dtype))

    def constant(self, value: float) -> OpExpr:
        """Return a constant of this dtype."""
        return self._wrap(self._as_op(value))

    def where(self, then: OpExpr, otherwise: Operand) -> OpExpr:
        """Select one of two values by this bool."""
        return then._wrap(self.builder.where(self.op, then.op, then._as_op(otherwise)))

    def clamp(self, low: float, high: Operand) -> OpExpr:
        """Clamp this element to a range; NaN becomes the lower bound."""
        raised = (self > low).where(self, low)
        return (raised < high).where(raised, high)

    def __add__(self, other: Operand) -> OpExpr:
        return self._wrap(self.builder.call("add", self.op, self._as_op(other)))

    def __sub__(self, other: Operand) -> OpExpr:
        return self._wrap(self.builder.call("sub", self.op, self._as_op(other)))

    def __rsub__(self, other: float) -> OpExpr:
        return self.constant(other) - self

    def __mul__(self, other: Operand) -> OpExpr:
        return self._wrap(self.builder.call("mul", self.op, self._as_op(other)))

    def __truediv__(self, other: Operand) -> OpExpr:
        return self._wrap(self.builder.call("div", self.op, self._as_op(other)))

    def __neg__(self) -> OpExpr:
        return self._wrap(self.builder.call("neg", self.op))

    def __lt__(self, other: Operand) -> OpExpr:
        return self._compare("lt", other)

    def __le__(self, other: Operand) -> OpExpr:
        return self._compare("le", other)

    def __gt__(self, other: Operand) -> OpExpr:
        return self._compare("gt", other)

    def __ge__(self, other: Operand) -> OpExpr:
        return self._compare("ge", other)

    def equals(self, other: Operand) -> OpExpr:
        """Compare for equality."""
        return self._compare("eq", other)

    def __and__(self, other: OpExpr) -> OpExpr:
        return self._wrap(self.builder.logical_and(self.op, other.op))
