"""One pass over the inner loops: accumulators, carries, stores along the row."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch

from engine.ir.loop_ir.index_expr import product
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, compute_dtype
from engine.ir.static_sizes import static_size
from engine.kernels.cpu.lane_values import Value
from engine.kernels.cpu.llvm_types import NotPrintable, iota, literal, splat, type_suffix, value_type, wide
from engine.kernels.cpu.op_printer import OpPrinter
from engine.kernels.dependences import transitive_inputs

STEPS_OF_PART = 128
"""Steps of the innermost loop that are added in float32, and then to float64.

Each may round in the same direction, which a sum of many terms would show.
"""


class ReductionPass:
    """A pass over all inner loops, for the ops that need ``level`` earlier passes."""

    def __init__(self, printer: OpPrinter, live: Sequence[LoopIROp], levels: dict[int, int], level: int) -> None:
        self.printer = printer
        self.level = level
        inner = frozenset(printer.plan.inner)
        self.reductions = [op for op in live if op.name == "reduce" and levels[op.number] == level + 1]
        self.stores = [
            op
            for op in live
            if op.name in WRITE_OPS and levels[op.number] == level and printer.vars_of[op.number] & inner
        ]
        self._checks = [
            op
            for op in live
            if op.name == "check" and levels[op.number] == level and printer.vars_of[op.number] & inner
        ]
        kept = {op.number for op in self.stores}
        self.ops = [op for op in live if op.name not in WRITE_OPS or op.number in kept]
        self.remove_inputs_of(())
        self._slots: dict[int, list[str]] = {}
        self._part_slots: dict[int, list[str]] = {}
        """Float32 accumulators of the current part of the innermost loop, by op."""

    def remove_inputs_of(self, stop_at: Collection[int]) -> None:
        """Remove the ops that the pass does not need, given the values of the ops ``stop_at``."""
        roots = [*(a for op in self.reductions for a in op.args), *self.stores, *self._checks]
        needed = transitive_inputs(roots, self.printer.kernel.ops, in_one_loop=True, stop_at=stop_at)
        self.ops = [op for op in self.ops if op.number in needed]

    @property
    def scans(self) -> list[LoopIROp]:
        """The scans that the pass computes."""
        return [op for op in self.ops if op.name == "scan"]

    @property
    def is_needed(self) -> bool:
        """True if the pass computes anything."""
        return bool(self.reductions or self.stores or self._checks)

    def _has_lane_accumulator(self, op: LoopIROp) -> bool:
        plan = self.printer.plan
        return plan.lane_var is not None and (
            plan.lane_var in plan.inner or plan.lane_var in self.printer.vars_of[op.number]
        )

    @property
    def part_sums(self) -> list[LoopIROp]:
        """The float32 sums with a float64 accumulator: parts of a loop are added in float32."""
        return [op for op in self.reductions if self.accumulator_dtype(op) != compute_dtype(op.dtype)]

    def open_part(self) -> None:
        """Set the float32 accumulators of a part of the innermost loop to zero."""
        for op in self.part_sums:
            kind = wide(value_type(torch.float32), self._lanes(op))
            slots = [self.printer.writer.entry("part.slot", f"alloca {kind}") for _ in self._slots[op.number]]
            self._part_slots[op.number] = slots
            for slot in slots:
                self.printer.writer.line(f"store {kind} zeroinitializer, ptr {slot}")

    def close_part(self) -> None:
        """Add the float32 accumulators of a part to those in float64."""
        p = self.printer
        for op in self.part_sums:
            lanes = self._lanes(op)
            kinds = [wide(value_type(dtype), lanes) for dtype in (torch.float32, torch.float64)]
            p.writer.ops = (op.number,)
            for part, slot in zip(self._part_slots.pop(op.number), self._slots[op.number], strict=True):
                added = self._convert(
                    op, p.writer.assign("part", f"load {kinds[0]}, ptr {part}"), lanes, is_result=False
                )
                before = p.writer.assign("before", f"load {kinds[1]}, ptr {slot}")
                after = p.arithmetic.combine("sum", torch.float64, lanes, before, added)
                p.writer.line(f"store {kinds[1]} {after}, ptr {slot}")
            p.writer.ops = ()

    def _lanes(self, op: LoopIROp) -> int:
        return self.printer.plan.lanes if self._has_lane_accumulator(op) else 1

    def accumulator_dtype(self, op: LoopIROp) -> torch.dtype:
        """Return the dtype of accumulators: float64 for sums of many, or unknown many, floats."""
        dtype, plan = compute_dtype(op.dtype), self.printer.plan
        if dtype != torch.float32 or op.value != "sum":
            return dtype
        terms = static_size(product(v.size for v in plan.inner))
        width = plan.lanes * plan.copies if plan.lane_var in plan.inner else 1
        return torch.float64 if terms is None or terms > STEPS_OF_PART * width else dtype

    def print_initial_values(self) -> None:
        """Reserve the accumulators and set them to the identity."""
        p = self.printer
        inner_lanes = p.plan.lane_var in p.plan.inner
        for op in (*self.reductions, *self.scans):
            dtype = self.accumulator_dtype(op) if op.name == "reduce" else carry_dtype(op)
            lanes, scalar = self._lanes(op), value_type(dtype)
            copies = (p.plan.copies if inner_lanes else p.copies) if lanes > 1 else 1
            kind = wide(scalar, lanes)
            slots = [p.writer.entry(f"{p.hint(op)}.slot", f"alloca {kind}") for _ in range(copies)]
            self._slots[op.number] = slots
            identity = splat(scalar, identity_of(op, dtype), lanes)
            for slot in slots:
                p.writer.line(f"store {kind} {identity}, ptr {slot}")

    def accumulate(self) -> None:
        """Print the step of each reduction in the body of the innermost loop."""
        p = self.printer
        for op in self.reductions:
            slots, lanes = self._part_slots.get(op.number), self._lanes(op)
            dtype = self.accumulator_dtype(op) if slots is None else compute_dtype(op.dtype)
            scalar = value_type(dtype)
            kind = wide(scalar, lanes)
            p.writer.ops = (op.number,)
            for copy in range(p.copies if lanes > 1 else 1):
                operand = self.operand(op, copy, lanes) if slots is None else p.lane_name(op.args[0], copy, lanes)
                slot = (slots or self._slots[op.number])[copy]
                if (lanes_left := p.lane_mask(copy)) and p.plan.lane_var in p.plan.inner:
                    identity = splat(scalar, identity_of(op, dtype), lanes)
                    operand = p.arithmetic.select("given", lanes_left, kind, lanes, operand, identity)
                before = p.writer.assign("before", f"load {kind}, ptr {slot}")
                after = p.arithmetic.combine(str(op.value), dtype, lanes, before, operand)
                p.writer.line(f"store {kind} {after}, ptr {slot}")
            p.writer.ops = ()

    def operand(self, op: LoopIROp, copy: int, lanes: int) -> str:
        """Return what a reduction adds to its accumulator, in the accumulator's dtype."""
        return self._convert(op, self.printer.lane_name(op.args[0], copy, lanes), lanes, is_result=False)

    def _convert(self, op: LoopIROp, name: str, lanes: int, *, is_result: bool) -> str:
        """Convert a value to the dtype of the accumulators, or back to that of the result."""
        own, goal = compute_dtype(op.dtype), self.accumulator_dtype(op)
        if own == goal:
            return name
        if is_result:
            own, goal = goal, own
        return self.printer.arithmetic.convert(name, own, goal, lanes, self.printer.hint(op))

    def print_scan(self, op: LoopIROp) -> None:
        """Print one step of a scan; its carry is the value."""
        p = self.printer
        lanes, dtype, result = self._lanes(op), carry_dtype(op), compute_dtype(op.dtype)
        kind, names = wide(value_type(dtype), lanes), []
        p.writer.ops = (op.number,)
        for copy in range(p.copies if lanes > 1 else 1):
            slot, operand = self._slots[op.number][copy], p.lane_name(op.args[0], copy, lanes)
            if dtype != result:
                operand = p.arithmetic.convert(operand, result, dtype, lanes, "given")
            before = p.writer.assign("carry", f"load {kind}, ptr {slot}")
            if op.value in ("max", "min"):
                after = p.arithmetic.nan_aware_extreme(str(op.value), dtype, lanes, before, operand)
            else:
                after = p.arithmetic.combine(str(op.value), dtype, lanes, before, operand)
            p.writer.line(f"store {kind} {after}, ptr {slot}")
            if dtype != result:
                after = p.arithmetic.convert(after, dtype, result, lanes, p.hint(op))
            names.append(after)
        p.values.set(op.number, Value(tuple(names), lanes, value_type(result)))
        p.writer.ops = ()

    def print_results(self) -> None:
        """Print the reduced values, after the loops."""
        p = self.printer
        for op in self.reductions:
            lanes, dtype = self._lanes(op), self.accumulator_dtype(op)
            scalar, slots = value_type(compute_dtype(op.dtype)), self._slots[op.number]
            kind = wide(value_type(dtype), lanes)
            p.writer.ops = (op.number,)
            names = [p.writer.assign(p.hint(op), f"load {kind}, ptr {slot}") for slot in slots]
            if lanes > 1 and p.plan.lane_var in p.plan.inner:
                total = names[0]
                for other in names[1:]:
                    total = p.arithmetic.combine(str(op.value), dtype, lanes, total, other)
                total = self._reduce_across_lanes(op, total, lanes, dtype)
                p.values.set(op.number, Value((self._convert(op, total, 1, is_result=True),), 1, scalar))
            else:
                results = tuple(self._convert(op, name, lanes, is_result=True) for name in names)
                p.values.set(op.number, Value(results, lanes, scalar))
            p.writer.ops = ()

    def _reduce_across_lanes(self, op: LoopIROp, name: str, lanes: int, dtype: torch.dtype) -> str:
        """Reduce a vector's lanes to one value; float extremes by halves."""
        p, scalar = self.printer, value_type(dtype)
        is_float, operation = dtype.is_floating_point, str(op.value)
        kind, suffix = wide(scalar, lanes), type_suffix(scalar, lanes)
        if is_float and operation in ("sum", "prod"):
            function, start = ("fadd", -0.0) if operation == "sum" else ("fmul", 1.0)
            arguments = [(scalar, literal(start, dtype)), (kind, name)]
            return p.writer.call(p.hint(op), f"llvm.vector.reduce.{function}.{suffix}", scalar, arguments, "reassoc ")
        if is_float:
            return self._halve(op, name, lanes, dtype)
        unsigned = dtype in (torch.uint8, torch.bool)
        function = {"sum": "add", "prod": "mul"}.get(operation) or ("u" if unsigned else "s") + operation
        return p.writer.call(p.hint(op), f"llvm.vector.reduce.{function}.{suffix}", scalar, [(kind, name)])

    def _halve(self, op: LoopIROp, name: str, lanes: int, dtype: torch.dtype) -> str:
        """Reduce the lanes in few steps: each combines the halves of a vector.

        LLVM's own reduction to an extreme takes one step for each lane.
        """
        p, scalar, operation = self.printer, value_type(dtype), str(op.value)
        while lanes > 2:
            kind, lanes = wide(scalar, lanes), lanes // 2
            halves = [
                f"shufflevector {kind} {name}, {kind} poison, <{lanes} x i32> {iota(lanes, 'i32', start=start)}"
                for start in (0, lanes)
            ]
            name = p.arithmetic.combine(operation, dtype, lanes, *(p.writer.assign("half", text) for text in halves))
        last = [p.writer.assign("lane", f"extractelement {wide(scalar, 2)} {name}, i32 {n}") for n in range(2)]
        return p.arithmetic.combine(operation, dtype, 1, *last)


def carry_dtype(op: LoopIROp) -> torch.dtype:
    """Return the dtype of a scan's carry: eager sums and multiplies float32 in float64."""
    dtype = compute_dtype(op.dtype)
    return torch.float64 if dtype == torch.float32 and op.value in ("sum", "prod") else dtype


def identity_of(op: LoopIROp, dtype: torch.dtype) -> str:
    """Return the identity of a reduction as a literal.

    Raises:
        NotPrintable: the kind of reduction has no code.
    """
    operation = op.value
    if operation in ("sum", "prod"):
        return literal(0 if operation == "sum" else 1, dtype)
    if operation not in ("max", "min"):
        raise NotPrintable(f"a reduction by {operation} has no code for the CPU", op.node_ids)
    if dtype == torch.bool:
        return literal(operation == "min", dtype)
    if dtype.is_floating_point:
        return literal(-math.inf if operation == "max" else math.inf, dtype)
    limits = torch.iinfo(dtype)
    return literal(limits.min if operation == "max" else limits.max, dtype)
