"""The ATen executor: runs a functional graph operator by operator, as straight-line Python that lets go of values after their last use."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.graph.composites import eager_of
from engine.ir.aot import AotGraph

Run = Callable[..., Any]


def reference(graph: AotGraph) -> Run:
    """``run(*inputs) -> tuple`` (boxed: ``run([inputs])``): the graph's outputs, computed by torch's own kernels on the inputs' device.

    Every operator runs the kernel that eager would run, so that results are eager's to the bit wherever the graph keeps eager's operators.
    """
    writer = _Writer(graph.module, graph.is_boxed)
    exec(compile(writer.text(), "<engine ATen executor>", "exec"), writer.scope)
    run: Run = writer.scope["run"]
    return run


_SAME_NAME = (
    "_softmax _log_softmax abs acos addcdiv addcmul addmm all any arange argmax argmin asin atan atan2 baddbmm bitwise_and bitwise_not "
    "bitwise_or bitwise_xor bmm cat ceil clamp clamp_max clamp_min clone cos cosh cumprod cumsum div dot embedding empty_like eq erf "
    "exp expm1 flip floor fmod full_like ge gt index_add index_select isinf isnan le lerp log log10 log1p log2 logical_and logical_not logical_or "
    "logical_xor logsumexp lt masked_fill matmul maximum mean minimum mm mul native_layer_norm ne neg nonzero ones_like "
    "permute prod reciprocal relu remainder roll round rsqrt rsub scatter scatter_add select sigmoid sign sin sinh sort sqrt squeeze "
    "stack sub sum t tan tanh topk transpose tril triu unsqueeze var where zeros_like detach gather add pow"
)
_METHODS = ("expand", "repeat", "view")


def _bindings() -> dict[str, Any]:
    """torch's own Python bindings of operators, which cost half of what calling the operator object does.

    Only those whose parameters are the schema's, in the schema's order.
    """
    found = {name: getattr(torch, name) for name in _SAME_NAME.split()}
    found.update({name: getattr(torch.Tensor, name) for name in _METHODS})
    found["split"] = torch._VF.split  # type: ignore[attr-defined]
    found["gelu"] = torch._C._nn.gelu
    found["silu"] = torch._C._nn.silu
    return found


_BINDINGS = _bindings()
_KEPT_OVERLOADS = (
    "default",
    "Tensor",
    "Scalar",
    "int",
    "dim",
    "dim_IntList",
    "self",
    "correction",
    "Tensor_Scalar",
    "Tensor_Tensor",
    "ScalarSelf",
)


def _bernoulli(tensor: torch.Tensor, p: float, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """``tensor.bernoulli_(p)`` of memory without contents: numbers are drawn in its order, which ATen's functional form does not keep."""
    return torch.empty_like(tensor).bernoulli_(p, generator=generator)


def callable_of(target: Any) -> Any:
    """The cheapest callable that does what an operator does, with the same arguments."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return eager_of(target) or target
    name = target._schema.name.removeprefix("aten::")
    if target._overloadname in _KEPT_OVERLOADS and name in _BINDINGS:
        return _BINDINGS[name]
    return target


def _callable(node: torch.fx.Node) -> Any:
    """What computes a node."""
    filled = node.args[0] if node.target is torch.ops.aten.bernoulli.p else None
    if isinstance(filled, torch.fx.Node) and filled.target is torch.ops.aten.empty_like.default:
        return _bernoulli
    return callable_of(node.target)


class _Writer:
    """Writes the function's text; callables and constants go into ``scope``."""

    def __init__(self, module: torch.fx.GraphModule, is_boxed: bool) -> None:
        self._module = module
        self._is_boxed = is_boxed
        self._nodes = list(module.graph.nodes)
        self.scope: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []

    def text(self) -> str:
        """The function ``run``."""
        last = {n: node for node in self._nodes for n in node.all_input_nodes}
        parameters = [n.name for n in self._nodes if n.op == "placeholder"]
        lines = self._unpacking(parameters) if self._is_boxed else [f"def run({', '.join(parameters)}):"]
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

    def _unpacking(self, parameters: list[str]) -> list[str]:
        unread = [n.name for n in self._nodes if n.op == "placeholder" and not n.users]
        lines = ["def run(__given):"]
        lines += [f"    {', '.join(parameters)}, = __given"] if parameters else []
        lines += ["    __given.clear()", *([f"    del {', '.join(unread)}"] if unread else [])]
        return lines

    def _expression(self, node: torch.fx.Node) -> str:
        if node.op == "get_attr":
            value: Any = self._module
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return self._name(value, "constant")
        if node.target is operator.getitem:
            return f"{self._value(node.args[0])}[{self._value(node.args[1])}]"
        args = [self._value(a) for a in node.args] + [f"{k}={self._value(v)}" for k, v in node.kwargs.items()]
        return f"{self._name(_callable(node), 'op')}({', '.join(args)})"

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
