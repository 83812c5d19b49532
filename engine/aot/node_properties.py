"""Static checks and properties of a traced graph: eligibility, grad mode, node kinds."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
import torch.fx

_RANDOM_NAME_PARTS = (
    "rand",
    "drop",
    "normal",
    "uniform",
    "bernoulli",
    "multinomial",
    "exponential",
    "poisson",
    "geometric",
    "cauchy",
    "engine.",
)


def may_draw_random(node: torch.fx.Node) -> bool:
    """Return True if a traced node may sample random numbers. Errs on the side of True."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
    return any(d in name for d in _RANDOM_NAME_PARTS)


def output_args(graph: torch.fx.Graph) -> tuple[Any, ...]:
    """Return the arguments of the output node as a flat tuple."""
    returned = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def flat_example_values(graph: torch.fx.GraphModule) -> Iterator[Any]:
    """Yield the example values of all nodes, lists flattened."""
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        yield from value if isinstance(value, (tuple, list)) else (value,)


def example_tensors(node: torch.fx.Node) -> list[torch.Tensor]:
    """Return the example tensors of a node."""
    value = node.meta.get("example_value")
    return [v for v in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(v, torch.Tensor)]


def is_data_access(node: torch.fx.Node) -> bool:
    """Return True if the node reads ``tensor.data``."""
    return node.target is getattr and node.args[1] == "data"


def example_tensor(node: Any) -> torch.Tensor | None:
    """Return the example value of a node if it is a tensor."""
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_as_strided(node: torch.fx.Node) -> bool:
    """Return True if a node addresses the storage directly, beyond its operand."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return name.startswith("as_strided")


def op_name(n: torch.fx.Node) -> str:
    """Return the method name, or the operator name without its overload."""
    return str(n.target) if n.op == "call_method" else getattr(n.target, "__name__", "").partition(".")[0]


def may_mutate(node: torch.fx.Node) -> bool:
    """Return True if a traced node may mutate an argument. Errs on the side of True."""
    if "out" in node.kwargs or node.kwargs.get("inplace") is True:
        return True
    if node.op == "call_method":
        name = str(node.target)
        if name.endswith("__"):
            return name == "__setitem__" or (
                name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
            )
        return name.endswith("_")
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return bool(node.target._schema.is_mutable)
    name = getattr(node.target, "__name__", "")
    if getattr(node.target, "__module__", "") == "_operator":
        return name in ("setitem", "delitem") or (
            name[:1] == "i" and name not in ("invert", "inv", "index", "is_", "is_not", "itemgetter", "indexOf")
        )
    if any(a is True for a in node.args) and "inplace" in getattr(
        getattr(node.target, "__code__", None), "co_varnames", ()
    ):
        return True
    return (name.endswith("_") and not name.endswith("__")) or name in ("batch_norm", "instance_norm")


def dependents_of(graph: torch.fx.Graph, tangents: Collection[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return ``tangents`` and all nodes that depend on any of them."""
    late = set(tangents)
    for node in graph.nodes:
        if any(n in late for n in node.all_input_nodes):
            late.add(node)
    return late
