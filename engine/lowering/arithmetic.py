"""Formulas over the elements of a kernel, written as one writes formulas."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from engine.ir.loops import Builder, Op

Operand: TypeAlias = "Value | float"


@dataclass(frozen=True, eq=False)
class Value:
    """An element that arithmetic operators write operations for; numbers beside it take on its type."""

    b: Builder
    op: Op

    def _other(self, value: Operand) -> Op:
        return value.op if isinstance(value, Value) else self.b.constant(value, self.op.dtype)

    def _made(self, op: Op) -> Value:
        return replace(self, op=op)

    def _compared(self, name: str, other: Operand) -> Value:
        return self._made(self.b.call(name, self.op, self._other(other), dtype=torch.bool))

    def call(self, name: str, *others: Operand) -> Value:
        """Another operation of the loop IR."""
        return self._made(self.b.call(name, self.op, *map(self._other, others)))

    def cast(self, dtype: torch.dtype) -> Value:
        """The same in another type."""
        return self._made(self.b.cast(self.op, dtype))

    def number(self, value: float) -> Value:
        """A number of this type."""
        return self._made(self._other(value))

    def where(self, then: Value, otherwise: Operand) -> Value:
        """One of two values, as this truth value says."""
        return then._made(self.b.where(self.op, then.op, then._other(otherwise)))

    def clamped(self, low: float, high: Operand) -> Value:
        """The nearest value in a range; what is no number is its lower end."""
        raised = (self > low).where(self, low)
        return (raised < high).where(raised, high)

    def __add__(self, other: Operand) -> Value:
        return self._made(self.b.call("add", self.op, self._other(other)))

    def __sub__(self, other: Operand) -> Value:
        return self._made(self.b.call("sub", self.op, self._other(other)))

    def __rsub__(self, other: float) -> Value:
        return self.number(other) - self

    def __mul__(self, other: Operand) -> Value:
        return self._made(self.b.call("mul", self.op, self._other(other)))

    def __truediv__(self, other: Operand) -> Value:
        return self._made(self.b.call("div", self.op, self._other(other)))

    def __neg__(self) -> Value:
        return self._made(self.b.call("neg", self.op))

    def __lt__(self, other: Operand) -> Value:
        return self._compared("lt", other)

    def __le__(self, other: Operand) -> Value:
        return self._compared("le", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compared("gt", other)

    def __ge__(self, other: Operand) -> Value:
        return self._compared("ge", other)

    def equals(self, other: Operand) -> Value:
        """Whether both are the same number."""
        return self._compared("eq", other)

    def __and__(self, other: Value) -> Value:
        return self._made(self.b.both(self.op, other.op))
