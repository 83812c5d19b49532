"""The pass over the rows of a strip of columns, with accumulators in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.kernels.cpu.lane_values import Value
from engine.kernels.cpu.llvm_types import splat, value_type
from engine.kernels.cpu.op_printer import OpPrinter
from engine.kernels.cpu.reduction_pass import ReductionPass, identity_of
from engine.kernels.cpu.vector_slots import VectorSlots


class StripPass(ReductionPass):
    """A pass that reads each row of a strip in one run, with an accumulator per column."""

    def __init__(self, printer: OpPrinter, live: Sequence[LoopIROp], levels: dict[int, int], level: int) -> None:
        super().__init__(printer, live, levels, level)
        self._accumulators, self._parts = (
            VectorSlots(printer, hint, lambda: printer.plan.strip, self._position)
            for hint in ("strip.slot", "part.slot")
        )
        self._is_in_part = False

    def _position(self, copy: int) -> str:
        p, var = self.printer, self.printer.plan.lane_var
        assert var is not None
        column = p.variable(var, copy)
        return column if p.strip_start == "0" else p.writer.assign("at", f"sub i64 {column}, {p.strip_start}")

    def print_initial_values(self) -> None:
        """Set the current accumulators to the identity."""
        p, lanes = self.printer, self.printer.plan.lanes
        for op in self.reductions:
            dtype = self.accumulator_dtype(op)
            scalar = value_type(dtype)
            identity = splat(scalar, identity_of(op, dtype), lanes)
            p.values.set(op.number, Value((identity,) * p.copies, lanes, scalar))
            self._accumulators.store(op)

    def open_part(self) -> None:
        """Set the current float32 accumulators of a part of the rows to zero."""
        p, self._is_in_part = self.printer, True
        for op in self.part_sums:
            p.values.set(op.number, Value(("zeroinitializer",) * p.copies, p.plan.lanes, value_type(torch.float32)))
            self._parts.store(op)

    def close_part(self) -> None:
        """Add the current float32 accumulators of a part to those in float64."""
        self._is_in_part = False
        for op in self.part_sums:
            self._parts.load(op, torch.float32)
            names = self.printer.value(op).names
            added = [self._convert(op, name, self.printer.plan.lanes, is_result=False) for name in names]
            self._add(op, self._accumulators, torch.float64, added)

    def accumulate(self) -> None:
        """Print the step of each reduction for the current columns of a row."""
        p, lanes = self.printer, self.printer.plan.lanes
        parts = self.part_sums if self._is_in_part else []
        for op in self.reductions:
            if op in parts:
                added = [p.lane_name(op.args[0], copy, lanes) for copy in range(p.copies)]
                self._add(op, self._parts, torch.float32, added)
            else:
                added = [self.operand(op, copy, lanes) for copy in range(p.copies)]
                self._add(op, self._accumulators, self.accumulator_dtype(op), added)

    def _add(self, op: LoopIROp, slots: VectorSlots, dtype: torch.dtype, operands: Sequence[str]) -> None:
        """Print the step of a reduction with accumulators in ``slots``."""
        p, lanes = self.printer, self.printer.plan.lanes
        slots.load(op, dtype)
        p.writer.ops = (op.number,)
        before = p.value(op)
        names = tuple(
            p.arithmetic.combine(str(op.value), dtype, lanes, name, operand)
            for name, operand in zip(before.names, operands, strict=True)
        )
        p.values.set(op.number, Value(names, lanes, before.scalar))
        slots.store(op)

    def print_results(self) -> None:
        """Print the loads of the current columns' results."""
        p, lanes = self.printer, self.printer.plan.lanes
        for op in self.reductions:
            self._accumulators.load(op, self.accumulator_dtype(op))
            names = tuple(self._convert(op, name, lanes, is_result=True) for name in p.value(op).names)
            p.values.set(op.number, Value(names, lanes, value_type(compute_dtype(op.dtype))))
