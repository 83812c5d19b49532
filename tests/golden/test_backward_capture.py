"""Golden pairs of compiled autograd: autograd nodes become a graph that is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import engine
from engine.autograd.build_captured_graph import INPUT_DEVICE, STEP_KIND, named_target
from engine.autograd.move_cpu_scalars import move_cpu_scalars
from engine.records.autograd import BackwardRecord
from tests.golden.pairs import Pair, graph_lines, plain_lines, recording, shows

Tensor = torch.Tensor


def capture(run: Callable[[], Any], backend: str = "eager") -> BackwardRecord:
    """The record of the backward that ``run`` runs."""
    with recording() as session, engine.compiled_autograd(backend):
        run()
    return session.backwards[0]


def autograd_nodes(record: BackwardRecord) -> list[str]:
    """The autograd nodes in the order in which eager runs them, with their hooks."""
    return [f"{n.name}{', with ' if n.hooks else ''}{', '.join(n.hooks)}" for n in record.nodes]


def captured_graph(record: BackwardRecord, stage: int = 0) -> list[str]:
    """Return the lines of a captured graph without its five input lists and their uses."""
    return [line for line in graph_lines(record.graphs[stage]) if "let_go" not in line and " = " in line]


@shows("engine/autograd/build_captured_graph.py", "engine/autograd/capture.py", "engine/autograd/execution_order.py")
def test_captured_graph(pair: Pair) -> None:
    """Captures a backward as a graph: each autograd node becomes a call of its formula.

    The calls are in the order in which eager runs the nodes. A check follows each formula. Saved tensors that
    were written since raise an error as in eager.
    """

    def f(x: Tensor) -> Tensor:
        return x.sin().sum()

    record = capture(lambda: f(torch.ones(4, requires_grad=True)).backward())
    pair(f, before=autograd_nodes(record), after=captured_graph(record))


@shows("engine/autograd/hooks.py", "engine/autograd/build_captured_graph.py")
def test_captured_hook(pair: Pair) -> None:
    """A hook on a tensor is a call between the formulas, at the place where eager calls it."""

    def f(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 2)
        return y.sum()

    record = capture(lambda: f(torch.ones(4, requires_grad=True)).backward())
    pair(f, before=autograd_nodes(record), after=captured_graph(record))


@shows("engine/autograd/compiled_segments.py", "engine/autograd/segment_inputs.py")
def test_compiled_segments(pair: Pair) -> None:
    """Splits a captured graph at hooks, which run as Python.

    The parts between the hooks are traced to ATen and compiled.
    """

    def f(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 2)
        return (y * y).sum()

    with recording() as session, engine.compiled_autograd("aot_eager"):
        f(torch.ones(4, requires_grad=True)).backward()
    after = [
        line
        for n, compilation in enumerate(session.compilations)
        for line in ([""] if n else []) + [f"segment {n}:", *graph_lines(compilation.graphs[0])]
    ]
    pair(f, before=autograd_nodes(session.backwards[0]), after=after)


@shows("engine/autograd/inline_compiled_backwards.py")
def test_inline_compiled_backwards(pair: Pair) -> None:
    """Inlines the backward graph of a compiled call into the captured graph.

    It is then compiled with the code around it.
    """

    def f(x: Tensor) -> Tensor:
        return x.sin()

    def backward_of(backend: str) -> list[str]:
        engine.reset()
        run = engine.compile(f, backend="aot_eager")
        record = capture(lambda: run(torch.ones(4, requires_grad=True)).exp().sum().backward(), backend)
        return captured_graph(record, -1)

    pair(f, before=backward_of("eager"), after=backward_of("aot_eager"))


@shows("engine/autograd/move_cpu_scalars.py")
def test_move_cpu_scalars(pair: Pair) -> None:
    """Moves a CPU scalar to the accelerator if only torch's own formulas read it.

    The graph can then be compiled as a whole.
    """
    graph = torch.fx.Graph()
    for name, device in (("weight", "cuda"), ("scale", "cpu")):
        node = graph.placeholder(name)
        node.meta = {INPUT_DEVICE: torch.device(device), STEP_KIND: "input", "val": torch.empty((), device="meta")}
    product = graph.call_function(named_target("MulBackward0", lambda *args: args), tuple(graph.nodes))
    product.meta[STEP_KIND] = "function"
    graph.output((product,))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    before = plain_lines(module)
    notes = move_cpu_scalars(module)
    pair(before=before, after=[*plain_lines(module), "", *notes])
