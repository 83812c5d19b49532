"""Mark backward nodes with the forward nodes that they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from engine.aot.functional_tensors import functional_tensors
from engine.aot.gradients.custom_function_outputs import is_user_function
from engine.interrupts.deferred_interrupts import deliver_interrupts
from engine.ir.introspection.autograd_nodes import autograd_nodes
from engine.ir.node_metadata import BACKWARD_KEY, NodeProvenance, set_provenance
from engine.torch_private.functionalization import from_functional_tensor
from engine.torch_private.fx import get_proxy_mode, get_proxy_slot


def proxy_node(value: torch.Tensor) -> torch.fx.Node | None:
    """Return the node that computes a tensor in the graph being traced; None for a constant."""
    proxies = get_proxy_mode()
    assert proxies is not None
    slot: Any = get_proxy_slot(value, proxies.tracer, None)
    node: torch.fx.Node | None = None if slot is None else slot.proxy.node
    return node


_PHASE_DEPENDENT_NODES = {"LinalgEigBackward0": "linalg.eig", "LinalgEighBackward0": "linalg.eigh"}
"""Autograd nodes that raise if the loss depends on the phase of complex eigenvectors.

The eigenvectors are the second result. Over fake tensors these nodes do not raise.
"""


class BackwardProvenance:
    """Marks nodes traced in the backward, and sets the provenance of their forward node."""

    def __init__(self, origin: Callable[[int], NodeProvenance | None]) -> None:
        self._origin = origin
        proxies = get_proxy_mode()
        assert proxies is not None
        self._graph = proxies.tracer.graph
        self._last = self._graph._root._prev
        self._pending_grad_sums: set[torch.fx.Node] = set()
        """Gradient sums whose reader has not run yet."""
        self.user_function_grads: list[tuple[str, Any]] = []
        """Gradients returned by user-defined functions, each with the function's name."""
        self.phase_dependent_op = ""
        """An operator whose backward raises for some gradient values."""

    def register_hooks(self, outputs: Sequence[torch.Tensor]) -> Iterator[Any]:
        """Register hooks on every autograd node of the outputs' graph; yield their handles."""
        for node in autograd_nodes(o.grad_fn for o in outputs):
            if "AccumulateGrad" in node.name():
                continue
            origin = self._origin(node._sequence_nr())
            sums = None if origin is None else replace(origin, note="the gradients of several uses are summed")
            yield node.register_prehook(lambda grads, origin=sums: self._mark_grad_sums(grads, origin))
            yield node.register_hook(lambda grads, _, origin=origin: self.mark_traced(origin))
            if (named := _PHASE_DEPENDENT_NODES.get(node.name())) is not None:
                yield node.register_prehook(lambda grads, name=named: self._check_phase_gradient(name, grads))
            if is_user_function(node):
                name = type(node).__name__.removesuffix("Backward")
                yield node.register_hook(lambda grads, _, name=name: self._record_user_function_grads(name, grads))

    def _check_phase_gradient(self, name: str, gradients: Sequence[Any]) -> None:
        if gradients[1] is not None and gradients[1].is_complex():
            self.phase_dependent_op = name

    def _record_user_function_grads(self, name: str, gradients: Sequence[Any]) -> None:
        self.user_function_grads += [(name, g) for g in functional_tensors(gradients)]

    def mark_traced(self, origin: NodeProvenance | None) -> None:
        """Mark the nodes traced since the last call."""
        for node in self._take_new_nodes():
            if origin is not None:
                set_provenance(node, origin)

    def _take_new_nodes(self) -> list[torch.fx.Node]:
        """Return the nodes traced since the last call, marked as backward nodes."""
        node = end = self._graph._root._prev
        new_nodes = []
        while node is not self._last:
            node.meta["custom"] = {**node.meta.get("custom", {}), BACKWARD_KEY: True}
            new_nodes.append(node)
            node = node._prev
        self._last = end
        return new_nodes

    def _mark_grad_sums(self, gradients: Sequence[Any], origin: NodeProvenance | None) -> None:
        """Set the provenance of the sums among these gradients; other new sums stay pending.

        A safe point: autograd raises the error of a hook in the backward's caller.
        """
        deliver_interrupts()
        self._pending_grad_sums.update(self._take_new_nodes())
        for gradient in gradients:
            self._mark_grad_sum(gradient, origin)

    def _mark_grad_sum(self, gradient: Any, origin: NodeProvenance | None) -> None:
        if not self._pending_grad_sums:
            return
        todo = [proxy_node(from_functional_tensor(g.elem)) for g in functional_tensors((gradient,))]
        while todo:
            node = todo.pop()
            if node is not None and node in self._pending_grad_sums:
                self._pending_grad_sums.remove(node)
                todo += node.all_input_nodes
                if origin is not None:
                    set_provenance(node, origin)

    def finish(self, gradients: Mapping[str, Any]) -> None:
        """Mark the remaining sums, given the gradients of the inputs by name."""
        self._pending_grad_sums.update(self._take_new_nodes())
        for name, gradient in gradients.items():
            self._mark_grad_sum(gradient, NodeProvenance(note=f"the gradients of {name} are summed"))
