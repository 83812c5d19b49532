"""What a compiled backward holds on to when gradients came back through some of a call's results only.

Eager frees what a node of autograd's graph saved when gradients have flown through it, and nothing else: a discriminator's loss may be
differentiated first, its generator's after it. A compiled call is one node, which must know its parts to go on where eager does, to
complain where eager does, and to keep no more than eager keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.ir.node_metadata import is_backward_node

TangentSet = frozenset[int]
"""Some of a backward's tangents, by position."""

CAN_UNPACK_SINGLE = hasattr(torch._C._autograd.SavedTensor, "unpack")
"""Whether this torch can unpack one saved tensor of several."""

ALREADY_FREED_MESSAGE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you "
    "need to backward through the graph a second time or if you need to access saved tensors after calling backward."
)
"""Torch's words."""


def tangent_dependencies(
    backward: torch.fx.GraphModule, tensors: int, tangents: Sequence[str]
) -> frozenset[TangentSet]:
    """For each operator of a backward graph that reads what eager saves: the tangents that its gradient comes from.

    ``tensors`` is the number of saved tensors, the graph's first inputs; ``tangents`` are names of other inputs.
    """
    places = {name: n for n, name in enumerate(tangents)}
    comes_from: dict[torch.fx.Node, TangentSet] = {}
    saved: set[torch.fx.Node] = set()
    found: set[TangentSet] = set()
    for n, node in enumerate(backward.graph.nodes):
        if node.op == "placeholder":
            if node.name in places:
                comes_from[node] = frozenset((places[node.name],))
            elif n < tensors:
                saved.add(node)
            continue
        late = frozenset[int]().union(*(comes_from[i] for i in node.all_input_nodes if i in comes_from))
        is_read = any(i in saved for i in node.all_input_nodes)
        if late:
            comes_from[node] = late
            if node.op != "output" and (is_read or _is_scalar_product_grad(node)):
                found.add(late)
        elif not _is_number(node) and (is_read or not is_backward_node(node)):
            saved.add(node)  # the forward's own, which is made anew here, or made of what was saved
    return frozenset(found)


def _is_scalar_product_grad(node: torch.fx.Node) -> bool:
    """Whether it is the derivative of a product with a number, which autograd saves as a tensor."""
    if node.target not in (torch.ops.aten.mul.Tensor, torch.ops.aten.div.Tensor) or not is_backward_node(node):
        return False
    factor = node.args[1]
    return not isinstance(factor, torch.fx.Node) or _is_number(factor)


def _is_number(value: torch.fx.Node) -> bool:
    return isinstance(value.meta.get("val"), (int, float, torch.SymInt, torch.SymFloat))


def share_saved_values(meetings: Collection[TangentSet], some: TangentSet, others: TangentSet) -> bool:
    """Whether gradients of both flow through one operator that reads what was saved."""
    return any(part & some and part & others for part in meetings)


class _SaveTensors(torch.autograd.Function):
    """Holds tensors as autograd does: it knows whether they were written to since."""

    @staticmethod
    def forward(ctx: Any, one: torch.Tensor, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return one.clone()


@dataclass
class RetainedTensors:
    """Saved tensors of a call that gave some gradients and may be asked for others."""

    _result: torch.Tensor
    """Its autograd node keeps them."""
    _position_in_node: dict[int, int]
    _errors: dict[int, RuntimeError]
    """What cannot be read any more, which eager notices when it reads it."""

    def unpack(self, position: int) -> torch.Tensor:
        """A saved tensor.

        Raises:
            RuntimeError: it was written to since.
        """
        if position in self._errors:
            raise self._errors[position]
        return unpack_saved_tensor(self._result.grad_fn, self._position_in_node[position])


def retain_tensors(
    read: Callable[[int], torch.Tensor], needed: Collection[int], returned: Collection[int]
) -> RetainedTensors:
    """Take over the ``needed`` saved tensors from an autograd node, which may then let go of all. ``returned`` are results of its call."""
    tensors: dict[int, torch.Tensor] = {}
    errors: dict[int, RuntimeError] = {}
    for n in needed:
        try:
            # A result holds on to its node, which is to hold this.
            tensors[n] = read(n).detach() if n in returned else read(n)
        except RuntimeError as error:
            errors[n] = error.with_traceback(None)
    with torch.enable_grad():
        result = _SaveTensors.apply(torch.empty(0, requires_grad=True), tuple(tensors.values()))  # type: ignore[no-untyped-call]
    return RetainedTensors(result, {n: k for k, n in enumerate(tensors)}, errors)


def unpack_saved_tensor(ctx: Any, position: int, returned: Collection[int] = ()) -> torch.Tensor:
    """One saved tensor of an autograd node, whose own results are ``returned``.

    Raises:
        RuntimeError: it was written to since, or is freed; also another one, where torch gives all of them or none.
    """
    # Torch gives back results only together with all others.
    one = CAN_UNPACK_SINGLE and position not in returned
    found: torch.Tensor = ctx._raw_saved_tensors[position].unpack() if one else ctx.saved_tensors[position]
    return found
