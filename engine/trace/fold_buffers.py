"""Constant folding of numbers computed from small integer module buffers.

The buffers are guarded. Without folding, the graph would break or the number would be unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from engine.ir.guards.python_values import EqualsMatch
from engine.ir.introspection.operator_facts import facts_of_node
from engine.ir.sources.tensors import TensorItemSource
from engine.trace.annotations import Tracer

if TYPE_CHECKING:
    from engine.ir.traced_frame import GraphInput

_MAX_OPS = 40
"""Maximum number of operations to fold."""
_PURE_OPS = frozenset(
    "abs add all any bitwise_and bitwise_not bitwise_or bitwise_xor bool ceil clamp clip div eq float floor floor_divide ge "
    "getitem __getitem__ gt int item le logical_and logical_not logical_or logical_xor long lt max maximum min minimum mul "
    "multiply ne neg not_ pow remainder reshape round rsub sub subtract sum to true_divide trunc unsqueeze squeeze view".split()
)
"""Pure operations, by their names in ATen."""


def fold_from_buffers(tx: Tracer, node: torch.fx.Node) -> Any:
    """Return the value of a node that depends only on small integer buffers, and guard them.

    Return None if it depends on anything else, or if a buffer is known to change between calls.
    """
    if tx.in_subgraph():
        return None
    buffers: dict[torch.fx.Node, GraphInput] = {}
    known: dict[torch.fx.Node, Any] = {}
    named = {given.name: given for given in tx.graph.inputs}
    if not _fold_inputs(tx, node, named, buffers, known, 0) or not buffers:
        return None
    found = known[node] if node in known else _evaluate_node(node, known)
    for given in buffers.values():
        read = TensorItemSource(given.source)
        tx.guard(EqualsMatch, read, int(given.example_value), why="its value decided what was traced")
    return found


def _fold_inputs(
    tx: Tracer,
    node: torch.fx.Node,
    named: dict[str, GraphInput],
    buffers: dict[torch.fx.Node, GraphInput],
    known: dict[torch.fx.Node, Any],
    depth: int,
) -> bool:
    """Evaluate the inputs of a node; return True if all of them are known."""
    if node in known:
        return True
    if depth > _MAX_OPS or len(known) > _MAX_OPS:
        return False
    if node.op == "placeholder":
        given = named.get(node.name)
        if given is None or not _is_small_buffer(tx, given) or not all(map(counts_writes, node.users)):
            return False
        buffers[node] = given
        known[node] = given.example_value.clone()
        return True
    if node.op not in ("call_function", "call_method") or not is_pure_node(node):
        return False
    if not all(_fold_inputs(tx, used, named, buffers, known, depth + 1) for used in node.all_input_nodes):
        return False
    known[node] = _evaluate_node(node, known)
    return True


def _is_small_buffer(tx: Tracer, given: GraphInput) -> bool:
    real, fake = given.example_value, given.fake
    return (
        given.source.member_table == "_buffers"
        and type(real) is torch.Tensor
        and real.numel() == 1
        and real.device.type == "cpu"
        and not (real.is_floating_point() or real.is_complex() or real.is_quantized)
        and not real.is_inference()
        and fake._version == given.initial_version
        and -1 not in tx.request.dynamic_dims.get(TensorItemSource(given.source).expr, frozenset())
    )


def is_pure_node(node: torch.fx.Node) -> bool:
    """Return True if the operation is pure and its result was not mutated."""
    if not all(map(counts_writes, node.users)):
        return False
    is_method = node.op == "call_method"
    name = node.target if is_method else getattr(node.target, "__name__", "")
    module = "torch" if is_method else str(getattr(node.target, "__module__", None))
    fake = node.meta.get("example_value")
    is_as_made = not isinstance(fake, torch.Tensor) or (
        _has_one_element(fake) and not fake.is_inference() and fake._version == 0 and fake.device.type == "cpu"
    )
    facts = facts_of_node(node)
    is_pure = not facts.writes and (facts.name or name) in _PURE_OPS
    return is_pure and is_as_made and module.partition(".")[0] in _PURE_OP_MODULES


def counts_writes(user: torch.fx.Node) -> bool:
    """Return True if the operation counts all its writes in tensor versions.

    torch operations do, except those that update running statistics or check gradients for infinities.
    """
    if user.op == "call_method":
        return True
    home = str(getattr(user.target, "__module__", None)).partition(".")[0]
    facts = facts_of_node(user)
    return home in _PURE_OP_MODULES and not (facts.running_stats or facts.has_uncounted_writes)


def _has_one_element(fake: torch.Tensor) -> bool:
    """Return True if the tensor has one element, without guards on symbolic sizes."""
    return all(isinstance(size, int) and size == 1 for size in fake.shape)


_PURE_OP_MODULES = frozenset(("torch", "None", "_operator", "builtins", "math"))


def _evaluate_node(node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: known[n])
    target: Any = node.target
    with torch.no_grad():
        if node.op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)
