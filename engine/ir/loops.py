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
    Index,
    Picked,
    Size,
    Var,
    flatten,
    is_below,
    is_nonnegative,
    lower,
    plain,
    text_of,
    unflatten,
)
from engine.ir.kernel import Buffer

X = "x"
R = "r"
OUTER = frozenset((X,))
INNER = frozenset((X, R))
NOTHING: frozenset[str] = frozenset()

Coordinates = tuple[Index, ...]
Body = Callable[["Builder", Coordinates], "Op"]
ReductionBody = Callable[["Builder", Coordinates, Coordinates], "Op"]

COSTS = {
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
FREE = frozenset(("constant", "number", "index", "load", "store", "to", "bitcast", "check"))
WRITES = frozenset(("store", "atomic_add"))


def is_nonnegative_index(index: Index) -> bool:
    """Whether an index is known never to be negative."""
    bottom = lower(index)
    return bottom is not None and is_nonnegative(bottom)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of a dtype are held while computing."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


@dataclass(eq=False)
class Op:
    """One operation. ``space`` says along which loops its value varies; ``dtype`` is the type that it is held in.

    ``value`` is a constant, a reduction's kind, a cast's target, or whose line a check is for; ``index`` the memory position (load, store),
    the value (index), or what the operand must be below (check).
    """

    number: int
    name: str
    args: tuple[Op, ...]
    dtype: torch.dtype
    space: frozenset[str]
    value: Any = None
    index: Index | None = None
    buffer: str = ""
    mask: Op | None = None
    origins: list[str] = field(default_factory=list)
    label: str = ""

    def __str__(self) -> str:
        return self.told({})

    def told(self, buffers: Mapping[str, str]) -> str:
        """The operation as a line, buffers by other names where given."""
        parts = [f"%{a.number}" for a in self.args]
        if self.value is not None:
            told = self.value if isinstance(self.value, tuple) else (self.value,)
            parts += [str(v).removeprefix("torch.") if isinstance(v, torch.dtype) else repr(v) for v in told]
        if self.index is not None:
            where = text_of(self.index, lambda number: f"%{number}")
            parts.insert(0, f"{buffers.get(self.buffer, self.buffer)}[{where}]" if self.buffer else where)
        masked = f" if %{self.mask.number}" if self.mask is not None else ""
        kind = str(self.dtype).removeprefix("torch.")
        head = "" if self.name in WRITES or self.name == "check" else f"%{self.number}: {kind} = "
        return f"{head}{self.name}({', '.join(parts)}){masked}"

    @property
    def cost(self) -> int:
        """Rough arithmetic cost of one evaluation."""
        return 0 if self.name in FREE else COSTS.get(self.name, 1)


@dataclass(eq=False)
class Def:
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
    origins: tuple[str, ...] = ()
    body: Any = None
    ranges: tuple[Size, ...] = ()
    reduction: str = ""
    axis: int = 0
    position: int = 0
    """Place in the program's order."""
    label: str = ""
    """What to call its value inside a kernel."""
    start: Def | float | None = None
    where: str = ""
    """The line of the user's that it is for, told where an index in it is out of bounds."""
    is_complex: bool = False
    """It is in memory as a complex tensor, of which this is the real view: inputs and results of ATen calls."""

    @property
    def is_computed(self) -> bool:
        """Whether loops compute it."""
        return self.kind in ("pointwise", "reduction", "scan", "scatter")

    @property
    def walked(self) -> tuple[Size, ...]:
        """The sizes that its body's index runs over: its own shape, save for a scatter."""
        return self.ranges if self.kind == "scatter" else self.shape


@dataclass(frozen=True)
class Demand:
    """A body read element ``index`` of ``source``; ``is_masked`` when only under a condition."""

    source: Def
    index: Coordinates
    is_masked: bool


class Builder:
    """Writes down the operations of one kernel. Equal operations are written once.

    Loads of Defs in ``fused`` become their bodies; all others are recorded in ``demands`` and become memory accesses.
    ``inner`` are the variables that are reduced over, ``reduced`` their flat position.
    """

    def __init__(
        self,
        fused: Collection[Def] = (),
        inner: frozenset[Var] = frozenset(),
        reduced: Index = ZERO,
        is_wide: bool = False,
    ) -> None:
        self.fused = fused
        self.inner = inner
        self.reduced = reduced
        self.index_dtype = torch.int64 if is_wide else torch.int32
        self.ops: list[Op] = []
        self.demands: list[Demand] = []
        self.reads: dict[str, Def] = {}
        self._known: dict[Any, Op] = {}
        self._values: dict[Any, Op] = {}
        self._masks: list[Op] = []
        self._origins: tuple[str, ...] = ()
        self._where = ""

    def _space(self, index: Index) -> frozenset[str]:
        space = frozenset(R if v in self.inner else X for v in index.variables())
        for number in index.picks():
            space |= self.ops[number].space
        return space

    def _write(
        self,
        name: str,
        args: tuple[Op, ...],
        dtype: torch.dtype,
        *,
        value: Any = None,
        index: Index | None = None,
        buffer: str = "",
        mask: Op | None = None,
        space: frozenset[str] | None = None,
    ) -> Op:
        value_key = (type(value), value, math.copysign(1, value) if isinstance(value, float) else 0)
        if isinstance(value, float) and value != value:
            value_key = (float, "nan", 0)
        key = (name, tuple(a.number for a in args), dtype, value_key, index, buffer, mask.number if mask else None)
        found = self._known.get(key)
        if found is None:
            if space is None:
                space = frozenset().union(*(a.space for a in args))
                if index is not None:
                    space |= self._space(index)
                if mask is not None:
                    space |= mask.space
            found = Op(len(self.ops), name, args, dtype, space, value, index, buffer, mask)
            self.ops.append(found)
            self._known[key] = found
        for origin in self._origins:
            if origin not in found.origins:
                found.origins.append(origin)
        return found

    def constant(self, value: Any, dtype: torch.dtype) -> Op:
        """A constant of a computing dtype, or a number that follows from sizes."""
        if isinstance(value, sympy.Expr) and not value.is_number:
            return self.size(plain(value), dtype) if value.is_integer else self.number(value, dtype)
        dtype = compute_dtype(dtype)
        converted: Any = bool(value) if dtype == torch.bool else float(value) if dtype.is_floating_point else int(value)
        return self._write("constant", (), dtype, value=converted, space=NOTHING)

    def number(self, value: sympy.Expr, dtype: torch.dtype) -> Op:
        """A fraction that follows from sizes or is given: whoever launches the kernel computes it, as Python does.

        Raises:
            TypeError: values of the type are whole.
        """
        if not dtype.is_floating_point:
            raise TypeError(f"{value} need not be whole, and {dtype} is")
        return self._write("number", (), compute_dtype(dtype), value=value, space=NOTHING)

    def size(self, value: Size, dtype: torch.dtype) -> Op:
        """A size as a number, symbolic or not."""
        if isinstance(value, int):
            return self.constant(value, dtype)
        if dtype == torch.int64:  # sizes are whole numbers of any width: they take on their partner's
            return self._write("index", (), dtype, index=Index({}, value))
        return self.cast(self.position(Index({}, value)), dtype)

    def position(self, index: Index) -> Op:
        """The value of an index expression."""
        if index.is_constant and isinstance(index.const, int):
            return self.constant(index.const, self.index_dtype)
        if len(index.terms) == 1 and index.const == 0:
            ((atom, coefficient),) = index.terms.items()
            if isinstance(atom, Picked) and coefficient == 1:
                return self.ops[atom.op]
        return self._write("index", (), self.index_dtype, index=index)

    def call(self, name: str, *args: Op, dtype: torch.dtype | None = None) -> Op:
        """Apply an operation to operands of one dtype; the result has that dtype unless said otherwise."""
        return self._write(name, args, dtype or args[-1].dtype)

    def cast(self, op: Op, dtype: torch.dtype) -> Op:
        """Convert to the computing type of ``dtype``, without rounding to ``dtype`` itself."""
        held = compute_dtype(dtype)
        if op.dtype == held:
            return op
        if op.name == "constant":
            return (
                self.constant(op.value, held)
                if not (isinstance(op.value, float) and not held.is_floating_point and not math.isfinite(op.value))
                else self._write("to", (op,), held, value=held)
            )
        return self._write("to", (op,), held, value=held)

    def round(self, op: Op, dtype: torch.dtype) -> Op:
        """Convert to ``dtype`` exactly as a cast in the program does, rounding to 16 bits where it is that narrow."""
        if compute_dtype(dtype) == dtype:
            return self.cast(op, dtype)
        return self._write("round", (self.cast(op, torch.float32),), torch.float32, value=dtype)

    def bits(self, op: Op, own: torch.dtype, dtype: torch.dtype) -> Op:
        """The bits of a value of dtype ``own`` read as ``dtype``, which has as many."""
        return self._write("bitcast", (op,), compute_dtype(dtype), value=(own, dtype))

    def where(self, condition: Op, then: Op, otherwise: Op) -> Op:
        """Choose between two values of one dtype."""
        if condition.name == "constant":
            return then if condition.value else otherwise
        return self.call("where", condition, then, otherwise, dtype=then.dtype)

    def below(self, index: Index, limit: Size) -> Op:
        """Whether an index is less than a size."""
        return self.call("lt", self.position(index), self.size(limit, self.index_dtype), dtype=torch.bool)

    def at_least(self, index: Index, limit: Size) -> Op:
        """Whether an index is at least a size."""
        return self.call("ge", self.position(index), self.size(limit, self.index_dtype), dtype=torch.bool)

    def both(self, a: Op, b: Op) -> Op:
        """Logical and."""
        return self.call("and", a, b, dtype=torch.bool)

    def masked(self, condition: Op, then: Callable[[], Op], otherwise: Op) -> Op:
        """``then()`` where the condition holds, reading memory only there."""
        if condition.name == "constant":
            return then() if condition.value else otherwise
        self._masks.append(condition)
        try:
            value = then()
        finally:
            self._masks.pop()
        return self.where(condition, value, otherwise)

    def picked(self, value: Op, size: Size, *, wraps: bool = True, is_checked: bool = True) -> Index:
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
            space = value.space | (mask.space if mask is not None else NOTHING)
            limit = Index({}, size)
            self._write("check", (value,), torch.bool, value=self._where, index=limit, mask=mask, space=space)
        return Index({Picked(value.number, size): 1})

    def _mask(self) -> Op | None:
        mask: Op | None = None
        for condition in self._masks:
            mask = condition if mask is None else self.both(mask, condition)
        return mask

    def load(self, source: Def, index: Coordinates) -> Op:
        """One element of a tensor, in its computing type."""
        if source in self.fused:
            return self._inlined(source, index)
        self.demands.append(Demand(source, index, bool(self._masks)))
        self.reads[source.name] = source
        position, mask = flatten(index, source.stride), self._mask()
        is_narrower = mask is not None and bool(mask.space - self._space(position))
        if is_narrower and all(is_below(i, n) for i, n in zip(index, source.shape, strict=True)):
            mask = None  # what belongs to a whole row is there wherever in the row the mask looks
        read = self._write("load", (), source.dtype, index=position, buffer=source.name, mask=mask)
        if not read.label:
            read.label = source.label or source.name
        return (
            self._write("to", (read,), torch.float32, value=torch.float32)
            if compute_dtype(source.dtype) != source.dtype
            else read
        )

    def _inlined(self, source: Def, index: Coordinates) -> Op:
        mask = self._mask() if source.kind == "pointwise" else None
        key = (source, index, mask.number if mask else None)
        found = self._values.get(key)
        if found is None:
            masks = self._masks
            if source.kind != "pointwise":  # read at the loop's own position, which always exists
                self._masks = []
            found = self._values[key] = self.evaluate(source, index)
            self._masks = masks
        return found

    def evaluate(self, source: Def, index: Coordinates) -> Op:
        """The body of one Def at an index."""
        outer, self._origins = self._origins, source.origins
        place, self._where = self._where, source.where or self._where
        value: Op
        try:
            if source.kind == "reduction":
                value = source.body(self, index, unflatten(self.reduced, source.ranges))
                value = self._sum_of_one(source, value) or self._write(
                    "reduce", (value,), value.dtype, value=source.reduction, space=value.space - {R}
                )
            elif source.kind == "scan":
                value = source.body(self, index)
                value = self._write("scan", (value,), value.dtype, value=source.reduction, space=value.space | {R})
            else:
                value = source.body(self, index)
        finally:
            self._origins, self._where = outer, place
        if not value.label and value.name not in ("constant", "load", *WRITES):
            value.label = source.label or source.name
        return value

    def _sum_of_one(self, source: Def, value: Op) -> Op | None:
        """A sum over ``where(position == wanted, x, 0)`` is ``x``, if ``wanted`` is a position at all; None for other reductions."""
        if source.reduction != "sum" or value.name != "where" or len(source.ranges) != 1:
            return None
        test, x, rest = value.args
        if test.name != "eq" or R in x.space or rest.name != "constant" or rest.value != 0:
            return None
        place, wanted = test.args
        walked = place.args[0] if place.name == "to" else place
        if walked.name != "index" or walked.index != self.reduced or R in wanted.space:
            return None
        is_position = self.both(
            self.call("ge", wanted, self.constant(0, wanted.dtype), dtype=torch.bool),
            self.call("lt", wanted, self.size(source.ranges[0], wanted.dtype), dtype=torch.bool),
        )
        return self.where(is_position, x, rest)

    def scatter(self, target: Def, walked: Coordinates, place: Coordinates, value: Op, *, is_added: bool) -> Op:
        """Write ``value`` to an element of a tensor, or add it there, once for each position ``walked``; places outside are left out."""
        inside: Op | None = None
        for i, size in zip(place, target.shape, strict=True):
            if i.picks():
                for test in (self.at_least(i, 0), self.below(i, size)):
                    inside = test if inside is None else self.both(inside, test)
        position = flatten(place, target.stride)
        space = self._space(position) | value.space | frozenset().union(*(self._space(i) for i in walked))
        name = "atomic_add" if is_added else "store"
        written = self._write(
            name, (value,), target.dtype, index=position, buffer=target.name, mask=inside, space=space
        )
        written.label = target.label or target.name
        return written

    def store(self, target: Def, index: Coordinates, value: Op) -> Op:
        """Write one element of a tensor, rounded to its dtype."""
        self._origins = target.origins
        position = flatten(index, target.stride)
        written = self._write(
            "store",
            (value,),
            target.dtype,
            index=position,
            buffer=target.name,
            space=self._space(position) | value.space,
        )
        written.label = target.label or target.name
        return written


@dataclass(frozen=True)
class Tiling:
    """How a product of matrices is cut: tiles of ``rows`` x ``cols``, summed up over slices of ``inner``; ``group`` rows of tiles share columns."""

    rows: int
    cols: int
    inner: int
    num_warps: int = 4
    num_stages: int = 3
    group: int = 8

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols}x{self.inner}, {self.num_warps} warps, {self.num_stages} stages"


@dataclass(frozen=True)
class Product:
    """What makes a kernel one of a product template: its "dot" op is summed over slices of the inner dimension.

    ``across`` and ``down`` are that dimension as the left side's columns and as the right side's rows; ``batch`` counts matrices.
    """

    across: Var
    down: Var
    batch: Var
    tiling: Tiling
    precision: str


@dataclass(frozen=True)
class Blocking:
    """``x_block`` outer elements a program (1: the outer index is a scalar), ``r_block`` inner elements at a time (0: no inner loop)."""

    x_block: int
    r_block: int
    is_looped: bool
    num_warps: int
    is_tiled: bool = False
    """Each program works on a tile: the grid has a second dimension."""
    in_flight: int = 0
    """Turns of the loop whose loads are under way at once, through shared memory; 0: as many as the compiler finds."""

    @property
    def is_row(self) -> bool:
        """Whether a program works on one row only."""
        return self.r_block > 0 and self.x_block == 1

    def __str__(self) -> str:
        sizes = f"{self.x_block}" if self.r_block == 0 else f"{self.x_block}x{self.r_block}"
        loop = " in a loop" if self.is_looped else ""
        ahead = f", {self.in_flight} turns under way" if self.in_flight else ""
        return f"{sizes}{loop}, {self.num_warps} warps{ahead}"


@dataclass(frozen=True)
class LoopKernel:
    """One kernel before it has text: operations in order, over a flat outer loop ``x`` and a flat inner (reduced) loop ``r``.

    ``names`` are what it does, most telling first, ``name`` what its function is called; ``nodes`` the ids of the ATen nodes in it;
    ``prefix`` starts its loop ops' ids.
    """

    id: str
    prefix: str
    names: tuple[str, ...]
    ops: tuple[Op, ...]
    x: Var
    r: Var | None
    buffers: Mapping[str, Buffer]
    nodes: tuple[str, ...]
    is_wide: bool = False
    bytes_moved: int | None = None
    flops: int | None = None
    name: str = ""
    starts: Mapping[str, str | float] = field(default_factory=dict)
    """Buffers that it changes rather than fills: what each starts from, another buffer or a number."""
    product: Product | None = None
    """Its loops are those of a template: ``x`` and ``r`` are rows and columns of the product."""
    block: Blocking | None = None
    """How it is cut, None: as is usual for its sizes."""

    @property
    def is_tiled(self) -> bool:
        """Whether the inner loop only spans a tile: nothing is put together along it."""
        return self.r is not None and not any(op.name in ("reduce", "scan") for op in self.ops)
