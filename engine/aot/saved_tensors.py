"""Lifetime of saved tensors when backward runs for only some results of a call.

Eager frees only the saved tensors of autograd nodes through which gradients have flowed. For example, a program may
differentiate the discriminator's loss first and the generator's loss later. A compiled call is a single autograd node.
It therefore tracks which saved tensors each tangent needs: it continues and raises where eager does, and retains no
more than eager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.ir.node_metadata import is_backward_node
from engine.ir.node_values import is_scalar, tensor_meta
from engine.torch_private.autograd import SavedTensor

TangentSet = frozenset[int]
"""Positions of a subset of a backward's tangents."""

CAN_UNPACK_SINGLE = hasattr(SavedTensor, "unpack")
"""True if this torch version can unpack one of several saved tensors."""

ALREADY_FREED_MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you "
    "need to backward through the graph a second time or if you need to access saved tensors after calling backward."
)
"""The message that torch raises."""


def tangent_dependencies(
    backward: torch.fx.GraphModule, tensors: int, tangents: Sequence[str]
) -> frozenset[TangentSet]:
    """Return, for each operator that reads values saved by eager, its tangents.

    The first ``tensors`` inputs of the graph are saved tensors; ``tangents`` are names of other inputs.
    """
    numbers = {name: n for n, name in enumerate(tangents)}
    comes_from: dict[torch.fx.Node, TangentSet] = {}
    saved: set[torch.fx.Node] = set()
    dependencies: set[TangentSet] = set()
    for n, node in enumerate(backward.graph.nodes):
        if node.op == "placeholder":
            if node.name in numbers:
                comes_from[node] = frozenset((numbers[node.name],))
            elif n < tensors:
                saved.add(node)
            continue
        late = frozenset[int]().union(*(comes_from[i] for i in node.all_input_nodes if i in comes_from))
        is_read = any(i in saved for i in node.all_input_nodes)
        if late:
            comes_from[node] = late
            if node.op != "output" and (is_read or _is_scalar_product_grad(node)):
                dependencies.add(late)
        elif not is_scalar(node) and (is_read or not is_backward_node(node)):
            saved.add(node)  # counts as saved: a recomputed forward node, or a node computed from saved values
    return frozenset(dependencies)


def _is_scalar_product_grad(node: torch.fx.Node) -> bool:
    """Return True for the gradient of a product with a scalar; autograd saves a tensor there."""
    if node.target not in (torch.ops.aten.mul.Tensor, torch.ops.aten.div.Tensor) or not is_backward_node(node):
        return False
    return tensor_meta(node.args[1]) is None


def share_saved_values(meetings: Collection[TangentSet], some: TangentSet, other_tangents: TangentSet) -> bool:
    """Return True if one operator that reads saved values depends on tangents of both sets."""
    return any(part & some and part & other_tangents for part in meetings)


class _SaveTensors(torch.autograd.Function):
    """Saves tensors as autograd does, so that later mutations are detected."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return tensor.clone()


@dataclass
class RetainedTensors:
    """Saved tensors of a call that may still have to compute further gradients."""

    _result: torch.Tensor
    """Tensor whose autograd node saves the retained tensors."""
    _position_in_node: dict[int, int]
    _errors: dict[int, RuntimeError]
    """Errors of tensors that could not be read; raised when they are unpacked, as in eager."""

    def unpack(self, position: int) -> torch.Tensor:
        """Return a saved tensor.

        Raises:
            RuntimeError: it was mutated since it was saved.
        """
        if position in self._errors:
            raise self._errors[position]
        return unpack_saved_tensor(self._result.grad_fn, self._position_in_node[position])


def retain_tensors(
    read: Callable[[int], torch.Tensor], needed: Collection[int], returned: Collection[int]
) -> RetainedTensors:
    """Copy the ``needed`` saved tensors from an autograd node, which may then be freed.

    ``returned`` are the positions of saved tensors that are results of the call.
    """
    tensors: dict[int, torch.Tensor] = {}
    errors: dict[int, RuntimeError] = {}
    for n in needed:
        try:
            # A result references its autograd node, which will reference this object: detach to avoid a cycle.
            tensors[n] = read(n).detach() if n in returned else read(n)
        except RuntimeError as error:
            errors[n] = error.with_traceback(None)
    with torch.enable_grad():
        result = _SaveTensors.apply(torch.empty(0, requires_grad=True), tuple(tensors.values()))  # type: ignore[no-untyped-call, unused-ignore]
    return RetainedTensors(result, {n: k for k, n in enumerate(tensors)}, errors)


def unpack_saved_tensor(ctx: Any, position: int, returned: Collection[int] = ()) -> torch.Tensor:
    """Return one saved tensor of an autograd node.

    ``returned`` are the positions of saved tensors that are results of the node.

    Raises:
        RuntimeError: the tensor was freed, or mutated since it was saved. If torch can only unpack all saved tensors
            together, another one may be the reason.
    """
    # Torch returns saved results only together with all other saved tensors.
    unpacks_single = CAN_UNPACK_SINGLE and position not in returned
    tensor: torch.Tensor = ctx._raw_saved_tensors[position].unpack() if unpacks_single else ctx.saved_tensors[position]
    return tensor
