"""Stack slots for the costly values of a row that a later pass reads again."""

from __future__ import annotations

from collections.abc import Sequence

from engine.ir.loop_ir.index_expr import product
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, compute_dtype
from engine.ir.static_sizes import static_size
from engine.kernels.cpu.llvm_types import value_type
from engine.kernels.cpu.op_printer import OpPrinter
from engine.kernels.cpu.reduction_pass import ReductionPass
from engine.kernels.cpu.vector_slots import VectorSlots
from engine.kernels.dependences import transitive_inputs

MIN_COST = 8
"""Least cost per element of the ops that compute a stored value: that of an exponential."""
MAX_BYTES = 1 << 16
"""Most bytes of the stored rows of one kernel: they stay in the caches of a core."""


class RowSlots:
    """The stored rows of one kernel, and the code that writes and reads them."""

    def __init__(self, printer: OpPrinter, passes: Sequence[ReductionPass], shared: frozenset[int]) -> None:
        self._printer = printer
        self._shared = shared
        """Numbers of the ops whose values have slots of their own."""
        self._slots = VectorSlots(printer, "row.slot", self._row_elements, self._position)
        self._stored: set[int] = set()
        self._loaded: dict[int, frozenset[int]] = {}
        """Numbers of the ops that each pass reads from slots, by the pass's level."""
        for number, reduction_pass in enumerate(passes[1:], 1):
            self._choose(reduction_pass, passes[:number])

    def _choose(self, reduction_pass: ReductionPass, earlier: Sequence[ReductionPass]) -> None:
        """Choose the values that a pass reads, and remove the ops that compute them from it."""
        computed = {op.number for other in earlier for op in other.ops}
        computed -= self._shared
        repeated = {op.number for op in reduction_pass.ops if op.number in computed and op.name not in WRITE_OPS}
        ends = {op.number for op in reduction_pass.reductions} | {
            op.number for op in reduction_pass.ops if op.number not in repeated
        }
        needed = {
            a.number: a
            for op in (*reduction_pass.reductions, *reduction_pass.ops)
            if op.number in ends
            for a in op.inputs(self._printer.kernel.ops)
            if a.number in repeated
        }
        loaded = {n for n, op in needed.items() if n in self._stored or self._is_worth_keeping(op)}
        fits = [n for n in sorted(loaded) if self._row_bytes(self._stored | {n}) <= MAX_BYTES]
        self._stored |= set(fits)
        self._loaded[reduction_pass.level] = frozenset(fits)
        reduction_pass.remove_inputs_of(self._loaded[reduction_pass.level])

    def _is_worth_keeping(self, op: LoopIROp) -> bool:
        p, inner = self._printer, frozenset(self._printer.plan.inner)
        if not inner <= p.vars_of[op.number] or op.name in ("load", "reduce", "scan"):
            return False
        if value_type(compute_dtype(op.dtype)) == "i1" or (p.plan.lanes > 1 and not p.is_vector(op)):
            return False
        ops = p.kernel.ops
        behind = transitive_inputs([op], ops, in_one_loop=True, stop_at=self._stored)
        return sum(o.cost for o in ops if o.number in behind and p.vars_of[o.number] & inner) >= MIN_COST

    def _row_bytes(self, stored: set[int]) -> float:
        """Return the bytes of these rows; infinite for symbolic sizes."""
        count = self._row_elements()
        dtypes = (compute_dtype(op.dtype) for op in self._printer.kernel.ops if op.number in stored)
        return float("inf") if count is None else sum(count * d.itemsize for d in dtypes)

    def _row_elements(self) -> int | None:
        """Return the elements of a row with those of whole vectors; None if symbolic."""
        plan = self._printer.plan
        if plan.lane_var not in plan.inner:
            elements = static_size(product(v.size for v in plan.inner))
            return None if elements is None else elements * plan.lanes * plan.copies
        elements, long = static_size(product(v.size for v in plan.inner[:-1])), static_size(plan.inner[-1].size)
        return None if elements is None or long is None else elements * -(-long // plan.lanes) * plan.lanes

    def load(self, reduction_pass: ReductionPass, op: LoopIROp) -> bool:
        """Print the load of a stored value; return False if the pass computes it."""
        if op.number not in self._loaded.get(reduction_pass.level, ()):
            return False
        self._slots.load(op)
        return True

    def store(self, op: LoopIROp) -> None:
        """Print the store of a value that was computed, if a later pass reads it."""
        if op.number in self._stored:
            self._slots.store(op)

    def _position(self, copy: int) -> str:
        p, plan = self._printer, self._printer.plan
        position = "0"
        for var in plan.inner:
            is_lane = var == plan.lane_var
            size = static_size(var.size)
            assert size is not None
            if is_lane:
                size = -(-size // plan.lanes) * plan.lanes
            if position != "0":
                position = p.writer.assign("at", f"mul i64 {position}, {size}")
            position = p.writer.assign("at", f"add i64 {position}, {p.variable(var, copy)}")
        if plan.lane_var not in plan.inner:
            scaled = p.writer.assign("at", f"mul i64 {position}, {plan.lanes * plan.copies}")
            position = p.writer.assign("at", f"add i64 {scaled}, {copy * plan.lanes}")
        return position
