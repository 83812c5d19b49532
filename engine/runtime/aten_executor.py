"""ATen executor: run a functional graph op by op, as generated straight-line Python.

Values are freed after their last use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.graph.codegen import generate_function
from engine.graph.device_dependent_composites import eager_implementation
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.node_metadata import PADDED_ROWS_KEY
from engine.ir.node_values import called_overload
from engine.torch_private.operators import VF, nn_functions

Run = Callable[..., Any]
BERNOULLI, EMPTY_LIKE = torch.ops.aten.bernoulli.p, torch.ops.aten.empty_like.default


def aten_executor(graph: AotGraph) -> Run:
    """Return ``run(*inputs) -> tuple``, which runs the graph's operators on ATen.

    A boxed graph has ``run([inputs])``. Every operator calls the kernel that eager would call. Results are
    bitwise equal to eager's wherever the graph has eager's operators.
    """
    run = generate_function(graph.module, _node_callable, name="ATen executor", is_boxed=graph.is_boxed)
    placeholders = [n for n in graph.module.graph.nodes if n.op == "placeholder"]
    apart = [position for position, node in enumerate(placeholders) if PADDED_ROWS_KEY in node.meta]
    if not apart or not graph.is_boxed:
        return run

    def together(values: list[Any]) -> tuple[Any, ...]:
        for position in apart:  # ATen's view operators need the contiguous tensor that eager would have saved
            values[position] = values[position].contiguous()
        return run(values)  # type: ignore[no-any-return]

    return together


_BINDINGS_BY_NAME = (
    "_softmax _log_softmax abs acos addcdiv addcmul addmm all any arange argmax argmin asin atan atan2 baddbmm bitwise_and bitwise_not "
    "bitwise_or bitwise_xor bmm cat ceil clamp clamp_max clamp_min clone cos cosh cumprod cumsum div dot embedding empty_like eq erf "
    "exp expm1 flip floor fmod full_like ge gt index_add index_select isinf isnan le lerp log log10 log1p log2 logical_and logical_not logical_or "
    "logical_xor logsumexp lt masked_fill matmul maximum mean minimum mm mul native_layer_norm ne neg nonzero ones_like "
    "permute prod reciprocal relu remainder roll round rsqrt rsub scatter scatter_add select sigmoid sign sin sinh sort sqrt squeeze "
    "stack sub sum t tan tanh topk transpose tril triu unsqueeze var where zeros_like detach gather add pow"
)
_METHODS = ("expand", "repeat", "view")


def _bindings() -> dict[str, Any]:
    """Return torch's Python bindings of operators, by name.

    Calling one costs half of calling the ``OpOverload``. Only bindings whose parameters match the schema, in order.
    """
    found = {name: getattr(torch, name) for name in _BINDINGS_BY_NAME.split()}
    found.update({name: getattr(torch.Tensor, name) for name in _METHODS})
    found["split"] = VF.split
    found["gelu"] = nn_functions.gelu
    found["silu"] = nn_functions.silu
    return found


_BINDINGS = _bindings()
_OVERLOADS_WITH_BINDING = (
    "default",
    "Tensor",
    "Scalar",
    "int",
    "dim",
    "dim_IntList",
    "self",
    "correction",
    "Tensor_Scalar",
    "Tensor_Tensor",
    "ScalarSelf",
)


def bernoulli_into_new(tensor: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """Sample ``bernoulli_(p)`` into uninitialized memory with the tensor's strides.

    Random numbers are sampled in memory order; the functional operator loses that order.
    """
    return torch.empty_like(tensor).bernoulli_(p, generator=generator)


def aten_callable(target: Any) -> Any:
    """Return the cheapest callable for an operator, with the same arguments."""
    if called_overload(target) is None or target.namespace != "aten":
        return eager_implementation(target) or target
    name = target.overloadpacket.__name__
    if target._overloadname in _OVERLOADS_WITH_BINDING and name in _BINDINGS:
        return _BINDINGS[name]
    return target


def _node_callable(node: torch.fx.Node) -> Any:
    """Return the callable that computes a node."""
    if node.target is BERNOULLI and node.all_input_nodes[0].target is EMPTY_LIKE:
        return bernoulli_into_new
    return aten_callable(node.target)
