"""Golden pairs of the AOT passes: functional ATen, the joint graph, and their passes."""

from __future__ import annotations

from typing import Any

import torch

from engine.aot.grad_mode import strip_inference_mode, strip_no_grad
from engine.aot.gradients.undefined_tangents import specialize_to_defined_tangents
from tests.golden.pairs import (
    Pair,
    compile_and_run,
    graph_lines,
    graph_of,
    in_order,
    plain_lines,
    shows,
    to_aten,
    trace,
)

Tensor = torch.Tensor


def show_functional(pair: Pair, function: Any, *args: Any, **options: Any) -> None:
    """Write a pair: the traced graph and the functional one."""
    (after,) = in_order(graph_lines(to_aten(function, *args, **options).module))
    pair(function, before=graph_lines(trace(function, *args, **options).graph), after=after)


@shows("engine/aot/functionalize.py")
def test_functionalize_mutation(pair: Pair) -> None:
    """Replaces an in-place operator by one that returns its result.

    Later reads, also through views, read the new value.
    """

    def f(x: Tensor) -> Tensor:
        y = x + 1
        row = y[0]
        row.mul_(2)
        return y.sin()

    show_functional(pair, f, torch.ones(2, 3))


@shows("engine/aot/functionalize.py")
def test_functionalize_input_mutation(pair: Pair) -> None:
    """Returns the new value of a mutated input as an additional graph output.

    A runtime wrapper copies it into the input.
    """

    def f(x: Tensor) -> Tensor:
        x.add_(1)
        return x * 2

    show_functional(pair, f, torch.ones(3))


@shows("engine/aot/functionalize.py")
def test_functionalize_methods_to_aten(pair: Pair) -> None:
    """Traces torch functions and methods to ATen operators.

    A function that is composed of several operators becomes those operators.
    """

    def f(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, w, b).chunk(2)[0]

    show_functional(pair, f, torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))


@shows("engine/aot/functionalize.py")
def test_functionalize_symbolic_sizes(pair: Pair) -> None:
    """Sizes that vary are symbols. A size that the graph needs is read from an input, once."""

    def f(x: Tensor) -> Tensor:
        return x.view(x.shape[0] * 2, -1).sum(1)

    show_functional(pair, f, torch.ones(6, 4), dynamic=True)


@shows("engine/aot/output_aliasing.py")
def test_output_aliasing(pair: Pair) -> None:
    """Removes results that are views of inputs or of other results from the graph.

    A runtime wrapper makes them from their base.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x + 1
        return x.t(), y, y[0]

    show_functional(pair, f, torch.ones(2, 3))


@shows("engine/aot/grad_mode.py")
def test_strip_inference_mode(pair: Pair) -> None:
    """Removes an inference_mode region that contains the whole graph.

    The whole call runs in inference mode instead.
    """

    def f(x: Tensor) -> Tensor:
        with torch.inference_mode():
            return x.sin() + 1

    traced = trace(f, torch.ones(4))
    inside = strip_inference_mode(traced.graph, traced.inputs)
    assert inside is not None
    pair(f, before=plain_lines(traced.graph), after=["in inference mode:", *plain_lines(inside)])


@shows("engine/aot/grad_mode.py")
def test_strip_no_grad(pair: Pair) -> None:
    """Removes the grad mode calls of a graph that computes nothing in grad mode.

    The whole call runs under ``no_grad`` instead.
    """

    def f(x: Tensor) -> None:
        with torch.no_grad():
            x.mul_(2)
        with torch.no_grad():
            x.add_(1)

    traced = trace(f, torch.ones(4, requires_grad=True))
    inside = strip_no_grad(traced.graph)
    assert inside is not None
    pair(f, before=plain_lines(traced.graph), after=["under no_grad:", *plain_lines(inside)])


@shows("engine/aot/joint.py", "engine/aot/backward_provenance.py")
def test_joint(pair: Pair) -> None:
    """Traces forward and backward into one joint graph.

    It takes a tangent for each differentiable result, and returns the gradients after the results.
    """

    def f(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w).relu()

    record, _ = compile_and_run(f, torch.ones(2, 3), torch.ones(3, 4, requires_grad=True), backend="aot_eager")
    pair(f, before=graph_of(record, "fx"), after=graph_of(record, "joint"))


@shows("engine/aot/joint.py", "engine/aot/grad_mode.py")
def test_joint_no_grad(pair: Pair) -> None:
    """What runs under no_grad gets no backward: the gradient flows around it as in eager."""

    def f(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.abs().max()
        return x / scale

    record, _ = compile_and_run(f, torch.ones(4, requires_grad=True), backend="aot_eager")
    pair(f, before=graph_of(record, "fx"), after=graph_of(record, "joint"))


@shows("engine/aot/gradients/undefined_tangents.py")
def test_undefined_tangents(pair: Pair) -> None:
    """Specializes the backward to the tangents that are defined.

    If the loss comes from only some results, the tangents of the others are undefined. Operations that need
    an undefined tangent are dropped, a sum with it becomes its other summand, and gradients that need only it
    are None.
    """

    def f(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return x * w, x * v

    record, _ = compile_and_run(f, *(torch.ones(4, requires_grad=True) for _ in range(3)), backend="aot_eager")
    backward = _backward_module(f)
    after = specialize_to_defined_tangents(backward, {"tangent_1"}, {"tangent_0", "tangent_1"})
    note = ["tangent_1 is undefined:", *graph_lines(after)]
    pair(f, before=graph_of(record, "backward"), after=note)


def _backward_module(function: Any) -> torch.fx.GraphModule:
    """The backward graph of a function of three vectors."""
    from engine.aot.joint import trace_joint
    from engine.aot.partitioner.partition import partition_joint_graph

    traced = trace(function, *(torch.ones(4, requires_grad=True) for _ in range(3)))
    joint = trace_joint(traced.graph, traced.inputs, "0/0")
    return partition_joint_graph(joint, [False] * 3, "min-cut").backward


@shows("engine/aot/rebind_unbacked.py", "engine/trace/symbols/unbacked_symints.py")
def test_unbacked_symbols(pair: Pair) -> None:
    """Traces a data-dependent size as an unbacked symbol.

    Tracing to ATen makes a new symbol for it, which is set equal to the traced one. Checks of the size in the
    code become assertions in the graph.
    """

    def f(x: Tensor) -> Tensor:
        found = x.nonzero()
        torch._check(found.shape[0] > 1)
        return found * 2

    show_functional(pair, f, torch.ones(4))
