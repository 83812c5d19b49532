"""One run over a row that is longer than a block: what it accumulates, what it stores, and what becomes of the accumulators after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine.ir.index import product
from engine.ir.loops import INNER, WRITES, Op, R
from engine.kernels.expressions import TYPES
from engine.kernels.needs import closure
from engine.kernels.text import Text, role

if TYPE_CHECKING:
    from engine.kernels.triton import Printer

EVICT_LAST, EVICT_FIRST = ', eviction_policy="evict_last"', ', eviction_policy="evict_first"'
"""What a row that is read again should do in the card's cache: stay until then, and make room afterwards."""

BEYOND_CACHE = 1 << 27
"""Bytes of a tensor that no card's cache holds."""


class Run:
    """The loop that everything needs whose operands are known after ``level`` earlier runs."""

    def __init__(self, printer: Printer, level: int) -> None:
        self.printer = printer
        live, levels = printer.live, printer.levels
        self.reductions = [op for op in live if op.name == "reduce" and levels[op.number] == level + 1]
        self.stores = [op for op in live if op.name in WRITES and R in op.space and levels[op.number] == level]
        self.exponentials = {first.number: op for op, first in self._beside(printer.online)}
        self.squares = {first.number: op for op, first in self._beside(printer.welford)}
        self.accumulators: dict[int, str] = {}
        beside = {op.number for op in (*self.exponentials.values(), *self.squares.values())}
        self.leading = [op for op in self.reductions if op.number not in beside]
        roots = [*(a for op in self.leading for a in op.args), *self.stores]
        self.needed = closure(roots, printer.kernel.ops, in_one_run=True)
        self.scans = [op for op in live if op.name == "scan" and op.number in self.needed]

    def _beside(self, firsts: dict[int, Op]) -> list[tuple[Op, Op]]:
        """Reductions of this run that are kept up beside another, and that other."""
        return [(op, firsts[op.number]) for op in self.reductions if op.number in firsts]

    def write(self, read: set[int], later: set[int]) -> None:
        """Print the loop, and what follows from it. Earlier runs have ``read`` what later ones need again: ``later``."""
        if not self.reductions and not self.stores:
            return
        p = self.printer
        p.loads_kept = {n: EVICT_LAST if n in later else EVICT_FIRST for n in self.needed & (read | later)}
        p.loads_kept |= {op.number: EVICT_FIRST for op in p.live if op.number not in read | later and self._passes(op)}
        p.stores_pass = bool(read)
        self._start()
        turns = f"0, {p.extent(R)}, COLS"
        if p.block.in_flight:
            p.add(f"for start in tl.range({turns}, num_stages={p.block.in_flight}):")
        else:
            p.add(f"for start in range({turns}):")
        p.indent = "        "
        p.add("col = start + cols")
        for op in p.live:
            is_needed = op.number in self.needed or (op.name == "check" and op.args[0].number in self.needed)
            if is_needed and R in op.space and (op.name not in WRITES or op in self.stores):
                p.texts.pop(op.number, None)
                p.write(op)
                if op in self.scans:
                    self._carry(op)
        for op in self.leading:
            if op.number in self.exponentials:
                self._accumulate_exponentials(op, self.exponentials[op.number])
            elif op.number in self.squares:
                self._accumulate_squares(op, self.squares[op.number])
            else:
                self._accumulate(op)
        p.indent = "    "
        for op in self.reductions:
            whole = self._whole(op)
            p.assign(op, Text(whole if self._is_one_number(op) else p.reduced(op, whole), True, (op.number,)))

    def _passes(self, op: Op) -> bool:
        """Whether a load reads once what no cache could hold anyway."""
        if op.name != "load" or op.space != INNER:
            return False
        buffer = self.printer.kernel.buffers[op.buffer]
        size = product(buffer.shape)
        return isinstance(size, int) and size * buffer.dtype.itemsize >= BEYOND_CACHE

    def _start(self) -> None:
        p = self.printer
        for op in self.scans:
            name = p.carries[op.number] = p.unique(f"{role(op.label or 'running')}_before")
            p.add(f"{name} = tl.full((), {p.neutral(op)}, {TYPES[op.dtype]})", (op.number,))
        for op in self.reductions:
            kind = "mean" if op.number in self.squares else "acc"
            name = self.accumulators[op.number] = p.unique(f"{role(op.label or 'total')}_{kind}")
            if self._is_one_number(op):
                start = "0.0" if op.value == "sum" else p.neutral(op)
                start = start if op.dtype == torch.float32 else f"tl.full((), {start}, {TYPES[op.dtype]})"
                p.add(f"{name} = {start}", (op.number,))
                continue
            shape = p.shape(op.args[0].space | {R})
            p.add(f"{name} = tl.full({shape}, {p.neutral(op)}, {TYPES[op.dtype]})", (op.number,))

    def _carry(self, scan: Op) -> None:
        """What comes after this block runs on from the block's last result."""
        p = self.printer
        last = f"tl.sum(tl.where(cols == COLS - 1, {p.text_of(scan).text}, 0), 0)"
        narrow = f".to({TYPES[scan.dtype]})" if scan.dtype in (torch.int8, torch.int16, torch.uint8) else ""
        p.add(f"{p.carries[scan.number]} = {last}{narrow}", (scan.number,))

    def _accumulate(self, op: Op) -> None:
        p, acc, value = self.printer, self.accumulators[op.number], self.printer.masked_value(op)
        combined = {"sum": f"{acc} + {value.closed}", "prod": f"{acc} * {value.closed}"}.get(
            op.value, f"tl.{'maximum' if op.value == 'max' else 'minimum'}({acc}, {value.text})"
        )
        p.add(f"{acc} = {combined}", (*value.ops, op.number))

    def _accumulate_exponentials(self, largest: Op, total: Op) -> None:
        """The largest value so far, and the sum of exponentials below it: what was summed below a smaller one is scaled down."""
        p, top, acc = self.printer, self.accumulators[largest.number], self.accumulators[total.number]
        value = p.masked_value(largest)
        if self._is_one_number(total):
            self._accumulate_in_one_number(largest, total, value)
            return
        behind = (*value.ops, largest.number, total.number, total.args[0].number)
        here, raised = p.unique(f"{top.removesuffix('_acc')}_here"), p.unique(f"{top.removesuffix('_acc')}_new")
        p.add(f"{here} = {value.text}", (*value.ops, largest.number))
        p.add(f"{raised} = tl.maximum({top}, {here})", (largest.number,))
        p.add(f"{acc} = {acc} * tl.where({top} == {raised}, 1.0, tl.exp({top} - {raised}))", behind)
        p.add(f'{acc} = {acc} + tl.where({here} == float("-inf"), 0.0, tl.exp({here} - {raised}))', behind)
        p.add(f"{top} = {raised}", (largest.number,))

    def _is_one_number(self, op: Op) -> bool:
        """Whether a whole row has one running value: the block is reduced each time, and few lanes hold many numbers."""
        pairs = {n for largest, total in self.exponentials.items() for n in (largest, total.number)}
        return self.printer.block.is_row and op.number in pairs

    def _accumulate_in_one_number(self, largest: Op, total: Op, value: Text) -> None:
        p, top, acc = self.printer, self.accumulators[largest.number], self.accumulators[total.number]
        behind = (*value.ops, largest.number, total.number, total.args[0].number)
        base = top.removesuffix("_acc")
        here, raised, below = (p.unique(f"{base}_{word}") for word in ("here", "new", "base"))
        p.add(f"{here} = {value.text}", (*value.ops, largest.number))
        p.add(f"{raised} = tl.maximum({top}, tl.max({here}, 0))", (largest.number,))
        p.add(f'{below} = tl.where({raised} == float("-inf"), 0.0, {raised})', behind)
        p.add(f"{acc} = {acc} * tl.exp({top} - {below}) + tl.sum(tl.exp({here} - {below}), 0)", behind)
        p.add(f"{top} = {raised}", (largest.number,))

    def _accumulate_squares(self, total: Op, squares: Op) -> None:
        """Each lane's mean so far, and the squares around it; a lane beyond the row's end keeps what it has."""
        p, mean, acc = self.printer, self.accumulators[total.number], self.accumulators[squares.number]
        value = p.text_of(total.args[0])
        behind = (*value.ops, total.number, squares.number, squares.args[0].number)
        off = p.unique(f"{mean.removesuffix('_mean')}_off")
        p.add(f"{off} = {self._inside(f'{value.closed} - {mean}')}", behind)
        p.add(f"{mean} = {mean} + {off} * (1.0 / (start // COLS + 1))", behind)
        p.add(f"{acc} = {acc} + {self._inside(f'{off} * ({value.closed} - {mean})')}", behind)

    def _inside(self, text: str) -> str:
        p = self.printer
        return f"tl.where({p.inside(R)}, {text}, 0.0)" if p.r_masked else text

    def _whole(self, op: Op) -> str:
        """The accumulator that a reduction is made from, after the loop."""
        p = self.printer
        if op.number in p.online:
            return self._rescaled(op, p.online[op.number])
        if op.number in self.squares:
            return f"{self.accumulators[op.number]} * {self._lengths(op)}"
        if op.number in p.welford:
            return self._recentred(op, p.welford[op.number])
        return self.accumulators[op.number]

    def _lengths(self, total: Op) -> str:
        """How many elements each lane has seen."""
        p = self.printer
        name = self.accumulators[total.number].removesuffix("_mean") + "_seen"
        if name not in p.taken:
            p.taken.add(name)
            p.add(f"{name} = ({p.extent(R)} - cols + (COLS - 1)) // COLS", (total.number,))
        return name

    def _recentred(self, squares: Op, total: Op) -> str:
        """Each lane's squares around the mean of the whole row."""
        p, mean, acc = self.printer, self.accumulators[total.number], self.accumulators[squares.number]
        average = squares.args[0].args[0].args[1]
        whole = f"{p.text_of(total).closed} / {p.text_of(average.args[1]).closed}"
        off = f"({mean} - {whole})"
        p.add(f"{acc} = {acc} + {off} * {off} * {self._lengths(total)}", (squares.number, squares.args[0].number))
        return acc

    def _rescaled(self, total: Op, largest: Op) -> str:
        """Each lane's sum below the row's largest value; a row of nothing but -inf has no such sum, as in eager."""
        p, top, acc = self.printer, self.accumulators[largest.number], self.accumulators[total.number]
        whole = p.text_of(largest).text
        if self._is_one_number(total):
            return f'tl.where({whole} == float("-inf"), float("nan"), {acc})'
        scaled = f"{acc} * tl.where({top} == {whole}, 1.0, tl.exp({top} - {whole}))"
        behind = (total.number, total.args[0].number)
        p.add(f'{acc} = tl.where({whole} == float("-inf"), float("nan"), {scaled})', behind)
        return acc
