"""Trace graphs for AOT tests by recording torch calls over fake tensors.

The engine's tracer is not used.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.overrides import TorchFunctionMode

from engine.aot.driver import AotResult, AotSettings, compile_graph
from engine.ir.aot.aot_graph import AotGraph
from engine.ir.current_session import set_current_session
from engine.ir.node_metadata import NodeProvenance, set_provenance
from engine.ir.sources.roots import LocalSource
from engine.ir.traced_frame import GraphInput
from engine.records.bytecode import Span
from engine.records.session import Session
from engine.runtime.aten_executor import aten_executor
from engine.torch_private import pytree
from engine.torch_private.fake_tensors import FakeTensorMode
from engine.torch_private.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from engine.trace.fake_tensors.evaluate import call_on_fakes


class UnsupportedInTrace(Exception):
    """The little tracer here does not follow this."""


class _Recorder(TorchFunctionMode):
    """Record every torch call as a node; methods become calls of ``torch.Tensor.method``."""

    def __init__(self, graph: torch.fx.Graph, nodes: dict[int, torch.fx.Node]) -> None:
        self.graph = graph
        self.nodes = nodes
        self.kept: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = call_on_fakes(func, args, kwargs, by_python=True)
        if getattr(func, "__name__", "") == "__get__" and not isinstance(result, torch.Tensor):
            return result
        given = pytree.tree_map(self.argument, (tuple(args), dict(kwargs)))
        node = self.graph.call_function(func, *given)
        self.follow(node, result, len(self.graph.nodes))
        return result

    def argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.nodes[id(value)]
        if isinstance(value, torch.SymInt):
            raise UnsupportedInTrace
        return value

    def follow(self, node: torch.fx.Node, result: Any, line: int) -> None:
        set_provenance(node, NodeProvenance(span=Span("cell", line), module="block"))
        node.meta["example_value"] = result
        self.kept.append(result)
        if isinstance(result, torch.Tensor):
            self.nodes.setdefault(id(result), node)
        if isinstance(result, (tuple, list)):
            for n, item in enumerate(result):
                self.follow(self.graph.call_function(operator.getitem, (node, n)), item, line)


def traced(
    fn: Callable[..., Any], args: Sequence[Any], dynamic: bool = False
) -> tuple[torch.fx.GraphModule, tuple[GraphInput, ...]]:
    """Trace ``fn`` over these inputs; with ``dynamic``, every size above 1 is a symbol."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    graph = torch.fx.Graph()
    nodes: dict[int, torch.fx.Node] = {}
    inputs = []
    for name, real in zip(inspect.signature(fn).parameters, args, strict=False):
        node = graph.placeholder(name)
        fake = real
        if isinstance(real, torch.Tensor):
            sizes = [DimDynamic.DYNAMIC if dynamic and s > 1 else DimDynamic.STATIC for s in real.shape]
            context = StatelessSymbolicContext(dynamic_sizes=sizes)
            fake = mode.from_tensor(real, source=LocalSource(name), symbolic_context=context)
            nodes[id(fake)] = node
        node.meta["example_value"] = fake
        inputs.append(GraphInput(node.name, LocalSource(name), fake, real))
    recorder = _Recorder(graph, nodes)
    grad = torch.is_grad_enabled()
    try:
        with mode, recorder:
            result = fn(*(i.fake for i in inputs))
    finally:
        torch.set_grad_enabled(grad)
    graph.output(tuple(map(recorder.argument, result)))
    return torch.fx.GraphModule(torch.nn.Module(), graph), tuple(inputs)


def compiled(fn: Callable[..., Any], args: Sequence[Any], dynamic: bool = False) -> tuple[AotResult, list[AotGraph]]:
    """``fn`` through AOT and the ATen executor, with the functional graphs that were lowered."""
    lowered: list[AotGraph] = []

    def lower(graph: AotGraph) -> Callable[..., Any]:
        lowered.append(graph)
        return aten_executor(graph)

    graph, inputs = traced(fn, args, dynamic)
    with set_current_session(Session()):
        result = compile_graph(graph, inputs, compilation="0/0", settings=AotSettings(lower, aten_executor))
    return result, lowered
