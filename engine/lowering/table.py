"""The table of lowerings: which function turns which ATen operator into loops, and what those functions work with."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from engine.ir.index import ZERO, Size, contiguous_strides, is_same, plain, symbols_of
from engine.ir.loops import Body, Builder, Coordinates, Def, Op, ReductionBody
from engine.lowering.padding import padded

Lowered = Any
"""A Tensor, a Python value or size, or a tuple of those."""

LOOPABLE = frozenset(
    (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
    )
)
"""Element types that loops compute with."""


class NotLowered(Exception):
    """This call has no lowering after all; the message is the recorded reason, and ATen runs it."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor while lowering: elements of a Def seen through an index map.

    ``mapping`` turns an index of this tensor into one of ``base``. One that ``is_complex`` has a last dimension of two, the real and the
    imaginary parts, and goes to lowerings of complex numbers only.
    """

    shape: tuple[Size, ...]
    base: Def
    mapping: Callable[[Coordinates], Coordinates] | None = None
    is_complex: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        return self.base.dtype

    def at(self, b: Builder, index: Coordinates) -> Op:
        """One element, in its computing type."""
        return b.load(self.base, self.mapping(index) if self.mapping else index)

    def view(self, shape: Sequence[Size], mapping: Callable[[Coordinates], Coordinates]) -> Tensor:
        """This tensor through another index map."""
        inner = self.mapping
        return Tensor(tuple(shape), self.base, mapping if inner is None else lambda index: inner(mapping(index)))


class Lowering:
    """One graph on its way to loops: the Defs made so far, and the node at work."""

    def __init__(self, compilation: str) -> None:
        self.compilation = compilation
        self.defs: list[Def] = []
        self.externs: list[ExternNode] = []
        self.apart: set[Def] = set()
        """Defs that had better not be computed by the kernels that read them."""
        self.names: dict[str, int] = {}
        self.node: torch.fx.Node | None = None
        self.origins: tuple[str, ...] = ()
        self.where = ""
        """The line of the user's that the node at work comes from."""

    def name(self, wanted: str) -> str:
        """A name that no other Def has."""
        wanted = wanted.lstrip("_") or "t"
        count = self.names.get(wanted, 0)
        self.names[wanted] = count + 1
        return wanted if count == 0 else self.name(f"{wanted}_{count}")

    def add(self, made: Def) -> Def:
        """Put a Def into the program's order."""
        made.position = len(self.defs)
        made.label = made.label or made.name
        self.defs.append(made)
        return made

    def pointwise(
        self,
        shape: Sequence[Size],
        dtype: torch.dtype,
        body: Body,
        *,
        name: str = "",
        stride: Sequence[Size] | None = None,
    ) -> Tensor:
        """A tensor whose element at an index is ``body(builder, index)``, in the computing type of ``dtype``."""
        return self._define("pointwise", shape, dtype, body, name, stride=stride)

    def reduction(
        self,
        kind: str,
        shape: Sequence[Size],
        ranges: Sequence[Size],
        dtype: torch.dtype,
        body: ReductionBody,
        *,
        name: str = "",
    ) -> Tensor:
        """A tensor whose element is a reduction of ``body(builder, index, reduced index)`` over ``ranges``."""
        return self._define("reduction", shape, dtype, body, name, ranges=tuple(ranges), reduction=kind)

    def scan(self, kind: str, shape: Sequence[Size], axis: int, dtype: torch.dtype, body: Body) -> Tensor:
        """A tensor whose element is the running sum or product of ``body`` along ``axis``."""
        return self._define("scan", shape, dtype, body, "", reduction=kind, axis=axis)

    def scatter(
        self,
        shape: Sequence[Size],
        ranges: Sequence[Size],
        dtype: torch.dtype,
        start: Def | float,
        write: Callable[[Builder, Coordinates], tuple[Coordinates, Op]],
        *,
        is_added: bool,
        name: str = "",
    ) -> Tensor:
        """A tensor that starts as another, or as a number, and is written at places that ``write`` gives with values.

        ``write`` is run once for each position in ``ranges``; values are in the computing type of ``dtype``.
        """

        def body(b: Builder, index: Coordinates) -> Op:
            place, value = write(b, index)
            return b.scatter(made.base, index, place, value, is_added=is_added)

        made = self._define("scatter", shape, dtype, body, name, ranges=tuple(ranges), start=start)
        return made

    def _define(
        self,
        kind: str,
        shape: Sequence[Size],
        dtype: torch.dtype,
        body: Any,
        name: str,
        *,
        stride: Sequence[Size] | None = None,
        ranges: tuple[Size, ...] = (),
        reduction: str = "",
        axis: int = 0,
        start: Def | float | None = None,
    ) -> Tensor:
        wanted = name or self._own_name()
        sizes = tuple(shape)
        made = Def(
            self.name(wanted),
            dtype,
            sizes,
            self._stride(sizes, stride),
            kind,
            self.origins,
            body,
            ranges,
            reduction,
            axis,
            start=start,
            where=self.where,
        )
        made.label = wanted.lstrip("_").removeprefix("native_")
        return Tensor(sizes, self.add(made))

    def _own_name(self) -> str:
        return self.node.name if self.node is not None else "t"

    def _stride(self, shape: tuple[Size, ...], stride: Sequence[Size] | None) -> tuple[Size, ...]:
        """The eager layout where the node's own value has this shape and fills its memory, else row-major."""
        if stride is not None:
            return tuple(stride)
        value = self.node.meta.get("val") if self.node is not None else None
        if isinstance(value, torch.Tensor) and value.dtype in REAL and len(shape) == len(value.shape) + 1:
            value = parts_like(value)
        if (
            isinstance(value, torch.Tensor)
            and len(value.shape) == len(shape)
            and all(is_same(plain(a), b) for a, b in zip(value.shape, shape, strict=True))
        ):
            return padded(self.node, dense_stride(value)) if self.node is not None else dense_stride(value)
        return contiguous_strides(shape)


@dataclass(frozen=True, eq=False)
class ExternNode:
    """A call left to ATen. ``args`` hold Tensors, ``results`` its tensor results as Defs (None: not a tensor)."""

    node: torch.fx.Node
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Def | None, ...]
    is_library: bool
    reason: str
    origins: tuple[str, ...]


Lower = Callable[..., Lowered]
TABLE: dict[Any, Lower] = {}
COMPLEX: dict[Any, Lower] = {}
"""Lowerings for calls that take or give complex tensors."""
REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The type of the parts of complex types that loops compute with."""


def lowers(*operators: Any) -> Callable[[Lower], Lower]:
    """Register a lowering ``fn(low, *args, **kwargs)`` for operators (overloads). Names registered twice are an error."""

    def register(fn: Lower) -> Lower:
        for operator in operators:
            if operator in TABLE:
                raise ValueError(f"{operator} already has a lowering")
            TABLE[operator] = fn
        return fn

    return register


def lowers_complex(*operators: Any) -> Callable[[Lower], Lower]:
    """Register a lowering of operators for complex tensors."""

    def register(fn: Lower) -> Lower:
        for operator in operators:
            if operator in COMPLEX:
                raise ValueError(f"{operator} already has a lowering for complex numbers")
            COMPLEX[operator] = fn
        return fn

    return register


def parts_like(value: Any) -> Any:
    """A stand-in for a complex tensor's real view: no memory, the same strides in units of its parts. Other values stay."""
    if not isinstance(value, torch.Tensor) or value.dtype not in REAL:
        return value
    with getattr(value, "fake_mode", None) or contextlib.nullcontext():
        return torch.empty_strided(
            (*value.shape, 2), (*(2 * s for s in value.stride()), 1), dtype=REAL[value.dtype], device="meta"
        )


def dense_stride(value: torch.Tensor) -> tuple[Size, ...]:
    """The strides of a value if it fills its memory without gaps or overlap, else those of a row-major copy."""
    shape = tuple(plain(s) for s in value.shape)
    stride = tuple(plain(s) for s in value.stride())
    wanted: Size = 1
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    remaining = list(dims)
    while remaining:
        fitting = next((d for d in reversed(remaining) if is_same(stride[d], wanted)), None)
        if fitting is None:
            return contiguous_strides(shape)
        wanted = plain(wanted * shape[fitting])
        remaining.remove(fitting)
    told = symbols_of(shape)
    # A stride over one element may be a symbol that nothing tells, and does not matter.
    return tuple(s if n != 1 or symbols_of((s,)) <= told else wanted for n, s in zip(shape, stride, strict=True))


def apart_stride(value: torch.Tensor) -> tuple[Size, ...]:
    """The strides of a value if no two of its elements share a place, gaps or not, else those of ``dense_stride``."""
    stride = tuple(plain(s) for s in value.stride())
    return stride if is_apart(sizes_of(value), stride) else dense_stride(value)


def is_apart(shape: tuple[Size, ...], stride: tuple[Size, ...]) -> bool:
    """Whether no two elements of a walk over memory are known to fall on one place."""
    reach = 1
    for step, size in sorted(zip(stride, shape, strict=True), key=lambda pair: str(pair[0]).zfill(20)):
        if not isinstance(step, int) or not isinstance(size, int) or (size > 1 and step < reach):
            return False
        reach += (size - 1) * step
    return True


def sizes_of(value: torch.Tensor) -> tuple[Size, ...]:
    """The shape of a fake value."""
    return tuple(plain(s) for s in value.shape)


def result_value(low: Lowering) -> Any:
    """The fake value of the node at work."""
    if low.node is None:
        raise NotLowered("outside a graph")
    return low.node.meta["val"]


DEFAULT = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
INT_TO_FLOAT = ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
ALWAYS_BOOL = ELEMENTWISE_TYPE_PROMOTION_KIND.ALWAYS_BOOL


@functools.lru_cache(maxsize=4096)
def _promoted(
    kinds: tuple[tuple[torch.dtype, int] | type, ...], promotion: ELEMENTWISE_TYPE_PROMOTION_KIND
) -> tuple[torch.dtype, torch.dtype]:
    stand_ins = [k(1) if isinstance(k, type) else torch.empty((1,) * k[1], dtype=k[0], device="meta") for k in kinds]
    return elementwise_dtypes(*stand_ins, type_promotion_kind=promotion)


def promoted(
    args: Sequence[Any], promotion: ELEMENTWISE_TYPE_PROMOTION_KIND = DEFAULT
) -> tuple[torch.dtype, torch.dtype]:
    """``(computing dtype, result dtype)`` of an elementwise operator, as eager promotes tensors and Python numbers."""
    kinds: list[tuple[torch.dtype, int] | type] = []
    for a in args:
        if isinstance(a, Tensor):
            kinds.append((a.dtype, min(len(a.shape), 1)))
        elif isinstance(a, (bool, int, float)):
            kinds.append(type(a))
        elif a is not None:
            kinds.append(float if is_fraction(a) else int)
    return _promoted(tuple(kinds), promotion)


def is_fraction(number: Any) -> bool:
    """Whether a number that follows from sizes or other numbers need not be whole."""
    return isinstance(number, sympy.Expr) and number.is_integer is not True


def element(a: Any, dtype: torch.dtype, shape: tuple[Size, ...]) -> Body:
    """The elements of a tensor or number broadcast to ``shape``, held as ``dtype``."""
    if not isinstance(a, Tensor):
        if isinstance(a, (bool, int, float)):
            if isinstance(a, int) and not _is_held(a, dtype):
                raise NotLowered(
                    f"{a} does not fit in {str(dtype).removeprefix('torch.')}, which ATen wraps around or refuses"
                )
            return lambda b, index: b.constant(a, dtype)
        if isinstance(a, complex):
            raise NotLowered("complex numbers are computed by ATen")
        if not isinstance(a, sympy.Expr):
            raise NotLowered("a truth value that follows from sizes is computed by ATen")
        if is_fraction(a) and not dtype.is_floating_point:
            raise NotLowered("a fraction among whole numbers is computed by ATen")
        return lambda b, index: b.constant(a, dtype)
    lead = len(shape) - len(a.shape)
    same = tuple(i + lead if s != 1 else None for i, s in enumerate(a.shape))
    return lambda b, index: b.cast(a.at(b, tuple(ZERO if i is None else index[i] for i in same)), dtype)


def _is_held(value: int, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point or dtype in (torch.bool, torch.int64):
        return True
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max


def broadcast_shape(args: Sequence[Any]) -> tuple[Size, ...]:
    """The shape of an elementwise result."""
    shapes = [a.shape for a in args if isinstance(a, Tensor)]
    rank = max((len(s) for s in shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if result[i] == 1 or (size != 1 and _is_simpler(size, result[i])):
                result[i] = size
    return tuple(result)


def _is_simpler(size: Size, than: Size) -> bool:
    """Whether one of two names of the same size is the plainer."""
    return not isinstance(than, int) and (isinstance(size, int) or size.count_ops() < than.count_ops())


def check_loopable(*values: Any) -> None:
    """Refuse element types that loops do not compute with.

    Raises:
        NotLowered: for complex, quantised and 8-bit float types.
    """
    for value in values:
        if isinstance(value, (Tensor, torch.Tensor)) and value.dtype not in LOOPABLE:
            raise NotLowered(f"{str(value.dtype).removeprefix('torch.')} is computed by ATen")


def positive_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front; a 0-dim tensor has one dimension for this purpose."""
    return dim % max(rank, 1)
