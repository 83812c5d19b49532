"""Float64 reference values of a kernel: rerun its part of the ATen graph in float64.

ATen's results have rounding errors too, most of all in 16-bit types, where ATen rounds after each operation and a
kernel only at the end. Against this reference, a kernel's error need only be about as small as ATen's error.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.operator_facts import facts_of
from engine.ir.node_values import ancestors_of, called_overload, map_tensors, tensor_meta


def fp64_values(
    module: torch.fx.GraphModule,
    inputs: Mapping[str, Any],
    names: Sequence[str],
    parts: Mapping[str, tuple[str, int]] = MappingProxyType({}),
) -> dict[str, torch.Tensor]:
    """Compute the nodes ``names`` in float64 from the values ``inputs``.

    Values that are not floating point keep their dtype. ``parts`` maps a name to (call, index) for calls with several
    results. Returns nothing if a node in between uses random numbers, mutates its input, or does not run in float64.
    """
    nodes = _nodes_by_name(module, parts)
    targets = [nodes[name] for name in names if name in nodes]
    values: dict[torch.fx.Node, Any] = {nodes[n]: _double_input(nodes[n], v) for n, v in inputs.items() if n in nodes}
    # A node both given and wanted (read and written by the kernel) is not computed: its given value is used.
    between = ancestors_of(targets, values)
    nodes_to_run = [node for node in module.graph.nodes if node in between]
    if not all(map(_is_repeatable, nodes_to_run)):
        return {}
    try:
        for node in nodes_to_run:
            values[node] = _run_node(module, node, values)
    except Exception:  # an operator without a kernel for float64
        return {}
    values_by_name = {name: values.get(nodes[name]) for name in names if name in nodes}
    return {name: real_parts(value) for name, value in values_by_name.items() if isinstance(value, torch.Tensor)}


def real_parts(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor as kernels see it: the real view of a complex tensor."""
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _double_input(node: torch.fx.Node, value: Any) -> Any:
    """Convert a node's value to float64; a real view becomes complex again."""
    meta = tensor_meta(node)
    if meta is not None and meta.is_complex() and not value.is_complex():
        value = torch.view_as_complex(value.contiguous())
    return _as_double(value)


def _nodes_by_name(module: torch.fx.GraphModule, parts: Mapping[str, tuple[str, int]]) -> dict[str, torch.fx.Node]:
    """Return nodes by name; a getitem node also by its name in ``parts``."""
    nodes = {node.name: node for node in module.graph.nodes}
    names = {location: name for name, location in parts.items()}
    for node in module.graph.nodes:
        if node.target is operator.getitem and (node.args[0].name, node.args[1]) in names:
            nodes[names[node.args[0].name, node.args[1]]] = node
    return nodes


def _is_repeatable(node: torch.fx.Node) -> bool:
    """Return False if a second run may give other values, or change those that it reads."""
    if node.op != "call_function":
        return node.op == "get_attr"
    facts = facts_of(called_overload(node.target))
    return not (facts.draws_random or facts.writes)


def _run_node(module: torch.fx.GraphModule, node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
    if node.op == "get_attr":
        return _as_double(getattr(module, str(node.target)))
    assert callable(node.target)
    node_args = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
    arguments = torch.fx.node.map_aggregate(node_args, _argument)
    args, kwargs = arguments
    with torch.no_grad():
        return node.target(*args, **kwargs)


def _argument(argument: Any) -> Any:
    """Return the argument for a run on the CPU in float64."""
    if isinstance(argument, torch.dtype) and (argument.is_floating_point or argument.is_complex):
        return torch.complex128 if argument.is_complex else torch.float64
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


def _as_double(value: Any) -> Any:
    return next(iter(map_tensors(_double_tensor, (value,))))


def _double_tensor(value: torch.Tensor) -> torch.Tensor:
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value
