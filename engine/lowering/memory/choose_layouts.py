"""Choose the memory layout of tensors that only kernels read.

Eager gives the sum of a contiguous and a channels-last tensor the layout of the first. A residual gradient then stays
contiguous through a channels-last network, and each kernel that reads it with others loads one of them along its
strides. Nothing shows the layout of such a tensor, so it gets that of the larger part of its operands, or that in which
a convolution reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of
from engine.ir.node_values import called_overload, tensor_meta
from engine.ir.static_sizes import static_sizes
from engine.lowering.memory.convolution_layouts import Order, order_of_base, order_read_by_convolution
from engine.lowering.pad_strides import RESHAPES, VIEW_OPS

aten = torch.ops.aten

MIN_DIMS = 3
COPIES = frozenset((aten._to_copy.default, aten.clone.default))
REDUCTIONS = frozenset((aten.sum.dim_IntList, aten.mean.dim, aten.var_mean.correction, aten.amax.default))
LIBRARY_COPY = 4
"""Cost of a copy to another layout in a library call: a slow load and a slow store."""
CONVOLUTION = aten.convolution.default
STRIDED_VIEWS = VIEW_OPS - {aten.view.default, aten._unsafe_view.default, aten.reshape.default}
"""Views that only permute, add or remove dimensions: no layout makes them copies."""


def choose_layouts(graph: torch.fx.Graph) -> dict[torch.fx.Node, tuple[int, ...]]:
    """Return the strides of elementwise results whose layout differs from eager's."""
    readers = {node: orders for node in graph.nodes if (orders := _orders_of_readers(node)) and _is_elementwise(node)}
    free = {node: order for node in readers if (order := _dense_order(node)) is not None}
    chosen: dict[torch.fx.Node, Order] = {}
    unplaced: set[torch.fx.Node] = set()
    for node, eagers in free.items():
        votes = _operand_bytes_by_order(node, chosen, unplaced)
        for order in readers[node].orders:
            votes[order] += LIBRARY_COPY * node.meta["val"].nbytes
        if not votes:
            unplaced.add(node)
        elif votes[order := votes.most_common(1)[0][0]] > votes[eagers] and readers[node].allow(order):
            chosen[node] = order
    for node in reversed(free):  # A broadcast value has no layout of its own; that of its readers suits it.
        of_users = {chosen.get(user) for user in node.users if user in free and _same_shape(user, node)}
        if node in unplaced and len(of_users) == 1 and (common := of_users.pop()) and readers[node].allow(common):
            chosen[node] = common
    return {node: _strides(node, order) for node, order in chosen.items() if order != free[node]}


def _is_elementwise(node: torch.fx.Node) -> bool:
    called = called_overload(node.target) if node.op == "call_function" else None
    return called is not None and (node.target in COPIES or facts_of(called).is_pointwise)


class _ReadersOrders(NamedTuple):
    """The order in which library calls read a value, if they prefer one."""

    orders: tuple[Order, ...] = ()
    """At most one."""
    are_required: bool = False
    """True if the value must have this order or eager's."""

    def allow(self, order: Order) -> bool:
        """Return True if a value may have an order that is not eager's."""
        return not self.are_required or order in self.orders


def _orders_of_readers(node: torch.fx.Node) -> _ReadersOrders | None:
    """Return the order that library calls prefer; None if the value must have eager's."""
    each = [_orders_of_reader(node, user) for user in node.users]
    orders = {order for one in each if one is not None for order in one.orders}
    if None in each or len(orders) > 1:
        return None
    return _ReadersOrders(tuple(orders), any(one.are_required for one in each if one is not None))


def _orders_of_reader(node: torch.fx.Node, user: torch.fx.Node) -> _ReadersOrders | None:
    if (order := order_read_by_convolution(node, user)) is not None:
        return _ReadersOrders((order,), are_required=node is not user.args[0] or user.target is CONVOLUTION)
    if user.target is aten.convolution_backward.default:
        return None if node in user.args[1:] else _ReadersOrders()
    if user.target in STRIDED_VIEWS or user.target in RESHAPES:
        return _orders_through_view(user)
    return _ReadersOrders() if _is_elementwise(user) or user.target in REDUCTIONS else None


def _orders_through_view(view: torch.fx.Node) -> _ReadersOrders | None:
    """Return the order of a view's base that its readers prefer.

    Other orders may turn a reshape into a copy.
    """
    readers = _orders_of_readers(view)
    if readers is None or (view.target not in STRIDED_VIEWS and not readers.orders):
        return None
    orders = tuple(o for order in readers.orders if (o := order_of_base(view, order)) is not None)
    if len(orders) < len(readers.orders) and (readers.are_required or view.target not in STRIDED_VIEWS):
        return None
    return _ReadersOrders(orders, readers.are_required or view.target not in STRIDED_VIEWS)


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
    if node.target not in STRIDED_VIEWS and node.target not in RESHAPES:
        return value.stride()  # type: ignore[no-any-return]
    base = node.all_input_nodes[0]
    shape, strides = base.meta["val"].shape, _actual_strides(base, chosen)
    if tuple(strides) == base.meta["val"].stride() or static_sizes((*shape, *strides)) is None:
        return value.stride()  # type: ignore[no-any-return]
    tensor = torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
    is_permuted = node.target in STRIDED_VIEWS
    view: torch.Tensor = node.target(tensor, *node.args[1:]) if is_permuted else tensor.view(value.shape)
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
