"""What a kernel would write with exact arithmetic: its part of the ATen graph, run again in double precision.

Neither ATen nor a kernel is the truth to the last bit, least of all in 16 bits, where ATen rounds after each operation and a kernel
only at the end. Measured against this, each has an error of its own, and a kernel need only be about as good as ATen.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.fx


class NoFp64Reference(Exception):
    """Why the exact values of a kernel are not to be had."""


def fp64_values(
    module: torch.fx.GraphModule,
    given: Mapping[str, Any],
    wanted: Sequence[str],
    parts: Mapping[str, tuple[str, int]] = MappingProxyType({}),
) -> dict[str, torch.Tensor]:
    """Values of the ``wanted`` nodes in float64 (other dtypes as they are), computed from the ``given`` ones.

    ``parts`` are names for results of calls that have several: the call's name, and which.

    Raises:
        NotExact: a node in between draws random numbers, writes to its input, or does not run in double precision.
    """
    nodes = _nodes_by_name(module, parts)
    targets = [nodes[name] for name in wanted if name in nodes]
    values: dict[torch.fx.Node, Any] = {nodes[n]: _double_input(nodes[n], v) for n, v in given.items() if n in nodes}
    # A node that is both given and wanted (read and written by the kernel) is not computed from anything.
    between = _nodes_to_run(targets, values)
    for node in module.graph.nodes:
        if node in between:
            values[node] = _run_node(module, node, values)
    found = {name: values.get(nodes[name]) for name in wanted if name in nodes}
    return {name: _real_parts(value) for name, value in found.items() if isinstance(value, torch.Tensor)}


def _real_parts(value: torch.Tensor) -> torch.Tensor:
    """What kernels see: of a complex tensor its real view."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _double_input(node: torch.fx.Node, value: Any) -> Any:
    """A node's value in double precision, complex again where a kernel sees its parts."""
    made = node.meta.get("val")
    if isinstance(made, torch.Tensor) and made.is_complex() and not value.is_complex():
        value = torch.view_as_complex(value.contiguous())
    return _double(value)


def _nodes_by_name(module: torch.fx.GraphModule, parts: Mapping[str, tuple[str, int]]) -> dict[str, torch.fx.Node]:
    """Nodes by name; one of several results of a call by its own name."""
    nodes = {node.name: node for node in module.graph.nodes}
    names = {place: name for name, place in parts.items()}
    for node in module.graph.nodes:
        if node.target is operator.getitem and (node.args[0].name, node.args[1]) in names:
            nodes[names[node.args[0].name, node.args[1]]] = node
    return nodes


def _nodes_to_run(targets: Iterable[torch.fx.Node], known: Mapping[torch.fx.Node, Any]) -> set[torch.fx.Node]:
    """The nodes that must run: ancestors of the targets, no further than what is known."""
    found: set[torch.fx.Node] = set()
    stack = list(targets)
    while stack:
        node = stack.pop()
        if node in found or node in known:
            continue
        found.add(node)
        stack.extend(node.all_input_nodes)
    return found


def _run_node(module: torch.fx.GraphModule, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
    if node.op == "get_attr":
        return _double(getattr(module, str(node.target)))
    if node.op != "call_function" or not callable(node.target):
        raise NoFp64Reference(f"{node.name} is not known")
    if isinstance(node.target, torch._ops.OpOverload):
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise NoFp64Reference(f"{node.name} draws random numbers")
        if node.target._schema.is_mutable:
            raise NoFp64Reference(f"{node.name} writes to its input")
    arguments = torch.fx.node.map_aggregate((node.args, node.kwargs), lambda a: _argument(a, values))
    args, kwargs = arguments
    try:
        with torch.no_grad():
            return node.target(*args, **kwargs)
    except Exception as error:
        raise NoFp64Reference(f"{node.name} does not run in double precision: {error}") from error


def _argument(argument: Any, values: Mapping[torch.fx.Node, Any]) -> Any:
    if isinstance(argument, torch.fx.Node):
        return values[argument]
    if isinstance(argument, torch.dtype) and (argument.is_floating_point or argument.is_complex):
        return torch.complex128 if argument.is_complex else torch.float64
    if isinstance(argument, torch.device):
        return torch.device("cpu")
    return argument


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_complex():
        return value.to(torch.complex128)
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
