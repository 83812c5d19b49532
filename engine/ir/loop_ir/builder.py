"""The loop IR: tensors defined element by element, and the operations of a kernel's loops.

The body of a ``TensorDef`` computes one element of a tensor: a function from a builder and an index to the
op that holds the value. Only the scheduler decides which tensors are stored. A ``LoopBuilder`` runs bodies
and records the ops of a kernel. A load of another ``TensorDef`` becomes a memory access, or more arithmetic
if that tensor is fused.

Rounding: float16 and bfloat16 values are computed in float32. They are rounded at stores and at casts of
the program. A fused chain is therefore at least as accurate as eager, which rounds after every operation.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection
from typing import Any

import sympy
import torch

from engine.ir.loop_ir.index_expr import (
    ZERO,
    IndexExpr,
    IndirectIndex,
    LoopVar,
    Size,
    as_size,
    flatten,
    is_below,
    is_nonnegative,
    lower_bound,
    unflatten,
)
from engine.ir.loop_ir.ops import LOOP_INVARIANT, WRITE_OPS, LoopIROp, Operand, R, X, compute_dtype, conjunction
from engine.ir.loop_ir.tensor_def import Coordinates, MemoryRead, TensorDef
from engine.ir.static_sizes import static_size


def is_nonnegative_index(index: IndexExpr) -> bool:
    """Return True if an index is known to be nonnegative."""
    bottom = lower_bound(index)
    return bottom is not None and is_nonnegative(bottom)


def _number_of(mask: LoopIROp | None) -> int | None:
    return None if mask is None else mask.number


class LoopBuilder:
    """Records the operations of one kernel, with common subexpression elimination.

    Loads of tensors in ``fused`` inline their bodies. All other loads are added to ``memory_reads`` and become
    memory accesses. ``reduction_vars`` are the reduced variables, ``reduction_index`` is their flat position.
    """

    def __init__(
        self,
        fused: Collection[TensorDef] = (),
        inner: frozenset[LoopVar] = frozenset(),
        reduced: IndexExpr = ZERO,
        is_wide: bool = False,
    ) -> None:
        self.fused = fused
        self.reduction_vars = inner
        self.reduction_index = reduced
        self.index_dtype = torch.int64 if is_wide else torch.int32
        self.ops: list[LoopIROp] = []
        self.memory_reads: list[MemoryRead] = []
        self.read_tensors: dict[str, TensorDef] = {}
        self._cse: dict[Any, LoopIROp] = {}
        self._inlined_values: dict[Any, LoopIROp] = {}
        self._reads: dict[Any, set[int | None]] = {}
        """Masks under which an element is read, by tensor and position."""
        self._masks: list[LoopIROp] = []
        self._node_ids: tuple[str, ...] = ()
        self._user_line = ""
        self._reference = weakref.ref(self)

    def _space(self, index: IndexExpr) -> frozenset[str]:
        space = frozenset(R if v in self.reduction_vars else X for v in index.variables())
        for number in index.indirect_ops():
            space |= self.ops[number].loops
        return space

    def _emit(
        self,
        name: str,
        args: tuple[LoopIROp, ...],
        dtype: torch.dtype,
        *,
        value: Any = None,
        index: IndexExpr | None = None,
        buffer: str = "",
        mask: LoopIROp | None = None,
        space: frozenset[str] | None = None,
    ) -> LoopIROp:
        value_key = (type(value), value, math.copysign(1, value) if isinstance(value, float) else 0)
        if isinstance(value, float) and value != value:
            value_key = (float, "nan", 0)
        key = (name, tuple(a.number for a in args), dtype, value_key, index, buffer, mask.number if mask else None)
        op = self._cse.get(key)
        if op is None:
            if space is None:
                space = frozenset().union(*(a.loops for a in args))
                if index is not None:
                    space |= self._space(index)
                if mask is not None:
                    space |= mask.loops
            op = LoopIROp(len(self.ops), name, args, dtype, space, value, index, buffer, mask, builder=self._reference)
            self.ops.append(op)
            self._cse[key] = op
        for origin in self._node_ids:
            if origin not in op.node_ids:
                op.node_ids.append(origin)
        return op

    def constant(self, value: Any, dtype: torch.dtype) -> LoopIROp:
        """Return a constant of a computing dtype, or a number computed from sizes."""
        if isinstance(value, sympy.Expr) and not value.is_number:
            return self.size(as_size(value), dtype) if value.is_integer else self.number(value, dtype)
        dtype = compute_dtype(dtype)
        converted: Any = bool(value) if dtype == torch.bool else float(value) if dtype.is_floating_point else int(value)
        return self._emit("constant", (), dtype, value=converted, space=LOOP_INVARIANT)

    def number(self, value: sympy.Expr, dtype: torch.dtype) -> LoopIROp:
        """Return a symbolic float: a graph input or computed from sizes.

        The launcher of the kernel computes it in Python arithmetic.

        Raises:
            TypeError: the dtype is an integer type.
        """
        if not dtype.is_floating_point:
            raise TypeError(f"{value} may not be an integer, and {dtype} is an integer dtype")
        return self._emit("number", (), compute_dtype(dtype), value=value, space=LOOP_INVARIANT)

    def size(self, value: Size, dtype: torch.dtype) -> LoopIROp:
        """Return a size as a number, symbolic or not."""
        if static_size(value) is not None:
            return self.constant(value, dtype)
        if dtype == torch.int64:  # Sizes are integers of any width, so an int64 size takes its partner's width.
            return self._emit("index", (), dtype, index=IndexExpr({}, value))
        return self.cast(self.index_value(IndexExpr({}, value)), dtype)

    def index_value(self, index: IndexExpr) -> LoopIROp:
        """Return the index as a number that other ops can compute with."""
        if index.is_constant and static_size(index.const) is not None:
            return self.constant(index.const, self.index_dtype)
        atom = index.single_atom()
        if atom is not None and (number := atom.indirect_op()) is not None:
            return self.ops[number]
        return self._emit("index", (), self.index_dtype, index=index)

    def call(self, name: str, *args: Operand, dtype: torch.dtype | None = None) -> LoopIROp:
        """Apply an operation to operands of one dtype; the result has that dtype by default.

        Numbers are converted to the dtype of the first operand that is an op.
        """
        operands = self._as_ops(args)
        return self._emit(name, operands, dtype or operands[-1].dtype)

    def _as_ops(self, operands: tuple[Operand, ...]) -> tuple[LoopIROp, ...]:
        ops = [operand for operand in operands if isinstance(operand, LoopIROp)]
        if len(ops) == len(operands):
            return tuple(ops)
        return tuple(op if op in ops else self.constant(op, ops[0].dtype) for op in operands)

    def cast(self, op: LoopIROp, dtype: torch.dtype) -> LoopIROp:
        """Convert to the computing dtype of ``dtype``, without rounding to ``dtype`` itself."""
        compute = compute_dtype(dtype)
        if op.dtype == compute:
            return op
        if op.name == "constant":
            return (
                self.constant(op.value, compute)
                if not (isinstance(op.value, float) and not compute.is_floating_point and not math.isfinite(op.value))
                else self._emit("to", (op,), compute, value=compute)
            )
        return self._emit("to", (op,), compute, value=compute)

    def round_to_dtype(self, op: LoopIROp, dtype: torch.dtype) -> LoopIROp:
        """Convert to ``dtype`` like a cast in the program, with rounding to 16-bit types."""
        if compute_dtype(dtype) == dtype:
            return self.cast(op, dtype)
        if op.name == "constant":
            return self.constant(torch.tensor(op.value, dtype=torch.float64).to(dtype).item(), dtype)
        return self._emit("round", (self.cast(op, torch.float32),), torch.float32, value=dtype)

    def bitcast(self, op: LoopIROp, own: torch.dtype, dtype: torch.dtype) -> LoopIROp:
        """Reinterpret the bits of a value of dtype ``own`` as ``dtype`` of equal width."""
        return self._emit("bitcast", (op,), compute_dtype(dtype), value=(own, dtype))

    def where(self, condition: LoopIROp, then: Operand, otherwise: Operand) -> LoopIROp:
        """Select between two values of one dtype, at least one of them an op."""
        values = self._as_ops((then, otherwise))
        if condition.name == "constant":
            return values[0] if condition.value else values[1]
        return self.call("where", condition, *values, dtype=values[0].dtype)

    def index_lt(self, index: IndexExpr, limit: Size) -> LoopIROp:
        """Return ``index < limit``."""
        return self.index_value(index) < self.size(limit, self.index_dtype)

    def index_ge(self, index: IndexExpr, limit: Size) -> LoopIROp:
        """Return ``index >= limit``."""
        return self.index_value(index) >= self.size(limit, self.index_dtype)

    def masked(self, condition: LoopIROp, then: Callable[[], LoopIROp], otherwise: LoopIROp) -> LoopIROp:
        """Return ``then()`` where the condition holds, else ``otherwise``.

        ``then()`` reads memory only where the condition holds.
        """
        if condition.name == "constant":
            return then() if condition.value else otherwise
        self._masks.append(condition)
        try:
            value = then()
        finally:
            self._masks.pop()
        return self.where(condition, value, otherwise)

    def indirect_index(self, value: LoopIROp, size: Size, *, wraps: bool = True, is_checked: bool = True) -> IndexExpr:
        """Return a value as an indirect index into a dimension, with a bounds check.

        With ``wraps``, negative values count from the end.
        """
        inner = value.args[0] if value.name == "to" else value
        if inner.name == "index" and inner.index is not None and is_nonnegative_index(inner.index):
            return inner.index
        value = self.cast(value, torch.int64)
        if wraps:
            wrapped = self.where(value < 0, value + self.size(size, torch.int64), value)
            if not wrapped.label:
                wrapped.label = f"{value.label or 'picked'}_at"
            value = wrapped
        if is_checked:
            mask = self._mask()
            space = value.loops | (mask.loops if mask is not None else LOOP_INVARIANT)
            limit = IndexExpr({}, size)
            self._emit("check", (value,), torch.bool, value=self._user_line, index=limit, mask=mask, space=space)
        return IndexExpr({IndirectIndex(value.number, size): 1})

    def _mask(self) -> LoopIROp | None:
        return self._masks_from_weakest()[-1]

    def _masks_from_weakest(self) -> list[LoopIROp | None]:
        """Return no mask, the outermost condition, that and the next one, and so on."""
        masks: list[LoopIROp | None] = [None]
        for condition in self._masks:
            masks.append(condition if masks[-1] is None else masks[-1] & condition)
        return masks

    def load(self, source: TensorDef, index: Coordinates) -> LoopIROp:
        """Return one element of a tensor, in its computing dtype."""
        if source in self.fused:
            return self._inlined(source, index)
        self.memory_reads.append(MemoryRead(source, index, bool(self._masks)))
        self.read_tensors[source.name] = source
        position, masks = flatten(index, source.stride), self._masks_from_weakest()
        read_under = self._reads.setdefault((source.name, position), set())
        mask = next((m for m in masks if _number_of(m) in read_under), masks[-1])
        read_under.add(_number_of(mask))
        is_narrower = mask is not None and bool(mask.loops - self._space(position))
        if is_narrower and all(is_below(i, n) for i, n in zip(index, source.shape, strict=True)):
            mask = None  # A value that is constant along the row is valid wherever the mask varies in the row.
        read = self._emit("load", (), source.dtype, index=position, buffer=source.name, mask=mask)
        if not read.label:
            read.label = source.label or source.name
        return (
            self._emit("to", (read,), torch.float32, value=torch.float32)
            if compute_dtype(source.dtype) != source.dtype
            else read
        )

    def _inlined(self, source: TensorDef, index: Coordinates) -> LoopIROp:
        """Inline a body; a value that is computed under a weaker mask is taken instead."""
        masks = self._masks_from_weakest() if source.kind == "pointwise" else [None]
        keys = [(source, index, _number_of(m)) for m in masks]
        value = next((self._inlined_values[key] for key in keys if key in self._inlined_values), None)
        if value is None:
            conditions = self._masks
            if source.kind != "pointwise":  # Read at the loop's own position, which always exists.
                self._masks = []
            value = self._inlined_values[keys[-1]] = self.inline_body(source, index)
            self._masks = conditions
        return value

    def inline_body(self, source: TensorDef, index: Coordinates) -> LoopIROp:
        """Return the body of a TensorDef, evaluated at an index."""
        outer, self._node_ids = self._node_ids, source.node_ids
        outer_line, self._user_line = self._user_line, source.user_line or self._user_line
        value: LoopIROp
        try:
            if source.kind == "reduction":
                value = source.body(self, index, unflatten(self.reduction_index, source.ranges))
                value = self._fold_one_hot_sum(source, value) or self._emit(
                    "reduce", (value,), value.dtype, value=source.reduction, space=value.loops - {R}
                )
            elif source.kind == "scan":
                value = source.body(self, index)
                value = self._emit("scan", (value,), value.dtype, value=source.reduction, space=value.loops | {R})
            else:
                value = source.body(self, index)
        finally:
            self._node_ids, self._user_line = outer, outer_line
        if not value.label and value.name not in ("constant", "load", *WRITE_OPS):
            value.label = source.label or source.name
        return value

    def _fold_one_hot_sum(self, source: TensorDef, value: LoopIROp) -> LoopIROp | None:
        """Fold a sum over ``where(position == wanted, x, 0)`` to ``x`` if ``wanted`` is in range.

        Return None for other reductions.
        """
        if source.reduction != "sum" or value.name != "where" or len(source.ranges) != 1:
            return None
        test, x, zero = value.args
        if test.name != "eq" or R in x.loops or zero.name != "constant" or zero.value != 0:
            return None
        position, index = test.args
        walked = position.args[0] if position.name == "to" else position
        if walked.name != "index" or walked.index != self.reduction_index or R in index.loops:
            return None
        return self.where((index >= 0) & (index < self.size(source.ranges[0], index.dtype)), x, zero)

    def scatter(
        self, target: TensorDef, walked: Coordinates, coordinates: Coordinates, value: LoopIROp, *, is_added: bool
    ) -> LoopIROp:
        """Write or add ``value`` to an element of a tensor, once for each position ``walked``.

        Indirect positions outside of the tensor are masked out.
        """
        indirect = ((i, size) for i, size in zip(coordinates, target.shape, strict=True) if i.indirect_ops())
        inside = conjunction(t for i, size in indirect for t in (self.index_ge(i, 0), self.index_lt(i, size)))
        position = flatten(coordinates, target.stride)
        space = self._space(position) | value.loops | frozenset().union(*(self._space(i) for i in walked))
        name = "atomic_add" if is_added else "store"
        written = self._emit(name, (value,), target.dtype, index=position, buffer=target.name, mask=inside, space=space)
        written.label = target.label or target.name
        return written

    def store(self, target: TensorDef, index: Coordinates, value: LoopIROp) -> LoopIROp:
        """Write one element of a tensor, rounded to its dtype."""
        self._node_ids = target.node_ids
        position = flatten(index, target.stride)
        written = self._emit(
            "store",
            (value,),
            target.dtype,
            index=position,
            buffer=target.name,
            space=self._space(position) | value.loops,
        )
        written.label = target.label or target.name
        return written
