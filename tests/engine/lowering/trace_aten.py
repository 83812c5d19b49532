"""Small functional ATen graphs for tests of lowering, made without the stages before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.ir.aot.aot_graph import AotGraph
from engine.torch_private import pytree
from engine.torch_private.fake_tensors import FakeTensorMode
from engine.torch_private.fx import make_fx
from engine.torch_private.symbolic_shapes import ShapeEnv


def with_flat_results(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    """The function with its results as one flat tuple."""
    return lambda *args: tuple(pytree.tree_leaves(function(*args)))


def trace_to_aten(function: Callable[..., Any], args: tuple[Any, ...], *, is_dynamic: bool = False) -> AotGraph:
    """Return a function's functional ATen graph; sizes are symbols where ``is_dynamic``."""
    called = with_flat_results(function)
    if is_dynamic:
        first = make_fx(called, tracing_mode="symbolic")(*args)
        module = make_fx(_functional(first), tracing_mode="symbolic")(*args)
        _remove_input_writes(module)
        return AotGraph(module, tuple(n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"), "0/0")
    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)  # it has symbols for what only the numbers tell
    fakes = tuple(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args)
    with mode, torch.no_grad():
        first = make_fx(called, tracing_mode="real")(*fakes)
        module = make_fx(_functional(first), tracing_mode="real")(*fakes)
    _remove_input_writes(module)
    return AotGraph(module, fakes, "0/0")


def _functional(module: torch.fx.GraphModule) -> Callable[..., Any]:
    functional: Callable[..., Any] = torch.func.functionalize(torch.fx.Interpreter(module).run, remove="mutations")
    return functional


def _remove_input_writes(module: torch.fx.GraphModule) -> None:
    """Remove the writes to inputs at the end of a graph, which lowering does not handle.

    AOT returns such values and writes them itself.
    """
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder":
            node.replace_all_uses_with(node.args[1])
            module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()
