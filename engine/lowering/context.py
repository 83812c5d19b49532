"""Context of a lowering: tensors, index helpers and extern calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.fx

from engine.ir.loop_ir.builder import LoopBuilder
from engine.ir.loop_ir.index_expr import (
    LoopVar,
    Size,
    as_size,
    contiguous_strides,
    exact_quotient,
    flatten,
    sizes_equal,
    variable,
)
from engine.ir.loop_ir.ops import LoopIROp
from engine.ir.loop_ir.tensor_def import Body, Coordinates, ReductionBody, TensorDef
from engine.ir.node_values import tensors_in
from engine.ir.static_sizes import static_size
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.pad_strides import pad_row_stride
from engine.lowering.result_strides import as_real_meta, dense_stride
from engine.torch_private.pytree import tree_leaves


@dataclass(frozen=True, eq=False)
class LoweredTensor:
    """A tensor during lowering: elements of a ``TensorDef`` read through an index map.

    ``index_map`` maps an index of this tensor to an index of ``definition``. A tensor that ``is_complex`` has a
    last dimension of size 2, the real and the imaginary part. Only lowerings of complex tensors accept it.
    """

    shape: tuple[Size, ...]
    definition: TensorDef
    index_map: Callable[[Coordinates], Coordinates] | None = None
    is_complex: bool = False
    unit_strides: tuple[Size, ...] = ()
    """Eager's strides of a view with dimensions of one element; empty if contiguous."""

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        return self.definition.dtype

    def load(self, b: LoopBuilder, index: Coordinates) -> LoopIROp:
        """Load one element, in the compute dtype."""
        return b.load(self.definition, self.index_map(index) if self.index_map else index)

    def loader(self, dtype: torch.dtype) -> Body:
        """Return a loader of one element, cast to ``dtype``."""
        return lambda b, index: b.cast(self.load(b, index), dtype)

    def view(self, shape: Sequence[Size], mapping: Callable[[Coordinates], Coordinates]) -> LoweredTensor:
        """Return this tensor under another index map."""
        inner = self.index_map
        return LoweredTensor(
            tuple(shape), self.definition, mapping if inner is None else lambda index: inner(mapping(index))
        )


def lowered_tensors(values: Any) -> list[LoweredTensor]:
    """Return the lowered tensors in operands or results, nested ones too."""
    return [v for v in tree_leaves(values) if isinstance(v, LoweredTensor)]


def definitions_in(values: Any) -> set[TensorDef]:
    """Return the definitions that operands or results read."""
    return {v.definition for v in lowered_tensors(values)}


class LoweringContext:
    """State of lowering one graph: the definitions so far and the current node."""

    def __init__(
        self,
        compilation: str,
        *,
        is_cpu: bool = False,
        layouts: Mapping[torch.fx.Node, tuple[int, ...]] = MappingProxyType({}),
    ) -> None:
        self.is_cpu = is_cpu
        self.layouts = layouts
        """Strides of nodes' values, if they differ from eager's."""
        self.compilation = compilation
        self.defs: list[TensorDef] = []
        self.externs: list[ExternNode] = []
        self.no_fuse: set[TensorDef] = set()
        """Definitions that the scheduler does not fuse into their readers."""
        self.name_counts: dict[str, int] = {}
        self.current_node: torch.fx.Node | None = None
        self.origins: tuple[str, ...] = ()
        self.user_line = ""
        """User line of the current node."""

    def unique_name(self, name: str) -> str:
        """Return a name that no other definition has."""
        name = name.lstrip("_") or "t"
        count = self.name_counts.get(name, 0)
        self.name_counts[name] = count + 1
        return name if count == 0 else self.unique_name(f"{name}_{count}")

    def add(self, tensor_def: TensorDef) -> TensorDef:
        """Append a definition to the program order."""
        tensor_def.program_order = len(self.defs)
        tensor_def.label = tensor_def.label or tensor_def.name
        self.defs.append(tensor_def)
        return tensor_def

    def pointwise(
        self,
        shape: Sequence[Size],
        dtype: torch.dtype,
        body: Body,
        *,
        name: str = "",
        stride: Sequence[Size] | None = None,
    ) -> LoweredTensor:
        """Define a tensor whose element at an index is ``body(builder, index)``.

        The body computes in the compute dtype of ``dtype``.
        """
        return self._define("pointwise", shape, dtype, body, name, stride=stride)

    def full(self, shape: Sequence[Size], dtype: torch.dtype, value: Any, name: str = "") -> LoweredTensor:
        """Define a tensor whose elements all have one value."""
        return self.pointwise(shape, dtype, lambda b, i: b.constant(value, dtype), name=name)

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
        """Define a reduction of ``body(builder, index, reduced_index)`` over ``ranges``."""
        return self._define("reduction", shape, dtype, body, name, ranges=tuple(ranges), reduction=kind)

    def scan(self, kind: str, shape: Sequence[Size], axis: int, dtype: torch.dtype, body: Body) -> LoweredTensor:
        """Define a scan of ``body`` along ``axis``, such as a running sum or product."""
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
        """Define a tensor that starts as a copy or as a constant, and is then scattered into.

        ``write`` runs once for each position in ``ranges``. It returns the target index and the value, in the compute
        dtype of ``dtype``.
        """

        def body(b: LoopBuilder, index: Coordinates) -> LoopIROp:
            coordinates, value = write(b, index)
            return b.scatter(tensor_def.definition, index, coordinates, value, is_added=is_added)

        tensor_def = self._define("scatter", shape, dtype, body, name, ranges=tuple(ranges), start=start)
        return tensor_def

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
        label = name or self.node_name
        sizes = tuple(shape)
        tensor_def = TensorDef(
            self.unique_name(label),
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
        tensor_def.label = label.lstrip("_").removeprefix("native_")
        return LoweredTensor(sizes, self.add(tensor_def))

    @property
    def node_name(self) -> str:
        """Name of the node that is being lowered."""
        return self.current_node.name if self.current_node is not None else "t"

    def _result_stride(self, shape: tuple[Size, ...], stride: Sequence[Size] | None) -> tuple[Size, ...]:
        """Return eager's strides if a dense result of the node has this shape, else contiguous."""
        if stride is not None or self.current_node is None:
            return contiguous_strides(shape) if stride is None else tuple(stride)
        node = self.current_node
        for value in tensors_in(node.meta.get("val")):
            value = as_real_meta(value) if len(shape) == len(value.shape) + 1 else value
            if len(value.shape) == len(shape) and all(
                sizes_equal(as_size(a), b) for a, b in zip(value.shape, shape, strict=True)
            ):
                dense = self.layouts.get(node) or dense_stride(value)
                return dense if self.is_cpu else pad_row_stride(node, dense)
        return contiguous_strides(shape)


@dataclass(frozen=True, eq=False)
class ExternNode:
    """A call to ATen. ``args`` contain ``LoweredTensor`` objects.

    ``results`` are the definitions of its tensor results; None for a result that is not a tensor.
    """

    node: torch.fx.Node
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[TensorDef | None, ...]
    is_library: bool
    reason: str
    origins: tuple[str, ...]
    kind: str = ""
    """Id of the reason in the catalog of fallbacks."""

    @property
    def output_defs(self) -> list[TensorDef]:
        """Definitions of its tensor results."""
        return [r for r in self.results if r is not None and r.kind != "number"]

    def input_defs(self) -> set[TensorDef]:
        """Return the definitions that the call reads."""
        return definitions_in((self.args, self.kwargs))


def fake_result(low: LoweringContext) -> Any:
    """Return the fake value of the current node.

    Raises:
        NotLowered: there is no current node.
    """
    if low.current_node is None:
        raise NotLowered(LoweringFallback.OPERATOR_MODE, "an operator outside of a graph has no lowering")
    return low.current_node.meta["val"]


def strided_view_of(value: LoweredTensor) -> tuple[tuple[Size, ...], Size] | None:
    """Return ``(strides, offset)`` of a strided view of memory, None for other index maps."""
    if value.index_map is None:
        is_apart = value.is_complex and not _is_complex_layout(value.definition.stride, 0)
        return None if is_apart else (value.definition.stride, 0)
    variables = tuple(LoopVar(f"v{d}", n) for d, n in enumerate(value.shape))
    flat = flatten(value.index_map(tuple(variable(v) for v in variables)), value.definition.stride)
    if not flat.terms.keys() <= set(variables):
        return None
    usual = value.unit_strides or contiguous_strides(value.shape)
    strides = tuple(flat.terms.get(v, 0) if v.size != 1 else usual[d] for d, v in enumerate(variables))
    negative = any((static_size(s) or 0) < 0 for s in strides)
    if negative or (value.is_complex and not _is_complex_layout(strides, flat.const)):
        return None
    return strides, flat.const


def _is_complex_layout(strides: tuple[Size, ...], offset: Size) -> bool:
    """Return True if real and imaginary parts are adjacent, as in complex tensors."""
    return strides[-1] == 1 and all(exact_quotient(s, 2) is not None for s in (*strides[:-1], offset))
