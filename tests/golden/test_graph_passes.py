"""Golden pairs of the passes over FX graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.graph.passes import choose_conv_layout as layouts
from engine.graph.passes.eliminate_dead_code import eliminate_dead_code
from engine.graph.passes.lift_requires_grad import lift_requires_grad
from engine.graph.passes.merge_collectives import merge_collectives
from engine.graph.passes.remove_noop_aliases import remove_noop_aliases
from engine.torch_private.fx import make_fx
from tests.golden.pairs import Pair, compile_and_run, graph_lines, graph_of, plain_lines, shows, to_aten, trace

Tensor = torch.Tensor


@shows("engine/graph/passes/eliminate_dead_code.py")
def test_eliminate_dead_code(pair: Pair) -> None:
    """Erases operations whose results nothing reads.

    A random operation stays, because it advances the random number generator as in eager.
    """

    def f(x: Tensor) -> Tensor:
        unused = x.sin().cos()  # noqa: F841
        noise = torch.rand_like(x)  # noqa: F841
        return x + 1

    graph = trace(f, torch.ones(4)).graph
    module = make_fx(graph)(torch.ones(4))
    before = plain_lines(module)
    eliminate_dead_code(module)
    pair(f, before=before, after=plain_lines(module))


@shows("engine/graph/passes/remove_noop_aliases.py")
def test_remove_noop_aliases(pair: Pair) -> None:
    """Replaces detach and alias by their input.

    A functional graph has no mutation, so it needs one node per value. The alias of an input that is returned
    stays: the result must be another tensor object.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.ops.aten.alias(x).sin(), torch.ops.aten.alias(x)

    module = make_fx(f)(torch.ones(4))
    before = plain_lines(module)
    remove_noop_aliases(module)
    pair(f, before=before, after=plain_lines(module))


@shows("engine/graph/passes/merge_collectives.py")
def test_merge_collectives(pair: Pair) -> None:
    """Reduces an operand over the ranks once, although several operators read the sum.

    A sum that is returned, itself or as a view, stays: results must not share memory.
    """

    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second, third, fourth = (_summed_over_ranks(x) for _ in range(4))
        return first * second, third, fourth.t()

    module = make_fx(f, tracing_mode="fake")(torch.ones(2, 2))
    before = plain_lines(module)
    merge_collectives(module)
    pair(f, before=before, after=plain_lines(module))


def _summed_over_ranks(x: Tensor) -> Tensor:
    reduced = torch.ops._c10d_functional.all_reduce(x, "sum", "0")
    return torch.ops._c10d_functional.wait_tensor(reduced)  # type: ignore[no-any-return]


@shows("engine/graph/passes/choose_conv_layout.py")
def test_choose_conv_layout(pair: Pair) -> None:
    """Gives convolutions on a GPU operands in channels last.

    Elementwise operators carry the layout on; a result that is returned gets eager's strides.
    """

    def f(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x, weight).relu()

    module = to_aten(f, torch.ones(2, 3, 8, 8), torch.ones(8, 3, 3, 3)).module
    before = plain_lines(module)
    pair(f, before=before, after=plain_lines(layouts._Rewriter(module).run()))


@shows("engine/graph/passes/lift_requires_grad.py")
def test_lift_requires_grad(pair: Pair) -> None:
    """Moves calls of requires_grad_ on inputs before or after the graph.

    Other compilers do not support them in a graph.
    """

    def f(x: Tensor, y: Tensor) -> Tensor:
        x.requires_grad_()
        z = x * y
        y.requires_grad_()
        return z

    graph = trace(f, torch.ones(4), torch.ones(4), backend="inductor").graph
    before = graph_lines(graph)
    lifted = lift_requires_grad(graph)
    assert lifted is not None
    names = [n.name for n in lifted.graph.graph.nodes if n.op == "placeholder"]
    calls = [[f"{names[n]}.requires_grad_({on})" for n, on in lift] for lift in (lifted.before, lifted.after)]
    after = [
        "before the graph:",
        *calls[0],
        "",
        "graph:",
        *plain_lines(lifted.graph),
        "",
        "after the graph:",
        *calls[1],
    ]
    pair(f, before=before, after=after)


@shows("engine/graph/functionalize_rng.py")
def test_functionalize_rng(pair: Pair) -> None:
    """Makes the state of the random number generator an explicit value.

    The backward can then repeat the same random numbers. Here the dropout of a checkpoint runs once in each
    graph, from the same saved state.
    """

    def f(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(lambda v: F.dropout(v.sin()), x, use_reentrant=False)

    record, _ = compile_and_run(f, torch.ones(4, requires_grad=True), backend="aot_eager")
    after = ["forward:", *graph_of(record, "forward"), "", "backward:", *graph_of(record, "backward")]
    pair(f, before=graph_of(record, "joint"), after=after)


@shows("engine/graph/device_dependent_composites.py", "engine/graph/device_dependent_composites_autograd.py")
def test_device_dependent_composites(pair: Pair) -> None:
    """Keeps a composite operator with device-dependent parts as one operator.

    It becomes one operator of the engine, so that one graph fits every target.
    """

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    q, k, v = (torch.ones(1, 2, 8, 16) for _ in range(3))
    pair(f, before=graph_lines(trace(f, q, k, v).graph), after=graph_lines(to_aten(f, q, k, v).module))
