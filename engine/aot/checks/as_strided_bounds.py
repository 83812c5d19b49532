"""as_strided views that reach outside their base."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import is_as_strided, traced_tensors
from engine.aot.storage_geometry import end_byte, is_dense, start_byte, storage_id
from engine.ir.fallback import Fallback
from engine.ir.guards.aliasing import SharedStorage
from engine.ir.node_values import example_tensor
from engine.ir.traced_frame import GraphInput


def check_as_strided_bounds(call: CheckedCall) -> Fallback | None:
    """Return a fallback if ``as_strided`` reads outside the memory of its tensor.

    Eager reads and writes there; a functional graph knows only the tensor.
    """
    reads = [(n, fake) for n in call.graph.graph.nodes if is_as_strided(n) and (fake := example_tensor(n)) is not None]
    # The storage of a fake tensor grows when it is read past its end; the first tensor over it has the true size.
    first = {storage_id(v): v for v in reversed(list(traced_tensors(call.graph)))}
    input_storages = {storage_id(i.fake) for i in call.inputs if i.is_tensor}
    for node, fake in reads:
        creator = first[storage_id(fake)]
        if (
            storage_id(fake) in input_storages
            or fake._has_symbolic_sizes_strides
            or creator._has_symbolic_sizes_strides
        ):
            continue
        if end_byte(fake) > end_byte(creator):
            return Fallback.for_node(node, AotFallback.READ_PAST_STORAGE, "reads past the end of its storage")
    for i in call.inputs:
        if not i.has_real_tensor or not i.is_tensor:
            continue
        for node, fake in reads:
            if storage_id(fake) != storage_id(i.fake):
                continue
            if fake._has_symbolic_sizes_strides or end_byte(fake) > i.example_value.untyped_storage().nbytes():
                return Fallback.for_node(
                    node, AotFallback.READ_PAST_STORAGE, f"reads past the end of the storage of {i.name}"
                )
            inside = (
                start_byte(i.example_value) <= start_byte(fake)
                and end_byte(fake) <= end_byte(i.example_value)
                and is_dense(i.example_value)
            )
            if call.writes and not inside:
                return Fallback.for_node(
                    node,
                    AotFallback.READ_OUTSIDE_INPUT,
                    f"reads memory outside {i.name}, and the graph mutates a tensor",
                )
    return None


def storage_offset_guards(graph: torch.fx.GraphModule, inputs: Sequence[GraphInput]) -> tuple[SharedStorage, ...]:
    """Return guards on storage offset and storage size of inputs that ``as_strided`` reads.

    ``as_strided`` depends on the storage, not only on the tensor.
    """
    reach: dict[int, int] = {}
    for node in graph.graph.nodes:
        fake = example_tensor(node)
        if is_as_strided(node) and fake is not None and not fake._has_symbolic_sizes_strides:
            storage = storage_id(fake)
            reach[storage] = max(reach.get(storage, 0), end_byte(fake))
    placed = [i for i in inputs if i.has_real_tensor and i.is_tensor]
    return tuple(
        SharedStorage(
            i.source,
            (),
            (int(i.example_value.storage_offset()) * i.example_value.element_size(),),
            reach[storage_id(i.fake)],
        )
        for i in placed
        if storage_id(i.fake) in reach
    )
