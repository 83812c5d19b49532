"""Looped reductions: one loop over a row that is longer than a block.

It contains the accumulators, the stores, and the final reduction of the accumulators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine.ir.loop_ir.index_expr import static_product
from engine.ir.loop_ir.ops import VARIES_WITH_XR, WRITE_OPS, LoopIROp, R
from engine.kernels.dependences import transitive_inputs
from engine.kernels.source_builder import Expression, name_from_label
from engine.kernels.triton.op_codegen import TRITON_DTYPES

if TYPE_CHECKING:
    from engine.kernels.triton.loop_printer import LoopPrinter

EVICT_LAST, EVICT_FIRST = ', eviction_policy="evict_last"', ', eviction_policy="evict_first"'
"""Cache hints for a row that is read again: retain it until then, evict it afterward."""

LARGER_THAN_CACHE = 1 << 27
"""Bytes of a tensor that exceed the cache of every GPU."""


class ReductionLoop:
    """Loop over all ops whose operands are known after ``level`` earlier loops."""

    def __init__(self, printer: LoopPrinter, level: int) -> None:
        self.printer = printer
        live, levels = printer.live_ops, printer.loop_levels
        self.reductions = [op for op in live if op.name == "reduce" and levels[op.number] == level + 1]
        self.stores = [op for op in live if op.name in WRITE_OPS and R in op.loops and levels[op.number] == level]
        self.online_softmax_sums = {first.number: op for op, first in self._paired_reductions(printer.online_softmax)}
        self.welford_squares = {first.number: op for op, first in self._paired_reductions(printer.welford)}
        self.accumulators: dict[int, str] = {}
        beside = {op.number for op in (*self.online_softmax_sums.values(), *self.welford_squares.values())}
        self.leading_reductions = [op for op in self.reductions if op.number not in beside]
        roots = [*(a for op in self.leading_reductions for a in op.args), *self.stores]
        self.needed_ops = transitive_inputs(roots, printer.kernel.ops, in_one_loop=True)
        self.scans = [op for op in live if op.name == "scan" and op.number in self.needed_ops]

    def _paired_reductions(self, firsts: dict[int, LoopIROp]) -> list[tuple[LoopIROp, LoopIROp]]:
        """Return the reductions of this loop that accumulate along with another, and that other."""
        return [(op, firsts[op.number]) for op in self.reductions if op.number in firsts]

    def print_loop(self, read: set[int], later: set[int]) -> None:
        """Print the loop and the results that follow from it.

        ``read`` are ops that earlier loops computed, ``later`` those that later loops need.
        """
        if not self.reductions and not self.stores:
            return
        p = self.printer
        p.expressions.eviction_hints = {
            n: EVICT_LAST if n in later else EVICT_FIRST for n in self.needed_ops & (read | later)
        }
        p.expressions.eviction_hints |= {
            op.number: EVICT_FIRST
            for op in p.live_ops
            if op.number not in read | later and self._streams_past_cache(op)
        }
        p.streams_stores = bool(read)
        self._print_initial_values()
        turns = f"0, {p.blocks.loop_size_text(R)}, COLS"
        if p.block.prefetch_depth:
            p.add_line(f"for start in tl.range({turns}, num_stages={p.block.prefetch_depth}):")
        else:
            p.add_line(f"for start in range({turns}):")
        p.indent = "        "
        p.add_line("col = start + cols")
        for op in p.live_ops:
            is_needed = op.number in self.needed_ops or (op.name == "check" and op.args[0].number in self.needed_ops)
            if is_needed and R in op.loops and (op.name not in WRITE_OPS or op in self.stores):
                p.expressions.known.pop(op.number, None)
                p.print_op(op)
                if op in self.scans:
                    self._print_scan_carry(op)
        for op in self.leading_reductions:
            if op.number in self.online_softmax_sums:
                self._accumulate_online_softmax(op, self.online_softmax_sums[op.number])
            elif op.number in self.welford_squares:
                self._accumulate_welford(op, self.welford_squares[op.number])
            else:
                self._accumulate(op)
        p.indent = "    "
        for op in self.reductions:
            whole = self._final_accumulator(op)
            p.assign_value(
                op,
                Expression(
                    whole if self._is_scalar_accumulator(op) else p.expressions.reduction_text(op, whole),
                    True,
                    (op.number,),
                ),
            )

    def _streams_past_cache(self, op: LoopIROp) -> bool:
        """Return True if a load reads only once a tensor that exceeds every cache."""
        if op.name != "load" or op.loops != VARIES_WITH_XR:
            return False
        buffer = self.printer.kernel.buffers[op.buffer]
        return (static_product((*buffer.shape, buffer.dtype.itemsize)) or 0) >= LARGER_THAN_CACHE

    def _print_initial_values(self) -> None:
        p = self.printer
        for op in self.scans:
            name = p.expressions.scan_carries[op.number] = p.parameters.unique_name(
                f"{name_from_label(op.label or 'running')}_before"
            )
            p.add_line(
                f"{name} = tl.full((), {p.expressions.identity_text(op)}, {TRITON_DTYPES[op.dtype]})", (op.number,)
            )
        for op in self.reductions:
            kind = "mean" if op.number in self.welford_squares else "acc"
            name = self.accumulators[op.number] = p.parameters.unique_name(
                f"{name_from_label(op.label or 'total')}_{kind}"
            )
            if self._is_scalar_accumulator(op):
                start = "0.0" if op.value == "sum" else p.expressions.identity_text(op)
                start = start if op.dtype == torch.float32 else f"tl.full((), {start}, {TRITON_DTYPES[op.dtype]})"
                p.add_line(f"{name} = {start}", (op.number,))
                continue
            shape = p.blocks.shape_text(op.args[0].loops | {R})
            p.add_line(
                f"{name} = tl.full({shape}, {p.expressions.identity_text(op)}, {TRITON_DTYPES[op.dtype]})", (op.number,)
            )

    def _print_scan_carry(self, scan: LoopIROp) -> None:
        """Carry the last result of a scan's block over to the next block."""
        p = self.printer
        last = f"tl.sum(tl.where(cols == COLS - 1, {p.expressions.of(scan).text}, 0), 0)"
        narrow = f".to({TRITON_DTYPES[scan.dtype]})" if scan.dtype in (torch.int8, torch.int16, torch.uint8) else ""
        p.add_line(f"{p.expressions.scan_carries[scan.number]} = {last}{narrow}", (scan.number,))

    def _accumulate(self, op: LoopIROp) -> None:
        p, acc, value = self.printer, self.accumulators[op.number], self.printer.expressions.masked_value(op)
        combined = {"sum": f"{acc} + {value.parenthesized}", "prod": f"{acc} * {value.parenthesized}"}.get(
            op.value, f"tl.{'maximum' if op.value == 'max' else 'minimum'}({acc}, {value.text})"
        )
        p.add_line(f"{acc} = {combined}", (*value.ops, op.number))

    def _accumulate_online_softmax(self, largest: LoopIROp, total: LoopIROp) -> None:
        """Accumulate a maximum and a sum of exponentials relative to it (online softmax).

        When the maximum rises, the sum so far is scaled down.
        """
        p, top, acc = self.printer, self.accumulators[largest.number], self.accumulators[total.number]
        value = p.expressions.masked_value(largest)
        if self._is_scalar_accumulator(total):
            self._accumulate_scalar_online_softmax(largest, total, value)
            return
        behind = (*value.ops, largest.number, total.number, total.args[0].number)
        here, raised = (p.parameters.unique_name(f"{top.removesuffix('_acc')}_{word}") for word in ("here", "new"))
        p.add_line(f"{here} = {value.text}", (*value.ops, largest.number))
        p.add_line(f"{raised} = tl.maximum({top}, {here})", (largest.number,))
        p.add_line(f"{acc} = {acc} * tl.where({top} == {raised}, 1.0, tl.exp({top} - {raised}))", behind)
        p.add_line(f'{acc} = {acc} + tl.where({here} == float("-inf"), 0.0, tl.exp({here} - {raised}))', behind)
        p.add_line(f"{top} = {raised}", (largest.number,))

    def _is_scalar_accumulator(self, op: LoopIROp) -> bool:
        """Return True if a whole row has one scalar accumulator; each block is reduced at once."""
        pairs = {n for largest, total in self.online_softmax_sums.items() for n in (largest, total.number)}
        return self.printer.block.is_one_row_per_program and op.number in pairs

    def _accumulate_scalar_online_softmax(self, largest: LoopIROp, total: LoopIROp, value: Expression) -> None:
        p, top, acc = self.printer, self.accumulators[largest.number], self.accumulators[total.number]
        behind = (*value.ops, largest.number, total.number, total.args[0].number)
        base = top.removesuffix("_acc")
        here, raised, below = (p.parameters.unique_name(f"{base}_{word}") for word in ("here", "new", "base"))
        p.add_line(f"{here} = {value.text}", (*value.ops, largest.number))
        p.add_line(f"{raised} = tl.maximum({top}, tl.max({here}, 0))", (largest.number,))
        p.add_line(f'{below} = tl.where({raised} == float("-inf"), 0.0, {raised})', behind)
        p.add_line(f"{acc} = {acc} * tl.exp({top} - {below}) + tl.sum(tl.exp({here} - {below}), 0)", behind)
        p.add_line(f"{top} = {raised}", (largest.number,))

    def _accumulate_welford(self, total: LoopIROp, squares: LoopIROp) -> None:
        """Accumulate each lane's mean and the squares around it (Welford).

        Lanes out of bounds are unchanged.
        """
        p, mean, acc = self.printer, self.accumulators[total.number], self.accumulators[squares.number]
        value = p.expressions.of(total.args[0])
        behind = (*value.ops, total.number, squares.number, squares.args[0].number)
        off = p.parameters.unique_name(f"{mean.removesuffix('_mean')}_off")
        p.add_line(f"{off} = {self._zero_out_of_bounds(f'{value.parenthesized} - {mean}')}", behind)
        p.add_line(f"{mean} = {mean} + {off} * (1.0 / (start // COLS + 1))", behind)
        p.add_line(f"{acc} = {acc} + {self._zero_out_of_bounds(f'{off} * ({value.parenthesized} - {mean})')}", behind)

    def _zero_out_of_bounds(self, text: str) -> str:
        p = self.printer
        return f"tl.where({p.blocks.bounds_test(R)}, {text}, 0.0)" if R in p.blocks.masked_loops else text

    def _final_accumulator(self, op: LoopIROp) -> str:
        """Return the accumulator from which a reduction is computed after the loop."""
        p = self.printer
        if op.number in p.online_softmax:
            return self._rescale_online_softmax(op, p.online_softmax[op.number])
        if op.number in self.welford_squares:
            return f"{self.accumulators[op.number]} * {self._element_counts(op)}"
        if op.number in p.welford:
            return self._combine_welford(op, p.welford[op.number])
        return self.accumulators[op.number]

    def _element_counts(self, total: LoopIROp) -> str:
        """Return the name of the number of elements that each lane has accumulated."""
        p = self.printer
        name = self.accumulators[total.number].removesuffix("_mean") + "_seen"
        if name not in p.parameters.used_names:
            p.parameters.used_names.add(name)
            p.add_line(f"{name} = ({p.blocks.loop_size_text(R)} - cols + (COLS - 1)) // COLS", (total.number,))
        return name

    def _combine_welford(self, squares: LoopIROp, total: LoopIROp) -> str:
        """Center each lane's squares on the mean of the whole row."""
        p, mean, acc = self.printer, self.accumulators[total.number], self.accumulators[squares.number]
        average = squares.args[0].args[0].args[1]
        whole = f"{p.expressions.of(total).parenthesized} / {p.expressions.of(average.args[1]).parenthesized}"
        off = f"({mean} - {whole})"
        p.add_line(
            f"{acc} = {acc} + {off} * {off} * {self._element_counts(total)}", (squares.number, squares.args[0].number)
        )
        return acc

    def _rescale_online_softmax(self, total: LoopIROp, largest: LoopIROp) -> str:
        """Scale each lane's sum to the maximum of the row.

        The sum of a row that contains only -inf is NaN, as in eager.
        """
        p, top, acc = self.printer, self.accumulators[largest.number], self.accumulators[total.number]
        whole = p.expressions.of(largest).text
        if self._is_scalar_accumulator(total):
            return f'tl.where({whole} == float("-inf"), float("nan"), {acc})'
        scaled = f"{acc} * tl.where({top} == {whole}, 1.0, tl.exp({top} - {whole}))"
        behind = (total.number, total.args[0].number)
        p.add_line(f'{acc} = tl.where({whole} == float("-inf"), float("nan"), {scaled})', behind)
        return acc
