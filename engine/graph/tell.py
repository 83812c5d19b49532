"""An fx graph as records: every node one line of Python, with its type and where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from engine.ir.graph import NodeOrigin, node_id, origin_of
from engine.records.graph import GraphRecord, NodeRecord

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@",
    "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "iadd": "+=", "isub": "-=", "imul": "*=", "itruediv": "/=", "ifloordiv": "//=", "imod": "%=", "ipow": "**=", "imatmul": "@=",
    "iand": "&=", "ior": "|=", "ixor": "^=",
}  # fmt: skip
_PREFIX = {"neg": "-", "invert": "~", "pos": "+"}


def graph_record(graph: torch.fx.GraphModule, stage: str, compilation: str, title: str) -> GraphRecord:
    """The record of ``graph``. Node ids are ``stage:compilation:name``; fake values come from ``meta["val"]`` or ``meta["example_value"]``."""
    nodes = tuple(_node(n, stage, compilation) for n in graph.graph.nodes)
    return GraphRecord(f"{stage}:{compilation}", stage, title, nodes)


def _node(node: torch.fx.Node, stage: str, compilation: str) -> NodeRecord:
    value = fake_of(node)
    tensor = value if isinstance(value, torch.Tensor) else None
    origin = origin_of(node)
    return NodeRecord(
        id=node_id(stage, compilation, node),
        name=node.name,
        op=node.op,
        target=target_name(node),
        text=node_text(node),
        inputs=tuple(node_id(stage, compilation, n) for n in node.all_input_nodes),
        shape=None if tensor is None else tuple(str(s) for s in tensor.shape),
        stride=None
        if tensor is None
        else tuple(str(s) for s in tensor.stride())
        if tensor.layout == torch.strided
        else None,
        dtype="" if tensor is None else str(tensor.dtype).removeprefix("torch."),
        device="" if tensor is None else str(tensor.device),
        bytes=None if tensor is None else _bytes(tensor),
        origins=origin.nodes,
        span=origin.span,
        stack=origin.stack,
        module=origin.module,
        note=origin.note or _note(node, origin),
    )


def fake_of(node: torch.fx.Node) -> Any:
    """The fake value of a node, None when it has none."""
    return node.meta.get("val", node.meta.get("example_value"))


def _bytes(tensor: torch.Tensor) -> int | None:
    count = tensor.numel()
    return count * tensor.element_size() if isinstance(count, int) else None


def _note(node: torch.fx.Node, origin: NodeOrigin) -> str:
    if node.op in ("placeholder", "output") or origin.nodes or origin.span:
        return ""
    return "generated: made by the compiler, no line of yours asked for it"


def target_name(node: torch.fx.Node) -> str:
    """What a node calls, as a person writes it: ``torch.softmax``, ``aten.add.Tensor``, ``.view``."""
    target = node.target
    if node.op == "call_method":
        return f".{target}"
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        name = str(target)
        return name.removesuffix(".default") if name.endswith(".default") else name
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", None) or ""
    if getattr(torch, name, None) is target:
        return f"torch.{name}"
    if getattr(torch.nn.functional, name, None) is target:
        return f"F.{name}"
    if module in ("_operator", "operator", "builtins"):
        return name
    return f"{module}.{name}" if module.startswith("torch") else name


def node_text(node: torch.fx.Node) -> str:
    """A node as one line of Python."""
    if node.op == "placeholder":
        return node.name
    if node.op == "output":
        return f"return {_value(node.args[0])}"
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    return f"{node.name} = {_call(node)}"


def _call(node: torch.fx.Node) -> str:
    name = getattr(node.target, "__name__", "")
    if node.op == "call_function" and getattr(node.target, "__module__", "") in ("_operator", "operator"):
        if name in _INFIX and len(node.args) == 2:
            return f"{_value(node.args[0])} {_INFIX[name]} {_value(node.args[1])}"
        if name in _PREFIX and len(node.args) == 1:
            return f"{_PREFIX[name]}{_value(node.args[0])}"
        if name == "getitem":
            return f"{_value(node.args[0])}[{_subscript(node.args[1])}]"
    if node.op == "call_function" and name == "getattr" and len(node.args) == 2:
        return f"{_value(node.args[0])}.{node.args[1]}"
    if node.op == "call_method":
        return f"{_value(node.args[0])}.{node.target}({_arguments(node.args[1:], node.kwargs)})"
    return f"{target_name(node)}({_arguments(node.args, node.kwargs)})"


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return ", ".join([*map(_value, args), *(f"{k}={_value(v)}" for k, v in kwargs.items())])


def _subscript(key: Any) -> str:
    if isinstance(key, tuple):
        return ", ".join(map(_subscript, key)) or "()"
    if isinstance(key, slice):
        parts = ["" if p is None else _value(p) for p in (key.start, key.stop)]
        return ":".join(parts) + ("" if key.step is None else f":{_value(key.step)}")
    return "..." if key is Ellipsis else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, torch.fx.Node):
        return value.name
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_value, value)) + ("," if len(value) == 1 else "") + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, slice):
        return f"slice({_value(value.start)}, {_value(value.stop)}, {_value(value.step)})"
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    return repr(value)


def computing(graph: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Nodes that call something."""
    return (n for n in graph.graph.nodes if n.op in ("call_function", "call_method", "call_module"))
