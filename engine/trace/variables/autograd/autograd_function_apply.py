"""``torch.autograd.Function`` traced as two subgraphs, forward and backward.

One graph node runs them under autograd. Used if an argument is an object or a body reads free tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Variable, reachable_variables, realize
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.higher_order.subgraph import (
    SubgraphBuilder,
    add_parameter_for,
    add_parameter_like,
    building_subgraph,
    tensor_values,
    variable_for_node,
)

Method = Callable[[str, list[Variable]], Variable]


@dataclass(frozen=True)
class SavedIndices:
    """Indices of the extra forward outputs that the backward needs."""

    saved_for_backward: tuple[int, ...]
    """Outputs passed to ``save_for_backward``; autograd checks them for in-place changes."""
    saved_intermediates: tuple[int, ...]


class AutogradFunctionTracer:
    """Inputs, outputs and gradients of one traced ``autograd.Function.apply``."""

    def __init__(self, tx: Tracer, cls: type, inputs: list[Variable], needed: list[bool]) -> None:
        self.tx = tx
        self.cls = cls
        self.inputs = inputs
        self.needs_input_grad = needed
        self.graph_inputs = [v for v in inputs if v.is_graph_value]
        for value in self.graph_inputs:
            value.as_node_arg(tx)

    def check_outputs(self, result: Variable, earlier_ids: set[int]) -> list[Variable]:
        """Return the forward's outputs as a list; the backward can reach ``earlier_ids``.

        Raises:
            Unsupported: an output is neither a tensor, a constant, an argument, nor a new object without tensors that
                the backward cannot reach.
        """
        outputs = outputs_of(self.tx, result)
        input_ids = {id(realize(self.tx, g)) for g in self.inputs}
        if not all(
            o.fake is not None or o.is_constant or id(o) in input_ids or self._is_unreachable(o, earlier_ids)
            for o in outputs
        ):
            raise Unsupported(
                "autograd-function", f"{self.cls.__name__} returns values other than tensors and constants"
            )
        return outputs

    def _is_unreachable(self, output: Variable, earlier_ids: set[int]) -> bool:
        """Return True for a new object without graph values that the backward cannot reach."""
        reachable = [v for v in reachable_variables([output]) if not v.is_constant]
        return output.source is None and not any(v.is_graph_value or id(v) in earlier_ids for v in reachable)

    def gradient_nodes(self, result: Variable) -> list[torch.fx.Node | None]:
        """Return the backward's results as nodes, one per tensor or symbol argument.

        Raises:
            Unsupported: there are too few or too many results, or one is neither a tensor nor a constant.
        """
        result = realize(self.tx, result)
        is_many = _is_tuple(self.tx, result) or result.python_type() is list
        gradients = [realize(self.tx, g) for g in result.argument_items()] if is_many else [result]
        count = len(self.inputs)
        if len(gradients) < count or any(g.fake is None and not g.is_constant for g in gradients):
            raise Unsupported(
                "autograd-function-backward",
                f"the backward of {self.cls.__name__} does not return one gradient per input",
            )
        if any(g.fake is not None for g in gradients[count:]):
            raise Unsupported(
                "autograd-function-backward", f"the backward of {self.cls.__name__} returns too many gradients"
            )
        return [
            None if g.fake is None else g.as_node_arg(self.tx)[0]
            for g, v in zip(gradients, self.inputs, strict=False)
            if v.is_graph_value
        ]


def _is_tuple(tx: Tracer, result: Variable) -> bool:
    parts = result.pytree_parts(tx)
    return parts is not None and issubclass(parts[0], tuple)


def outputs_of(tx: Tracer, result: Variable) -> list[Variable]:
    """Return the outputs of a forward: the items of a tuple, or the result itself."""
    return [realize(tx, i) for i in result.argument_items()] if _is_tuple(tx, result) else [result]


def pack_outputs(tx: Tracer, result: Variable, outputs: list[Variable]) -> Variable:
    """Return the outputs in a container like the forward's result."""
    return TupleVariable(outputs, result.python_type()) if _is_tuple(tx, result) else outputs[0]


def check_no_attribute_writes(cls: type, values: Sequence[Any]) -> None:
    """Check that the forward sets no attributes on its argument and result tensors.

    In Python such attributes persist, but the tensors of a subgraph are other objects.

    Raises:
        Unsupported: the forward sets an attribute of a tensor.
    """
    written = next((name for v in values if v.fake is not None for name in v.attr_writes), None)
    if written is not None:
        raise Unsupported(
            "autograd-function", f"the forward of {cls.__name__} sets the attribute {written!r} of a tensor"
        )


def trace_forward_and_backward(
    tx: Tracer, cls: type, arguments: list[Variable], ctx: Any, result_of: Method, once: bool
) -> Variable:
    """Emit the node that runs forward and backward under autograd; return its packed results.

    Raises:
        Unsupported: a body contains an operation that a subgraph cannot hold.
    """
    bodies = AutogradFunctionTracer(tx, cls, arguments, ctx.needs_input_grad)
    with building_subgraph(tx, allow_side_effects=True) as forward, torch.no_grad():
        inputs = [add_parameter_for(tx, forward, v) for v in arguments]
        result = realize(tx, result_of("forward", inputs))
        outputs = bodies.check_outputs(
            result, {id(v) for v in reachable_variables(v for v in ctx.attr_writes.values() if v is not None)}
        )
        check_no_attribute_writes(cls, [*inputs, *outputs])
        nodes = [o.as_node_arg(tx)[0] for o in outputs if o.fake is not None]
    versions_before = _tensor_versions(forward)
    try:
        with building_subgraph(tx) as backward, torch.no_grad():
            backward.is_autograd_function_body = True
            grads = [NONE if o.fake is None else add_parameter_like(tx, backward, o.fake.detach()) for o in outputs]
            gradients = bodies.gradient_nodes(result_of("backward", [ctx, *grads]))
            if _tensor_versions(forward) != versions_before:
                raise Unsupported(
                    "autograd-function-backward", f"the backward of {cls.__name__} mutates a tensor of its forward"
                )
            backward.graph.output(tuple(gradients))
    except BaseException:
        forward.discard()
        raise
    return _emit_apply(tx, bodies, ctx, result, outputs, forward, nodes, backward, once=once)


def _tensor_versions(builder: SubgraphBuilder) -> list[int]:
    return [f._version for f in tensor_values(builder.graph.nodes) if not f.is_inference()]


def _emit_apply(
    tx: Tracer,
    bodies: AutogradFunctionTracer,
    ctx: Any,
    result: Variable,
    outputs: list[Variable],
    forward: SubgraphBuilder,
    nodes: list[torch.fx.Node],
    backward: SubgraphBuilder,
    *,
    once: bool,
) -> Variable:
    saved_nodes = [n for n in backward.free_variables() if n.graph is forward.graph]
    forward.graph.output((*nodes, *saved_nodes))
    free_variables = (*forward.free_variables(), *backward.free_variables())
    lifted = list(dict.fromkeys(n for n in free_variables if n.graph is not forward.graph))
    forward.lift_free_variables(lifted)
    backward.lift_free_variables([*saved_nodes, *lifted])
    checked_nodes = {realize(tx, v).node_or_none for v in ctx.saved_tensors}
    saved = SavedIndices(
        tuple(k for k, n in enumerate(saved_nodes) if n in checked_nodes),
        tuple(k for k, n in enumerate(saved_nodes) if n not in checked_nodes),
    )
    tensors = [o for o in outputs if o.fake is not None]
    autograd_function = _GraphAutogradFunction(
        bodies.cls.__name__,
        forward.to_graph_module("Forward"),
        backward.to_graph_module("Backward"),
        len(bodies.graph_inputs),
        len(nodes),
        saved,
        tuple(any(t is realize(tx, f) for f in ctx.non_differentiable) for t in tensors),
        once,
    )
    differentiates = any(n.target is torch.autograd.grad for n in backward.graph.nodes)
    effect = "runs autograd inside of a backward" if differentiates else "changes torch's state"
    target = GraphCallable(bodies.cls.__name__, autograd_function, changes_state=differentiates, effect=effect)
    results = emit_node(tx, "call_function", target, [*bodies.graph_inputs, *(variable_for_node(n) for n in lifted)])
    items = iter(sequence_items(tx, results))
    return pack_outputs(tx, result, [o if o.fake is None else next(items) for o in outputs])


@dataclass(eq=False)
class _GraphAutogradFunction:
    """Runs two graph modules as forward and backward of an ``autograd.Function``.

    ``num_inputs`` does not count the free tensors.
    """

    name: str
    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    num_inputs: int
    num_outputs: int
    saved: SavedIndices
    non_differentiable: Sequence[bool]
    once: bool

    def __post_init__(self) -> None:
        run = self._run_backward
        gradient = torch.autograd.function.once_differentiable(run) if self.once else run
        methods = {"forward": staticmethod(self._run_forward), "backward": staticmethod(gradient)}
        self._cls: Any = type(self.name, (torch.autograd.Function,), methods)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        free = (a.detach() if isinstance(a, torch.Tensor) else a for a in args[self.num_inputs :])
        return tuple(self._cls.apply(*args[: self.num_inputs], *free))

    def _run_forward(self, ctx: Any, *args: Any) -> tuple[Any, ...]:
        outputs = self.forward(*args)
        results, saved = outputs[: self.num_outputs], outputs[self.num_outputs :]
        ctx.save_for_backward(*(saved[k] for k in self.saved.saved_for_backward))
        ctx.intermediates = [saved[k] for k in self.saved.saved_intermediates]
        ctx.free = args[self.num_inputs :]
        ctx.mark_non_differentiable(*(r for r, fixed in zip(results, self.non_differentiable, strict=True) if fixed))
        return tuple(results)

    def _run_backward(self, ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved = dict(zip(self.saved.saved_for_backward, ctx.saved_tensors, strict=True))
        saved |= dict(zip(self.saved.saved_intermediates, ctx.intermediates, strict=True))
        gradients = self.backward(*grads, *(saved[k] for k in range(len(saved))), *ctx.free)
        return (*gradients, *(None for _ in ctx.free))
