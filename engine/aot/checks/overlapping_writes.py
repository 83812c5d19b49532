"""In-place writes that overlap what the operator reads."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import may_mutate
from engine.aot.storage_geometry import has_internal_overlap, is_disjoint, is_same_view, storage_id, with_hint_sizes
from engine.ir.fallback import Fallback, FallbackRequired
from engine.ir.introspection.operator_facts import facts_of_node, facts_of_overload
from engine.ir.node_values import example_tensor, nodes_in, tensors_in
from engine.torch_private.dispatch import TorchDispatchMode
from engine.torch_private.fake_tensors import FakeTensor

_OVERLAPS_INSIDE = (AotFallback.WRITE_TO_OVERLAPPING_ELEMENTS, "writes to a tensor whose elements overlap in memory")


_OTHER_ORDER = (AotFallback.WRITE_IN_OTHER_ORDER, "writes to memory that it also reads, in another order")


def check_overlapping_writes(call: CheckedCall) -> Fallback | None:
    """Return a fallback if a node mutates memory that it also reads through another view.

    Eager raises an error, or writes in an order that a kernel does not reproduce.
    """
    return next((fallback for node in call.graph.graph.nodes if (fallback := _check_write(node)) is not None), None)


class OverlappingWriteMode(TorchDispatchMode):
    """Dispatch mode that finds writes to overlapping elements in a callee.

    The graph shows such a callee as one node.

    Raises:
        FallbackRequired: an operator mutates a tensor whose elements overlap in memory.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if (facts := facts_of_overload(func) if hasattr(func, "_schema") else None) is not None and facts.writes:
            for tensor in tensors_in((kwargs.get("out"),) if facts.has_out else args[:1]):
                if has_internal_overlap(tensor):
                    raise FallbackRequired(
                        _OVERLAPS_INSIDE[0], f"{func.name().partition('::')[2].partition('.')[0]} {_OVERLAPS_INSIDE[1]}"
                    )
        return func(*args, **kwargs)


def _check_write(node: torch.fx.Node) -> Fallback | None:
    """Return how a node mutates memory that it also reads; None if it does not."""
    if not may_mutate(node):
        return None
    named = node.kwargs.get("out")
    target = named if named is not None else node.args[0] if node.args else None
    if isinstance(target, (list, tuple)):
        return _check_tensor_list_write(node, target)
    if positions := facts_of_node(node).running_stats:
        return _check_running_stats_write(node, positions)
    into = example_tensor(target)
    if into is None:
        return None
    if has_internal_overlap(into):
        return Fallback.for_node(node, *_OVERLAPS_INSIDE)
    is_reordered = not facts_of_node(node).is_pointwise and (named is not None or _is_reordering_write(node))
    if is_reordered and sum(n is target for n in nodes_in(node.args)) > (named is None):
        return Fallback.for_node(node, *_OTHER_ORDER)
    storage = storage_id(into)
    into = with_hint_sizes(into)
    if into._has_symbolic_sizes_strides:
        return None
    into = _assigned_slice(node, into)
    for other in node.all_input_nodes:
        read = example_tensor(other)
        if read is None or storage_id(read) != storage or (other is target and not _assigns_to_itself(node)):
            continue
        read = with_hint_sizes(read)
        if read._has_symbolic_sizes_strides:
            continue
        apart = is_disjoint(read, into)
        if not apart and not is_same_view(read, into):
            return Fallback.for_node(
                node, AotFallback.WRITE_THROUGH_OTHER_VIEW, "writes to memory that it also reads through another view"
            )
        if not apart and is_reordered:
            return Fallback.for_node(node, *_OTHER_ORDER)
    return None


def _is_reordering_write(node: torch.fx.Node) -> bool:
    """Return True for an operator that writes elements computed from other places."""
    return facts_of_node(node).name not in ("", "copy")


def _check_tensor_list_write(node: torch.fx.Node, targets: Sequence[Any]) -> Fallback | None:
    """Return how a write to a list of tensors overlaps another operand; None if it does not.

    Eager writes one tensor after another; a functional operator reads all of them first.
    """
    written = [(n, t) for n, a in enumerate(targets) if (t := example_tensor(a)) is not None]
    read: list[tuple[int, torch.Tensor]] = []
    for argument in (*node.args, *node.kwargs.values()):
        if argument is targets:
            continue
        items = list(enumerate(argument)) if isinstance(argument, (list, tuple)) else [(-1, argument)]
        read += [(n, t) for n, a in items if (t := example_tensor(a)) is not None]
    for n, into in written:
        if has_internal_overlap(into):
            return Fallback.for_node(node, *_OVERLAPS_INSIDE)
        other_tensors = [(m, t) for m, t in (*written, *read) if t is not into or m != n]
        shared = [(m, t) for m, t in other_tensors if storage_id(t) == storage_id(into) and not is_disjoint(into, t)]
        if any(m != n or not is_same_view(with_hint_sizes(into), with_hint_sizes(t)) for m, t in shared):
            return Fallback.for_node(
                node, AotFallback.LIST_WRITE_SHARES_MEMORY, "writes to memory that another tensor of its list shares"
            )
    return None


def _assigns_to_itself(node: torch.fx.Node) -> bool:
    """Return True if an item assignment reads the tensor that it mutates.

    Eager fills the slice if the value has one element, and copies otherwise.
    """
    return node.target in (operator.setitem, "__setitem__") and node.args[2] is node.args[0]


def _assigned_slice(node: torch.fx.Node, into: torch.Tensor) -> torch.Tensor:
    """Return the slice that an item assignment mutates; ``into`` if the index makes no view."""
    if node.target not in (operator.setitem, "__setitem__"):
        return into
    index: Any = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if not all(type(i) in (int, slice, type(None), type(...)) for i in index):
        return into
    if nodes_in(index):
        return into
    mode = into.fake_mode if isinstance(into, FakeTensor) else contextlib.nullcontext()
    with mode, torch.no_grad():
        part: torch.Tensor = into.detach()[index]
    return part


def _check_running_stats_write(node: torch.fx.Node, positions: Sequence[int]) -> Fallback | None:
    """Return how running statistics overlap another operand; None if it does not.

    Eager writes them before it has read all other operands.
    """
    named = [node.kwargs.get(name) for name in ("running_mean", "running_var")]
    statistics = [
        s
        for a in (*(node.args[n] for n in positions if n < len(node.args)), *named)
        if (s := example_tensor(a)) is not None
    ]
    operands = [r for a in (*node.args, *node.kwargs.values()) if (r := example_tensor(a)) is not None]
    for into in statistics:
        if has_internal_overlap(into):
            return Fallback.for_node(node, *_OVERLAPS_INSIDE)
        if sum(storage_id(r) == storage_id(into) and not is_disjoint(r, into) for r in operands) > 1:
            return Fallback.for_node(
                node,
                AotFallback.RUNNING_STATS_OVERLAP,
                "writes running statistics to memory that it also reads as another operand",
            )
    return None
