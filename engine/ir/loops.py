"""The loop IR: tensors defined element by element, and the operations that one kernel's loops perform.

A ``Def`` says how to compute one element of a tensor: a function from a builder and an index to the operation whose value it is.
Nothing is stored until the scheduler says so. Running bodies through a ``Builder`` writes the operations of a kernel down; whether a
load of another Def becomes a memory access or more arithmetic depends on what the builder was told to fuse.

Rounding: values of float16 and bfloat16 are computed in float32 and rounded where they are stored and where the program casts to
them, so a fused chain is at least as accurate as the eager one, which rounds after every operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from engine.ir.index import (
    ZERO,
    IndexExpr,
    IndirectIndex,
    LoopVar,
    Size,
    as_size,
    flatten,
    index_text,
    is_below,
    is_nonnegative,
    lower_bound,
    unflatten,
)
from engine.ir.kernel import Buffer

X = "x"
R = "r"
VARIES_WITH_X = frozenset((X,))
VARIES_WITH_XR = frozenset((X, R))
LOOP_INVARIANT: frozenset[str] = frozenset()

Coordinates = tuple[IndexExpr, ...]
Body = Callable[["LoopBuilder", Coordinates], "LoopIROp"]
ReductionBody = Callable[["LoopBuilder", Coordinates, Coordinates], "LoopIROp"]

OP_COSTS = {
    "exp": 8,
    "exp2": 6,
    "log": 8,
    "log2": 8,
    "log1p": 14,
    "expm1": 14,
    "sin": 20,
    "cos": 20,
    "tanh": 14,
    "erf": 20,
    "sqrt": 4,
    "rsqrt": 4,
    "div": 4,
    "pow": 30,
    "fmod": 12,
    "floordiv": 8,
    "rem": 12,
    "sigmoid": 12,
    "reduce": 2,
    "scan": 10,
    "common_divisor": 400,
    "hurwitz": 400,
    "bessel_k_near": 100,
    "bessel_k_far": 1500,
    "airy_near": 400,
    "lower_gamma": 1000,
    "upper_gamma": 2000,
    "chebyshev": 100,
    "hermite": 100,
    "legendre": 100,
    "laguerre": 100,
    "rand": 60,
    "randint": 60,
}
FREE_OPS = frozenset(("constant", "number", "index", "load", "store", "to", "bitcast", "check"))
WRITE_OPS = frozenset(("store", "atomic_add"))


def is_nonnegative_index(index: IndexExpr) -> bool:
    """Whether an index is known never to be negative."""
    bottom = lower_bound(index)
    return bottom is not None and is_nonnegative(bottom)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of a dtype are held while computing."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@dataclass(eq=False)
class LoopIROp:
    """One operation. ``space`` says along which loops its value varies; ``dtype`` is the type that it is held in.

    ``value`` is a constant, a reduction's kind, a cast's target, or whose line a check is for; ``index`` the memory position (load, store),
    the value (index), or what the operand must be below (check).
    """

    number: int
    name: str
    args: tuple[LoopIROp, ...]
    dtype: torch.dtype
    loops: frozenset[str]
    value: Any = None
    index: IndexExpr | None = None
    buffer: str = ""
    mask: LoopIROp | None = None
    node_ids: list[str] = field(default_factory=list)
    label: str = ""

    def __str__(self) -> str:
        return self.to_text({})

    def to_text(self, buffers: Mapping[str, str]) -> str:
        """The operation as a line, buffers by other names where given."""
        parts = [f"%{a.number}" for a in self.args]
        if self.value is not None:
            told = self.value if isinstance(self.value, tuple) else (self.value,)
            parts += [str(v).removeprefix("torch.") if isinstance(v, torch.dtype) else repr(v) for v in told]
        if self.index is not None:
            where = index_text(self.index, lambda number: f"%{number}")
            parts.insert(0, f"{buffers.get(self.buffer, self.buffer)}[{where}]" if self.buffer else where)
        masked = f" if %{self.mask.number}" if self.mask is not None else ""
        kind = str(self.dtype).removeprefix("torch.")
        head = "" if self.name in WRITE_OPS or self.name == "check" else f"%{self.number}: {kind} = "
        return f"{head}{self.name}({', '.join(parts)}){masked}"

    @property
    def cost(self) -> int:
        """Rough arithmetic cost of one evaluation."""
        return 0 if self.name in FREE_OPS else OP_COSTS.get(self.name, 1)


@dataclass(eq=False)
class TensorDef:
    """A tensor of the program. ``kind``: "input", "pointwise", "reduction", "scan", "scatter", "extern" (an ATen call's result), or
    "number" (an ATen call's result that is no tensor, and tells a symbol).

    ``stride`` is the layout that it gets when it is stored. For a reduction ``ranges`` are the sizes reduced over and ``reduction`` is
    "sum", "prod", "max" or "min"; a scan runs along dimension ``axis``. A scatter starts from ``start`` (another Def or a number) and its
    body, run over ``ranges``, writes or adds one element wherever it likes.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    kind: str
    node_ids: tuple[str, ...] = ()
    body: Any = None
    ranges: tuple[Size, ...] = ()
    reduction: str = ""
    scan_axis: int = 0
    program_order: int = 0
    """Place in the program's order."""
    label: str = ""
    """What to call its value inside a kernel."""
    initial_value: TensorDef | float | None = None
    user_line: str = ""
    """The line of the user's that it is for, told where an index in it is out of bounds."""
    is_complex: bool = False
    """It is in memory as a complex tensor, of which this is the real view: inputs and results of ATen calls."""

    @property
    def is_computed(self) -> bool:
        """Whether loops compute it."""
        return self.kind in ("pointwise", "reduction", "scan", "scatter")

    @property
    def loop_ranges(self) -> tuple[Size, ...]:
        """The sizes that its body's index runs over: its own shape, save for a scatter."""
        return self.ranges if self.kind == "scatter" else self.shape


@dataclass(frozen=True)
class MemoryRead:
    """A body read element ``index`` of ``source``; ``is_masked`` when only under a condition."""

    source: TensorDef
    index: Coordinates
    is_masked: bool


class LoopBuilder:
    """Writes down the operations of one kernel. Equal operations are written once.

    Loads of Defs in ``fused`` become their bodies; all others are recorded in ``demands`` and become memory accesses.
    ``inner`` are the variables that are reduced over, ``reduced`` their flat position.
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
        self._masks: list[LoopIROp] = []
        self._node_ids: tuple[str, ...] = ()
        self._user_line = ""

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
        found = self._cse.get(key)
        if found is None:
            if space is None:
                space = frozenset().union(*(a.loops for a in args))
                if index is not None:
                    space |= self._space(index)
                if mask is not None:
                    space |= mask.loops
            found = LoopIROp(len(self.ops), name, args, dtype, space, value, index, buffer, mask)
            self.ops.append(found)
            self._cse[key] = found
        for origin in self._node_ids:
            if origin not in found.node_ids:
                found.node_ids.append(origin)
        return found

    def constant(self, value: Any, dtype: torch.dtype) -> LoopIROp:
        """A constant of a computing dtype, or a number that follows from sizes."""
        if isinstance(value, sympy.Expr) and not value.is_number:
            return self.size(as_size(value), dtype) if value.is_integer else self.number(value, dtype)
        dtype = compute_dtype(dtype)
        converted: Any = bool(value) if dtype == torch.bool else float(value) if dtype.is_floating_point else int(value)
        return self._emit("constant", (), dtype, value=converted, space=LOOP_INVARIANT)

    def number(self, value: sympy.Expr, dtype: torch.dtype) -> LoopIROp:
        """A fraction that follows from sizes or is given: whoever launches the kernel computes it, as Python does.

        Raises:
            TypeError: values of the type are whole.
        """
        if not dtype.is_floating_point:
            raise TypeError(f"{value} need not be whole, and {dtype} is")
        return self._emit("number", (), compute_dtype(dtype), value=value, space=LOOP_INVARIANT)

    def size(self, value: Size, dtype: torch.dtype) -> LoopIROp:
        """A size as a number, symbolic or not."""
        if isinstance(value, int):
            return self.constant(value, dtype)
        if dtype == torch.int64:  # sizes are whole numbers of any width: they take on their partner's
            return self._emit("index", (), dtype, index=IndexExpr({}, value))
        return self.cast(self.index_value(IndexExpr({}, value)), dtype)

    def index_value(self, index: IndexExpr) -> LoopIROp:
        """The value of an index expression."""
        if index.is_constant and isinstance(index.const, int):
            return self.constant(index.const, self.index_dtype)
        if len(index.terms) == 1 and index.const == 0:
            ((atom, coefficient),) = index.terms.items()
            if isinstance(atom, IndirectIndex) and coefficient == 1:
                return self.ops[atom.op]
        return self._emit("index", (), self.index_dtype, index=index)

    def call(self, name: str, *args: LoopIROp, dtype: torch.dtype | None = None) -> LoopIROp:
        """Apply an operation to operands of one dtype; the result has that dtype unless said otherwise."""
        return self._emit(name, args, dtype or args[-1].dtype)

    def cast(self, op: LoopIROp, dtype: torch.dtype) -> LoopIROp:
        """Convert to the computing type of ``dtype``, without rounding to ``dtype`` itself."""
        held = compute_dtype(dtype)
        if op.dtype == held:
            return op
        if op.name == "constant":
            return (
                self.constant(op.value, held)
                if not (isinstance(op.value, float) and not held.is_floating_point and not math.isfinite(op.value))
                else self._emit("to", (op,), held, value=held)
            )
        return self._emit("to", (op,), held, value=held)

    def round_to_dtype(self, op: LoopIROp, dtype: torch.dtype) -> LoopIROp:
        """Convert to ``dtype`` exactly as a cast in the program does, rounding to 16 bits where it is that narrow."""
        if compute_dtype(dtype) == dtype:
            return self.cast(op, dtype)
        return self._emit("round", (self.cast(op, torch.float32),), torch.float32, value=dtype)

    def bitcast(self, op: LoopIROp, own: torch.dtype, dtype: torch.dtype) -> LoopIROp:
        """The bits of a value of dtype ``own`` read as ``dtype``, which has as many."""
        return self._emit("bitcast", (op,), compute_dtype(dtype), value=(own, dtype))

    def where(self, condition: LoopIROp, then: LoopIROp, otherwise: LoopIROp) -> LoopIROp:
        """Choose between two values of one dtype."""
        if condition.name == "constant":
            return then if condition.value else otherwise
        return self.call("where", condition, then, otherwise, dtype=then.dtype)

    def index_lt(self, index: IndexExpr, limit: Size) -> LoopIROp:
        """Whether an index is less than a size."""
        return self.call("lt", self.index_value(index), self.size(limit, self.index_dtype), dtype=torch.bool)

    def index_ge(self, index: IndexExpr, limit: Size) -> LoopIROp:
        """Whether an index is at least a size."""
        return self.call("ge", self.index_value(index), self.size(limit, self.index_dtype), dtype=torch.bool)

    def logical_and(self, a: LoopIROp, b: LoopIROp) -> LoopIROp:
        """Logical and."""
        return self.call("and", a, b, dtype=torch.bool)

    def masked(self, condition: LoopIROp, then: Callable[[], LoopIROp], otherwise: LoopIROp) -> LoopIROp:
        """``then()`` where the condition holds, reading memory only there."""
        if condition.name == "constant":
            return then() if condition.value else otherwise
        self._masks.append(condition)
        try:
            value = then()
        finally:
            self._masks.pop()
        return self.where(condition, value, otherwise)

    def indirect_index(self, value: LoopIROp, size: Size, *, wraps: bool = True, is_checked: bool = True) -> IndexExpr:
        """A value as an index into a dimension, with a check that it is in bounds; where it ``wraps``, negative values count from the end."""
        inner = value.args[0] if value.name == "to" else value
        if inner.name == "index" and inner.index is not None and is_nonnegative_index(inner.index):
            return inner.index
        value = self.cast(value, torch.int64)
        if wraps:
            is_negative = self.call("lt", value, self.constant(0, torch.int64), dtype=torch.bool)
            wrapped = self.where(is_negative, self.call("add", value, self.size(size, torch.int64)), value)
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
        mask: LoopIROp | None = None
        for condition in self._masks:
            mask = condition if mask is None else self.logical_and(mask, condition)
        return mask

    def load(self, source: TensorDef, index: Coordinates) -> LoopIROp:
        """One element of a tensor, in its computing type."""
        if source in self.fused:
            return self._inlined(source, index)
        self.memory_reads.append(MemoryRead(source, index, bool(self._masks)))
        self.read_tensors[source.name] = source
        position, mask = flatten(index, source.stride), self._mask()
        is_narrower = mask is not None and bool(mask.loops - self._space(position))
        if is_narrower and all(is_below(i, n) for i, n in zip(index, source.shape, strict=True)):
            mask = None  # what belongs to a whole row is there wherever in the row the mask looks
        read = self._emit("load", (), source.dtype, index=position, buffer=source.name, mask=mask)
        if not read.label:
            read.label = source.label or source.name
        return (
            self._emit("to", (read,), torch.float32, value=torch.float32)
            if compute_dtype(source.dtype) != source.dtype
            else read
        )

    def _inlined(self, source: TensorDef, index: Coordinates) -> LoopIROp:
        mask = self._mask() if source.kind == "pointwise" else None
        key = (source, index, mask.number if mask else None)
        found = self._inlined_values.get(key)
        if found is None:
            masks = self._masks
            if source.kind != "pointwise":  # read at the loop's own position, which always exists
                self._masks = []
            found = self._inlined_values[key] = self.inline_body(source, index)
            self._masks = masks
        return found

    def inline_body(self, source: TensorDef, index: Coordinates) -> LoopIROp:
        """The body of one Def at an index."""
        outer, self._node_ids = self._node_ids, source.node_ids
        place, self._user_line = self._user_line, source.user_line or self._user_line
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
            self._node_ids, self._user_line = outer, place
        if not value.label and value.name not in ("constant", "load", *WRITE_OPS):
            value.label = source.label or source.name
        return value

    def _fold_one_hot_sum(self, source: TensorDef, value: LoopIROp) -> LoopIROp | None:
        """A sum over ``where(position == wanted, x, 0)`` is ``x``, if ``wanted`` is a position at all; None for other reductions."""
        if source.reduction != "sum" or value.name != "where" or len(source.ranges) != 1:
            return None
        test, x, rest = value.args
        if test.name != "eq" or R in x.loops or rest.name != "constant" or rest.value != 0:
            return None
        place, wanted = test.args
        walked = place.args[0] if place.name == "to" else place
        if walked.name != "index" or walked.index != self.reduction_index or R in wanted.loops:
            return None
        is_position = self.logical_and(
            self.call("ge", wanted, self.constant(0, wanted.dtype), dtype=torch.bool),
            self.call("lt", wanted, self.size(source.ranges[0], wanted.dtype), dtype=torch.bool),
        )
        return self.where(is_position, x, rest)

    def scatter(
        self, target: TensorDef, walked: Coordinates, place: Coordinates, value: LoopIROp, *, is_added: bool
    ) -> LoopIROp:
        """Write ``value`` to an element of a tensor, or add it there, once for each position ``walked``; places outside are left out."""
        inside: LoopIROp | None = None
        for i, size in zip(place, target.shape, strict=True):
            if i.indirect_ops():
                for test in (self.index_ge(i, 0), self.index_lt(i, size)):
                    inside = test if inside is None else self.logical_and(inside, test)
        position = flatten(place, target.stride)
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


@dataclass(frozen=True)
class MatmulConfig:
    """How a product of matrices is cut: tiles of ``rows`` x ``cols``, summed up over slices of ``inner``; ``group`` rows of tiles share columns."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int = 4
    num_stages: int = 3
    group_m: int = 8

    def __str__(self) -> str:
        return f"{self.block_m}x{self.block_n}x{self.block_k}, {self.num_warps} warps, {self.num_stages} stages"


@dataclass(frozen=True)
class MatmulLoops:
    """What makes a kernel one of a product template: its "dot" op is summed over slices of the inner dimension.

    ``across`` and ``down`` are that dimension as the left side's columns and as the right side's rows; ``batch`` counts matrices.
    """

    lhs_k: LoopVar
    rhs_k: LoopVar
    batch: LoopVar
    config: MatmulConfig
    precision: str


@dataclass(frozen=True)
class BlockConfig:
    """``x_block`` outer elements a program (1: the outer index is a scalar), ``r_block`` inner elements at a time (0: no inner loop)."""

    x_block: int
    r_block: int
    is_looped: bool
    num_warps: int
    has_2d_grid: bool = False
    """Each program works on a tile: the grid has a second dimension."""
    prefetch_depth: int = 0
    """Turns of the loop whose loads are under way at once, through shared memory; 0: as many as the compiler finds."""

    @property
    def is_one_row_per_program(self) -> bool:
        """Whether a program works on one row only."""
        return self.r_block > 0 and self.x_block == 1

    def __str__(self) -> str:
        sizes = f"{self.x_block}" if self.r_block == 0 else f"{self.x_block}x{self.r_block}"
        loop = " in a loop" if self.is_looped else ""
        ahead = f", {self.prefetch_depth} turns under way" if self.prefetch_depth else ""
        return f"{sizes}{loop}, {self.num_warps} warps{ahead}"


@dataclass(frozen=True)
class LoopKernel:
    """One kernel before it has text: operations in order, over a flat outer loop ``x`` and a flat inner (reduced) loop ``r``.

    ``names`` are what it does, most telling first, ``name`` what its function is called; ``nodes`` the ids of the ATen nodes in it;
    ``prefix`` starts its loop ops' ids.
    """

    id: str
    prefix: str
    name_parts: tuple[str, ...]
    ops: tuple[LoopIROp, ...]
    x: LoopVar
    r: LoopVar | None
    buffers: Mapping[str, Buffer]
    nodes: tuple[str, ...]
    uses_int64_index: bool = False
    bytes_moved: int | None = None
    flops: int | None = None
    name: str = ""
    initial_values: Mapping[str, str | float] = field(default_factory=dict)
    """Buffers that it changes rather than fills: what each starts from, another buffer or a number."""
    matmul: MatmulLoops | None = None
    """Its loops are those of a template: ``x`` and ``r`` are rows and columns of the product."""
    block_config: BlockConfig | None = None
    """How it is cut, None: as is usual for its sizes."""

    @property
    def is_2d_pointwise(self) -> bool:
        """Whether the inner loop only spans a tile: nothing is put together along it."""
        return self.r is not None and not any(op.name in ("reduce", "scan") for op in self.ops)
