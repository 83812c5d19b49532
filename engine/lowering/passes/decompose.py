"""Decompose operators without a lowering, node by node, with provenance of each part."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.fx

from engine.graph.effect_tokens import is_with_effects
from engine.graph.lazy_module import LazyGraphModule, trace_lazily
from engine.graph.passes.eliminate_dead_code import is_removable
from engine.interrupts.deferred_interrupts import deliver_interrupts
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.introspection.operator_facts import facts_of, runs_for_effect
from engine.ir.node_metadata import NodeProvenance, node_id, provenance_of, set_provenance
from engine.ir.node_values import called_overload, results_of, tensor_meta, tensors_by_position, tensors_in
from engine.ir.static_sizes import static_sizes
from engine.lowering.cpu.aten_operators import cpu_fallback
from engine.lowering.decompositions.missing_in_torch import MISSING_DECOMPOSITIONS, VALUE_CHECKS
from engine.lowering.decompositions.random_ops import RandomDecomposer
from engine.lowering.library_ops import is_library_op
from engine.lowering.ops import has_lowering
from engine.torch_private.fake_tensors import detect_fake_mode
from engine.torch_private.operators import decomposition_table

aten = torch.ops.aten

_CPU_ONLY = frozenset(
    (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        aten._convert_weight_to_int4pack_for_cpu.default,
        aten._weight_int4pack_mm_for_cpu.default,
    )
)
"""Operators that exist only on the CPU."""

_WRONG_IN_TORCH = frozenset((aten.multilabel_margin_loss_forward.default,))
"""Operators that torch decomposes wrongly: it adds terms of labels after the first -1."""


@dataclass(frozen=True)
class KnownDecompositions:
    """The decompositions of a graph's nodes; None for a node without one."""

    of_nodes: dict[torch.fx.Node, torch.fx.GraphModule | None] = field(default_factory=dict)
    _of_calls: dict[str, torch.fx.GraphModule | None] = field(default_factory=dict)

    def of_call(self, node: torch.fx.Node, is_cpu: bool) -> torch.fx.GraphModule | None:
        """Return the decomposition of a node; equal calls on tensors of equal metadata share one."""
        if not _can_decompose(node.target) or (is_cpu and cpu_fallback(node) is not None):
            return None
        call = _describe_call(node)
        if call not in self._of_calls:
            self._of_calls[call] = _trace_decomposition(node, is_cpu)
        return self._of_calls[call]


@functools.cache
def all_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions, from torch and this engine, of operators without a lowering.

    Operators that a library runs and random operators are left out.
    """
    return {
        op: fn
        for op, fn in {**decomposition_table, **MISSING_DECOMPOSITIONS}.items()
        if not has_lowering(op)
        and not is_library_op(op)
        and op not in _CPU_ONLY | _WRONG_IN_TORCH
        and not facts_of(op).draws_random
    }


def decompose(
    graph: AotGraph,
    *,
    fused_random: bool = False,
    is_cpu: bool = False,
    left_whole: Collection[str] = (),
    known_parts: KnownDecompositions | None = None,
) -> torch.fx.GraphModule:
    """Decompose all operators that have a decomposition; record the provenance of all nodes.

    Nodes that are not decomposed have the same names as before. ``fused_random``: also decompose random operators
    into random numbers that kernels generate. ``is_cpu``: do not decompose operators that ATen runs on a CPU.
    ``left_whole``: ids of nodes that are not decomposed, since ATen runs them. ``known_parts``: decompositions of an
    earlier call for this graph; new ones are added.
    """
    known_parts = KnownDecompositions() if known_parts is None else known_parts
    old = graph.module
    draws = RandomDecomposer(old) if fused_random else None
    root = torch.nn.Module()
    new = torch.fx.Graph()
    copies: dict[torch.fx.Node, Any] = {}
    inputs = iter(graph.inputs)
    for node in old.graph.nodes:
        deliver_interrupts()
        if node.op == "placeholder":
            node.meta.setdefault("val", next(inputs, None))
        origin = provenance_of(node)
        provenance = NodeProvenance(
            (node_id(graph.node_id_prefix, graph.compilation_id, node),), origin.span, origin.stack, origin.module
        )
        if node.op == "get_attr":
            setattr(root, node.target.replace(".", "_"), _get_attribute(old, node.target))
            copies[node] = new.create_node("get_attr", node.target.replace(".", "_"), name=node.name)
            copies[node].meta = dict(node.meta)
        elif node.target is operator.getitem and isinstance(copies[node.args[0]], (tuple, list)):
            copies[node] = copies[node.args[0]][node.args[1]]
            continue
        elif is_with_effects(node):
            copies[node] = _call_without_token(new, node, copies.__getitem__, provenance)
            continue
        elif draws is not None and (drawn := draws.decompose(node)) is not None:
            seeds = draws.seeds_node(new, node)
            set_provenance(seeds, provenance)
            operands = [seeds, *(copies[n] for n in node.all_input_nodes)]
            copies[node] = _splice(new, root, node, drawn, operands, provenance)
            continue
        elif (parts := _decomposition_of(node, provenance, left_whole, known_parts, is_cpu)) is not None:
            copies[node] = _splice(new, root, node, parts, [copies[n] for n in node.all_input_nodes], provenance)
            continue
        elif node.op == "output":
            new.output(torch.fx.map_arg(node.args[0], copies.__getitem__))
            continue
        else:
            copies[node] = new.node_copy(node, copies.__getitem__)
        set_provenance(copies[node], provenance)
    for name, value in old.named_parameters(recurse=False):
        root.register_parameter(name, value)
    new.eliminate_dead_code(lambda node: not is_removable(node))
    return LazyGraphModule(root, new)


def _call_without_token(
    new: torch.fx.Graph, node: torch.fx.Node, copy_of: Callable[[torch.fx.Node], Any], provenance: NodeProvenance
) -> tuple[Any, ...]:
    """Copy the operator that a token orders; return the missing token and the results.

    The scheduler keeps the order of such operators.
    """
    _, target, *args = cast("tuple[Any, ...]", node.args)
    called = new.call_function(target, torch.fx.map_arg(tuple(args), copy_of), torch.fx.map_arg(node.kwargs, copy_of))
    called._rename(node.name)
    results = tuple(node.meta["val"][1:])
    several = len(results) > 1
    called.meta = {**node.meta, "val": results if several else results[0]}
    set_provenance(called, provenance)
    if not several:
        return None, called
    items = [new.call_function(operator.getitem, (called, k)) for k in range(len(results))]
    for item, value in zip(items, results, strict=True):
        item.meta = {"val": value}
        set_provenance(item, provenance)
    return None, *items


def _get_attribute(module: torch.nn.Module, path: str) -> Any:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


def _can_decompose(target: Any) -> bool:
    called = called_overload(target)
    if called is None or has_lowering(target) or is_library_op(target) or not called._schema.returns:
        return False
    return target in all_decompositions() or facts_of(target).is_composite


def _decomposition_of(
    node: torch.fx.Node,
    provenance: NodeProvenance,
    left_whole: Collection[str],
    decompositions: KnownDecompositions,
    is_cpu: bool,
) -> torch.fx.GraphModule | None:
    """Return the decomposition of a node; None if it has none or ATen runs it as a whole."""
    if node.op != "call_function" or provenance.nodes[0] in left_whole:
        return None
    if node not in decompositions.of_nodes:
        decompositions.of_nodes[node] = decompositions.of_call(node, is_cpu)
    return decompositions.of_nodes[node]


def _describe_call(node: torch.fx.Node) -> str:
    """Return the operator, the arguments and their metadata as text.

    Calls with equal texts have equal decompositions.
    """
    sources = {source: f"%{number}" for number, source in enumerate(node.all_input_nodes)}
    args = torch.fx.map_arg((node.args, dict(node.kwargs)), sources.__getitem__)
    numbers = [n.meta.get("val") for n in sources if tensor_meta(n) is None]
    tensors = tensors_in([n.meta.get("val") for n in (*sources, node)])
    return repr((node.target, args, numbers, list(map(_describe_tensor, tensors))))


def _describe_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the metadata of a fake tensor."""
    flags = tensor.is_conj(), tensor.is_neg(), tensor.is_inference(), tensor.requires_grad
    memory = (tensor.stride(), tensor.storage_offset()) if tensor.layout is torch.strided else (id(tensor),)
    return type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.shape, *flags, *memory


def _trace_decomposition(node: torch.fx.Node, is_cpu: bool) -> torch.fx.GraphModule | None:
    """Trace one node's decomposition over its tensor and size arguments; None without one."""
    sources = list(node.all_input_nodes)
    values = [n.meta.get("val") for n in sources]
    mode = detect_fake_mode([*values, node.meta.get("val")])
    if mode is None or not all(isinstance(v, (torch.Tensor, torch.SymInt, torch.SymFloat)) for v in values):
        return None

    def call(*inputs: Any) -> Any:
        values = dict(zip(sources, inputs, strict=True))
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        if is_cpu and (check := VALUE_CHECKS.get(node.target)) is not None:
            check(*args, **kwargs)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    try:
        with mode, torch.no_grad():
            traced = trace_lazily(call, *values, decomposition_table=all_decompositions())
    except Exception:  # The decomposition rejects these arguments: ATen runs the whole operator.
        return None
    calls = [n.target for n in traced.graph.nodes if n.op == "call_function"]
    if node.target in calls or not all(map(_is_computable, calls)) or not _matches_metadata(node, traced):
        return None
    return traced


def _is_computable(target: Any) -> bool:
    """Return True if a part of a decomposition is lowered, or ATen runs it by design.

    Otherwise the whole operator is better left to ATen.
    """
    if called_overload(target) is None or has_lowering(target) or is_library_op(target) or runs_for_effect(target):
        return True
    return facts_of(target).draws_random or facts_of(target).returns_sizes


def _matches_metadata(node: torch.fx.Node, traced: torch.fx.GraphModule) -> bool:
    """Return True if the decomposition has the node's dtypes and static sizes."""
    output = next(n for n in traced.graph.nodes if n.op == "output").args[0]
    results, traced_results = results_of(output), results_of(node.meta.get("val"))
    return len(results) == len(traced_results) and all(
        _has_metadata(tensor_meta(results[n]), expected) for n, expected in tensors_by_position(traced_results).items()
    )


def _has_metadata(value: torch.Tensor | None, expected: torch.Tensor) -> bool:
    if value is None or value.dtype != expected.dtype or len(value.shape) != len(expected.shape):
        return False
    pairs = [static_sizes(pair) for pair in zip(value.shape, expected.shape, strict=True)]
    return all(sizes is None or sizes[0] == sizes[1] for sizes in pairs)


def _splice(
    new: torch.fx.Graph,
    root: torch.nn.Module,
    node: torch.fx.Node,
    parts: torch.fx.GraphModule,
    inputs: Sequence[Any],
    provenance: NodeProvenance,
) -> Any:
    """Copy a decomposition into the new graph; return its result: a node or a tuple of nodes."""
    sources = iter(inputs)
    inner: dict[torch.fx.Node, Any] = {}
    result: Any = None
    output = next(n for n in parts.graph.nodes if n.op == "output").args[0]
    for part in parts.graph.nodes:
        if part.op == "placeholder":
            inner[part] = next(sources)
        elif part.op == "output":
            result = torch.fx.map_arg(part.args[0], inner.__getitem__)
        elif part.op == "get_attr":
            name = f"{node.name}_{part.target}"
            setattr(root, name, _get_attribute(parts, part.target))
            inner[part] = new.create_node("get_attr", name, name=name)
            inner[part].meta = {"val": part.meta.get("val", getattr(root, name))}
            set_provenance(inner[part], provenance)
        else:
            args, kwargs = torch.fx.map_arg((part.args, dict(part.kwargs)), inner.__getitem__)
            name = node.name if part is output else f"{node.name}_{part.name}"
            copied = new.create_node(part.op, part.target, args, kwargs, name=name)
            copied.meta = {"val": part.meta.get("val")}
            set_provenance(copied, provenance)
            inner[part] = copied
    for position, value in tensors_by_position(results_of(node.meta.get("val"))).items():
        if (new_result := results_of(result)[position]) not in inputs:
            new_result.meta["val"] = value  # The strides of a result are eager's, not the decomposition's.
    return tuple(result) if isinstance(result, list) else result
