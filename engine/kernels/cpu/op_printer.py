"""Prints the ops of one kernel, each with all its copies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch

from engine.ir.kernels.host_vectors import NEON, VectorUnit
from engine.ir.loop_ir.index_conditions import condition_in, value_at
from engine.ir.loop_ir.index_expr import LoopVar, Size
from engine.ir.loop_ir.loop_kernel import LoopKernel
from engine.ir.loop_ir.ops import WRITE_OPS, LoopIROp, compute_dtype
from engine.kernels.cpu.addresses import Addresses, LaneContext
from engine.kernels.cpu.arithmetic import Arithmetic, Operands
from engine.kernels.cpu.ir_writer import IrWriter
from engine.kernels.cpu.lane_values import ScopedValues, Value, name_of_copy
from engine.kernels.cpu.llvm_types import NotPrintable, literal, splat, value_type, wide
from engine.kernels.cpu.loop_plan import LoopPlan, loop_vars_of
from engine.kernels.cpu.memory import Memory
from engine.kernels.cpu.vector_math import VectorMath
from engine.kernels.kernel_parameters import KernelParameters
from engine.kernels.source_builder import name_from_label

_MIXED_OPERANDS = frozenset(("where", "to", "round", "bitcast"))
"""Ops whose operands may have other dtypes than each other."""


class OpPrinter:
    """Prints ops in the open loops."""

    def __init__(self, kernel: LoopKernel, plan: LoopPlan, parameters: KernelParameters, unit: VectorUnit) -> None:
        self.kernel = kernel
        self.plan = plan
        self.parameters = parameters
        self.writer = IrWriter(parameters.used_names)
        self.math = VectorMath(self.writer, unit)
        self.arithmetic = Arithmetic(self.writer, self.math, saturates=unit.name == NEON.name)
        context = LaneContext(plan.lane_var, plan.lanes, self.variable, self._position_of, self.size)
        self.addresses = Addresses(self.writer, context)
        self.memory = Memory(self.writer, self.addresses, plan.lanes, unit.bits // 8 // plan.lanes)
        assert kernel.nest is not None
        self.vars_of: Mapping[int, frozenset[LoopVar]] = loop_vars_of(kernel.ops, kernel.nest)
        self.values = ScopedValues()
        self.variables: dict[LoopVar, tuple[str, ...]] = {}
        """Names of the open loops' variables; one per copy for the vector loop."""
        self.copies = 1
        self.copied_var = plan.lane_var
        """The loop whose iterations are copied: the vector loop, or the rows of a tile."""
        self.lane_masks: tuple[str, ...] = ()
        """Mask of the lanes that exist in each copy, at the end of the vector loop; empty for all."""
        self.conditions: dict[int, bool] = {}
        """Conditions with one value in the current piece of the vector loop, by op."""
        self.strip_start = "0"
        """First column of the current strip."""
        self.tiles: dict[int, tuple[str, Sequence[str]]] = {}
        """Transposed tiles by load: the stack slot, and the number of each copy's vector."""
        self._interleaved: dict[tuple[int, int], list[str]] = {}
        """Vectors of the printed iterations of the unrolled loop, by store and copy."""
        self.checks: list[LoopIROp] = []
        """The bounds checks that were printed, each by the status it sets, less one."""
        self.printed: set[int] = set()
        """Numbers of the ops that were printed."""

    def size(self, size: Size) -> str:
        """Return the parameter of a symbolic size."""
        return f"%{self.parameters.size_name(size, 'size')}"

    def variable(self, var: LoopVar, copy: int) -> str:
        """Return the name of a loop variable in one copy."""
        return name_of_copy(self.variables[var], copy)

    def is_vector(self, op: LoopIROp) -> bool:
        """Return True if an op has a value per lane."""
        return self.plan.lane_var is not None and self.plan.lane_var in self.vars_of[op.number]

    def value(self, op: LoopIROp) -> Value:
        """Return the value of a printed op; constants need no printing."""
        if op.name == "constant":
            return Value((literal(op.value, op.dtype),), 1, value_type(op.dtype))
        known_value = self.values.find(op.number)
        if known_value is None:
            raise NotPrintable(f"op {op.number} ({op.name}) is used before it is known")
        return known_value

    def is_known(self, op: LoopIROp) -> bool:
        """Return True if the value of an op can be read here."""
        return op.name == "constant" or self.values.find(op.number) is not None

    def lane_name(self, op: LoopIROp, copy: int, lanes: int, dtype: torch.dtype | None = None) -> str:
        """Return the name of an op's value with ``lanes`` lanes, converted to ``dtype``."""
        value = self.value(op)
        name = value.name(copy)
        if dtype is not None and dtype != op.dtype:
            name = self.arithmetic.convert(name, op.dtype, dtype, value.lanes, "same")
            value = Value((name,), value.lanes, value_type(dtype))
        return self.widen(name, value.scalar) if value.lanes < lanes else name

    def widen(self, name: str, scalar: str) -> str:
        """Return a scalar in all lanes; once per scope."""
        if not name.startswith("%"):
            return splat(scalar, name, self.plan.lanes)
        known_value = self.values.find(("all", name))
        if known_value is None:
            known_value = Value((self.addresses.broadcast(scalar, name),), self.plan.lanes, scalar)
            self.values.set(("all", name), known_value)
        return known_value.names[0]

    @contextlib.contextmanager
    def in_piece(self, var: LoopVar, start: int, stop: int) -> Iterator[None]:
        """Print a piece of a loop: branches that no iteration takes are left out."""
        known = {op.number: condition_in(op, var, start, stop) for op in self.kernel.ops if op.dtype == torch.bool}
        self.conditions = {number: value for number, value in known.items() if value is not None}
        yield
        self.conditions = {}

    def inputs_of(self, op: LoopIROp) -> list[LoopIROp]:
        """Return the ops that an op needs here: not an untaken branch, nor a mask that is known."""
        condition = op.args[0] if op.name == "where" else op.mask if op.name == "load" else None
        known = None if condition is None else self._known_condition(condition)
        if known is None:
            return op.inputs(self.kernel.ops)
        if op.name == "where":
            return [op.args[1 if known else 2]]
        return [a for a in op.inputs(self.kernel.ops) if a is not condition] if known else []

    def print_op(self, op: LoopIROp) -> None:
        """Print one op in all copies."""
        if op.name == "constant":
            return
        self.writer.comment(op.node_ids[-1].rpartition(":")[2] if op.node_ids else "")
        self.printed.add(op.number)
        self.writer.ops = (op.number,)
        is_vector = self.is_vector(op)
        lanes = self.plan.lanes if is_vector else 1
        copies = self.copies if self.copied_var in self.vars_of[op.number] else 1
        if op.name in WRITE_OPS:
            for copy in range(copies):
                self._print_store(op, copy, is_vector=is_vector)
        elif op.name == "check":
            for copy in range(copies):
                self._print_check(op, copy, lanes)
        else:
            names = tuple(self._compute(op, copy, lanes) for copy in range(copies))
            self.values.set(op.number, Value(names, lanes, value_type(compute_dtype(op.dtype))))
        self.writer.ops = ()

    def hint(self, op: LoopIROp) -> str:
        """Return the wanted name of an op's value."""
        return name_from_label(op.label or op.name)

    def _compute(self, op: LoopIROp, copy: int, lanes: int) -> str:
        if op.name == "load":
            return self._load(op, copy, lanes)
        if op.name == "index":
            return self._index(op, copy, lanes)
        if op.name == "number":
            return f"%{self.parameters.number_name(op)}"
        if op.name == "to" and compute_dtype(op.args[0].dtype) == op.dtype:  # the load converted it already
            return self.lane_name(op.args[0], copy, lanes)
        if op.name == "where" and (known := self._known_condition(op.args[0])) is not None:
            return self.lane_name(op.args[1 if known else 2], copy, lanes)
        dtype = self._common_dtype(op)
        if op.name in ("truncdiv", "rem") and not (op.args[1].name == "constant" and op.args[1].value):
            self._print_zero_check(op, copy, lanes)
        names = [self.lane_name(a, copy, lanes, None if a.dtype == torch.bool else dtype) for a in op.args]
        result_name = self.arithmetic.compute(Operands(op, names, lanes, self.hint(op), dtype))
        result = dtype if dtype is not None and op.name not in ("eq", "ne", "lt", "le", "gt", "ge") else None
        if result is not None and op.dtype not in (result, torch.bool):
            result_name = self.arithmetic.convert(result_name, result, op.dtype, lanes, self.hint(op))
        return result_name

    def _common_dtype(self, op: LoopIROp) -> torch.dtype | None:
        """Return the widest integer dtype of operands that differ; None if they agree."""
        dtypes = {a.dtype for a in op.args}
        if op.name in _MIXED_OPERANDS or len(dtypes) < 2 or any(d.is_floating_point for d in dtypes):
            return None
        return max(dtypes, key=lambda d: d.itemsize)

    def _load(self, op: LoopIROp, copy: int, lanes: int) -> str:
        assert op.index is not None
        pointer, dtype = f"%{self.parameters.pointers[op.buffer]}", self.kernel.buffers[op.buffer].dtype
        if op.number in self.tiles:
            slot, numbers = self.tiles[op.number]
            number = name_of_copy(numbers, copy)
            if self.plan.lane_var in self.plan.inner:  # the slot has the vectors of all rows, by columns
                column = self.writer.assign(
                    "number", f"mul i64 {self.variable(self.plan.lane_var, copy)}, {self.plan.tiles}"
                )
                number = self.writer.assign("number", f"add i64 {column}, {number}")
            names = self.memory.load_from_tile(dtype, slot, number, self.hint(op))
            return self.arithmetic.from_memory(names, dtype, lanes, self.hint(op))
        if op.mask is not None and self._known_condition(op.mask) is False:
            kind = compute_dtype(dtype)
            return splat(value_type(kind), literal(0, kind), lanes)
        at = self.addresses.address(op.index, copy, may_wrap=lanes > 1)
        is_vector = lanes > 1
        mask = self.mask(op, copy, is_vector=is_vector)
        names = self.memory.load(pointer, dtype, at, mask, self.hint(op), is_vector=is_vector)
        return self.arithmetic.from_memory(names, dtype, lanes, self.hint(op))

    def tile_slot(self, op: LoopIROp, count: int) -> str:
        """Return a new stack slot for ``count`` vectors of a transposed load."""
        kind = wide(self.memory.tile_type(self.kernel.buffers[op.buffer].dtype), self.plan.lanes)
        return self.writer.entry("tile.slot", f"alloca [{count} x {kind}]")

    def print_tile(self, op: LoopIROp, slot: str, number: str = "0") -> str:
        """Print the load of a transposed tile at the current positions; return its stack slot.

        It starts at vector ``number`` of the slot. Lanes that do not exist, or whose condition is false, are zero.
        """
        assert op.index is not None
        pointer, dtype = f"%{self.parameters.pointers[op.buffer]}", self.kernel.buffers[op.buffer].dtype
        self.writer.ops = (op.number,)
        mask, at = self.mask(op, 0, is_vector=True), self.addresses.address(op.index, 0)
        self.memory.load_tile(pointer, dtype, at, mask, slot, number)
        self.writer.ops = ()
        return slot

    def lane_mask(self, copy: int) -> str:
        """Return the mask of the lanes that exist in a copy; empty for all."""
        return name_of_copy(self.lane_masks, copy) if self.lane_masks else ""

    def mask(self, op: LoopIROp, copy: int, *, is_vector: bool) -> str:
        """Return the mask of a memory access: its condition and the existing lanes."""
        lanes = self.plan.lanes if is_vector else 1
        is_free = op.mask is None or self._known_condition(op.mask) is True
        own = "" if is_free or op.mask is None else self.lane_name(op.mask, copy, lanes)
        lanes_left = self.lane_mask(copy) if is_vector else ""
        if own and lanes_left:
            return self.writer.assign("mask", f"and {wide('i1', lanes)} {own}, {lanes_left}")
        return own or lanes_left

    def _known_condition(self, op: LoopIROp) -> object:
        """Return the value of a condition in this piece, or this iteration of the unrolled loop.

        None if it is not known.
        """
        if op.number in self.conditions:
            return self.conditions[op.number]
        var = self.plan.unrolled_var
        if var is None or self.vars_of[op.number] != {var}:
            return None
        return value_at(op, var, int(self.variables[var][0]))

    def _index(self, op: LoopIROp, copy: int, lanes: int) -> str:
        assert op.index is not None
        at = self.addresses
        name = at.vector(op.index, copy) if lanes > 1 else at.address(op.index, copy).base
        kind = value_type(op.dtype)
        if kind == "i64":
            return name
        return self.writer.assign(self.hint(op), f"trunc {wide('i64', lanes)} {name} to {wide(kind, lanes)}")

    def _position_of(self, number: int, copy: int) -> tuple[str, bool]:
        """Return the value of an op as a 64-bit position, and True if it is a vector."""
        op = self.kernel.ops[number]
        value = self.value(op)
        name = value.name(copy)
        if op.dtype != torch.int64:
            name = self.arithmetic.convert(name, op.dtype, torch.int64, value.lanes, "at")
        return name, value.lanes > 1

    def _print_store(self, op: LoopIROp, copy: int, *, is_vector: bool) -> None:
        assert op.index is not None
        pointer, dtype = f"%{self.parameters.pointers[op.buffer]}", self.kernel.buffers[op.buffer].dtype
        lanes = self.plan.lanes if is_vector else 1
        value = op.args[0]
        name = self.lane_name(value, copy, lanes)
        if value.dtype != compute_dtype(dtype):
            name = self.arithmetic.convert(name, value.dtype, compute_dtype(dtype), lanes, "stored")
        at, mask = self.addresses.address(op.index, copy), self.mask(op, copy, is_vector=is_vector)
        if op.name == "atomic_add":
            before = self.memory.load(pointer, dtype, at, mask, "before", is_vector=is_vector)
            before_value = self.arithmetic.from_memory(before, dtype, lanes, "before")
            name = self.arithmetic.combine("sum", compute_dtype(dtype), lanes, before_value, name)
        stored = self.arithmetic.to_memory(name, dtype, lanes, "stored")
        if self.plan.unrolled_var is not None and not mask:
            vectors = self._interleaved.setdefault((op.number, copy), [])
            vectors.append(stored)
            if len(vectors) == self.plan.unrolled_var.size:
                self.memory.store_interleaved(pointer, dtype, at, vectors)
                vectors.clear()
            return
        self.memory.store(pointer, dtype, at, mask, stored, is_vector=is_vector)

    def _print_check(self, op: LoopIROp, copy: int, lanes: int) -> None:
        """Set the kernel's status if an index is out of bounds."""
        assert op.index is not None
        write, kind, test = self.writer, wide("i64", lanes), wide("i1", lanes)
        if op not in self.checks:
            self.checks.append(op)
        limit = self.addresses.address(op.index, copy).base
        value = self.lane_name(op.args[0], copy, lanes, torch.int64)
        bad = write.assign("outside", f"icmp uge {kind} {value}, {self.widen(limit, 'i64') if lanes > 1 else limit}")
        if mask := self.mask(op, copy, is_vector=lanes > 1):
            bad = write.assign("outside", f"and {test} {bad}, {mask}")
        if lanes > 1:
            bad = write.call("outside", f"llvm.vector.reduce.or.v{lanes}i1", "i1", [(test, bad)])
        self._set_status(op, bad)

    def _print_zero_check(self, op: LoopIROp, copy: int, lanes: int) -> None:
        """Set the kernel's status if an integer is divided by 0: an error in eager."""
        divisor, kind, test = op.args[1], wide(value_type(op.args[1].dtype), lanes), wide("i1", lanes)
        zero = splat(value_type(divisor.dtype), "0", lanes)
        bad = self.writer.assign("is_zero", f"icmp eq {kind} {self.lane_name(divisor, copy, lanes)}, {zero}")
        if lanes > 1:
            if lanes_left := self.lane_mask(copy):
                bad = self.writer.assign("is_zero", f"and {test} {bad}, {lanes_left}")
            bad = self.writer.call("is_zero", f"llvm.vector.reduce.or.v{lanes}i1", "i1", [(test, bad)])
        if op not in self.checks:
            self.checks.append(op)
        self._set_status(op, bad)

    def _set_status(self, op: LoopIROp, bad: str) -> None:
        write, number = self.writer, self.checks.index(op) + 1
        before = write.assign("status", "load i32, ptr %status.slot")
        after = write.assign("status", f"select i1 {bad}, i32 {number}, i32 {before}")
        write.line(f"store i32 {after}, ptr %status.slot")
