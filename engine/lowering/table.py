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

from engine.ir.index import ZERO, Size, as_size, contiguous_strides, sizes_equal, symbols_of
from engine.ir.loops import Body, Coordinates, LoopBuilder, LoopIROp, ReductionBody, TensorDef
from engine.lowering.padding import pad_row_stride

LoweringResult = Any
"""A Tensor, a Python value or size, or a tuple of those."""

SUPPORTED_DTYPES = frozenset(
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
class LoweredTensor:
    """A tensor while lowering: elements of a Def seen through an index map.

    ``mapping`` turns an index of this tensor into one of ``base``. One that ``is_complex`` has a last dimension of two, the real and the
    imaginary parts, and goes to lowerings of complex numbers only.
    """

    shape: tuple[Size, ...]
    definition: TensorDef
    index_map: Callable[[Coordinates], Coordinates] | None = None
    is_complex: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        return self.definition.dtype

    def load(self, b: LoopBuilder, index: Coordinates) -> LoopIROp:
        """One element, in its computing type."""
        return b.load(self.definition, self.index_map(index) if self.index_map else index)

    def view(self, shape: Sequence[Size], mapping: Callable[[Coordinates], Coordinates]) -> LoweredTensor:
        """This tensor through another index map."""
        inner = self.index_map
        return LoweredTensor(
            tuple(shape), self.definition, mapping if inner is None else lambda index: inner(mapping(index))
        )


class LoweringContext:
    """One graph on its way to loops: the Defs made so far, and the node at work."""

    def __init__(self, compilation: str) -> None:
        self.compilation = compilation
        self.defs: list[TensorDef] = []
        self.externs: list[ExternNode] = []
        self.no_fuse: set[TensorDef] = set()
        """Defs that had better not be computed by the kernels that read them."""
        self.name_counts: dict[str, int] = {}
        self.current_node: torch.fx.Node | None = None
        self.origins: tuple[str, ...] = ()
        self.user_line = ""
        """The line of the user's that the node at work comes from."""

    def unique_name(self, wanted: str) -> str:
        """A name that no other Def has."""
        wanted = wanted.lstrip("_") or "t"
        count = self.name_counts.get(wanted, 0)
        self.name_counts[wanted] = count + 1
        return wanted if count == 0 else self.unique_name(f"{wanted}_{count}")

    def add(self, made: TensorDef) -> TensorDef:
        """Put a Def into the program's order."""
        made.program_order = len(self.defs)
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
    ) -> LoweredTensor:
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
    ) -> LoweredTensor:
        """A tensor whose element is a reduction of ``body(builder, index, reduced index)`` over ``ranges``."""
        return self._define("reduction", shape, dtype, body, name, ranges=tuple(ranges), reduction=kind)

    def scan(self, kind: str, shape: Sequence[Size], axis: int, dtype: torch.dtype, body: Body) -> LoweredTensor:
        """A tensor whose element is the running sum or product of ``body`` along ``axis``."""
        return self._define("scan", shape, dtype, body, "", reduction=kind, axis=axis)

    def scatter(
        self,
        shape: Sequence[Size],
        ranges: Sequence[Size],
        dtype: torch.dtype,
        start: TensorDef | float,
        write: Callable[[LoopBuilder, Coordinates], tuple[Coordinates, LoopIROp]],
        *,
        is_added: bool,
        name: str = "",
    ) -> LoweredTensor:
        """A tensor that starts as another, or as a number, and is written at places that ``write`` gives with values.

        ``write`` is run once for each position in ``ranges``; values are in the computing type of ``dtype``.
        """

        def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
            place, value = write(b, index)
            return b.scatter(made.definition, index, place, value, is_added=is_added)

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
        start: TensorDef | float | None = None,
    ) -> LoweredTensor:
        wanted = name or self._current_node_name()
        sizes = tuple(shape)
        made = TensorDef(
            self.unique_name(wanted),
            dtype,
            sizes,
            self._result_stride(sizes, stride),
            kind,
            self.origins,
            body,
            ranges,
            reduction,
            axis,
            initial_value=start,
            user_line=self.user_line,
        )
        made.label = wanted.lstrip("_").removeprefix("native_")
        return LoweredTensor(sizes, self.add(made))

    def _current_node_name(self) -> str:
        return self.current_node.name if self.current_node is not None else "t"

    def _result_stride(self, shape: tuple[Size, ...], stride: Sequence[Size] | None) -> tuple[Size, ...]:
        """The eager layout where the node's own value has this shape and fills its memory, else row-major."""
        if stride is not None:
            return tuple(stride)
        value = self.current_node.meta.get("val") if self.current_node is not None else None
        if isinstance(value, torch.Tensor) and value.dtype in REAL_DTYPES and len(shape) == len(value.shape) + 1:
            value = as_real_meta(value)
        if (
            isinstance(value, torch.Tensor)
            and len(value.shape) == len(shape)
            and all(sizes_equal(as_size(a), b) for a, b in zip(value.shape, shape, strict=True))
        ):
            return (
                pad_row_stride(self.current_node, dense_stride(value))
                if self.current_node is not None
                else dense_stride(value)
            )
        return contiguous_strides(shape)


@dataclass(frozen=True, eq=False)
class ExternNode:
    """A call left to ATen. ``args`` hold Tensors, ``results`` its tensor results as Defs (None: not a tensor)."""

    node: torch.fx.Node
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[TensorDef | None, ...]
    is_library: bool
    reason: str
    origins: tuple[str, ...]


LoweringFn = Callable[..., LoweringResult]
LOWERINGS: dict[Any, LoweringFn] = {}
COMPLEX_LOWERINGS: dict[Any, LoweringFn] = {}
"""Lowerings for calls that take or give complex tensors."""
REAL_DTYPES = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""The type of the parts of complex types that loops compute with."""


def register_lowering(*operators: Any) -> Callable[[LoweringFn], LoweringFn]:
    """Register a lowering ``fn(low, *args, **kwargs)`` for operators (overloads). Names registered twice are an error."""

    def register(fn: LoweringFn) -> LoweringFn:
        for operator in operators:
            if operator in LOWERINGS:
                raise ValueError(f"{operator} already has a lowering")
            LOWERINGS[operator] = fn
        return fn

    return register


def register_complex_lowering(*operators: Any) -> Callable[[LoweringFn], LoweringFn]:
    """Register a lowering of operators for complex tensors."""

    def register(fn: LoweringFn) -> LoweringFn:
        for operator in operators:
            if operator in COMPLEX_LOWERINGS:
                raise ValueError(f"{operator} already has a lowering for complex numbers")
            COMPLEX_LOWERINGS[operator] = fn
        return fn

    return register


def as_real_meta(value: Any) -> Any:
    """A stand-in for a complex tensor's real view: no memory, the same strides in units of its parts. Other values stay."""
    if not isinstance(value, torch.Tensor) or value.dtype not in REAL_DTYPES:
        return value
    with getattr(value, "fake_mode", None) or contextlib.nullcontext():
        return torch.empty_strided(
            (*value.shape, 2), (*(2 * s for s in value.stride()), 1), dtype=REAL_DTYPES[value.dtype], device="meta"
        )


def dense_stride(value: torch.Tensor) -> tuple[Size, ...]:
    """The strides of a value if it fills its memory without gaps or overlap, else those of a row-major copy."""
    shape = tuple(as_size(s) for s in value.shape)
    stride = tuple(as_size(s) for s in value.stride())
    wanted: Size = 1
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    remaining = list(dims)
    while remaining:
        fitting = next((d for d in reversed(remaining) if sizes_equal(stride[d], wanted)), None)
        if fitting is None:
            return contiguous_strides(shape)
        wanted = as_size(wanted * shape[fitting])
        remaining.remove(fitting)
    told = symbols_of(shape)
    # A stride over one element may be a symbol that nothing tells, and does not matter.
    return tuple(s if n != 1 or symbols_of((s,)) <= told else wanted for n, s in zip(shape, stride, strict=True))


def non_overlapping_stride(value: torch.Tensor) -> tuple[Size, ...]:
    """The strides of a value if no two of its elements share a place, gaps or not, else those of ``dense_stride``."""
    stride = tuple(as_size(s) for s in value.stride())
    return stride if is_non_overlapping(symbolic_shape(value), stride) else dense_stride(value)


def is_non_overlapping(shape: tuple[Size, ...], stride: tuple[Size, ...]) -> bool:
    """Whether no two elements of a walk over memory are known to fall on one place."""
    reach = 1
    for step, size in sorted(zip(stride, shape, strict=True), key=lambda pair: str(pair[0]).zfill(20)):
        if not isinstance(step, int) or not isinstance(size, int) or (size > 1 and step < reach):
            return False
        reach += (size - 1) * step
    return True


def symbolic_shape(value: torch.Tensor) -> tuple[Size, ...]:
    """The shape of a fake value."""
    return tuple(as_size(s) for s in value.shape)


def fake_result(low: LoweringContext) -> Any:
    """The fake value of the node at work."""
    if low.current_node is None:
        raise NotLowered("outside a graph")
    return low.current_node.meta["val"]


DEFAULT = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
INT_TO_FLOAT = ELEMENTWISE_TYPE_PROMOTION_KIND.INT_TO_FLOAT
ALWAYS_BOOL = ELEMENTWISE_TYPE_PROMOTION_KIND.ALWAYS_BOOL


@functools.lru_cache(maxsize=4096)
def _promote_dtypes_cached(
    kinds: tuple[tuple[torch.dtype, int] | type, ...], promotion: ELEMENTWISE_TYPE_PROMOTION_KIND
) -> tuple[torch.dtype, torch.dtype]:
    stand_ins = [k(1) if isinstance(k, type) else torch.empty((1,) * k[1], dtype=k[0], device="meta") for k in kinds]
    return elementwise_dtypes(*stand_ins, type_promotion_kind=promotion)


def promote_dtypes(
    args: Sequence[Any], promotion: ELEMENTWISE_TYPE_PROMOTION_KIND = DEFAULT
) -> tuple[torch.dtype, torch.dtype]:
    """``(computing dtype, result dtype)`` of an elementwise operator, as eager promotes tensors and Python numbers."""
    kinds: list[tuple[torch.dtype, int] | type] = []
    for a in args:
        if isinstance(a, LoweredTensor):
            kinds.append((a.dtype, min(len(a.shape), 1)))
        elif isinstance(a, (bool, int, float)):
            kinds.append(type(a))
        elif a is not None:
            kinds.append(float if is_float_expr(a) else int)
    return _promote_dtypes_cached(tuple(kinds), promotion)


def is_float_expr(number: Any) -> bool:
    """Whether a number that follows from sizes or other numbers need not be whole."""
    return isinstance(number, sympy.Expr) and number.is_integer is not True


def broadcast_loader(a: Any, dtype: torch.dtype, shape: tuple[Size, ...]) -> Body:
    """The elements of a tensor or number broadcast to ``shape``, held as ``dtype``."""
    if not isinstance(a, LoweredTensor):
        if isinstance(a, (bool, int, float)):
            if isinstance(a, int) and not _fits_dtype(a, dtype):
                raise NotLowered(
                    f"{a} does not fit in {str(dtype).removeprefix('torch.')}, which ATen wraps around or refuses"
                )
            return lambda b, index: b.constant(a, dtype)
        if isinstance(a, complex):
            raise NotLowered("complex numbers are computed by ATen")
        if not isinstance(a, sympy.Expr):
            raise NotLowered("a truth value that follows from sizes is computed by ATen")
        if is_float_expr(a) and not dtype.is_floating_point:
            raise NotLowered("a fraction among whole numbers is computed by ATen")
        return lambda b, index: b.constant(a, dtype)
    lead = len(shape) - len(a.shape)
    same = tuple(i + lead if s != 1 else None for i, s in enumerate(a.shape))
    return lambda b, index: b.cast(a.load(b, tuple(ZERO if i is None else index[i] for i in same)), dtype)


def _fits_dtype(value: int, dtype: torch.dtype) -> bool:
    if dtype.is_floating_point or dtype in (torch.bool, torch.int64):
        return True
    limits = torch.iinfo(dtype)
    return limits.min <= value <= limits.max


def broadcast_shape(args: Sequence[Any]) -> tuple[Size, ...]:
    """The shape of an elementwise result."""
    shapes = [a.shape for a in args if isinstance(a, LoweredTensor)]
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


def check_supported_dtype(*values: Any) -> None:
    """Refuse element types that loops do not compute with.

    Raises:
        NotLowered: for complex, quantised and 8-bit float types.
    """
    for value in values:
        if isinstance(value, (LoweredTensor, torch.Tensor)) and value.dtype not in SUPPORTED_DTYPES:
            raise NotLowered(f"{str(value.dtype).removeprefix('torch.')} is computed by ATen")


def canonical_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front; a 0-dim tensor has one dimension for this purpose."""
    return dim % max(rank, 1)
