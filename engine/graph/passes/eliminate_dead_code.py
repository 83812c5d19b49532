"""Dead code elimination; preserves random and effectful ops, assertions and errors."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of_overload, may_raise, runs_for_effect
from engine.ir.node_metadata import is_backward_node
from engine.ir.node_values import called_overload, tensors_in
from engine.torch_private.dispatch import disable_current_modes

_MAX_CONSTANT_ELEMENTS = 1 << 20
"""Largest size of constants that are computed to see if an unused operator raises."""

_NUMBER_MODULES = ("_operator", "builtins", "math")
_NUMBER_FUNCTIONS = frozenset(
    (torch.sym_float, torch.sym_int, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sum)
)
"""Functions of torch that compute a number from symbolic numbers."""


def eliminate_dead_code(module: torch.fx.GraphModule, *, is_backward: bool = False) -> int:
    """Erase dead nodes of a functional graph in place; return their number.

    Dead random ops remain: they advance the generator, as in eager. So do operators that may raise, but for those
    that a backward recomputes. The caller recompiles the module.
    """
    dropped = 0
    for node in reversed(list(module.graph.nodes)):
        if not node.users and (is_removable(node) or (is_backward and not has_effect(node))):
            module.graph.erase_node(node)
            dropped += 1
    return dropped


def is_removable(node: torch.fx.Node) -> bool:
    """Return True if removing an unused node has no observable effect.

    Autograd computes no unused gradient, so that unused nodes of its backward are removable. An operator that computes
    with constants alone, as for an empty block mask of flex attention, is tried here.
    """
    called = called_overload(node.target)
    if has_effect(node):
        return False
    if called is None or is_backward_node(node) or not may_raise(called, _result_dtypes(node)):
        return True
    constants = _constant_computation(node)
    return constants is not None and not _raises(constants)


def _constant_computation(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """Return the nodes that compute a node, in order; None if not of constants alone."""
    unseen, found = [node], {node}
    while unseen:
        above = unseen.pop()
        if above.op != "call_function" or has_effect(above):
            return None
        new = [n for n in above.all_input_nodes if n not in found]
        unseen += new
        found.update(new)
    return sorted(found)


def _raises(nodes: list[torch.fx.Node]) -> bool:
    """Return True if a computation of small constants raises an error on the CPU."""
    values = [t for n in nodes for t in tensors_in(n.meta.get("val"))]
    if any(t.device.type != "cpu" or t.numel() > _MAX_CONSTANT_ELEMENTS for t in values):
        return False
    results: dict[torch.fx.Node, Any] = {}
    with disable_current_modes(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for node in nodes:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), results.__getitem__)
            try:
                results[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            except Exception:
                return True
    return False


def _result_dtypes(node: torch.fx.Node) -> list[torch.dtype]:
    return [t.dtype for t in tensors_in(node.meta.get("val"))]


def has_effect(node: torch.fx.Node) -> bool:
    """Return True if a node must run exactly once, although nothing may read its results."""
    if node.op in ("placeholder", "output", "call_module", "call_method"):
        return True
    target = called_overload(node.target)
    if node.op == "get_attr" or target is None:
        computes_number = node.target in _NUMBER_FUNCTIONS or getattr(node.target, "__module__", "") in _NUMBER_MODULES
        return not (node.op == "get_attr" or computes_number)
    facts = facts_of_overload(target)
    return facts.writes or facts.draws_random or runs_for_effect(target)
