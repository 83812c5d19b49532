"""Values of fx nodes and calls with their true types: tensors, results, overloads."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from engine.ir.introspection.fakeable_tensors import is_wrapper_subclass
from engine.ir.introspection.symbols import SYMBOLIC_TYPES
from engine.ir.reachable import reachable
from engine.torch_private.fake_tensors import FakeTensor
from engine.torch_private.higher_order_ops import auto_functionalized, auto_functionalized_v2
from engine.torch_private.operators import OpOverload


def results_of(value: Any) -> tuple[Any, ...]:
    """Return the results of a call as a tuple: several, or a tuple of the only one."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a value: itself, or those in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in tensors_in(v)] if isinstance(value, (tuple, list)) else []


def tensors_by_position(values: Any) -> dict[int, torch.Tensor]:
    """Return the tensors among values by their position; other values are left out."""
    return {n: v for n, v in enumerate(values) if isinstance(v, torch.Tensor)}


def map_tensors(change: Callable[[torch.Tensor], Any], values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the values with each tensor among them changed."""
    return tuple(change(v) if isinstance(v, torch.Tensor) else v for v in values)


def copy_leaf(tensor: torch.Tensor) -> torch.Tensor:
    """Return a leaf with a tensor's values, strides and ``requires_grad`` in new memory.

    Strides may overlap: elements that share memory share it in the copy too.
    """
    source = tensor.detach()
    if source.layout != torch.strided or is_wrapper_subclass(source):
        return source.clone().requires_grad_(tensor.requires_grad)
    with torch.no_grad():
        extent = 1 + sum((size - 1) * step for size, step in zip(source.shape, source.stride(), strict=True))
        memory = source.as_strided((extent if source.numel() else 0,), (1,)).clone()
        copy = memory.as_strided(source.shape, source.stride())
    return copy.detach().requires_grad_(tensor.requires_grad)


def fake_tensors(values: Any) -> list[FakeTensor]:
    """Return the fake tensors among some values."""
    return [v for v in tensors_in(values) if isinstance(v, FakeTensor)]


def first_fake_tensor(values: Iterable[Any]) -> FakeTensor | None:
    """Return the first fake tensor among some values; None without any."""
    return next((fake for value in values for fake in fake_tensors(value)), None)


def nodes_in(values: Any) -> list[torch.fx.Node]:
    """Return the nodes in arguments or results, in order; a node may occur repeatedly."""
    nodes: list[torch.fx.Node] = []
    torch.fx.map_arg(values, nodes.append)
    return nodes


def ancestors_of(nodes: Iterable[torch.fx.Node], stop_at: Container[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return nodes and all that they are computed from, up to nodes that are known."""

    def unknown(nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
        return [n for n in nodes if n not in stop_at]

    return set(reachable(unknown(nodes), lambda n: unknown(n.all_input_nodes)))


def tensor_meta(node: Any) -> torch.Tensor | None:
    """Return the fake tensor of an ATen node; None for other values and other arguments."""
    return _tensor_in_meta(node, "val")


def example_tensor(node: Any) -> torch.Tensor | None:
    """Return the example tensor of a traced node; None for other values and other arguments."""
    return _tensor_in_meta(node, "example_value")


def _tensor_in_meta(node: Any, key: str) -> torch.Tensor | None:
    value = node.meta.get(key) if isinstance(node, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_scalar(node: torch.fx.Node) -> bool:
    """Return True if a node's value is a scalar, computed from sizes."""
    return isinstance(node.meta.get("val"), (int, float, bool, *SYMBOLIC_TYPES))


def constant_number(value: torch.Tensor) -> bool | float | complex | None:
    """Return the only element of a real tensor on the CPU; None for other tensors and fakes."""
    if value.numel() != 1 or value.device.type != "cpu" or isinstance(value, FakeTensor):
        return None
    return value.item()


def unwrap_functionalized(target: Any, args: Sequence[Any]) -> Any:
    """Return the operator that a functional wrapper calls, or the target of another call."""
    return args[0] if target in (auto_functionalized, auto_functionalized_v2) else target


def called_overload(target: Any) -> OpOverload | None:
    """Return the overload that a node's target is; None for functions, methods and modules."""
    return target if isinstance(target, OpOverload) else None
