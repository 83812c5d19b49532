"""Runs convolutions on a GPU in channels last, and the operators between them.

Vendor libraries compute convolutions faster in this layout, depthwise ones several times. Results and gradients of the
graph have eager's strides. A value whose layout cannot change leaves the whole graph as it is.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of
from engine.ir.node_metadata import provenance_of, set_provenance
from engine.ir.node_values import called_overload, first_fake_tensor, nodes_in, results_of, tensor_meta, tensors_in
from engine.torch_private.autograd import DisableAutocast

aten = torch.ops.aten

MAX_NODES_PER_CONVOLUTION = 300
"""With fewer convolutions, copies between layouts would cost more than they gain."""
FEW_CHANNELS = 64
RELATIVE_TIME = {"grouped": 1.358, "few channels": 0.783, "narrowing": 0.725, "other": 0.823}
"""Time in channels last relative to contiguous: averages that torch.compile uses."""
FILTERED_OPERANDS: dict[Any, int] = {aten.convolution.default: 2, aten.convolution_backward.default: 3}
"""Number of first arguments that a convolution reads in its own layout."""


def _overloads(names: str) -> frozenset[Any]:
    return frozenset(getattr(aten, name) for name in names.split())


COPIES_AND_VIEWS = _overloads(
    "clone _to_copy view _unsafe_view reshape permute transpose t expand squeeze unsqueeze select unbind"
)
CARRIES_LAYOUT = _overloads(
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training native_batch_norm "
    "native_batch_norm_backward cudnn_batch_norm cudnn_batch_norm_backward _batch_norm_with_update_functional "
    "_batch_norm_no_update batch_norm_backward native_group_norm native_group_norm_backward max_pool2d_with_indices "
    "max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward "
    "upsample_nearest2d upsample_nearest2d_backward upsample_bilinear2d upsample_bilinear2d_backward clone _to_copy "
    "cat constant_pad_nd slice_backward slice split split_with_sizes"
)
"""Operators whose results are images if their operands are; elementwise ones do too."""
ANY_LAYOUT = (
    COPIES_AND_VIEWS
    | CARRIES_LAYOUT
    | _overloads(
        "native_layer_norm native_layer_norm_backward mean sum amax amin var var_mean _softmax _softmax_backward_data "
        "_log_softmax _log_softmax_backward_data zeros_like ones_like full_like stack select_backward mm addmm bmm"
    )
)
"""Operators that compute the same from any layout; elementwise ones do too."""


class LayoutError(Exception):
    """The layout of a value cannot change: the graph remains as it is."""


def choose_conv_layout(module: torch.fx.GraphModule, *, trains: bool) -> torch.fx.GraphModule:
    """Return a graph whose convolutions read channels last, if that is faster.

    ``trains``: the graph holds a backward.
    """
    if not gains_from_channels_last(module.graph, trains=trains):
        return module
    try:
        return _Rewriter(module).run()
    except LayoutError:
        return module


def gains_from_channels_last(graph: torch.fx.Graph, *, trains: bool) -> bool:
    """Return True if channels last is expected to be faster, as torch.compile estimates it."""
    convolutions = list(graph.find_nodes(op="call_function", target=aten.convolution.default))
    weights = [tensor_meta(node.args[1]) for node in convolutions]
    if not convolutions or len(graph.nodes) >= MAX_NODES_PER_CONVOLUTION * len(convolutions):
        return False
    if any(v._has_symbolic_sizes_strides for node in graph.nodes for v in tensors_in(node.meta.get("val"))):
        return False
    if any(w is None or w.dim() != 4 or w.device.type != "cuda" for w in weights):
        return False
    kinds = [
        _kind_of_convolution(w.shape, node.args[-1])
        for w, node in zip(weights, convolutions, strict=True)
        if w is not None
    ]
    if trains:
        return not ({"grouped", "narrowing"} & {*kinds} or {*kinds} == {"few channels"})
    costs = [
        n.meta["val"].numel() * w.numel() // w.size(0)
        for n, w in zip(convolutions, weights, strict=True)
        if w is not None
    ]
    return bool(sum(c * RELATIVE_TIME[k] for c, k in zip(costs, kinds, strict=True)) <= sum(costs))


def _kind_of_convolution(weight: torch.Size, groups: Any) -> str:
    """Return the kind of a convolution, by which its time differs between layouts."""
    outputs, inputs, height, _ = weight
    if groups != 1 and inputs > 1:
        return "grouped"
    if outputs <= FEW_CHANNELS and inputs <= FEW_CHANNELS:
        return "few channels"
    return "narrowing" if outputs * 2 <= inputs and height > 1 else "other"


class _Rewriter:
    """Copies a graph node by node; each new node has the value of its new operands' layout."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._graph = torch.fx.Graph()
        self._copied: dict[torch.fx.Node, torch.fx.Node] = {}
        self._original_layouts: dict[torch.fx.Node, Any] = {}
        """Eager's value of each new node whose layout differs."""
        self._images = _images(module.graph)
        self._copies_of_changed: set[torch.fx.Node] = set()
        """Copies and views of values in another layout than eager's, in eager's layout themselves."""
        self._converted: dict[tuple[torch.fx.Node, str], torch.fx.Node] = {}
        fake = first_fake_tensor(node.meta.get("val") for node in module.graph.nodes)
        assert fake is not None
        self._mode = fake.fake_mode

    def run(self) -> torch.fx.GraphModule:
        """Return the new graph.

        Raises:
            LayoutError: the layout of a value cannot change.
        """
        for node in self._module.graph.nodes:
            self._copied[node] = self._copy(node)
        module = torch.fx.GraphModule(self._module, self._graph)
        module.meta = self._module.meta
        return module

    def _copy(self, node: torch.fx.Node) -> torch.fx.Node:
        new = self._graph.node_copy(node, self._copied.__getitem__)
        if new.op == "output":
            self._restore_operands(new)
            return new
        if (count := FILTERED_OPERANDS.get(new.target)) is not None:
            convert = {n: self._channels_last(n, new) for n in nodes_in(new.args[:count])}
            new.args = torch.fx.map_arg(new.args, lambda n: convert.get(n, n))
            return self._set_fake_value(new, node)
        if all(n not in self._original_layouts and n not in self._copies_of_changed for n in new.all_input_nodes):
            return new
        if new.target is operator.getitem or _is_one_of(new, ANY_LAYOUT):
            try:
                return self._in_image_layout(self._set_fake_value(new, node), node)
            except (RuntimeError, ValueError):  # sizes that a view cannot have in this layout
                pass
        self._restore_operands(new)
        if self._set_fake_value(new, node) in self._original_layouts:
            raise LayoutError
        return new

    def _set_fake_value(self, new: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
        """Set the value of a new node, computed from those of its operands.

        Raises:
            RuntimeError: the operator cannot take them.
        """
        args, kwargs = torch.fx.map_arg((new.args, new.kwargs), lambda n: n.meta["val"])
        with self._mode, torch.no_grad(), DisableAutocast():
            value = cast("Callable[..., Any]", new.target)(*args, **kwargs)
        computed, expected = results_of(value), results_of(node.meta["val"])
        if [_metadata(v) for v in computed] != [_metadata(v) for v in expected]:
            raise LayoutError
        if all(
            not isinstance(v, torch.Tensor) or v.stride() == w.stride() for v, w in zip(computed, expected, strict=True)
        ):
            return new
        new.meta["val"] = value
        self._original_layouts[new] = node.meta["val"]
        return new

    def _in_image_layout(self, new: torch.fx.Node, node: torch.fx.Node) -> torch.fx.Node:
        """Return a channels-last copy of an image that lost this layout, else the result."""
        if new not in self._original_layouts and _is_one_of(new, COPIES_AND_VIEWS):
            self._copies_of_changed.add(new)
        value = new.meta["val"]
        if node not in self._images or not isinstance(value, torch.Tensor) or _has_inner_channels(value):
            return new
        return self._channels_last(new)

    def _channels_last(self, node: torch.fx.Node, reader: torch.fx.Node | None = None) -> torch.fx.Node:
        value = node.meta["val"]
        if value.is_contiguous(memory_format=torch.channels_last):
            return node
        return self._clone(node, torch.channels_last, reader)

    def _restore_operands(self, reader: torch.fx.Node) -> None:
        """Give a node operands with eager's layouts."""
        reader.args = torch.fx.map_arg(reader.args, lambda n: self._with_eager_layout(n, reader))
        reader.kwargs = torch.fx.map_arg(reader.kwargs, lambda n: self._with_eager_layout(n, reader))

    def _with_eager_layout(self, node: torch.fx.Node, reader: torch.fx.Node) -> torch.fx.Node:
        """Return a node with eager's layout of the value.

        Raises:
            LayoutError: the value has gaps or repeats elements.
        """
        original = self._original_layouts.get(node)
        if original is None:
            return node
        if not isinstance(original, torch.Tensor):
            raise LayoutError
        if original.is_contiguous():
            return self._clone(node, torch.contiguous_format, reader)
        if original.is_contiguous(memory_format=torch.channels_last):
            return self._clone(node, torch.channels_last, reader)
        raise LayoutError

    def _clone(self, node: torch.fx.Node, layout: torch.memory_format, reader: torch.fx.Node | None) -> torch.fx.Node:
        """Return the copy of a node's value in a layout, which all readers share."""
        clone = self._converted.get((node, str(layout)))
        if clone is not None:
            return clone
        original = self._original_layouts.get(node, node.meta["val"])
        with self._mode, torch.no_grad(), DisableAutocast():
            value = aten.clone.default(node.meta["val"], memory_format=layout)
        with contextlib.nullcontext() if reader is None else self._graph.inserting_before(reader):
            copied = self._graph.create_node(
                "call_function", aten.clone.default, (node,), {"memory_format": layout}, name=f"{node.name}_laid_out"
            )
        copied.meta = {key: of for key, of in node.meta.items() if key != "val"}
        set_provenance(copied, provenance_of(node))
        is_eager = value.stride() == original.stride()
        copied.meta["val"] = original if is_eager else value
        if not is_eager:
            self._original_layouts[copied] = original
        self._converted[node, str(layout)] = copied
        return copied


def _images(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes that convolutions read through operators that carry the layout."""
    images: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        operands = nodes_in(node.args[: FILTERED_OPERANDS.get(node.target, 0)])
        if node in images and (node.target is operator.getitem or _is_one_of(node, CARRIES_LAYOUT)):
            operands = node.all_input_nodes
        images.update(n for n in operands if all(t.dim() == 4 for t in tensors_in(n.meta["val"])[:1]))
    return images


def _is_one_of(node: torch.fx.Node, operators: frozenset[Any]) -> bool:
    called = called_overload(node.target)
    if called is None or facts_of(called).draws_random:
        return False
    return called.overloadpacket in operators or facts_of(called).is_pointwise


def _metadata(value: Any) -> Any:
    """Return what must be equal in every layout."""
    return (value.shape, value.dtype, value.device) if isinstance(value, torch.Tensor) else type(value)


def _has_inner_channels(value: torch.Tensor) -> bool:
    """Return True if the channels of an image are nearest in memory, or it has one pixel."""
    _, channels, *pixels = value.shape
    steps = [step for size, step in zip(pixels, value.stride()[2:], strict=True) if size > 1]
    return channels == 1 or not steps or value.stride(1) <= min(steps)
