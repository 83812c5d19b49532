"""Prints a loop kernel as readable LLVM IR, with the ops behind each line.

The function is ``i32 name(ptr arguments, i64 begin, i64 end)``. It runs iterations ``begin`` to ``end`` of its
outermost loop, so that threads can share it. The result is 0, or the number of the bounds check that failed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.ir.kernels.generated_kernel import GeneratedKernel, KernelArg
from engine.ir.kernels.host_vectors import VectorUnit
from engine.ir.loop_ir.index_conditions import MAX_OPS_IN_PIECES, pieces_of
from engine.ir.loop_ir.index_expr import LoopVar, Size, as_size, product
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.loop_ir.ops import WRITE_OPS
from engine.ir.reachable import reachable
from engine.ir.static_sizes import static_size
from engine.kernels import dependences
from engine.kernels.cpu.lane_values import Value
from engine.kernels.cpu.llvm_types import NotPrintable, iota, wide
from engine.kernels.cpu.loop_plan import LoopPlan, is_transposed, make_plan
from engine.kernels.cpu.op_printer import OpPrinter
from engine.kernels.cpu.reduction_pass import STEPS_OF_PART, ReductionPass
from engine.kernels.cpu.row_slots import RowSlots
from engine.kernels.cpu.shared_rows import SharedRows
from engine.kernels.cpu.strip_pass import StripPass
from engine.kernels.kernel_parameters import KernelParameters
from engine.kernels.source_builder import SourceLine
from engine.records.kernels import LoopOp

LANE_CHUNK = 256
"""Threads share a vector loop in multiples of this: its masked rest occurs once."""

MAX_ROW_OPS = 256
"""Most ops of the rows of a tile together if all rows are printed."""


def print_llvm(kernel: LoopKernel, unit: VectorUnit) -> GeneratedKernel:
    """Print the LLVM IR of a kernel for a vector unit.

    Raises:
        NotPrintable: an op or a dtype has no code for the CPU.
    """
    return NestPrinter(kernel, unit).source()


class NestPrinter:
    """Prints the loops of one kernel, from the outermost in."""

    def __init__(self, kernel: LoopKernel, unit: VectorUnit) -> None:
        if kernel.vector_config is not None:
            unit = unit.narrowed(kernel.vector_config.bits)
        self.kernel = kernel
        self.live_ops = dependences.live_ops(kernel.ops, keeps_checks=True)
        self.plan: LoopPlan = make_plan(kernel, self.live_ops, unit)
        self.parameters = KernelParameters(kernel)
        self.parameters.used_names = {"arguments", "begin", "end", "entry", "result"}
        self.parameters.name_pointers(kernel, self.live_ops)
        self.printer = OpPrinter(kernel, self.plan, self.parameters, unit)
        self.writer = self.printer.writer
        self.shared_rows = SharedRows(self.printer, self.live_ops)
        needed = self.shared_rows.needed(self.live_ops)
        levels = dependences.loop_levels(kernel.ops, set())
        has_inner = bool(self.plan.inner) or any(op.name == "reduce" for op in self.live_ops)
        pass_type = StripPass if self.plan.strip else ReductionPass
        self.passes = [
            pass_type(self.printer, needed, levels, level)
            for level in range(max(levels.values(), default=0) + 1 if has_inner else 0)
        ]
        self.row_slots = RowSlots(self.printer, self.passes, self.shared_rows.numbers)
        inner = frozenset(self.plan.inner)
        self._needed: set[int] | None = None
        """Numbers of the ops that the current piece of the vector loop needs; None for all."""
        self.outer_ops = [op for op in needed if op.name != "reduce" and not self.printer.vars_of[op.number] & inner]

    def source(self) -> GeneratedKernel:
        """Print the kernel and return all data about it.

        Raises:
            NotPrintable: an op or a dtype has no code for the CPU.
        """
        try:
            self._print_parallel_loop()
        except NotPrintable as error:
            printed = (op for op in self.live_ops if op.number in self.writer.ops)
            error.nodes = error.nodes or [node for op in printed for node in op.node_ids]
            raise
        if missed := [op for op in self.live_ops if op.name in WRITE_OPS and op.number not in self.printer.printed]:
            raise NotPrintable(f"{missed[0].label} is not stored")
        args = (*self.parameters.pointer_args, *self.parameters.size_args(), *self._cost_args())
        lines = self._text_lines(args)
        prefix, values = self.kernel.prefix, {b: p.removesuffix("_ptr") for b, p in self.parameters.pointers.items()}
        return GeneratedKernel(
            id=self.kernel.id,
            name=self.parameters.kernel_name,
            text="\n".join(line.text for line in lines) + "\n",
            args=args,
            grid=(self.plan.extent, self._chunk()),
            line_ops=tuple(tuple(f"{prefix}:{n}" for n in sorted(set(line.ops))) for line in lines),
            ops=tuple(LoopOp(f"{prefix}:{op.number}", op.to_text(values), tuple(op.node_ids)) for op in self.live_ops),
            nodes=self.kernel.nodes,
            bytes_moved=self.kernel.bytes_moved,
            flops=self.kernel.flops,
            checks=tuple(str(op.value or op.name) for op in self.printer.checks),
            loads_tiles=self.plan.tile_var is not None,
        )

    def _chunk(self) -> int:
        """Return the iterations that threads take multiples of."""
        if self.plan.parallel and self.plan.parallel[-1] == self.plan.tile_var:
            return self.plan.lanes * self.plan.tiles
        return LANE_CHUNK if self.plan.shares_lanes else 1

    def _cost_args(self) -> tuple[KernelArg, ...]:
        """Return the launcher's parameters: shared iterations, and the cost of one."""
        extent = KernelArg("extent", "size", "i64", value=self.plan.extent)
        if self.plan.is_serial:
            return (extent, KernelArg("item_cost", "size", "i64", value=0))
        loops = [*self.plan.parallel, *self.plan.outer, *self.plan.inner]
        cost: Size = 4 + 2 * sum(1 for op in self.live_ops if op.buffer) + sum(op.cost for op in self.live_ops)
        skipped = {self.plan.lane_var} if self.plan.shares_lanes else set(self.plan.parallel)
        item = as_size(cost * product(v.size for v in loops if v not in skipped))
        return (extent, KernelArg("item_cost", "size", "i64", value=item))

    def _text_lines(self, args: Sequence[KernelArg]) -> list[SourceLine]:
        name, writer = self.parameters.kernel_name, self.writer
        vector = f"{self.plan.lanes} lanes" if self.plan.lanes > 1 else "no vectors"
        head = [
            f"; {', '.join(self.kernel.name_parts) or 'copy'}: {vector}",
            f"define i32 @{name}(ptr noalias %arguments, i64 %begin, i64 %end) #0 {{",
            "entry:",
        ]
        lines = [SourceLine(text) for text in head]
        for number, argument in enumerate(args[:-2]):
            address = f"getelementptr (ptr, ptr %arguments, i64 {number})"
            slot = f"%{argument.name}.slot.{number}"
            kind = "ptr" if argument.kind == "pointer" else "double" if argument.is_fraction else "i64"
            lines.append(SourceLine(f"  {slot} = {address.replace('(', '').replace(')', '')}"))
            if argument.triton_type == "fp32":
                lines.append(SourceLine(f"  %{argument.name}.wide = load double, ptr {slot}"))
                lines.append(SourceLine(f"  %{argument.name} = fptrunc double %{argument.name}.wide to float"))
            else:
                lines.append(SourceLine(f"  %{argument.name} = load {kind}, ptr {slot}"))
        lines += [*writer.entry_lines, *writer.lines]
        lines += [SourceLine("}"), SourceLine("")]
        helpers = [line for text in self.printer.math.helpers.values() for line in text.rstrip().split("\n")]
        declared = {line for line in helpers if line.startswith("declare")}
        lines += [SourceLine(line) for line in helpers if not line.startswith("declare")]
        return [*lines, *map(SourceLine, sorted(declared | set(writer.declarations.values())))]

    def _print_parallel_loop(self) -> None:
        """Print the loop that threads share, and all loops inside."""
        plan, writer = self.plan, self.writer
        writer.entry_lines.append(SourceLine("  %status.slot = alloca i32"))
        writer.line("store i32 0, ptr %status.slot")
        self._print_ready(frozenset())
        self.shared_rows.print_values(self._lane_loops)
        if plan.parallel and plan.parallel[0] == plan.tile_var:
            self._print_tile_loops(plan.outer, frozenset(), "%begin", "%end")
        elif plan.parallel:
            with self._loop(plan.parallel[0].name, "%begin", "%end") as name:
                self._bind_parallel(name)
                self._print_ready(frozenset(plan.parallel))
                self._print_outer(plan.outer, frozenset(plan.parallel))
        else:
            self._print_outer(plan.outer, frozenset())
        writer.line("%result = load i32, ptr %status.slot")
        writer.line("ret i32 %result")

    def _bind_parallel(self, name: str) -> None:
        """Compute the variables of the merged outermost loops."""
        remainder = name
        for var in reversed(self.plan.parallel[1:]):
            size = self.printer.addresses.size_name(var.size)
            self.printer.variables[var] = (self.writer.assign(var.name, f"urem i64 {remainder}, {size}"),)
            remainder = self.writer.assign("rest", f"udiv i64 {remainder}, {size}")
        self.printer.variables[self.plan.parallel[0]] = (remainder,)

    def _print_outer(self, loops: tuple[LoopVar, ...], opened: frozenset[LoopVar]) -> None:
        """Print the remaining outer loops and their bodies."""
        if not loops:
            self._print_passes(opened)
            return
        var, inner_loops = loops[0], loops[1:]
        now = opened | {var}
        if var == self.plan.lane_var:
            start, stop = ("%begin", "%end") if self.plan.shares_lanes else ("0", None)
            if self.plan.strip:
                self._print_strips(var, opened, start, stop)
                return
            for _ in self._pieces(var, start, stop):
                self._print_ready(now)
                self._print_outer(inner_loops, now)
            return
        if var == self.plan.unrolled_var:
            self._print_unrolled(var, now)
            return
        size = self.printer.addresses.size_name(var.size)
        if var == self.plan.tile_var:
            self._print_tile_loops(inner_loops, opened, "0", size)
            return
        with self._loop(var.name, "0", size) as name:
            self.printer.variables[var] = (name,)
            self._print_ready(now)
            self._print_outer(inner_loops, now)

    def _pieces(self, var: LoopVar, start: str, stop: str | None) -> Iterator[None]:
        """Print the vector loop in pieces, in which conditions on its variable have one value."""
        p, plan = self.printer, self.plan
        is_plain = not self.passes and plan.tile_var is None and plan.unrolled_var is None
        pieces = pieces_of(self.live_ops, var, plan.lanes) if is_plain and static_size(var.size) else []
        if len(pieces) < 2 or len(pieces) * len(self.live_ops) > MAX_OPS_IN_PIECES:
            yield from self._lane_loops(var, start, stop)
            return
        for first, last in pieces:
            begin, end = str(first), str(last)
            if stop is not None:  # threads share the loop
                begin = self.writer.call("piece", "llvm.smax.i64", "i64", [("i64", start), ("i64", begin)])
                end = self.writer.call("piece.end", "llvm.smin.i64", "i64", [("i64", stop), ("i64", end)])
            with p.in_piece(var, first, last):
                roots = [op for op in self.outer_ops if op.name in ("check", *WRITE_OPS)]
                self._needed = {op.number for op in reachable(roots, p.inputs_of)}
                yield from self._lane_loops(var, begin, end)
            self._needed = None

    def _print_unrolled(self, var: LoopVar, opened: frozenset[LoopVar]) -> None:
        """Print the iterations of a short loop one after the other."""
        for position in range(static_size(var.size) or 0):
            with self.printer.values.scope():
                self.printer.variables[var] = (str(position),)
                self._print_ready(opened)

    def _print_tile_loops(self, loops: tuple[LoopVar, ...], opened: frozenset[LoopVar], start: str, stop: str) -> None:
        """Print the loop over whole tiles, and the loop over the rest, with the loops inside."""
        plan, tile_var = self.plan, self.plan.tile_var
        assert tile_var is not None
        height = plan.lanes * plan.tiles
        limit = self.writer.assign("limit", f"sub i64 {stop}, {height - 1}")
        with self._loop(tile_var.name, start, limit, height) as first:
            self._print_tiles(loops, opened, tile_var, first)
        if (static_size(tile_var.size) or 1) % height == 0:  # threads share whole tiles
            return
        with self._loop(f"{tile_var.name}.rest", first, stop) as name:
            self.printer.variables[tile_var] = (name,)
            self._print_ready(opened | {tile_var})
            self._print_outer(loops, opened | {tile_var})

    def _print_tiles(
        self, loops: tuple[LoopVar, ...], opened: frozenset[LoopVar], tile_var: LoopVar, first: str
    ) -> None:
        """Print the loops inside of a tile: transposed loads, then one iteration per vector."""
        if not loops:
            self._print_transposed_rows(opened, tile_var, first)
            return
        var, p = loops[0], self.printer
        now = opened | {var}
        if var != self.plan.lane_var:
            with self._loop(var.name, "0", p.addresses.size_name(var.size)) as name:
                p.variables[var] = (name,)
                self._print_ready(now)
                self._print_tiles(loops[1:], now, tile_var, first)
            return
        for _ in self._lane_loops(var, "0", None):
            self._print_ready(now)
            if self.plan.tiles == 1:
                self._print_tile(now, var, tile_var, first)
                continue
            end = self.writer.assign("last", f"add i64 {first}, {self.plan.lanes * self.plan.tiles}")
            with self._loop("tile", first, end, self.plan.lanes) as part:
                self._print_tile(now, var, tile_var, part)

    def _print_tile(self, opened: frozenset[LoopVar], var: LoopVar, tile_var: LoopVar, first: str) -> None:
        """Print the transposed loads of one tile, and the loop over its vectors."""
        p = self.printer
        p.variables[tile_var] = (first,)
        loads = [op for op in self.live_ops if is_transposed(op, var, tile_var, p.vars_of)]
        slots = {op.number: p.print_tile(op, p.tile_slot(op, self.plan.lanes)) for op in loads}
        with self._tile_rows() as rows:
            p.variables[tile_var] = tuple(self.writer.assign(tile_var.name, f"add i64 {first}, {row}") for row in rows)
            p.tiles = {number: (slot, rows) for number, slot in slots.items()}
            self._print_ready(opened | {tile_var})
            p.tiles = {}

    @contextlib.contextmanager
    def _tile_rows(self) -> Iterator[tuple[str, ...]]:
        """Print a loop over the rows of a tile; or all rows as copies, if their ops are few.

        The tile is then in registers, and its rows load before they store, which may be at the same distance in a page.
        """
        p, lanes = self.printer, self.plan.lanes
        if lanes * sum(op.cost + 1 for op in self.live_ops if self.plan.tile_var in p.vars_of[op.number]) > MAX_ROW_OPS:
            with self._loop("row", "0", str(lanes)) as row:
                yield (row,)
            return
        with p.values.scope():
            p.copies, p.copied_var = lanes, self.plan.tile_var
            yield tuple(map(str, range(lanes)))
            p.copies, p.copied_var = 1, self.plan.lane_var

    def _print_transposed_rows(self, opened: frozenset[LoopVar], tile_var: LoopVar, first: str) -> None:
        """Print the transposed loads of whole rows, and the loop over these rows."""
        plan, p, write = self.plan, self.printer, self.writer
        lane_var, height = plan.lane_var, plan.lanes * plan.tiles
        assert lane_var is not None
        length = static_size(lane_var.size)
        assert length is not None
        loads = [op for op in self.live_ops if is_transposed(op, lane_var, tile_var)]
        slots = {op.number: p.tile_slot(op, plan.tiles * -(-length // plan.lanes) * plan.lanes) for op in loads}
        for _ in self._lane_loops(lane_var, "0", None, copies=1):
            column = p.variable(lane_var, 0)
            for part, op in itertools.product(range(plan.tiles), loads):
                p.variables[tile_var] = (write.assign(tile_var.name, f"add i64 {first}, {part * plan.lanes}"),)
                number = write.assign("number", f"mul i64 {column}, {plan.tiles}")
                number = write.assign("number", f"add i64 {number}, {part * plan.lanes}")
                p.print_tile(op, slots[op.number], number)
        with self._loop("row", "0", str(height)) as row:
            p.variables[tile_var] = (write.assign(tile_var.name, f"add i64 {first}, {row}"),)
            p.tiles = {number: (slot, (row,)) for number, slot in slots.items()}
            self._print_ready(opened | {tile_var})
            self._print_passes(opened | {tile_var})
            p.tiles = {}

    def _print_ready(self, opened: frozenset[LoopVar]) -> None:
        """Print the ops outside of inner loops whose variables and operands are all known."""
        p = self.printer
        for op in self.outer_ops:
            if p.values.find(("done", op.number)) is not None or not p.vars_of[op.number] <= opened:
                continue
            if self._needed is not None and op.number not in self._needed:
                continue
            inputs = p.inputs_of(op)
            if self.shared_rows.load(op):
                p.values.set(("done", op.number), _DONE)
            elif all(p.is_known(i) for i in inputs if i.name != "check"):
                p.print_op(op)
                p.values.set(("done", op.number), _DONE)

    def _print_passes(self, opened: frozenset[LoopVar]) -> None:
        """Print the passes over the inner loops, and what follows from each."""
        for reduction_pass in self.passes:
            if not reduction_pass.is_needed:
                continue
            self.writer.forget_comment()
            reduction_pass.print_initial_values()
            self._print_inner(reduction_pass, self.plan.inner, opened)
            reduction_pass.print_results()
            self._print_ready(opened)

    def _print_inner(
        self, reduction_pass: ReductionPass, loops: tuple[LoopVar, ...], opened: frozenset[LoopVar]
    ) -> None:
        """Print the inner loops of one pass, outermost first."""
        if not loops:
            reduction_pass.accumulate()
            return
        var = loops[0]
        start = self._print_row_tiles(reduction_pass, var, opened | {var}) if var == self.plan.tile_var else "0"
        if len(loops) > 1 or not reduction_pass.part_sums:
            self._print_inner_loop(reduction_pass, loops, opened, start, None)
            return
        with self._parts(var, start) as (first, end):
            reduction_pass.open_part()
            self._print_inner_loop(reduction_pass, loops, opened, first, end)
            reduction_pass.close_part()

    @contextlib.contextmanager
    def _parts(self, var: LoopVar, start: str) -> Iterator[tuple[str, str]]:
        """Print a loop over the parts of a loop; yields the begin and the end of a part."""
        stop = self.printer.addresses.size_name(var.size)
        steps = STEPS_OF_PART * (self.plan.lanes * self.plan.copies if var == self.plan.lane_var else 1)
        with self._loop("part", start, stop, steps) as first:
            limit = self.writer.assign("limit", f"add i64 {first}, {steps}")
            yield first, self.writer.call("part.end", "llvm.smin.i64", "i64", [("i64", limit), ("i64", stop)])

    def _print_inner_loop(
        self,
        reduction_pass: ReductionPass,
        loops: tuple[LoopVar, ...],
        opened: frozenset[LoopVar],
        start: str,
        stop: str | None,
    ) -> None:
        """Print the first loop from ``start`` to ``stop`` (None: to its end), the others inside."""
        var, inner_loops = loops[0], loops[1:]
        now = opened | {var}
        if var == self.plan.lane_var:
            for _ in self._lane_loops(var, start, stop):
                self._print_pass_ops(reduction_pass, now, is_innermost=not inner_loops)
                self._print_inner(reduction_pass, inner_loops, now)
            return
        with self._loop(var.name, start, stop or self.printer.addresses.size_name(var.size)) as name:
            self.printer.variables[var] = (name,)
            self._print_pass_ops(reduction_pass, now, is_innermost=not inner_loops)
            self._print_inner(reduction_pass, inner_loops, now)

    def _print_strips(self, var: LoopVar, opened: frozenset[LoopVar], start: str, stop: str | None) -> None:
        """Print the loop over strips of columns, unless one strip has them all."""
        size, strip = static_size(var.size), self.plan.strip
        if size is not None and size <= strip:
            self._print_strip(var, opened, start, stop)
            return
        stop = stop or self.printer.addresses.size_name(var.size)
        with self._loop("strip", start, stop, strip) as first:
            limit = self.writer.assign("limit", f"add i64 {first}, {strip}")
            end = self.writer.call("strip.end", "llvm.smin.i64", "i64", [("i64", limit), ("i64", stop)])
            self._print_strip(var, opened, first, end)

    def _print_strip(self, var: LoopVar, opened: frozenset[LoopVar], start: str, stop: str | None) -> None:
        """Print the loops over all rows of a strip, and over the results of its columns."""
        (strip_pass,) = (one for one in self.passes if one.is_needed)
        self.printer.strip_start = start
        for _ in self._lane_loops(var, start, stop):
            strip_pass.print_initial_values()
        self.writer.forget_comment()
        self._print_strip_rows(strip_pass, self.plan.inner, opened, stop)
        for _ in self._lane_loops(var, start, stop):
            strip_pass.print_results()
            self._print_ready(opened | {var})

    def _print_strip_rows(
        self, strip_pass: ReductionPass, loops: tuple[LoopVar, ...], opened: frozenset[LoopVar], stop: str | None
    ) -> None:
        """Print the loops over the rows of a strip, outermost first, and over its columns inside."""
        p, var = self.printer, self.plan.lane_var
        assert var is not None
        if not loops:
            for _ in self._lane_loops(var, p.strip_start, stop):
                self._print_pass_ops(strip_pass, opened | {var}, is_innermost=True)
                strip_pass.accumulate()
            return
        with contextlib.ExitStack() as stack:
            start, end = "0", p.addresses.size_name(loops[0].size)
            is_in_parts = len(loops) == 1 and strip_pass.part_sums
            if is_in_parts:
                start, end = stack.enter_context(self._parts(loops[0], start))
                for _ in self._lane_loops(var, p.strip_start, stop):
                    strip_pass.open_part()
            with self._loop(loops[0].name, start, end) as name:
                p.variables[loops[0]] = (name,)
                self._print_pass_ops(strip_pass, opened | {loops[0]}, is_innermost=False)
                self._print_strip_rows(strip_pass, loops[1:], opened | {loops[0]}, stop)
            if is_in_parts:
                for _ in self._lane_loops(var, p.strip_start, stop):
                    strip_pass.close_part()

    def _print_row_tiles(self, reduction_pass: ReductionPass, var: LoopVar, opened: frozenset[LoopVar]) -> str:
        """Print the steps of a pass over short rows that whole tiles cover; return where they end."""
        plan, p, size = self.plan, self.printer, static_size(var.size)
        assert size is not None
        assert plan.lane_var is not None
        end = 0 if p.lane_masks else size - size % plan.lanes
        for first in range(0, end, plan.lanes):
            p.variables[var] = (str(first),)
            loads = [op for op in reduction_pass.ops if is_transposed(op, plan.lane_var, var)]
            slots = {op.number: p.print_tile(op, p.tile_slot(op, plan.lanes)) for op in loads}
            with self._loop("row", "0", str(plan.lanes)) as row:
                p.variables[var] = (self.writer.assign(var.name, f"add i64 {first}, {row}"),)
                p.tiles = {number: (slot, (row,)) for number, slot in slots.items()}
                self._print_pass_ops(reduction_pass, opened, is_innermost=True)
                self._print_inner(reduction_pass, (), opened)
                p.tiles = {}
        return str(end)

    def _print_pass_ops(self, reduction_pass: ReductionPass, opened: frozenset[LoopVar], *, is_innermost: bool) -> None:
        """Print the ops of a pass whose variables are known; scans in the innermost loop."""
        p = self.printer
        for op in reduction_pass.ops:
            if p.values.find(("done", op.number)) is not None or not p.vars_of[op.number] <= opened:
                continue
            if self.shared_rows.load(op) or self.row_slots.load(reduction_pass, op):
                p.values.set(("done", op.number), _DONE)
                continue
            if op.name == "reduce" or not all(p.is_known(i) for i in op.inputs(self.kernel.ops)):
                continue
            if op.name == "scan":
                if not is_innermost:
                    continue
                reduction_pass.print_scan(op)
            else:
                p.print_op(op)
                self.row_slots.store(op)
            p.values.set(("done", op.number), _DONE)

    @contextlib.contextmanager
    def _loop(self, hint: str, start: str, stop: str, step: int = 1) -> Iterator[str]:
        with self.writer.loop(hint, start, stop, step, before=self.writer.block) as name, self.printer.values.scope():
            yield name

    def _lane_loops(self, var: LoopVar, start: str, stop: str | None, copies: int = 0) -> Iterator[None]:
        """Print the loops over full vectors and over the rest; yields in each body.

        ``copies``: vectors of an iteration, 0 for those of the plan.
        """
        plan, p, write = replace(self.plan, copies=copies or self.plan.copies), self.printer, self.writer
        end = stop or p.addresses.size_name(var.size)
        size, whole = static_size(var.size) if stop is None else None, plan.lanes * plan.copies
        if stop is not None and start.isdigit() and stop.isdigit():
            size = int(stop) - int(start)
            plan = replace(plan, copies=min(plan.copies, -(-size // plan.lanes)))
            whole = plan.lanes * plan.copies
        if size is not None and size <= whole:
            with p.values.scope():
                p.copies = plan.copies
                p.variables[var] = tuple(str(int(start) + c * plan.lanes) for c in range(plan.copies))
                p.lane_masks = self._masks_below(size, plan.copies) if size < whole else ()
                yield
                p.copies, p.lane_masks = 1, ()
            return
        if size is None or size > whole:
            limit = write.assign("limit", f"sub i64 {end}, {whole - 1}")
            with self._loop(var.name, start, limit, whole) as name:
                p.copies = plan.copies
                offsets = [write.assign(var.name, f"add i64 {name}, {c * plan.lanes}") for c in range(1, plan.copies)]
                p.variables[var] = (name, *offsets)
                yield
            start = name
        p.copies = 1
        if size is not None and size % whole == 0:
            return
        with self._loop(f"{var.name}.rest", start, end, plan.lanes) as name:
            p.variables[var] = (name,)
            if size is None or size % plan.lanes:
                p.lane_masks = (self._mask_below(name, end),)
            write.forget_comment()
            yield
            p.lane_masks = ()

    def _masks_below(self, size: int, copies: int) -> tuple[str, ...]:
        """Return the mask of each copy of a row of one iteration; the last copy is not full."""
        left = size - self.plan.lanes * (copies - 1)
        exists = ", ".join(f"i1 {'true' if n < left else 'false'}" for n in range(self.plan.lanes))
        return (*[""] * (copies - 1), f"<{exists}>")

    def _mask_below(self, name: str, end: str) -> str:
        """Return the mask of the lanes whose index is below the end of the loop."""
        lanes, write = self.plan.lanes, self.writer
        left = write.assign("left", f"sub i64 {end}, {name}")
        few = write.call("few", "llvm.smin.i64", "i64", [("i64", left), ("i64", str(lanes))])
        count = write.assign("count", f"trunc i64 {few} to i32")
        kind = wide("i32", lanes)
        return write.assign(
            "exists", f"icmp slt {kind} {iota(lanes, 'i32')}, {self.printer.addresses.broadcast('i32', count)}"
        )


_DONE = Value((), 1, "")
"""Marks an op that was printed."""
