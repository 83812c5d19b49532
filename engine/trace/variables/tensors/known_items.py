"""Items of tensors that are only read: one number stands for each item."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from engine.graph.packed_sequences import pad_packed
from engine.ir.graph_callable import graph_callable_of
from engine.ir.introspection.operator_facts import facts_of_node
from engine.trace.annotations import Tracer
from engine.trace.variables.base import Variable

_READERS = frozenset((pad_packed, torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, "size"))
"""Targets of nodes that only read the values or sizes of their arguments."""


class _KnownItems(dict[Any, Variable]):
    """Numbers that are items of tensors, by the tensor's node and the index."""


def remember_item(tx: Tracer, item: Any, number: Variable) -> Variable:
    """Remember the number that an item of a tensor is; ``item`` is the tensor ``t[n]``."""
    node = item.node(tx)
    if _is_item(node):
        tx.state_of(_KnownItems)[node.args] = number
    return number


def known_item(tx: Tracer, item: Any) -> Variable | None:
    """Return the number of an item, or None if it is unknown or may have been written."""
    node = item.node(tx)
    number = tx.state_of(_KnownItems).get(node.args) if _is_item(node) else None
    return number if number is not None and _is_only_read(tx, node.args[0]) else None


def _is_item(node: torch.fx.Node) -> bool:
    return node.target is operator.getitem and type(node.args[1]) is int


def _is_only_read(tx: Tracer, of: torch.fx.Node) -> bool:
    is_read = all(
        user.target in _READERS or (_is_item(user) and all(u.target == "item" for u in user.users)) for user in of.users
    )
    # Another input may share memory with an input.
    return is_read and (of.op != "placeholder" or not any(map(_may_write, tx.graph.graph.nodes)))


def _may_write(node: torch.fx.Node) -> bool:
    return facts_of_node(node).writes or graph_callable_of(node).runs_user_python
