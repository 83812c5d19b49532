"""Generates a straight-line Python function from a graph; values are freed after use."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from engine.ir.graph_callable import Run

SIZE_METHODS = (torch.Tensor.view, torch.Tensor.expand, torch.Tensor.repeat)
"""Methods that take sizes as arguments of their own; torch parses a list more slowly."""
EarlyExit = Callable[[torch.fx.Node, Sequence[torch.fx.Node]], tuple[Callable[[], bool], Run] | None]
"""Function of a node and of the nodes whose values are alive after it.

It returns None, or a condition that is tested at each run and the function that continues if it is true.
"""


def generate_function(
    module: torch.fx.GraphModule,
    node_callable: Callable[[torch.fx.Node], Any],
    *,
    name: str,
    is_boxed: bool = False,
    early_exit: EarlyExit | None = None,
) -> Run:
    """Generate ``run(*inputs) -> tuple``; boxed: ``run([inputs])``, which empties the list.

    ``node_callable`` returns the callable that computes a node. ``name`` appears in tracebacks. ``early_exit`` selects
    nodes after which another function may continue: it is called with the values that are alive, and its result is
    returned.
    """
    writer = _FunctionWriter(module, node_callable, is_boxed, early_exit)
    exec(compile(writer.text(), f"<engine {name}>", "exec"), writer.scope)
    run: Run = writer.scope["run"]
    return run


class _FunctionWriter:
    """Generates the source of the function; callables and constants go into ``scope``."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        callable_of: Callable[[torch.fx.Node], Any],
        is_boxed: bool,
        leave: EarlyExit | None,
    ) -> None:
        self._module = module
        self._callable = callable_of
        self._is_boxed = is_boxed
        self._early_exit = leave
        self._nodes = list(module.graph.nodes)
        self.scope: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._keep_alive: list[Any] = []

    def text(self) -> str:
        """Return the source of the function ``run``."""
        last = {n: node for node in self._nodes for n in node.all_input_nodes}
        parameters = [n.name for n in self._nodes if n.op == "placeholder"]
        lines = self._unpacking(parameters) if self._is_boxed else [f"def run({', '.join(parameters)}):"]
        alive: dict[torch.fx.Node, None] = {}
        for node in self._nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                lines.append(f"    return {self._tuple(node.args[0])}")
                continue
            lines.append(f"    {node.name} = {self._expression(node)}")
            alive[node] = None
            dead = [n for n in node.all_input_nodes if last[n] is node]
            dead += [] if node.users else [node]
            if dead:
                lines.append(f"    del {', '.join(n.name for n in dead)}")
            for gone in dead:
                alive.pop(gone, None)
            lines += self._early_exit_lines(node, list(alive))
        return "\n".join(lines)

    def _early_exit_lines(self, node: torch.fx.Node, alive: list[torch.fx.Node]) -> list[str]:
        exit_lines = None if self._early_exit is None else self._early_exit(node, alive)
        if exit_lines is None:
            return []
        is_time, goes_on = (self._name(f, "op") for f in exit_lines)
        return [f"    if {is_time}():", f"        return {goes_on}({self._tuple(alive)})"]

    def _unpacking(self, parameters: list[str]) -> list[str]:
        unused = [n.name for n in self._nodes if n.op == "placeholder" and not n.users]
        lines = ["def run(__given):"]
        lines += [f"    {', '.join(parameters)}, = __given"] if parameters else []
        lines += ["    __given.clear()", *([f"    del {', '.join(unused)}"] if unused else [])]
        return lines

    def _expression(self, node: torch.fx.Node) -> str:
        if node.op == "get_attr":
            value: Any = self._module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return self._name(value, "constant")
        if node.target is operator.getitem:
            return f"{self._value(node.args[0])}[{self._value(node.args[1])}]"
        called, arguments = self._callable(node), list[Any](node.args)
        if called in SIZE_METHODS and node.target is not torch.ops.aten.view.dtype:
            arguments[1:] = arguments[1] or arguments[1:]
        args = [self._value(a) for a in arguments] + [f"{k}={self._value(v)}" for k, v in node.kwargs.items()]
        return f"{self._name(called, 'op')}({', '.join(args)})"

    def _name(self, value: Any, kind: str) -> str:
        if id(value) not in self._names:
            self._names[id(value)] = name = f"__{kind}_{len(self._names)}"
            self._keep_alive.append(value)
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
