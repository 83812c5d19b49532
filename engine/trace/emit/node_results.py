"""The last step: the variable of a node's result, by the result's type.

Each module of variables registers the results that it represents (``wrap_fx_proxy`` in Dynamo).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.literal_types import TORCH_LITERAL_TYPES
from engine.ir.node_metadata import set_provenance
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Variable

_CONSTANT_TYPES = (int, float, bool, str, complex, type(None), *TORCH_LITERAL_TYPES)


@functools.singledispatch
def build_node_result(result: Any, tx: Tracer, node: torch.fx.Node) -> Variable:
    """Return the variable of a node's result. Register a builder per type with ``register``."""
    raise Unsupported("operator-result", f"an operation returns a {type(result).__name__}")


def wrap_result(tx: Tracer, node: torch.fx.Node, result: Any, *, keep: bool = False) -> Variable:
    """Wrap the result of a node in a variable.

    If the result is a Python constant, the node is erased unless ``keep`` is true.

    Raises:
        Unsupported: a graph cannot contain a value of this type.
    """
    node.meta["example_value"] = result
    if is_constant_result(result):
        if not keep:
            tx.graph.erase_last_node(node)
        return tx.from_python(result)
    return build_node_result(result, tx, node)


def wrap_items(tx: Tracer, node: torch.fx.Node, result: Iterable[Any]) -> list[Variable]:
    """Wrap the items of a node's result: constants as they are, each other item as a node."""
    items: list[Variable] = []
    for index, item in enumerate(result):
        if is_constant_result(item):
            items.append(tx.from_python(item))
            continue
        item_node = tx.graph.graph.create_node("call_function", operator.getitem, (node, index))
        item_node.meta["is_item"] = True
        set_provenance(item_node, tx.node_provenance())
        items.append(wrap_result(tx, item_node, item))
    return items


@functools.singledispatch
def is_constant_result(result: Any) -> bool:
    """Return True for a Python constant, or a list or tuple of constants."""
    return False


for _type in _CONSTANT_TYPES:
    is_constant_result.register(_type, lambda result: True)


@is_constant_result.register(list)
@is_constant_result.register(tuple)
def _(result: Iterable[Any]) -> bool:
    return all(map(is_constant_result, result))
