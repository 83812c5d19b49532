"""Find the inputs that traced code mutates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from engine.graph.passes.lift_requires_grad import requires_grad_calls
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.introspection.stale_view_grad_fn import is_leaf_without_regeneration
from engine.ir.sources.base import Source
from engine.torch_private.operators import debug_has_internal_overlap
from engine.trace.annotations import Tracer
from engine.trace.variables.tensors.tensor import TensorVariable


def _storages_written_through_data(tx: Tracer) -> set[int]:
    """Return the storages mutated through ``x.data``; the version of ``x`` does not show this."""
    storages: set[int] = set()
    for node in tx.graph.graph.nodes:
        if node.target is getattr and node.args[1] == "data":
            fake = node.meta["example_value"]
            if isinstance(fake, torch.Tensor) and not fake.is_inference() and fake._version != node.meta["version"]:
                storages.add(fake.untyped_storage()._cdata)
    return storages


_UNKNOWN_STORAGE = 0
"""Storage id of a tensor whose storage is not accessible: it may be any."""


def _storage_id(value: TensorVariable) -> int | None:
    """Return the id of an input's storage; None if the tensor is no input."""
    if value.real_object is None:
        return None
    try:
        return int(value.real_object.untyped_storage()._cdata)
    except RuntimeError:
        return _UNKNOWN_STORAGE


def _may_share_storage(home: int | None, other: int | None) -> bool:
    return home is not None and other is not None and (home == other or _UNKNOWN_STORAGE in (home, other))


def mutates_inputs(tx: Tracer) -> bool:
    """Return True if the graph mutates an input."""
    return (
        tx.inputs.graph_sets_data
        or bool(tx.inputs.data_assigned_inputs)
        or any(v.fake.is_inference() or v.fake._version != version for v, version in tx.inputs.input_tensors)
        or not _running_stats(tx).isdisjoint(id(v.fake) for v, _ in tx.inputs.input_tensors)
    )


def _updates_running_stats(node: torch.fx.Node) -> bool:
    """Return True if a normalization computes batch statistics and updates the running ones.

    In every overload this is the sixth argument.
    """
    training = node.args[5] if len(node.args) > 5 else None
    for keyword in ("training", "use_input_stats"):
        training = node.kwargs.get(keyword, training)
    return facts_of_node(node).name == "instance_norm" if training is None else bool(training)


def _running_stats(tx: Tracer) -> set[int]:
    """Return the ids of fake tensors that normalizations update without a version bump.

    These are the arguments after the input that need no gradient.
    """
    storages: set[int] = set()
    for node in tx.graph.graph.nodes:
        if facts_of_node(node).running_stats and _updates_running_stats(node):
            tensors = (a.meta.get("example_value") for a in node.all_input_nodes[1:])
            storages.update(id(t) for t in tensors if isinstance(t, torch.Tensor) and not t.requires_grad)
    return storages


def restorable_mutated_inputs(tx: Tracer) -> list[Source] | None:
    """Return the sources of mutated inputs if restoring their data undoes all mutations.

    Return None if it does not.
    """
    if tx.inputs.graph_sets_data or _storages_written_through_data(tx):
        return None
    sources: list[Source] = []
    if any(not is_plain_tensor(value.real_object) for value in tx.inputs.data_assigned_inputs):
        return None
    sources += [value.source for value in tx.inputs.data_assigned_inputs]
    statistics = _running_stats(tx)
    for value, version in tx.inputs.input_tensors:
        fake, real = value.fake, value.real_object
        if fake.is_inference():
            return None
        if fake._version == version and id(fake) not in statistics:
            continue
        if (
            tx.inputs.data_assigned_inputs
            or value.source is None
            or real is None
            or not is_plain_tensor(real)
            or (fake.requires_grad != real.requires_grad and not fake.is_leaf)
        ):
            return None
        if real.requires_grad and not (is_leaf_without_regeneration(real) and is_leaf_without_regeneration(fake)):
            return None  # its autograd history changed too
        if debug_has_internal_overlap(real):
            return None  # elements share memory, so a copy cannot be written back
        sources.append(value.source)
    return sources


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
    used: list[TensorVariable] = [v for v, _ in tx.inputs.input_tensors]
    return any(
        value.real_object is not None
        and value.fake.requires_grad != value.real_object.requires_grad
        and not value.fake.is_leaf  # a leaf: ``requires_grad_`` was called on it, which affects no other tensor
        and any(_may_share_storage(_storage_id(value), _storage_id(o)) for o in used if o is not value)
        for value in used
    )


def resizes_leaf_input(tx: Tracer) -> bool:
    """Return True if a leaf input that requires grad is resized in place.

    Its gradient accumulator has the size at which autograd first created it, if that is still alive. A graph
    does not preserve this lifetime.
    """
    used: list[TensorVariable] = [v for v, _ in tx.inputs.input_tensors]
    return any(
        is_leaf_without_regeneration(value.fake)
        and value.fake.requires_grad
        and _comparable_sizes(layout_at_entry[0]) != _comparable_sizes(value.fake.shape)
        for value in used
        if (layout_at_entry := tx.inputs.input_layouts.get(id(value.fake))) is not None
    )


def _comparable_sizes(shape: Sequence[Any]) -> list[Any]:
    """Return sizes that can be compared without adding a guard; ragged sizes compare by name."""
    nodes = [s.node if isinstance(s, torch.SymInt) else s for s in shape]
    return [n if isinstance(n, int) else getattr(n, "expr", str(n)) for n in nodes]


def requires_grad_inputs(tx: Tracer) -> list[Source]:
    """Return the sources of inputs on which the graph calls ``requires_grad_``."""
    names = {node.name for node in requires_grad_calls(tx.graph.graph).values()}
    return [i.source for i in tx.graph.inputs if i.name in names]
