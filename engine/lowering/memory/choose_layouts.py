"""Choose the memory layout of tensors that only kernels read.

Eager gives the sum of a contiguous and a channels-last tensor the layout of the first. A residual gradient then stays
contiguous through a channels-last network, and each kernel that reads it with others loads one of them along its
strides. Nothing shows the layout of such a tensor, so it gets that of the larger part of its operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of
from engine.ir.node_values import called_overload, tensor_meta
from engine.ir.static_sizes import static_sizes
from engine.lowering.pad_strides import VIEW_OPS

aten = torch.ops.aten

Order = tuple[int, ...]
"""Dimensions by descending stride."""

MIN_DIMS = 3
COPIES = frozenset((aten._to_copy.default, aten.clone.default))
REDUCTIONS = frozenset((aten.sum.dim_IntList, aten.mean.dim, aten.var_mean.correction, aten.amax.default))
STRIDED_VIEWS = VIEW_OPS - {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
"""Views that only permute, add or remove dimensions: no layout makes them copies."""


def choose_layouts(graph: torch.fx.Graph) -> dict[torch.fx.Node, tuple[int, ...]]:
    """Return the strides of elementwise results whose layout differs from eager's."""
    free = {node: order for node in graph.nodes if (order := _free_order(node)) is not None}
    chosen: dict[torch.fx.Node, Order] = {}
    unplaced: set[torch.fx.Node] = set()
    for node in free:
        votes = _operand_bytes_by_order(node, chosen, unplaced)
        if not votes:
            unplaced.add(node)
        elif votes[order := votes.most_common(1)[0][0]] > votes[free[node]]:
            chosen[node] = order
    for node in reversed(free):  # A broadcast value has no layout of its own; that of its readers suits it.
        readers = {chosen.get(user) for user in node.users if user in free and _same_shape(user, node)}
        if node in unplaced and len(readers) == 1 and (order := readers.pop()):
            chosen[node] = order
    return {node: _strides(node, order) for node, order in chosen.items() if order != free[node]}


def _free_order(node: torch.fx.Node) -> Order | None:
    """Return the order of a dense elementwise result whose layout nothing shows."""
    if not _is_elementwise(node) or not all(_suits_any_layout(node, user) for user in node.users):
        return None
    return _dense_order(node)


def _is_elementwise(node: torch.fx.Node) -> bool:
    called = called_overload(node.target) if node.op == "call_function" else None
    return called is not None and (node.target in COPIES or facts_of(called).is_pointwise)


def _suits_any_layout(node: torch.fx.Node, user: torch.fx.Node) -> bool:
    """Return True if a reader is a kernel, or a library call that is as fast in any layout."""
    if user.target is aten.convolution_backward.default:
        return node not in user.args[1:]
    if user.target in STRIDED_VIEWS:
        return all(_suits_any_layout(user, reader) for reader in user.users)
    return _is_elementwise(user) or user.target in REDUCTIONS


def _dense_order(node: torch.fx.Node) -> Order | None:
    """Return the order of a node's value in eager's layout."""
    value = tensor_meta(node)
    return None if value is None else _order(value, value.stride())


def _order(value: torch.Tensor, stride: Sequence[Any]) -> Order | None:
    """Return the order of a dense tensor of MIN_DIMS or more static dimensions."""
    if value.is_complex() or value.dim() < MIN_DIMS:
        return None
    shape, strides = static_sizes(value.shape), static_sizes(stride)
    if shape is None or strides is None or 0 in shape:
        return None
    dims = [d for d, size in enumerate(shape) if size != 1]
    order = tuple(sorted(dims, key=lambda d: -strides[d]))
    expected = 1
    for d in reversed(order):
        if strides[d] != expected:
            return None
        expected *= shape[d]
    return order


def _operand_bytes_by_order(
    node: torch.fx.Node, chosen: Mapping[torch.fx.Node, Order], unplaced: Container[torch.fx.Node]
) -> Counter[Order]:
    """Count the bytes of the operands of a result's shape, by their order."""
    votes: Counter[Order] = Counter()
    for operand in node.all_input_nodes:
        if operand in unplaced or not _same_shape(operand, node):
            continue
        value = operand.meta["val"]
        order = _order(value, _actual_strides(operand, chosen))
        if order is not None:
            votes[order] += value.numel() * value.itemsize
    return votes


def _actual_strides(node: torch.fx.Node, chosen: Mapping[torch.fx.Node, Order]) -> Sequence[Any]:
    """Return the strides of a node's value; a view has those that its base's layout gives it."""
    value = node.meta["val"]
    if node in chosen:
        return _strides(node, chosen[node])
    if node.target not in STRIDED_VIEWS:
        return value.stride()  # type: ignore[no-any-return]
    base = node.all_input_nodes[0]
    shape, strides = base.meta["val"].shape, _actual_strides(base, chosen)
    if tuple(strides) == base.meta["val"].stride() or static_sizes((*shape, *strides)) is None:
        return value.stride()  # type: ignore[no-any-return]
    tensor = torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
    view: torch.Tensor = node.target(tensor, *node.args[1:])
    return view.stride()


def _same_shape(first: torch.fx.Node, second: torch.fx.Node) -> bool:
    a, b = tensor_meta(first), tensor_meta(second)
    return a is not None and b is not None and a.shape == b.shape


def _strides(node: torch.fx.Node, order: Order) -> tuple[int, ...]:
    """Return the strides of a dense tensor in an order; dimensions of size 1 keep theirs."""
    value = node.meta["val"]
    strides, expected = list(value.stride()), 1
    for d in reversed(order):
        strides[d] = expected
        expected *= value.shape[d]
    return tuple(strides)
