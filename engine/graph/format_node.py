"""Formats one FX node as a line of Python."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.python_operators import BINARY, COMPARE, INPLACE
from engine.ir.node_values import called_overload
from engine.torch_private.operators import HigherOrderOperator, OpOverload, OpOverloadPacket

_BINARY: dict[Any, str] = {op.function: op.symbol for op in (*BINARY.values(), *COMPARE.values())}
_BINARY |= {operator.is_: "is", operator.is_not: "is not"}
_IN_PLACE: dict[Any, str] = {op.function: op.symbol for op in INPLACE.values()}
_UNARY: dict[Any, str] = {operator.neg: "-", operator.pos: "+", operator.invert: "~", operator.not_: "not "}
_MODULE_ALIASES: dict[str, str] = {
    "torch.nn.functional": "F",
    "torch._C._nn": "F",
    "torch._C._VariableFunctions": "torch",
    "torch.functional": "torch",
    "_VariableFunctionsClass": "torch",
    "builtins": "",
    "_operator": "operator",
}


def format_node(node: torch.fx.Node) -> str:
    """Return a node as a Python statement.

    Examples: ``mul = x * 0.125``, ``softmax = torch.softmax(s, dim=-1)``, ``return (mul, softmax)``.
    """
    if node.op == "placeholder":
        return node.name
    if node.op == "output":
        return f"return {format_argument(node.args[0])}"
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    if node.target is operator.setitem:
        return f"{_operand(node.args[0])}[{_subscript(node.args[1])}] = {format_argument(node.args[2])}"
    return f"{node.name} = {_call(node)}"


def format_target(node: torch.fx.Node) -> str:
    """Return the call target of a node as Python text.

    Examples: ``aten.add.Tensor``, ``torch.softmax``, ``Tensor.view``, ``operator.add``.
    """
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op == "call_function":
        return _qualified(node.target)
    return str(node.target)


def format_argument(value: Any) -> str:
    """Return an argument as text: nodes by name, containers by item, other values as Python."""
    return "..." if value is Ellipsis else _format(value)


@functools.singledispatch
def _format(value: Any) -> str:
    return repr(value)


@_format.register
def _format_node_name(value: torch.fx.Node) -> str:
    return value.name


@_format.register
def _format_tuple(value: tuple) -> str:  # type: ignore[type-arg]
    items = ", ".join(map(format_argument, value))
    return f"({items},)" if len(value) == 1 else f"({items})"


@_format.register
def _format_list(value: list) -> str:  # type: ignore[type-arg]
    return f"[{', '.join(map(format_argument, value))}]"


@_format.register
def _format_dict(value: dict) -> str:  # type: ignore[type-arg]
    return f"{{{', '.join(f'{k!r}: {format_argument(v)}' for k, v in value.items())}}}"


@_format.register
def _format_slice(value: slice) -> str:
    return f"slice({format_argument(value.start)}, {format_argument(value.stop)}, {format_argument(value.step)})"


@_format.register
def _format_device(value: torch.device) -> str:
    return f'device("{value}")'


def _call(node: torch.fx.Node) -> str:
    target, args = node.target, node.args
    if node.op == "call_method":
        return f"{_operand(args[0])}.{target}({_arguments(args[1:], node.kwargs)})"
    if node.op == "call_module":
        return f"self.{target}({_arguments(args, node.kwargs)})"
    if not node.kwargs and isinstance(target, Callable):  # type: ignore[arg-type]
        special = _operator(target, args)
        if special is not None:
            return special
    qualified = _qualified(target)
    if qualified.startswith("Tensor.") and args:
        return f"{_operand(args[0])}.{qualified.removeprefix('Tensor.')}({_arguments(args[1:], node.kwargs)})"
    return f"{qualified}({_arguments(args, node.kwargs)})"


def _operator(target: Any, args: tuple[Any, ...]) -> str | None:
    if len(args) == 2:
        if target in _BINARY:
            return f"{_operand(args[0])} {_BINARY[target]} {_operand(args[1])}"
        if target in _IN_PLACE:
            return f"({format_argument(args[0])} {_IN_PLACE[target]} {format_argument(args[1])})"
        if target is operator.getitem:
            return f"{_operand(args[0])}[{_subscript(args[1])}]"
        if target is getattr and isinstance(args[1], str):
            return f"{_operand(args[0])}.{args[1]}"
    if len(args) == 1 and target in _UNARY:
        return f"{_UNARY[target]}{_operand(args[0])}"
    return None


def _operand(value: Any) -> str:
    text = format_argument(value)
    return f"({text})" if isinstance(value, (int, float)) and text.startswith("-") else text


def _subscript(key: Any) -> str:
    if isinstance(key, tuple) and key:
        inner = ", ".join(map(_subscript_item, key))
        return f"{inner}," if len(key) == 1 else inner
    return _subscript_item(key)


def _subscript_item(key: Any) -> str:
    if not isinstance(key, slice):
        return format_argument(key)
    text = ":".join("" if v is None else format_argument(v) for v in (key.start, key.stop))
    return text if key.step is None else f"{text}:{format_argument(key.step)}"


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return ", ".join([*map(format_argument, args), *(f"{k}={format_argument(v)}" for k, v in kwargs.items())])


def _qualified(target: Any) -> str:
    if called_overload(target) is not None:
        return str(target).removesuffix(".default")
    if hasattr(target, "overloads"):  # a packet, whose own __qualname__ is that of a function of pybind11
        return str(target)
    if isinstance(target, str):
        return target
    if isinstance(target, (HigherOrderOperator, OpOverloadPacket)):
        return str(target)
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or type(target).__name__
    if name.startswith("TensorBase."):
        return f"Tensor.{name.removeprefix('TensorBase.')}"
    owner = getattr(target, "__module__", None)
    if "<locals>" in name:
        name = _public_name(target, str(owner)) or name
    if owner is None:
        head, _, last = name.rpartition(".")
        owner, name = head, last
    if name.startswith("_VariableFunctionsClass."):
        owner, name = "torch", name.rpartition(".")[2]
    if getattr(torch, name, None) is target:
        return f"torch.{name}"
    owner = _MODULE_ALIASES.get(str(owner), str(owner or ""))
    return f"{owner}.{name}" if owner else str(name)


def _public_name(target: Any, module: str) -> str | None:
    """Return a module's name for a function that another function made (``F.max_pool2d``)."""
    return next((name for name, value in vars(sys.modules.get(module, types)).items() if value is target), None)


for _type in (type, types.FunctionType, types.BuiltinFunctionType, OpOverload, HigherOrderOperator):
    _format.register(_type, _qualified)
