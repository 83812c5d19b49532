"""Find the inputs that traced code mutates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from engine.graph.pure_nodes import counts_writes
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.introspection.stale_view_grad_fn import is_leaf_without_regeneration
from engine.ir.node_values import example_tensor, tensors_in
from engine.ir.sources.base import Source
from engine.trace.annotations import Tracer
from engine.trace.variables.tensors.tensor import TensorVariable

_UNKNOWN_STORAGE = 0
"""Storage id of a tensor whose storage is not accessible: it may be any."""


def storage_id(tensor: torch.Tensor | None) -> int | None:
    """Return the id of a tensor's storage; None if there is no tensor."""
    if tensor is None:
        return None
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return _UNKNOWN_STORAGE


def may_share_storage(storage: int | None, other: int | None) -> bool:
    """Return True if two storage ids are of one storage, or may be."""
    return storage is not None and other is not None and (storage == other or _UNKNOWN_STORAGE in (storage, other))


def depends_on_aliasing(tx: Tracer) -> bool:
    """Return True if the traced code mutates an object of the caller, or compares identities.

    Only then must distinct inputs stay distinct.
    """
    is_mutated = bool(tx.side_effects.mutated_variables or tx.objects.identity_keys)
    return is_mutated or mutates_inputs(tx) or bool(requires_grad_inputs(tx))


def mutates_inputs(tx: Tracer) -> bool:
    """Return True if the graph mutates an input, or may mutate an inference tensor."""
    return tx.inputs.graph_sets_data or bool(tx.inputs.data_assigned_inputs) or bool(mutated_inputs(tx))


def mutated_inputs(tx: Tracer) -> list[TensorVariable]:
    """Return the inputs that the graph mutates, or may mutate if they are inference tensors."""
    uncounted = {storage_id(t) for node in tx.graph.graph.nodes for t in _uncounted_writes(node)}
    return [
        value
        for value, version in tx.inputs.input_tensors
        if storage_id(value.fake) in uncounted or (not value.fake.is_inference() and value.fake._version != version)
    ]


def _uncounted_writes(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    """Yield the tensors that a node may mutate although their versions do not show it."""
    result, facts = node.meta.get("example_value"), facts_of_node(node)
    if node.target is getattr and node.args[1] == "data":
        if isinstance(result, torch.Tensor) and not result.is_inference() and result._version != node.meta["version"]:
            yield result
        return
    yield from tensors_in(torch.fx.node.map_arg(node.kwargs.get("out"), lambda n: n.meta.get("example_value")))
    tensors = [t for n in node.all_input_nodes if (t := example_tensor(n)) is not None]
    if facts.running_stats and _updates_running_stats(node):
        # The arguments after the input that need no gradient are updated without a version bump.
        yield from (t for t in tensors[1:] if not t.requires_grad)
    inference_tensors = list(filter(torch.Tensor.is_inference, tensors))
    if inference_tensors and (facts.writes or _may_write(node)):
        yield from inference_tensors


def _may_write(node: torch.fx.Node) -> bool:
    """Return True if the node may mutate an argument although no schema says that it does."""
    has_true = any(a is True for a in (*node.args, *node.kwargs.values()))  # it may be ``inplace=True``
    return not counts_writes(node) or has_true or "out" in node.kwargs or node.target in (F.embedding, F.embedding_bag)


def _updates_running_stats(node: torch.fx.Node) -> bool:
    """Return True if a normalization computes batch statistics and updates the running ones.

    In every overload this is the sixth argument.
    """
    training = node.args[5] if len(node.args) > 5 else None
    for keyword in ("training", "use_input_stats"):
        training = node.kwargs.get(keyword, training)
    return facts_of_node(node).name == "instance_norm" if training is None else bool(training)


def restorable_mutated_inputs(tx: Tracer, *, with_history: bool = False) -> list[Source] | None:
    """Return the sources of mutated inputs if ``save_tensor`` undoes all mutations.

    Return None if it does not. ``with_history``: it may have to undo new autograd history, too.
    """
    if tx.inputs.graph_sets_data or any(not is_plain_tensor(v.real_object) for v in tx.inputs.data_assigned_inputs):
        return None
    sources = [value.source for value in tx.inputs.data_assigned_inputs]
    versions = {id(value): version for value, version in tx.inputs.input_tensors}
    for value in mutated_inputs(tx):
        fake, real = value.fake, value.real_object
        if tx.inputs.data_assigned_inputs or value.source is None or real is None or not is_plain_tensor(real):
            return None
        is_counted = not fake.is_inference() and fake._version != versions[id(value)]
        if is_counted and _gains_history(fake, real) and not (with_history and _owns_history(tx, value, real)):
            return None
        sources.append(value.source)
    return sources


def _gains_history(fake: torch.Tensor, real: torch.Tensor) -> bool:
    if real.requires_grad:
        return not (is_leaf_without_regeneration(real) and is_leaf_without_regeneration(fake))
    return fake.requires_grad and not fake.is_leaf


def _owns_history(tx: Tracer, value: TensorVariable, real: torch.Tensor) -> bool:
    """Return True if no other input is a view of the tensor or of its base."""
    others = (storage_id(other.real_object) for other, _ in tx.inputs.input_tensors if other is not value)
    return not real._is_view() and not any(may_share_storage(storage_id(real), other) for other in others)


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Return True if a copy of the tensor holds all that an operation changes.

    This means a strided tensor of one of torch's classes.
    """
    return type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and tensor.layout is torch.strided


def alias_gains_requires_grad(tx: Tracer) -> bool:
    """Return True if a mutated input now requires grad while another input shares its storage.

    The graph runs on the real tensors. There both then require grad, but the fake of the other one does not
    show it.
    """
    inputs = tx.inputs.input_tensors
    return any(
        value.real_object is not None
        and value.fake.requires_grad != value.real_object.requires_grad
        and not value.fake.is_leaf  # a leaf: ``requires_grad_`` was called on it, which affects no other tensor
        and any(
            may_share_storage(storage_id(value.real_object), storage_id(other.real_object))
            for other, _ in inputs
            if other is not value
        )
        for value, _ in inputs
    )


def resizes_leaf_input(tx: Tracer) -> bool:
    """Return True if a leaf input that requires grad is resized in place.

    Its gradient accumulator has the size at which autograd first created it, if that is still alive. A graph
    does not preserve this lifetime.
    """
    return any(
        value.fake.requires_grad
        and is_leaf_without_regeneration(value.fake)
        and _comparable_sizes(layout_at_entry[0]) != _comparable_sizes(value.fake.shape)
        for value, _ in tx.inputs.input_tensors
        if (layout_at_entry := tx.inputs.input_layouts.get(id(value.fake))) is not None
    )


def _comparable_sizes(shape: Sequence[Any]) -> list[Any]:
    """Return sizes that can be compared without adding a guard; ragged sizes compare by name."""
    nodes = [s.node if isinstance(s, torch.SymInt) else s for s in shape]
    return [n if isinstance(n, int) else getattr(n, "expr", str(n)) for n in nodes]


def requires_grad_inputs(tx: Tracer) -> list[Source]:
    """Return the sources of inputs on which the graph calls ``requires_grad_``."""
    calls = tx.graph.graph.find_nodes(op="call_method", target="requires_grad_")
    if not calls:
        return []
    names = {node.args[0].name for node in calls}
    return [i.source for i in tx.graph.inputs if i.name in names]
