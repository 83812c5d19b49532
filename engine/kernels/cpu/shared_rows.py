"""Costly values that all rows share, such as a channel's scale, computed before the loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from engine.ir.loop_ir.index_expr import LoopVar, product
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, compute_dtype
from engine.ir.static_sizes import static_size
from engine.kernels.cpu.op_printer import OpPrinter
from engine.kernels.cpu.vector_slots import VectorSlots
from engine.kernels.dependences import transitive_inputs

MIN_COST = 8
"""Least cost of a value that is worth a load in each row: that of two divisions."""
MIN_ROWS = 8
MAX_BYTES = 1 << 15
"""Most bytes of the values of one kernel: they stay in the first cache of a core."""


class SharedRows:
    """The values of one kernel that vary along the vector loop alone, and their stack slots."""

    def __init__(self, printer: OpPrinter, live: Sequence[LoopIROp]) -> None:
        self._printer = printer
        self._slots = VectorSlots(printer, "shared.slot", self._row_elements, self._position)
        self._ops = self._choose(live) if self._has_rows() else []
        self.numbers = frozenset(op.number for op in self._ops)

    def _has_rows(self) -> bool:
        """Return True if the loop over lanes is inside of others, and has a known size."""
        plan = self._printer.plan
        if plan.lane_var is None or plan.shares_lanes or plan.tile_var is not None:
            return False
        rows = static_size(product(v.size for v in (*plan.parallel, *plan.outer, *plan.inner) if v != plan.lane_var))
        return static_size(plan.lane_var.size) is not None and (rows is None or rows >= MIN_ROWS)

    def _choose(self, live: Sequence[LoopIROp]) -> list[LoopIROp]:
        p = self._printer
        ops, along = p.kernel.ops, frozenset((p.plan.lane_var,))
        used_in_rows = {
            a.number for op in live if p.vars_of[op.number] != along for a in op.inputs(ops) if op.name != "check"
        }
        written = {op.buffer for op in live if op.name in WRITE_OPS}
        shared = [
            op
            for op in live
            if p.vars_of[op.number] == along and op.number in used_in_rows and self._is_worth_sharing(op, written)
        ]
        return shared if sum(self._row_bytes(op) for op in shared) <= MAX_BYTES else []

    def _is_worth_sharing(self, op: LoopIROp, written: set[str]) -> bool:
        p, ops = self._printer, self._printer.kernel.ops
        if op.name in ("load", *WRITE_OPS) or compute_dtype(op.dtype) == torch.bool:
            return False
        behind = [ops[number] for number in transitive_inputs([op], ops)]
        if any(o.name in ("reduce", "scan", "check", "truncdiv", "rem") or o.buffer in written for o in behind):
            return False
        return sum(o.cost for o in behind if p.vars_of[o.number]) >= MIN_COST

    def _row_elements(self) -> int:
        plan = self._printer.plan
        assert plan.lane_var is not None
        size = static_size(plan.lane_var.size)
        assert size is not None
        return -(-size // plan.lanes) * plan.lanes

    def _row_bytes(self, op: LoopIROp) -> int:
        return self._row_elements() * compute_dtype(op.dtype).itemsize

    def needed(self, ops: Sequence[LoopIROp]) -> list[LoopIROp]:
        """Return those of the ops that the rows need, given the shared values."""
        roots = [op for op in ops if op.name in ("reduce", "scan", "check", *WRITE_OPS)]
        needed = transitive_inputs(roots, self._printer.kernel.ops, stop_at=self.numbers)
        return [op for op in ops if op.number in needed]

    def print_values(self, lane_loops: Callable[[LoopVar, str, str | None], Iterator[None]]) -> None:
        """Print the loops that compute the values; ``lane_loops`` prints loops around a body."""
        p = self._printer
        if not self._ops:
            return
        assert p.plan.lane_var is not None
        behind = transitive_inputs(self._ops, p.kernel.ops)
        for _ in lane_loops(p.plan.lane_var, "0", None):
            for op in p.kernel.ops:
                if op.number in behind and not p.is_known(op):
                    p.print_op(op)
            for op in self._ops:
                self._slots.store(op)

    def load(self, op: LoopIROp) -> bool:
        """Print the load of a shared value; return False if the op is none."""
        if op.number not in self.numbers:
            return False
        self._slots.load(op)
        return True

    def _position(self, copy: int) -> str:
        assert self._printer.plan.lane_var is not None
        return self._printer.variable(self._printer.plan.lane_var, copy)
