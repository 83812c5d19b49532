"""The ATen executor: runs a functional graph operator by operator, as straight-line Python that lets go of values after their last use."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.ir.aot import AotGraph

Run = Callable[..., Any]


def reference(graph: AotGraph) -> Run:
    """``run(*inputs) -> tuple``: the graph's outputs, computed by torch's own kernels on the inputs' device."""
    writer = _Writer(graph.module)
    exec(compile(writer.text(), "<engine ATen executor>", "exec"), writer.scope)
    run: Run = writer.scope["run"]
    return run


class _Writer:
    """Writes the function's text; callables and constants go into ``scope``."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._module = module
        self._nodes = list(module.graph.nodes)
        self.scope: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []

    def text(self) -> str:
        """The function ``run``."""
        last = {n: node for node in self._nodes for n in node.all_input_nodes}
        parameters = [n.name for n in self._nodes if n.op == "placeholder"]
        lines = [f"def run({', '.join(parameters)}):"]
        for node in self._nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                lines.append(f"    return {self._tuple(node.args[0])}")
                continue
            lines.append(f"    {node.name} = {self._expression(node)}")
            dead = [n.name for n in node.all_input_nodes if last[n] is node]
            dead += [] if node.users else [node.name]
            if dead:
                lines.append(f"    del {', '.join(dead)}")
        return "\n".join(lines)

    def _expression(self, node: torch.fx.Node) -> str:
        if node.op == "get_attr":
            value: Any = self._module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return self._name(value, "constant")
        if node.target is operator.getitem:
            return f"{self._value(node.args[0])}[{self._value(node.args[1])}]"
        args = [self._value(a) for a in node.args] + [f"{k}={self._value(v)}" for k, v in node.kwargs.items()]
        return f"{self._name(node.target, 'op')}({', '.join(args)})"

    def _name(self, value: Any, kind: str) -> str:
        if id(value) not in self._names:
            self._names[id(value)] = name = f"__{kind}_{len(self._names)}"
            self._kept.append(value)
            self.scope[name] = value
        return self._names[id(value)]

    def _tuple(self, values: Any) -> str:
        return "(" + "".join(f"{self._value(v)}, " for v in values) + ")"

    def _value(self, value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            return value.name
        if isinstance(value, list):
            return "[" + ", ".join(map(self._value, value)) + "]"
        if isinstance(value, tuple):
            return self._tuple(value)
        if isinstance(value, slice):
            return f"slice({self._value(value.start)}, {self._value(value.stop)}, {self._value(value.step)})"
        if type(value) in (int, bool, str, type(None)):
            return repr(value)
        return self._name(value, "constant")
