"""Partitioner: splits the joint graph into a forward and a backward graph.

It decides which values are saved for backward and which are recomputed. The minimum cut with capacities in bytes is
from torch (min-cut rematerialization; compare Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016). The
"default" partition saves all that the backward reads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.fx

from engine.aot.joint import JointGraph
from engine.aot.node_properties import output_args
from engine.aot.partitioner.min_cut import INFINITE, FlowNetwork
from engine.aot.partitioner.pack_masks import pack_masks, unpack_unsaved_masks, use_unpacked_masks
from engine.aot.partitioner.peak_memory import peak_bytes
from engine.aot.partitioner.recompute import is_view, num_bytes, unknown_bytes, view_base_node, why_not_recomputable
from engine.aot.partitioner.save_symbols import save_symbols
from engine.aot.partitioner.selective_checkpoint import policy_saves
from engine.graph.fake_tensors.output_strides import sizes_equal
from engine.graph.functionalize_rng import make_rng_state_explicit, reads_rng_state, save_rng_states, takes_rng_state
from engine.graph.lazy_module import LazyGraphModule
from engine.graph.passes.eliminate_dead_code import has_effect, is_removable
from engine.ir.node_metadata import NodeProvenance, checkpoint_of, is_backward_node, provenance_of, set_provenance
from engine.ir.node_values import ancestors_of, is_scalar, nodes_in, results_of
from engine.records.aot import PartitionRecord, SavedValue

_INPUT_BYTE_COST, _INTERMEDIATE_BYTE_COST = 3, 4
"""Cost of saving a byte of an input and of an intermediate; inputs are preferred."""
_MAX_CLONED_BYTES, _CLONE_COST = 2**16, 2**18
"""The largest input that may be cloned, and the bytes that this must save.

A clone is one more tensor a call.
"""

PartitionMethod = Literal["min-cut", "default"]
Node = torch.fx.Node


@dataclass(frozen=True)
class PartitionedGraphs:
    """Forward and backward graph of a training call.

    ``forward`` takes the inputs and returns ``num_results`` results, then the saved tensors, then the saved scalars.
    ``backward`` takes the saved tensors, the saved scalars and the tangents. It returns a gradient or None for each
    input that requires grad.
    """

    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    num_results: int
    saved_tensor_names: tuple[str, ...]
    """Names of the saved tensors; a saved input has the name of the input."""
    saved_scalar_names: tuple[str, ...]
    tangent_fakes: tuple[Any, ...]
    """Fake tangents."""
    tangent_names: tuple[str, ...]
    saved_fakes: tuple[Any, ...]
    """Fake values of the saved tensors and then of the saved scalars."""
    record: PartitionRecord


def partition_joint_graph(
    joint: JointGraph,
    is_parameter: Sequence[bool],
    method: PartitionMethod = "min-cut",
    *,
    recompute_random: bool = False,
) -> PartitionedGraphs:
    """Split ``joint`` into forward and backward.

    ``is_parameter`` marks inputs that stay in memory anyway (parameters), so that saving them costs nothing.
    ``recompute_random``: random numbers may be recomputed from their RNG state where that takes less memory.
    """
    masks = pack_masks(joint.module.graph) if method == "min-cut" else ()
    make_rng_state_explicit(joint.module.graph, outside_checkpoints_too=recompute_random)
    _clone_mutated_inputs(_JointNodes(joint))
    duplicates = _duplicate_checkpoint_outputs(joint, _JointNodes(joint))
    parts = _JointNodes(joint)
    clones = _clone_small_inputs(parts) if method == "min-cut" else {}
    if clones:
        parts = _JointNodes(joint)
    read = parts.read_by_backward()
    chosen = read if method == "default" else _minimum_cut(parts, read, is_parameter, clones)
    if any(clone not in chosen for clone in clones):
        _erase_unsaved_clones(joint, clones, chosen)
        parts = _JointNodes(joint)
    saved = _tensors_before_scalars(parts, _unpack_saved_tuples(parts, chosen))
    unpack_unsaved_masks(joint.module.graph, masks, saved)
    for node, duplicate in duplicates.items():
        if node in saved:
            duplicate.replace_all_uses_with(node)
    early = [n for n in parts.nodes[:-1] if n not in parts.backward_only]
    computed = [*nodes_in(parts.gradients), *_backward_effects(parts)]
    saved += save_symbols(joint.module.graph, early, {*saved, *parts.tangents}, computed)
    return _extract_forward_and_backward(parts, saved, method, is_parameter)


class _JointNodes:
    """Nodes of the joint graph, grouped by their role."""

    def __init__(self, joint: JointGraph) -> None:
        self.joint = joint
        self.nodes = list(joint.module.graph.nodes)
        self.order = {n: k for k, n in enumerate(self.nodes)}
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        self.inputs = placeholders[: len(joint.inputs)]
        self.tangents = placeholders[len(joint.inputs) :]
        self.output = self.nodes[-1]
        returned = tuple(self.output.args[0])
        self.results = returned[: joint.metadata.num_results]
        self.gradients = returned[joint.metadata.num_results :]
        self.backward_only = self._find_backward_only()
        """Nodes that only the backward can run: they need a tangent or have backward effects."""
        self.mutated_inputs = [n for n, i in zip(self.inputs, joint.metadata.inputs, strict=True) if i.is_mutated]
        self.policy_saved = {n for n in self.nodes[:-1] if not is_backward_node(n) and policy_saves(n)}
        """Nodes in activation checkpoints whose results the user's policy saves."""
        self.checkpointed = self._find_checkpointed()
        """Checkpointed nodes that the backward recomputes, and backward nodes that depend on them."""

    def _find_backward_only(self) -> set[Node]:
        late = set(self.tangents)
        for node in self.nodes[:-1]:
            if any(n in late for n in node.all_input_nodes) or (is_backward_node(node) and has_effect(node)):
                late.add(node)
        return late

    def _find_checkpointed(self) -> set[Node]:
        again: set[Node] = set()
        for node in self.nodes[:-1]:
            if node in self.backward_only or node.op != "call_function" or has_effect(node):
                continue
            if (
                any(n in again for n in node.all_input_nodes)
                if is_backward_node(node)
                else self._is_checkpointed(node, again)
            ):
                again.add(node)
        return again

    def _is_checkpointed(self, node: Node, again: set[Node]) -> bool:
        if node.target is operator.getitem:  # treat an output of a multi-output node like that node
            return node.all_input_nodes[0] in again and node not in self.policy_saved
        return checkpoint_of(node) is not None and node not in self.policy_saved

    def escapes_checkpoint(self, node: Node) -> bool:
        """Return True if the forward reads a node, or a view of it, outside of its checkpoint."""
        own = checkpoint_of(node)
        for user in node.users:
            if user.op == "output" or (not is_backward_node(user) and checkpoint_of(user) != own):
                return True
            if not is_backward_node(user) and is_view(user) and self.escapes_checkpoint(user):
                return True
        return False

    def read_by_autograd(self) -> Iterator[Node]:
        """Yield forward values that autograd's own operators read: what eager saves."""
        return (
            n
            for node in self.nodes[:-1]
            if is_backward_node(node)
            for n in node.all_input_nodes
            if not is_backward_node(n)
        )

    def read_by_backward(self) -> set[Node]:
        """Return forward values that backward-only nodes read, or that are gradients themselves."""
        read = {n for node in self.backward_only for n in node.all_input_nodes if n not in self.backward_only}
        read.update(g for g in nodes_in(self.gradients) if g not in self.backward_only)
        return read


def _clone_mutated_inputs(parts: _JointNodes) -> None:
    """Clone mutated inputs for the backward, if the mutation precedes its reads."""
    for node in parts.mutated_inputs:
        readers = [u for u in node.users if u in parts.backward_only or is_backward_node(u)]
        if not readers:
            continue
        _read_clone(parts, node, readers, "the value of the input before its mutation")


def _read_clone(parts: _JointNodes, node: Node, readers: Iterable[Node], note: str) -> Node:
    """Insert a clone of an input at the start of the graph, and make the readers read it."""
    graph = parts.joint.module.graph
    with graph.inserting_before(next(n for n in parts.nodes if n.op != "placeholder")):
        clone = graph.call_function(torch.ops.aten.clone.default, (node,))
    clone.meta = {"val": _fake_clone(node)}
    set_provenance(clone, NodeProvenance(note=note))
    for reader in readers:
        reader.replace_input_with(node, clone)
    return clone


def _fake_clone(node: Node) -> torch.Tensor:
    """Return the clone of a node's fake; strides differ where it is not dense."""
    with torch.no_grad():
        clone: torch.Tensor = node.meta["val"].clone()
    return clone


def _clone_small_inputs(parts: _JointNodes) -> dict[Node, Node]:
    """Clone small inputs that eager does not save, so that the backward may read them.

    Their owner may change them before the backward, as an optimizer does. The bias of a group norm is an example:
    without it, the norm's result would be saved for the activation after it. Returns a map from each clone to its input.
    """
    if parts.checkpointed:  # their inputs are saved as in eager
        return {}
    read = {*parts.read_by_autograd(), *parts.read_by_backward(), *parts.mutated_inputs}
    read |= {view_base_node(n) for n in (*read, *nodes_in(parts.results))}
    clones: dict[Node, Node] = {}
    for node in parts.inputs:
        value = node.meta["val"]
        if node in read or not isinstance(value, torch.Tensor) or num_bytes(value) > _MAX_CLONED_BYTES:
            continue
        readers = [u for u in node.users if not _cannot_recompute(u, parts)]
        # What is computed from a clone has the strides of the original's results only where the clone has the original's.
        if readers and sizes_equal(_fake_clone(node).stride(), value.stride()):
            clones[_read_clone(parts, node, readers, "the value of the input, to recompute from")] = node
    return clones


def _erase_unsaved_clones(joint: JointGraph, clones: dict[Node, Node], saved: set[Node]) -> None:
    for clone, original in clones.items():
        if clone not in saved:
            clone.replace_all_uses_with(original)
            joint.module.graph.erase_node(clone)


def _duplicate_checkpoint_outputs(joint: JointGraph, parts: _JointNodes) -> dict[Node, Node]:
    """Duplicate checkpoint outputs that the backward reads, so that it can recompute them.

    The original is then saved only if another checkpoint starts from it: recomputation does not chain from one
    checkpoint to the next. Returns a map from each original to its copy.
    """
    graph = joint.module.graph
    duplicates: dict[Node, Node] = {}
    for node in parts.nodes:
        if (
            node not in parts.checkpointed
            or is_backward_node(node)
            or takes_rng_state(node)
            or not parts.escapes_checkpoint(node)
        ):
            continue
        with graph.inserting_before(node.next):
            duplicates[node] = duplicate = graph.node_copy(node, lambda n: duplicates.get(n, n) if is_view(node) else n)  # noqa: B023
        duplicate.meta = {**node.meta}
        for reader in [u for u in node.users if u in parts.backward_only or is_backward_node(u)]:
            reader.replace_input_with(node, duplicate)
    for duplicate in reversed(list(duplicates.values())):
        if not duplicate.users:
            graph.erase_node(duplicate)
    return {node: duplicate for node, duplicate in duplicates.items() if duplicate.users}


def _minimum_cut(
    parts: _JointNodes, read: set[Node], is_parameter: Sequence[bool], clones: Collection[Node]
) -> set[Node]:
    """Return the forward values to save so that ``read`` can be computed at the fewest bytes."""
    early = [n for n in parts.nodes[:-1] if n not in parts.backward_only]
    relevant = ancestors_of(read, ())
    network = FlowNetwork()
    source, sink = network.node(), network.node()
    vertices = {n: (network.node(), network.node()) for n in early if n in relevant}
    costs = _costs(parts, read, is_parameter)

    def is_left(node: Node) -> bool:
        return node in parts.checkpointed and not is_view(node) and parts.escapes_checkpoint(node)

    for node, (into, out) in vertices.items():
        network.edge(into, out, costs(node) + (_CLONE_COST * _INTERMEDIATE_BYTE_COST if node in clones else 0))
        if node.op == "placeholder" or is_left(node) or _cannot_recompute(node, parts):
            network.edge(source, into, INFINITE)
        if node in read:
            network.edge(out, sink, INFINITE)
        for used in node.all_input_nodes:
            network.edge(vertices[used][1], into, INFINITE)
    capacity, beyond = network.min_cut(source, sink)
    if capacity >= INFINITE:
        return read
    return {n for n, (into, out) in vertices.items() if into not in beyond and out in beyond}


def _cannot_recompute(node: Node, parts: _JointNodes) -> bool:
    """Return True if a node must not be recomputed, or must be saved."""
    return node in parts.policy_saved or (
        node not in parts.checkpointed and not takes_rng_state(node) and bool(why_not_recomputable(node))
    )


def _costs(parts: _JointNodes, read: set[Node], is_parameter: Sequence[bool]) -> Callable[[Node], int]:
    """Return a function for the cost of saving a node, in weighted bytes.

    The cost is INFINITE if the node must not be saved. Results and inputs belong to the caller, who may mutate them
    before the backward, as an optimizer does with parameters. They are saved only where eager also saves them, and would
    raise after such a mutation.
    """
    free = {n for n, f in zip(parts.inputs, is_parameter, strict=True) if f}
    region_inputs = (n for node in parts.checkpointed for n in node.all_input_nodes if n not in parts.checkpointed)
    eager = {view_base_node(n) for n in (*read, *region_inputs, *parts.read_by_autograd())}
    inputs = set(parts.inputs)
    callers = {view_base_node(r) for r in nodes_in(parts.results)} | inputs
    written = set(parts.mutated_inputs)

    def cost(node: Node) -> int:
        value = node.meta.get("val")
        if view_base_node(node) is not node or node in written or isinstance(value, (tuple, list)):
            return INFINITE
        if node in parts.checkpointed and not parts.escapes_checkpoint(node):
            return INFINITE
        if node.op == "get_attr":
            return 1
        if node in callers and not is_scalar(node):
            if node not in eager:
                return INFINITE
            return (
                1
                if node in free
                else num_bytes(value) * (_INPUT_BYTE_COST if node in inputs else _INTERMEDIATE_BYTE_COST)
            )
        return num_bytes(value) * _INTERMEDIATE_BYTE_COST

    return cost


def _unpack_saved_tuples(parts: _JointNodes, chosen: set[Node]) -> set[Node]:
    """Return the values to pass to the backward: tuples unpacked, constants left out."""
    saved: set[Node] = set()
    for node in chosen:
        if isinstance(node.meta.get("val"), (tuple, list)):
            saved.update(u for u in node.users if u not in parts.backward_only)
        elif node.op != "get_attr":
            saved.add(node)
    return saved


def _tensors_before_scalars(parts: _JointNodes, saved: Iterable[Node]) -> list[Node]:
    """Return tensors before scalars, each in the joint graph's order."""
    return sorted(saved, key=lambda n: (is_scalar(n), parts.order[n]))


def _extract_forward_and_backward(
    parts: _JointNodes, saved: list[Node], method: PartitionMethod, is_parameter: Sequence[bool]
) -> PartitionedGraphs:
    module = parts.joint.module
    again: list[Node] = []
    forward = _extract(module, parts.inputs, [*parts.results, *saved], _forward_effects(parts), again, is_lazy=False)
    use_unpacked_masks(forward)
    save_rng_states(forward)
    again.clear()
    backward = _extract(module, [*saved, *parts.tangents], parts.gradients, _backward_effects(parts), again)
    recomputed = [n for n in again if n not in parts.backward_only]
    tensors = tuple(n.name for n in saved if not is_scalar(n))
    numbers = tuple(n.name for n in saved if is_scalar(n))
    return PartitionedGraphs(
        forward,
        backward,
        len(parts.results),
        tensors,
        numbers,
        tuple(n.meta["val"] for n in parts.tangents),
        tuple(n.name for n in parts.tangents),
        tuple(n.meta["val"] for n in saved),
        _with_peaks(
            _record(parts, saved, recomputed, method, is_parameter), forward, backward, {n.name for n in parts.inputs}
        ),
    )


def _with_peaks(
    record: PartitionRecord, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, inputs: set[str]
) -> PartitionRecord:
    peaks = []
    for half in (forward, backward):
        callers = {n for n in half.graph.nodes if n.op == "placeholder" and n.name in inputs}
        peaks.append(peak_bytes(half.graph, callers))
    return replace(record, forward_peak_bytes=peaks[0], backward_peak_bytes=peaks[1])


def inputs_unused_by_backward(halves: PartitionedGraphs) -> frozenset[str]:
    """Return names of inputs that the backward reads neither directly nor through a view."""
    saved = output_args(halves.forward.graph)[halves.num_results :]
    read = {view_base_node(n).name for n in nodes_in(saved)}
    return frozenset(n.name for n in halves.forward.graph.nodes if n.op == "placeholder") - read


def _forward_effects(parts: _JointNodes) -> set[Node]:
    """Return forward nodes that run although nothing reads them."""
    early = (n for n in parts.nodes[:-1] if n not in parts.backward_only and n.op != "placeholder")
    return {n for n in early if takes_rng_state(n) or not is_removable(n)}


def _backward_effects(parts: _JointNodes) -> set[Node]:
    return {n for n in parts.nodes[:-1] if n in parts.backward_only and has_effect(n) and n.op != "placeholder"}


def _extract(
    module: torch.fx.GraphModule,
    inputs: Sequence[Node],
    outputs: Sequence[Any],
    effects: Collection[Node],
    new_nodes: list[Node],
    *,
    is_lazy: bool = True,
) -> torch.fx.GraphModule:
    """Extract the graph between ``inputs`` and ``outputs``; append its nodes to ``new_nodes``.

    With ``is_lazy``, recomputed nodes are placed right before their first reader, so that their results are
    short-lived. Otherwise all nodes follow the joint graph's order, as random numbers and effects require.
    """
    graph = torch.fx.Graph()
    copies: dict[Node, Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    needed = ancestors_of([*nodes_in(outputs), *effects], set(inputs))
    lazy = {n for n in needed if not is_backward_node(n)} if is_lazy else set()

    def emit(last: Node) -> None:
        todo = [last]
        while todo:
            node = todo[-1]
            missing = [n for n in node.all_input_nodes if n not in copies]
            if missing:
                todo += reversed(missing)
                continue
            todo.pop()
            if node not in copies:
                copies[node] = graph.node_copy(node, copies.__getitem__)
                new_nodes.append(node)
                todo += [] if is_lazy else reversed([u for u in node.users if is_ready(u)])

    def is_ready(node: Node) -> bool:
        """Return True if a backward node can run now, so that its operands can be freed early."""
        return node in needed and is_backward_node(node) and all(n in copies for n in node.all_input_nodes)

    for node in module.graph.nodes:
        if node in needed and node not in lazy:
            emit(node)
    for node in nodes_in(outputs):
        if node not in copies:  # an input may be returned unchanged
            emit(node)
    graph.output(torch.fx.map_arg(tuple(outputs), copies.__getitem__))
    return LazyGraphModule(module, graph)


def _record(
    parts: _JointNodes,
    saved: Sequence[Node],
    recomputed: Sequence[Node],
    method: PartitionMethod,
    is_parameter: Sequence[bool],
) -> PartitionRecord:
    """Return the record of the partition. Storage shared by saved values counts once.

    Its bytes are listed with the first of these values.
    """
    free = {n for n, f in zip(parts.inputs, is_parameter, strict=True) if f}
    inputs = set(parts.inputs)
    memories = {view_base_node(n): n for n in reversed(saved)}
    sizes = {n: _bytes(memory) for memory, n in memories.items() if memory not in inputs}
    rows = [
        SavedValue(
            n.name,
            "saved",
            sizes.get(n, 0),
            "the policy of its activation checkpoint saves it"
            if n in parts.policy_saved
            else _why_saved(n, inputs, free, method),
            _traced_node_ids(n),
            _unknown_bytes(n) if n in sizes else "",
        )
        for n in saved
    ]
    rows += [
        SavedValue(
            n.name,
            "recomputed",
            0 if _is_view_or_item(n) else _bytes(n),
            _why_recomputed(n),
            _traced_node_ids(n),
            "" if _is_view_or_item(n) else _unknown_bytes(n),
        )
        for n in recomputed
        if not is_backward_node(n) or takes_rng_state(n)  # a backward node runs once: nothing is recomputed
    ]
    return PartitionRecord(
        method,
        tuple(rows),
        saved_bytes=sum(sizes.values()),
        saved_input_bytes=sum(map(_bytes, inputs & memories.keys())),
        bytes_without_recompute=_default_bytes(parts),
    )


def _is_view_or_item(node: Node) -> bool:
    """Return True if a value is a view, or one output of a multi-output node."""
    return view_base_node(node) is not node or node.target is operator.getitem


def _bytes(node: Node) -> int:
    return sum(num_bytes(v, 0) for v in results_of(node.meta.get("val")))


def _unknown_bytes(node: Node) -> str:
    return unknown_bytes(results_of(node.meta.get("val")))


def _default_bytes(parts: _JointNodes) -> int:
    """Return the bytes that would be saved without any recomputation."""
    return sum(_bytes(n) for n in {view_base_node(r) for r in parts.read_by_backward()} if n.op == "call_function")


def _traced_node_ids(node: Node) -> tuple[str, ...]:
    return provenance_of(node).nodes


def _why_saved(node: Node, inputs: set[Node], free: set[Node], method: PartitionMethod) -> str:
    if node in free:
        return "a parameter: it stays in memory anyway"
    if reads_rng_state(node):
        return "the random number state: the backward generates the same numbers from it"
    if node in inputs:
        return "an input: saving it allocates nothing, but extends its lifetime"
    if is_scalar(node):
        return "a number computed from sizes"
    if method == "default":
        return "the backward reads it"
    if node.target is torch.ops.aten.clone.default and node.all_input_nodes[0] in free:
        return "a copy of a parameter, which may change before the backward: larger values are recomputed from it"
    producer = node.all_input_nodes[0] if node.target.__class__.__name__ == "builtin_function_or_method" else node
    if reason := why_not_recomputable(node) or why_not_recomputable(producer):
        return reason
    return "it is in the min-cut: these values need the least memory"


def _why_recomputed(node: Node) -> str:
    if takes_rng_state(node):
        where = "" if checkpoint_of(node) is None else ": it is inside an activation checkpoint"
        return f"generated again from the same random number state{where}"
    if checkpoint_of(node) is not None and not is_backward_node(node) and view_base_node(node) is node:
        return "it is inside an activation checkpoint"
    if view_base_node(node) is not node:
        return "a view: creating it takes no time and no memory"
    if node.target is operator.getitem:
        return "one output of a multi-output operator that is recomputed"
    if is_scalar(node):
        return "a number computed from sizes"
    return "cheap to compute from what is saved"
