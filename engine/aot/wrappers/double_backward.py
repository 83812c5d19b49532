"""Double backward: rerun a training call as traced, under eager autograd.

Rerunning a forward with its original RNG state is the idea of checkpointing (Chen et al., 2016).
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from engine.aot.fallback_kinds import AotFallback
from engine.aot.joint import JointGraph
from engine.aot.node_properties import output_args
from engine.aot.partitioner.recompute import num_bytes
from engine.graph.functionalize_rng import is_random, with_rng_states
from engine.ir.fallback import FallbackRequired
from engine.ir.node_values import nodes_in, tensors_by_position, tensors_in

AutocastState = tuple[str, bool, torch.dtype]

MAX_COPIED_BYTES = 2**20
"""Upper bound, in bytes, of the mutated inputs of one call that are copied for a rerun."""


@dataclass
class EagerRerun:
    """Eager rerun of a call, for gradients that must be differentiable themselves.

    ``output_nodes`` has, per differentiable result, the name of the traced node that creates it. ``rng_devices`` are
    the devices on which the call samples random numbers. ``autocast`` is the state at compile time; guards ensure it.
    """

    graph: torch.fx.GraphModule
    output_nodes: tuple[str | None, ...]
    grad_inputs: tuple[int, ...]
    mutated_inputs: frozenset[int]
    """Mutated inputs; unless copied, only new contents of mutated inputs depend on them."""
    copied_inputs: tuple[int, ...] = ()
    """Mutated inputs whose old contents a rerun reads; the call copies them first."""
    rng_devices: tuple[str, ...] = ()
    autocast: tuple[AutocastState, ...] = ()
    why_unsupported: str = ""
    """Reason why no call can be rerun; empty if calls can be."""
    _cached_output_graph: torch.fx.GraphModule | None = field(default=None, repr=False)

    def gradients(
        self, inputs: Sequence[Any], versions: Sequence[int], random: Sequence[torch.Tensor], tangents: Sequence[Any]
    ) -> Sequence[Any]:
        """Return gradients of the inputs, connected to inputs and tangents in autograd's graph.

        Raises:
            FallbackRequired: the call cannot be rerun in its original state.
        """
        if self.why_unsupported:
            raise FallbackRequired(AotFallback.DOUBLE_BACKWARD_OF_MUTATED_INPUT, self.why_unsupported)
        for n, tensor in tensors_by_position(inputs).items():
            if n not in self.mutated_inputs and tensor._version != versions[n]:
                raise FallbackRequired(
                    AotFallback.DOUBLE_BACKWARD_OF_MUTATED_INPUT, "an input was mutated after the call"
                )
        defined = [n for n, t in enumerate(tangents) if t is not None]
        if any(self.output_nodes[n] is None for n in defined):
            raise FallbackRequired(
                AotFallback.DOUBLE_BACKWARD_OF_MUTATED_INPUT,
                "a gradient flows through a mutated input, or through a view that an operator returned",
            )
        rerun_inputs = [self._rerun_input(n, i) for n, i in enumerate(inputs)]
        with self._restored_state(random):
            graph = self._output_graph()
            results = type(graph).forward(graph, *rerun_inputs)
        sources = [rerun_inputs[n] for n in self.grad_inputs]
        outputs = [results[n] for n in defined]
        if not outputs:
            return [None] * len(sources)
        return torch.autograd.grad(
            outputs, sources, [tangents[n] for n in defined], create_graph=True, allow_unused=True
        )

    def _rerun_input(self, position: int, value: Any) -> Any:
        """Return an input of the rerun: detached from other histories, and safe to mutate."""
        if not isinstance(value, torch.Tensor):
            return value
        if position in self.grad_inputs:  # its requires_grad flag may have been cleared since
            return value.view_as(value) if value.requires_grad else value.detach().requires_grad_()
        return value.detach().clone() if position in self.mutated_inputs else value.detach()

    @contextlib.contextmanager
    def _restored_state(self, random: Sequence[torch.Tensor]) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for device, enabled, dtype in self.autocast:
                stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(with_rng_states(self.rng_devices, random))
            yield

    def _output_graph(self) -> torch.fx.GraphModule:
        if self._cached_output_graph is None:
            graph = torch.fx.Graph()
            copies: dict[torch.fx.Node, torch.fx.Node] = {}
            graph.graph_copy(self.graph.graph, copies)
            by_name = {old.name: new for old, new in copies.items()}
            graph.output(tuple(None if name is None else by_name[name] for name in self.output_nodes))
            self._cached_output_graph = torch.fx.GraphModule(self.graph, graph)
        return self._cached_output_graph


def make_eager_rerun(graph: torch.fx.GraphModule, joint: JointGraph) -> EagerRerun:
    """Return the eager rerun for calls of ``graph``, given its joint graph."""
    plan = joint.metadata
    makers = {id(n.meta["example_value"]): n.name for n in graph.graph.nodes if "example_value" in n.meta}
    makers_by_result = {k: makers.get(id(fake)) for fake, k in joint.result_fakes}
    written = frozenset(
        n for n, i in enumerate(plan.inputs) if i.is_mutated or i.new_layout is not None or i.version_bumps
    )
    read = [n for n in sorted(written) if not _only_feeds_mutations(joint, n)]
    too_many = sum(num_bytes(joint.inputs[n]) for n in read) > MAX_COPIED_BYTES
    mutated = next((plan.inputs[n].name for n in read if too_many or not _can_copy(joint, n)), None)
    lost = f"the call mutated {mutated}, and its old value is not saved" if mutated else ""
    if any(n.kwargs.get("generator") is not None for n in joint.module.graph.nodes):
        lost = "the call sampled from a torch.Generator, whose old state is not saved"
    return EagerRerun(
        graph,
        tuple(makers_by_result.get(k) for k in joint.differentiable_results),
        joint.grad_inputs,
        written,
        () if lost else tuple(read),
        rng_devices_of(joint.inputs) if any(map(is_random, joint.module.graph.nodes)) else (),
        current_autocast(),
        lost,
    )


def _can_copy(joint: JointGraph, position: int) -> bool:
    """Return True if the call mutates only this input's data, and it gets no gradient."""
    i = joint.metadata.inputs[position]
    return (
        i.is_mutated
        and i.new_layout is None
        and position not in joint.grad_inputs
        and i.result_index not in joint.differentiable_results
    )


def _only_feeds_mutations(joint: JointGraph, position: int) -> bool:
    """Return True if only new contents of mutated inputs depend on this input's old contents."""
    i = joint.metadata.inputs[position]
    if position in joint.grad_inputs or i.new_layout is not None or i.result_index in joint.differentiable_results:
        return False
    contents = {o.result_index for o in joint.metadata.inputs if o.is_mutated}
    returned = output_args(joint.module.graph)
    placeholder = [n for n in joint.module.graph.nodes if n.op == "placeholder"][position]
    reached = {placeholder}
    todo = [placeholder]
    while todo:
        for user in todo.pop().users:
            if user not in reached and not _uses_batch_stats(user, reached):
                reached.add(user)
                todo.append(user)
    return reached.isdisjoint(nodes_in([n for k, n in enumerate(returned) if k not in contents]))


def _uses_batch_stats(node: torch.fx.Node, reached: set[torch.fx.Node]) -> bool:
    """Return True for a training batch norm that reads ``reached`` only as running stats.

    Its result depends on the statistics of the batch, not on these.
    """
    aten = torch.ops.aten
    if node.target is aten.native_batch_norm_backward.default:
        return node.args[7] is True and _reached_only_as_running_stats(node, 3, reached)
    norm = node.all_input_nodes[0]
    if node.target is not operator.getitem or norm.target is not aten._native_batch_norm_legit_functional.default:
        return False
    return node.args[1] in (0, 1, 2) and norm.args[5] is True and _reached_only_as_running_stats(norm, 3, reached)


def _reached_only_as_running_stats(node: torch.fx.Node, first: int, reached: set[torch.fx.Node]) -> bool:
    return all(n not in reached or k in (first, first + 1) for k, n in enumerate(node.args))


def rng_devices_of(inputs: Sequence[Any]) -> tuple[str, ...]:
    """Return the devices on which a call with these inputs may sample random numbers."""
    devices = {str(v.device) for v in tensors_in(inputs)}
    return tuple(sorted({"cpu", *(d for d in devices if d.startswith("cuda"))}))


def current_autocast() -> tuple[AutocastState, ...]:
    """Return the current autocast state per device type."""
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda"))
