"""Stack memory for values that a later loop reads, one vector for each iteration."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.ir.loop_ir.ops import LoopIROp, compute_dtype
from engine.kernels.cpu.lane_values import Value
from engine.kernels.cpu.llvm_types import value_type, wide
from engine.kernels.cpu.op_printer import OpPrinter


class VectorSlots:
    """One slot for each op.

    ``elements`` returns the size of a slot; ``position`` prints the current place in it, for a copy.
    """

    def __init__(
        self, printer: OpPrinter, hint: str, elements: Callable[[], int | None], position: Callable[[int], str]
    ) -> None:
        self._printer = printer
        self._hint = hint
        self._elements = elements
        self._position = position
        self._slots: dict[int, str] = {}

    def store(self, op: LoopIROp) -> None:
        """Print the stores of an op's current vectors."""
        p = self._printer
        p.writer.ops = (op.number,)
        value = p.value(op)
        for copy, name in enumerate(value.names):
            address = self._vector_pointer(op, value.scalar, copy)
            p.writer.line(f"store {wide(value.scalar, value.lanes)} {name}, ptr {address}, align 4")
        p.writer.ops = ()

    def load(self, op: LoopIROp, dtype: torch.dtype | None = None) -> None:
        """Print the loads of the current vectors of an op, or of ``dtype``: its value."""
        p = self._printer
        p.writer.ops = (op.number,)
        scalar, lanes = value_type(dtype or compute_dtype(op.dtype)), p.plan.lanes
        names = tuple(
            p.writer.assign(
                p.hint(op), f"load {wide(scalar, lanes)}, ptr {self._vector_pointer(op, scalar, copy)}, align 4"
            )
            for copy in range(p.copies)
        )
        p.values.set(op.number, Value(names, lanes, scalar))
        p.writer.ops = ()

    def _vector_pointer(self, op: LoopIROp, scalar: str, copy: int) -> str:
        """Return the address of the current vector of a copy in the slot of an op."""
        writer, slot = self._printer.writer, self._slots.get(op.number)
        if slot is None:
            kind = f"[{self._elements()} x {scalar}]"
            slot = self._slots[op.number] = writer.entry(self._hint, f"alloca {kind}, align 64")
        return writer.assign("place", f"getelementptr {scalar}, ptr {slot}, i64 {self._position(copy)}")
