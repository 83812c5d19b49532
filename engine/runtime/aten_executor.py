"""ATen executor: run a functional graph op by op, as generated straight-line Python.

Values are freed after their last use.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
import torch.fx

from engine.graph.codegen import generate_function
from engine.graph.device_dependent_composites import eager_implementation
from engine.graph.functionalize_rng import bernoulli_into_new
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.graph_callable import Run
from engine.ir.node_metadata import PADDED_ROWS_KEY
from engine.ir.node_values import called_overload
from engine.torch_private import operators

BERNOULLI, EMPTY_LIKE = torch.ops.aten.bernoulli.p, torch.ops.aten.empty_like.default


def aten_executor(graph: AotGraph) -> Run:
    """Return ``run(*inputs) -> tuple``, which runs the graph's operators on ATen.

    A boxed graph has ``run([inputs])``. Every operator calls the kernel that eager would call. Results are
    bitwise equal to eager's wherever the graph has eager's operators.
    """
    run = generate_function(graph.module, _node_callable, name="ATen executor", is_boxed=graph.is_boxed)
    placeholders = [n for n in graph.module.graph.nodes if n.op == "placeholder"]
    padded = [position for position, node in enumerate(placeholders) if PADDED_ROWS_KEY in node.meta]
    if not padded or not graph.is_boxed:
        return run

    def run_contiguous(values: list[Any]) -> tuple[Any, ...]:
        for position in padded:  # ATen's view operators need the contiguous tensor that eager would have saved
            values[position] = values[position].contiguous()
        return run(values)  # type: ignore[no-any-return]

    return run_contiguous


_NAMESPACES = (
    operators.VariableFunctions,
    operators.nn_functions,
    operators.linalg_functions,
    operators.fft_functions,
    operators.special_functions,
)
"""Torch's generated Python bindings.

Each takes the arguments of its operator's overloads in their order.
"""


@functools.cache
def _binding(name: str, *, is_method: bool) -> Any:
    """Return torch's Python binding of an ATen operator, or None.

    Calling one costs one to four microseconds less than calling the ``OpOverload``.
    """
    method = inspect.getattr_static(torch.Tensor, name, None) if is_method else None
    functions = (getattr(namespace, name, None) for namespace in _NAMESPACES)
    return next(filter(None, functions), method if inspect.ismethoddescriptor(method) else None)


def aten_callable(target: Any) -> Any:
    """Return the cheapest callable for an operator, with the same arguments."""
    called = called_overload(target)
    if called is None or called.namespace != "aten":
        return eager_implementation(target) or target
    arguments = called._schema.arguments
    if any(a.name == "reduction" or str(a.type) == "List[Optional[Tensor]]" for a in arguments):
        return target  # the binding has another default of reduction, and takes no None among indices
    name = "item" if target is torch.ops.aten._local_scalar_dense.default else target.overloadpacket.__name__
    return _binding(name, is_method=[a.name for a in arguments[:1]] == ["self"]) or target


def _node_callable(node: torch.fx.Node) -> Any:
    """Return the callable of a node; ``bernoulli`` of a new tensor has its own."""
    if node.target is BERNOULLI and node.all_input_nodes[0].target is EMPTY_LIKE:
        return bernoulli_into_new
    return aten_callable(node.target)
