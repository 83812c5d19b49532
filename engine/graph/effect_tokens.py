"""Effect tokens: effectful ops pass on a token, so that the graph fixes their order.

The idea and the op ``with_effects(token, operator, *args) -> (token, *results)`` are torch's (AOTAutograd's effect
tokens). Forward and backward of a training call have separate chains: the forward always runs first.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of
from engine.ir.node_metadata import NodeProvenance, provenance_of, set_provenance
from engine.ir.node_values import called_overload
from engine.torch_private.fake_tensors import detect_fake_mode
from engine.torch_private.functionalization import FunctionalTensor, FunctionalTensorMode
from engine.torch_private.higher_order_ops import with_effects
from engine.torch_private.operators import EffectType

Node = torch.fx.Node


_make_token = torch.ops.prims._make_token.default
"""The op that creates the first token of a chain, in AOTAutograd's graphs too."""
_empty = torch.ops.aten.empty.memory_format
"""The op that creates tokens while a graph is functionalized.

Fake results of ``_make_token`` would hold weak references with callbacks.
"""


def set_mode_tokens(mode: FunctionalTensorMode) -> None:
    """Create a token per effect type in the mode, for ops that torch knows to be effectful."""
    for kind in EffectType:
        with torch.no_grad():
            token = torch.empty(0)
        mode._tokens[kind] = token if isinstance(token, FunctionalTensor) else FunctionalTensor.to_functional(token)


def is_with_effects(node: Node) -> bool:
    """Return True if a node is an effectful op that takes and returns a token."""
    return node.target is with_effects


def thread_tokens(module: torch.fx.GraphModule) -> None:
    """Connect all effectful ops by tokens, in one chain each for the forward and the backward.

    Effectful ops without results take a token too.
    """
    graph = module.graph
    chains: dict[bool, Node] = {}
    for node in list(graph.nodes):
        if not is_with_effects(node) and not _has_only_effect(node):
            continue
        half = bool(node.meta.get("custom", {}).get("engine_backward"))
        if half not in chains:
            chains[half] = _create_token(graph, node, half)
        chains[half] = _next_token(graph, node, chains[half])
    for node in reversed(list(graph.nodes)):
        if not node.users and (node.target is _empty or _is_token(node)):
            graph.erase_node(node)


def _has_only_effect(node: Node) -> bool:
    """Return True if an op has no results, so that it runs only for its effect.

    The only one of ATen is ``_linalg_check_errors``, to which newer torch itself passes a token.
    """
    target = called_overload(node.target)
    if target is None or facts_of(target).writes:
        return False
    if target is torch.ops.aten._linalg_check_errors.default:
        return True
    return not target._schema.returns and target.namespace not in ("aten", "prims", "engine")


def _create_token(graph: torch.fx.Graph, before: Node, half: bool) -> Node:
    with graph.inserting_before(before):
        token = graph.create_node("call_function", _make_token, (), name="token")
    token.meta = {"val": _value(before)}
    set_provenance(token, NodeProvenance(note="the initial token of operators with side effects"))
    if half:
        token.meta["custom"]["engine_backward"] = True
    return token


def _value(node: Node) -> torch.Tensor:

    mode = detect_fake_mode([n.meta.get("val") for n in (*node.all_input_nodes, *node.graph.nodes)])
    if mode is None:
        return torch.empty(0)
    with mode, torch.no_grad():
        return torch.empty(0)


def _next_token(graph: torch.fx.Graph, node: Node, token: Node) -> Node:
    """Make ``node`` take ``token``; return the token after it."""
    if is_with_effects(node):
        node.args = (token, *node.args[1:])
        node._rename(_operator_name(node))
        next_token = next((u for u in node.users if _is_token(u)), None)
        if next_token is not None:
            return next_token
        called = node
    else:
        with graph.inserting_before(node):
            name, ran = node.name, cast("Any", node.target)
            called = graph.create_node("call_function", with_effects, (token, ran, *node.args), node.kwargs)
        called.meta = {**node.meta, "val": (token.meta["val"], None)}
        graph.erase_node(node)
        called._rename(name)
    with graph.inserting_after(called):
        after = graph.create_node("call_function", operator.getitem, (called, 0), name="token")
    after.meta = {**{k: v for k, v in called.meta.items() if k == "custom"}, "val": token.meta["val"]}
    set_provenance(after, provenance_of(called))
    return after


def _operator_name(node: Node) -> str:
    target = called_overload(node.args[1])
    return str(node.args[1]) if target is None else target._schema.name.rpartition("::")[2]


def _is_token(node: Node) -> bool:
    """Return True if a node is the token that an effectful op returns."""
    if node.target is not operator.getitem:
        return False
    return is_with_effects(node.all_input_nodes[0]) and bool(node.args[1] == 0)


def run_with_token(token: torch.Tensor, target: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Run an op as ``with_effects`` does; return the token and the results."""
    result = target(*args, **kwargs)
    return (token, *result) if isinstance(result, tuple) else (token, result)
