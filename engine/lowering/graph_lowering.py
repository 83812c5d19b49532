"""Interpret an ATen graph and build loop IR, operator by operator."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
import torch.fx

from engine.errors import EngineError
from engine.interrupts.deferred_interrupts import deliver_interrupts
from engine.ir.fallback import Fallback
from engine.ir.introspection.operator_facts import facts_of
from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.kernels.lowered_program import BufferRef, ConstantTensor
from engine.ir.kernels.symbol_locations import NUMBER, OFFSET, stride_location
from engine.ir.loop_ir.index_expr import (
    Size,
    as_size,
    clear_cached_results,
    contiguous_strides,
    sizes_equal,
    symbols_of,
)
from engine.ir.loop_ir.program_symbols import SYMBOLIC_SCALARS, ProgramSymbols, expression_of
from engine.ir.loop_ir.tensor_def import TensorDef
from engine.ir.node_metadata import PADDED_ROWS_KEY, provenance_of
from engine.ir.node_values import (
    called_overload,
    constant_number,
    results_of,
    tensor_meta,
    tensors_in,
    unwrap_functionalized,
)
from engine.ir.static_sizes import static_size, static_sizes
from engine.ir.user_code_files import display_name, is_cell
from engine.lowering.context import (
    ExternNode,
    LoweredTensor,
    LoweringContext,
    definitions_in,
    lowered_tensors,
    strided_view_of,
)
from engine.lowering.cpu.aten_operators import cpu_fallback
from engine.lowering.fallbacks.kinds import LoweringFallback, NotLowered
from engine.lowering.fusion.fusion_cost import build_unfused
from engine.lowering.library_ops import is_library_op, library_fallback
from engine.lowering.memory.choose_layouts import choose_layouts
from engine.lowering.ops import find_complex_lowering, find_lowering
from engine.lowering.promotion import check_supported_dtype
from engine.lowering.result_strides import (
    REAL_DTYPES,
    as_real_meta,
    has_overlap,
    is_guarded_equal,
    non_overlapping_stride,
    symbolic_shape,
)
from engine.records.bytecode import Span
from engine.torch_private.pytree import tree_leaves, tree_map_only

aten = torch.ops.aten


class LoweringError(EngineError):
    """The graph as a whole cannot be lowered. ATen runs it instead."""


_TAKES_SIZES = frozenset((aten.empty.memory_format, torch.ops.prims.iota.default))
_TAKES_SIZES |= {op.default for op in (aten.view, aten._unsafe_view, aten.reshape, aten.expand, aten.repeat)}
_TAKES_SIZES |= {op.default for op in (aten.full, aten.zeros, aten.ones)}
_TAKES_SIZES |= {op.default for op in (aten.new_empty, aten.new_full, aten.new_zeros, aten.new_ones)}
"""Operators whose sizes are a list or the first argument."""


_VIEW_SCATTERS = frozenset((aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default))
"""Operators that write to a copy whose elements share memory as those of the original do."""

_TAKES_SCALARS_FROM_TENSORS = frozenset((aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor))
"""Elementwise operators that accept float scalars whose value is known only at run time."""


class GraphLowering:
    """Lowers a decomposed graph node by node; ``values`` maps each node to its lowered value."""

    def __init__(
        self,
        compilation: str,
        module: torch.fx.GraphModule,
        stage: str = "aten",
        saved: Mapping[int, torch.fx.Node] = MappingProxyType({}),
        refused: Mapping[str, str] = MappingProxyType({}),
        *,
        is_cpu: bool = False,
    ) -> None:
        self.forced_fallbacks = refused
        self.stage = stage
        self.saved_placeholders = saved
        self.module = module
        layouts = {} if is_cpu else choose_layouts(module.graph)
        self.context = LoweringContext(compilation, is_cpu=is_cpu, layouts=layouts)
        self.context.name_counts.update({n.name: 1 for n in module.graph.nodes})
        self.is_on_gpu = _has_gpu_tensors(module.graph)
        self.cpu_nodes = cpu_nodes(module.graph)
        self.values: dict[torch.fx.Node, Any] = {}
        self.inputs: list[tuple[str, Any]] = []
        self.symbols = ProgramSymbols()
        self.outputs: tuple[Any, ...] = ()
        self.compute_node_count = 0
        self.lowered_node_count = 0

    def run(self) -> None:
        """Lower every node in graph order."""
        clear_cached_results()
        self._bind_symbols()
        for node in self.module.graph.nodes:
            deliver_interrupts()
            self.context.current_node = node
            self.context.origins = provenance_of(node).nodes
            self.context.user_line = format_user_line(provenance_of(node).span)
            getattr(self, f"_{node.op}")(node)
        self.context.current_node = None

    def defs_in_memory(self) -> set[TensorDef]:
        """Return the definitions that must be in memory: outputs and operands of ATen calls."""
        return definitions_in(self.outputs).union(*(extern.input_defs() for extern in self.context.externs))

    def _placeholder(self, node: torch.fx.Node) -> None:
        self.inputs.append((node.name, node.meta["val"]))
        value = tensor_meta(node)
        if value is None:
            is_generator = node.meta["val"] is None
            self.values[node] = BufferRef(node.name) if is_generator else expression_of(node.meta["val"])
            return
        self.values[node] = self._tensor_in_memory(node.name, value, "input", ())

    def _bind_symbols(self) -> None:
        """Record what defines each symbol: sizes and numbers, else storage offsets and strides.

        A stride of a dimension of one element is the last choice: no guard compares it, so it may differ from another
        stride with the same symbol.
        """
        locations: list[tuple[Any, int, int]] = []
        layouts: list[tuple[Any, int, int]] = []
        unit_strides: list[tuple[Any, int, int]] = []
        for position, node in enumerate(self.module.graph.find_nodes(op="placeholder")):
            value = tensor_meta(node)
            if value is None:
                locations.append((node.meta["val"], position, NUMBER))
                continue
            locations += [(size, position, dim) for dim, size in enumerate(value.shape)]
            if value.layout == torch.strided:
                for dim, (size, stride) in enumerate(zip(value.shape, value.stride(), strict=True)):
                    is_unit = as_size(size) == 1  # the expression: a data-dependent size cannot be guarded
                    (unit_strides if is_unit else layouts).append((stride, position, stride_location(dim)))
                layouts.append((value.storage_offset(), position, OFFSET))
        for symbol, position, dim in (*locations, *layouts, *unit_strides):
            self.symbols.bind_input(symbol, position, dim)

    def _tensor_in_memory(self, name: str, value: torch.Tensor, kind: str, origins: tuple[str, ...]) -> LoweredTensor:
        """Define a tensor that is already in memory: a graph input or the result of an ATen call.

        A complex tensor is read as its real view.
        """
        real_meta = as_real_meta(value)
        is_complex = real_meta is not value
        stride = tuple(as_size(s) for s in real_meta.stride()) if value.layout == torch.strided else ()
        stride = self._known_strides(symbolic_shape(real_meta), stride, kind)
        tensor_def = TensorDef(
            name, real_meta.dtype, symbolic_shape(real_meta), stride, kind, origins, is_complex=is_complex
        )
        return LoweredTensor(tensor_def.shape, self.context.add(tensor_def), is_complex=is_complex)

    def _known_strides(self, shape: tuple[Size, ...], stride: tuple[Size, ...], kind: str) -> tuple[Size, ...]:
        """Replace strides whose symbols have no definition.

        The stride of a dimension of size 1 does not matter. A copy can make the result of an ATen call contiguous.
        """
        unknown = self.symbols.unknown(stride) - symbols_of(shape)
        if not unknown:
            return stride
        even = contiguous_strides(shape)
        if kind == "extern" and symbols_of(s for n, s in zip(shape, stride, strict=True) if n != 1) & unknown:
            return even
        return tuple(
            e if n == 1 and symbols_of((s,)) & unknown else s for n, s, e in zip(shape, stride, even, strict=True)
        )

    def _get_attr(self, node: torch.fx.Node) -> None:
        value = getattr(self.module, str(node.target))
        if not isinstance(value, torch.Tensor):
            self.values[node] = value
            return
        value = value.detach()
        self.compute_node_count += 1
        number = constant_number(value)
        if isinstance(number, (bool, int, float)) and node not in self.cpu_nodes:
            self.lowered_node_count += 1
            self.values[node] = self._name_after_node(
                node,
                self.context.pointwise(
                    symbolic_shape(value), value.dtype, lambda b, i: b.constant(number, value.dtype)
                ),
            )
            return
        constant = Fallback(LoweringFallback.ALLOCATION, "a constant tensor of the graph")
        self._add_extern(node, ConstantTensor(value), (), {}, constant, is_library=True)

    def _call_function(self, node: torch.fx.Node) -> None:
        value, called = node.meta.get("val"), called_overload(node.target)
        if node.target is operator.getitem:
            item = self._value_of(node.args[0])[node.args[1]]
            self.values[node] = self._name_after_node(node, item)
            return
        if (
            isinstance(value, (*SYMBOLIC_SCALARS, int, float))
            and not (isinstance(value, bool) and called is not None)
            and not _is_item_call(node)
        ):
            self.values[node] = expression_of(value)
            return
        if facts_of(called).writes:
            raise LoweringError(f"The graph is not functional: {node.target} mutates its argument.")
        self.compute_node_count += 1
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), self._value_of)
        fallback = self._try_lowering(node, args, kwargs)
        if fallback is None:
            self.lowered_node_count += 1
            return
        is_library_call = is_library_op(node.target) or _has_only_empty_results(node)
        self._add_extern(node, node.target, args, kwargs, fallback, is_library=is_library_call)

    def _value_of(self, node: Any) -> Any:
        return self.values[node]

    def _try_lowering(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Fallback | None:
        """Lower a node by the registry; return None on success, else the fallback."""
        is_complex = _is_complex(node, args, kwargs)
        lowering = (find_complex_lowering if is_complex else find_lowering)(node.target)
        refused = next((self.forced_fallbacks[o] for o in self.context.origins if o in self.forced_fallbacks), None)
        has_choice = lowering is not None or not is_library_op(node.target)
        if refused is not None and has_choice and not _is_view(node.target):
            return Fallback(LoweringFallback.FORCED, refused)
        if lowering is None:
            return library_fallback(unwrap_functionalized(node.target, node.args), is_complex=is_complex)
        if self.context.is_cpu and (aten_reason := cpu_fallback(node)) is not None:
            return aten_reason
        mark = len(self.context.defs)
        if self._has_unknown_size(node):
            return Fallback(
                LoweringFallback.DATA_DEPENDENT_SIZE,
                "The size of its result is data-dependent: it is known only after ATen has run.",
            )
        if any(has_unbacked_symbols(n.meta.get("val")) for n in _scalar_inputs(node)) and not _takes_only_float_scalars(
            node
        ):
            return Fallback(
                LoweringFallback.DATA_DEPENDENT_NUMBER,
                "One of its arguments is an integer that each call reads from a tensor: its sign and width are unknown.",
            )
        try:
            self._check_devices(node)
            _check_not_empty(node)
            if not is_complex and not _is_view(node.target):
                check_supported_dtype(*(n.meta.get("val") for n in (*node.all_input_nodes, node)))
            result = _with_eager_sizes(node, lowering(self.context, *args, **kwargs))
            for new_def in self.context.defs[mark:]:
                if new_def.is_computed:
                    build_unfused(new_def)
        except NotLowered as refusal:
            del self.context.defs[mark:]
            return Fallback(refusal.fallback.kind, _as_sentence(refusal.fallback.reason))
        except Exception as error:
            del self.context.defs[mark:]
            reason = f"Its lowering failed ({type(error).__name__}: {error}): ATen runs it."
            return Fallback(LoweringFallback.LOWERING_FAILED, reason)
        self.values[node] = self._name_after_node(node, result)
        return None

    def _check_devices(self, node: torch.fx.Node) -> None:
        nodes = (*node.all_input_nodes, node)
        tensors = tensors_in([n.meta.get("val") for n in nodes])
        # Eager mixes 0-dim CPU tensors with tensors on any device.
        devices = {
            v.device.type
            for n in nodes
            for v in tensors_in(n.meta.get("val"))
            if v.shape or v.device.type != "cpu" or not self._can_cross_devices(n)
        }
        if len(devices) > 1:
            raise NotLowered(LoweringFallback.MIXED_DEVICES, f"it mixes tensors on {' and '.join(sorted(devices))}")
        if self.is_on_gpu and "cpu" in devices:
            raise NotLowered(LoweringFallback.MIXED_DEVICES, "it is computed on the CPU, and the kernels are for a GPU")
        if any(v.layout != torch.strided for v in tensors):
            raise NotLowered(LoweringFallback.MEMORY_LAYOUT, "an operator on sparse tensors has no lowering")
        if node.target in _VIEW_SCATTERS and has_overlap(node.meta["val"]):
            raise NotLowered(
                LoweringFallback.OVERLAPPING_WRITE, "a write to elements that share memory has no lowering"
            )

    def _can_cross_devices(self, node: torch.fx.Node) -> bool:
        """Return True for inputs, which the runtime moves, and for what kernels compute."""
        if node.op == "placeholder":
            return self.cpu_nodes.isdisjoint(node.users)
        value = self.values.get(node)
        return node not in self.cpu_nodes and (
            value is None or (isinstance(value, LoweredTensor) and value.definition.is_computed)
        )

    def _has_unknown_size(self, node: torch.fx.Node) -> bool:
        """Return True if the result has a size symbol that nothing before it defines."""
        value = tensor_meta(node)
        if value is None or not value._has_symbolic_sizes_strides:
            return False
        shape = symbolic_shape(value)
        return not self.symbols.unknown(shape).isdisjoint(map(str, shape))

    def _name_after_node(self, node: torch.fx.Node, value: Any) -> Any:
        """Name the definition after the node if it holds exactly the node's value.

        A view gets eager's strides in dimensions of one element, which results of ATen calls inherit.
        """
        if not isinstance(value, LoweredTensor):
            return value
        if value.index_map is not None and 1 in value.shape:
            strides = static_sizes(as_real_meta(node.meta["val"]).stride())
            return replace(value, unit_strides=strides or ())
        is_fresh = value.index_map is None and value.definition.is_computed
        if is_fresh and value.definition.name not in _node_names(self.module):
            value.definition.name = node.name
        return value

    def _add_extern(
        self, node: torch.fx.Node, target: Any, args: Any, kwargs: Any, fallback: Fallback, *, is_library: bool
    ) -> None:
        args, kwargs = tree_map_only(LoweredTensor, self.realize, (tuple(args), dict(kwargs)))
        value = node.meta.get("val")
        tensors: list[LoweredTensor | None] = []
        if isinstance(value, SYMBOLIC_SCALARS):
            self._add_extern_scalar(node, value, target, args, kwargs)
            return
        many = isinstance(value, (tuple, list))
        if many and any(isinstance(item, (tuple, list)) for item in value):  # type: ignore[union-attr]
            raise LoweringError(f"{node.target} returns several lists of tensors, which the executor does not support.")
        for k, item in enumerate(value if many else (value,)):  # type: ignore[arg-type]
            name = node.name if not many else self.context.unique_name(f"{node.name}_{k}")
            tensors.append(self._extern_result(name, item) if isinstance(item, torch.Tensor) else None)
            if (last_result := tensors[-1]) is not None:
                self.symbols.bind_result(last_result.definition)
        results = tuple(None if t is None else t.definition for t in tensors)
        self.context.externs.append(
            ExternNode(
                node, target, args, kwargs, results, is_library, fallback.reason, self.context.origins, fallback.kind.id
            )
        )
        self.values[node] = tuple(tensors) if many else tensors[0]
        if not many and results[0] is None and value is not None:
            raise LoweringError(f"{node.target} returns a {type(value).__name__}, which the executor does not support.")

    def _add_extern_scalar(self, node: torch.fx.Node, value: Any, target: Any, args: Any, kwargs: Any) -> None:
        """Add an ATen call that reads a number from a tensor (``item``)."""
        number = TensorDef(node.name, torch.int64, (), (), "number", self.context.origins)
        reason = "It reads a number from a tensor: the CPU waits for the GPU here."
        self.context.externs.append(
            ExternNode(
                node,
                target,
                args,
                kwargs,
                (number,),
                True,
                reason,
                self.context.origins,
                LoweringFallback.READS_NUMBER.id,
            )
        )
        self.context.add(number)
        self.values[node] = expression_of(value)
        self.symbols.bind_number(value, number)

    def _extern_result(self, name: str, value: torch.Tensor) -> LoweredTensor:
        if value.layout != torch.strided:
            raise LoweringError(f"{name} is a sparse tensor: a graph with a sparse result has no lowering.")
        return self._tensor_in_memory(name, value, "extern", self.context.origins)

    def realize(self, value: LoweredTensor) -> LoweredTensor:
        """Return the tensor if it is a strided view of memory, else a copy."""
        if strided_view_of(value) is not None:
            return value
        node, self.context.current_node = self.context.current_node, None
        copied = self.context.pointwise(value.shape, value.dtype, value.load, name=f"{value.definition.name}_copy")
        self.context.current_node = node
        return replace(copied, is_complex=value.is_complex)

    def _output(self, node: torch.fx.Node) -> None:
        outputs = results_of(node.args[0])
        values = torch.fx.map_arg(outputs, self._value_of)
        result: list[Any] = []
        for position, (source, value) in enumerate(zip(outputs, values, strict=True)):
            if isinstance(value, LoweredTensor) and not self._saves_padded_rows(position, value):
                value = self._output_tensor(source, value)
            else:
                self.symbols.bind_output(getattr(source, "meta", {}).get("val"), value)
            result.append(value)
        self.outputs = tuple(result)

    def _saves_padded_rows(self, position: int, value: LoweredTensor) -> bool:
        """Return True if a matrix is saved with its padded rows, without a copy.

        The placeholder of the backward then gets this row stride.
        """
        placeholder, placed = self.saved_placeholders.get(position), strided_view_of(value)
        if placeholder is None or placed is None or placed[1] != 0 or len(value.shape) != 2 or value.is_complex:
            return False
        (row, column), (_, width) = placed[0], value.shape
        if column != 1 or (row_length := static_size(row)) is None or symbols_of((width,)) or row_length <= width:
            return False
        set_saved_row_stride(placeholder, row_length)
        return True

    def _output_tensor(self, source: Any, value: LoweredTensor) -> LoweredTensor:
        """Return a tensor in memory with eager's strides; copy if the layout differs."""
        self.context.origins = provenance_of(source).nodes
        placed = strided_view_of(value)
        expected = as_real_meta(source.meta["val"])
        if placed is not None and _same_layout(placed, value, expected):
            return value
        self.context.current_node = source
        copied = self.context.pointwise(
            value.shape, value.dtype, value.load, name=f"{source.name}_copy", stride=non_overlapping_stride(expected)
        )
        self.context.current_node = None
        return replace(copied, is_complex=value.is_complex)


def _scalar_inputs(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the symbolic scalar inputs of a node, without those passed as sizes.

    torch knows that sizes are not negative.
    """
    inputs = list(node.all_input_nodes)
    if node.target in _TAKES_SIZES:
        inputs = [n for n in inputs if n in (*node.args[1:], *node.kwargs.values())]
    return [n for n in inputs if isinstance(n.meta.get("val"), SYMBOLIC_SCALARS)]


def _takes_only_float_scalars(node: torch.fx.Node) -> bool:
    """Return True if an elementwise operator takes only float scalars read from tensors.

    The host passes such a scalar to the kernel as an argument.
    """
    is_float = all(result.dtype.is_floating_point for result in tensors_in(node.meta.get("val")))
    scalars = (n.meta["val"] for n in _scalar_inputs(node))
    return node.target in _TAKES_SCALARS_FROM_TENSORS and is_float and all(v.node.is_float() for v in scalars)


def _node_names(module: torch.fx.GraphModule) -> set[str]:
    names: set[str] | None = getattr(module, "_names", None)
    if names is None:
        names = {n.name for n in module.graph.nodes}
        module._names = names  # type: ignore[assignment]
    return names


def _is_complex(node: torch.fx.Node, args: Any, kwargs: Any) -> bool:
    """Return True if a call takes or returns complex tensors of a dtype that loops support."""
    return any(v.is_complex for v in lowered_tensors((args, kwargs))) or any(
        result.dtype in REAL_DTYPES for result in tensors_in(node.meta.get("val"))
    )


def _has_gpu_tensors(graph: torch.fx.Graph) -> bool:
    return any(v.is_cuda for node in graph.nodes for v in tensors_in(node.meta.get("val")))


def cpu_nodes(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Return the nodes of a graph with GPU tensors whose results must be on the CPU.

    A scalar that only ATen's operators on GPU tensors read, such as a number assigned to a slice, is part of their
    kernels.
    """
    if not _has_gpu_tensors(graph):
        return frozenset()
    nodes: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        results = tensors_in(node.meta.get("val"))
        if node.op not in ("get_attr", "call_function") or all(v.is_cuda for v in results):
            continue
        if any(v.shape for v in results) or any(user in nodes or not _takes_gpu_scalars(user) for user in node.users):
            nodes.add(node)
    return frozenset(nodes)


def _takes_gpu_scalars(node: torch.fx.Node) -> bool:
    called = called_overload(node.target)
    return called is not None and called.namespace in ("aten", "prims") and bool(tensors_in(node.meta.get("val")))


def _is_view(target: Any) -> bool:
    """Return True if an operator's result aliases its input."""
    return any(r.alias_info is not None for r in target._schema.returns)


def _is_item_call(node: torch.fx.Node) -> bool:
    return node.target in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


def _as_sentence(reason: str) -> str:
    return reason[:1].upper() + reason[1:] + ("" if reason.endswith(".") else ".")


def _check_not_empty(node: torch.fx.Node) -> None:
    # Unused results are not computed.
    seen = {user.args[1] for user in node.users if user.target is operator.getitem}
    is_seen = len(seen) == len(node.users)
    value = node.meta.get("val")
    used = [v for k, v in enumerate(results_of(value)) if k in seen or not is_seen or v is value]
    if any(map(_has_no_elements, tensors_in(used))):
        raise NotLowered(LoweringFallback.EMPTY_TENSOR, "its result has no elements: there is nothing to launch")


def _has_only_empty_results(node: torch.fx.Node) -> bool:
    """Return True if no result has elements, so that ATen has nothing to compute."""
    results = tree_leaves(node.meta.get("val"))
    tensors = tensors_in(results)
    return bool(results) and len(tensors) == len(results) and all(map(_has_no_elements, tensors))


def _has_no_elements(value: torch.Tensor) -> bool:
    return any(static_size(s) == 0 for s in value.shape)


def _with_eager_sizes(node: torch.fx.Node, result: Any) -> Any:
    """Return the results of a lowering with the expressions that eager has for their sizes.

    The guards may state that two expressions are equal, as those of two halves are.

    Raises:
        AssertionError: a dtype or shape differs from eager's.
    """
    pairs = zip(results_of(result), results_of(node.meta.get("val")), strict=True)
    resized = {id(lowered): _with_sizes_of(lowered, value) for lowered, value in pairs}
    return tree_map_only(LoweredTensor, lambda lowered: resized.get(id(lowered), lowered), result)


def _with_sizes_of(lowered: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return lowered
    expected = as_real_meta(value)
    sizes, shape = tuple(expected.shape), symbolic_shape(expected)
    metadata = [(v.dtype, len(v.shape)) for v in lowered_tensors(lowered)]
    same = metadata == [(expected.dtype, len(shape))] and all(map(is_guarded_equal, lowered.shape, sizes))
    if not same:
        raise AssertionError(
            f"it returned {getattr(lowered, 'dtype', None)}{getattr(lowered, 'shape', None)} instead of {expected.dtype}{sizes}"
        )
    if all(map(sizes_equal, lowered.shape, shape)):
        return lowered
    return replace(lowered, shape=shape, index_map=lowered.index_map or (lambda index: index))


def _same_layout(placed: tuple[tuple[Size, ...], Size], value: LoweredTensor, expected: torch.Tensor) -> bool:
    return all(
        n == 1 or sizes_equal(s, as_size(w)) for n, s, w in zip(value.shape, placed[0], expected.stride(), strict=True)
    )


def reset_saved_row_stride(placeholder: torch.fx.Node) -> None:
    """Undo ``set_saved_row_stride`` on the placeholder of a saved tensor."""
    if PADDED_ROWS_KEY in placeholder.meta:
        placeholder.meta = {**placeholder.meta, "val": placeholder.meta[PADDED_ROWS_KEY]}
        del placeholder.meta[PADDED_ROWS_KEY]


def set_saved_row_stride(placeholder: torch.fx.Node, row: int) -> None:
    """Set the row stride of a saved matrix's fake value to ``row`` elements, for the backward."""
    fake = placeholder.meta["val"]
    with fake.fake_mode:
        apart = torch.empty_strided(fake.shape, (row, 1), dtype=fake.dtype, device=fake.device)
    placeholder.meta = {**placeholder.meta, "val": apart, PADDED_ROWS_KEY: fake}


def format_user_line(span: Span | None) -> str:
    """Format a user line for kernel messages: "model.py:12" or "cell 3, line 2".

    Folders of this machine are left out.
    """
    if span is None:
        return ""
    name = display_name(span.file)
    return f"{name}, line {span.line}" if is_cell(span.file) else f"{name}:{span.line}"
