"""Operators whose results nobody reads: a functional graph leaves them out, and with them the errors that they would raise.

Fake tensors know sizes and types, not which types a device's kernel was written for. So what is to be left out is tried out once, and so is
what writes to numbers without fractions: its functional form may compute in a wider type, for which there is a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from engine.aot.node_properties import may_mutate
from engine.aot.storage_geometry import with_hint_sizes
from engine.ir.graph_callable import GraphCallable

_MAX_OPERAND_ELEMENTS = 1 << 16
"""Elements up to which operands are made to try an operator out."""

_DTYPE_ERROR_WORDS = ("dtype", "scalar type", "complex", "Bool", "output type", "view size")
"""What errors speak of that are raised for the types of operands, or for how they are laid out."""


def find_missing_kernel(graph: torch.fx.GraphModule) -> str:
    """Which unread operator has no kernel for what it is given, or not for such types, so that eager raises; empty when none is known.

    Where complex numbers are given and something is written to, of those that are read too: eager raises after the writes before it.
    """
    is_written = any(map(may_mutate, graph.graph.nodes))
    unread = set(_dead_nodes(graph.graph))
    for node in graph.graph.nodes:
        told = _why_probed(node, is_unread=node in unread, is_written=is_written)
        if told and _is_torch_op(node) and _has_no_kernel(node):
            return f"{told}{node.name}, which has no kernel for its operands"
    return ""


def _why_probed(node: torch.fx.Node, *, is_unread: bool, is_written: bool) -> str:
    """Before the node's name: why its kernel matters here; empty where it does not. A node that writes names itself."""
    if is_unread:
        return "nobody reads "
    if _is_view_of_noncontiguous(node):  # over fake tensors it may be made where torch refuses it
        return "memory that does not lie in a row is seen through "
    if is_written and may_mutate(node) and _writes_integral(node):
        return "something is written to by "
    return "something is written to beside " if is_written and _is_complex(node) else ""


def _is_view_of_noncontiguous(node: torch.fx.Node) -> bool:
    seen = (
        node.args[0].meta.get("example_value")
        if node.target == "view" and isinstance(node.args[0], torch.fx.Node)
        else None
    )
    return isinstance(seen, torch.Tensor) and not with_hint_sizes(seen).is_contiguous()


def _writes_integral(node: torch.fx.Node) -> bool:
    """Whether a node may write to truths or whole numbers."""
    targets = node.kwargs.get("out", node.args[0] if node.args else None)
    values = [
        n.meta.get("example_value")
        for n in (targets if isinstance(targets, (tuple, list)) else (targets,))
        if isinstance(n, torch.fx.Node)
    ]
    return any(isinstance(v, torch.Tensor) and not (v.is_floating_point() or v.is_complex()) for v in values)


def find_missing_kernel_in_callees(graph: torch.fx.GraphModule, module: torch.fx.GraphModule) -> str:
    """The same of what functions do that the graph calls and nobody reads; ``module``: all of their operators, dead ones too."""
    if all(not isinstance(n.target, GraphCallable) for n in _dead_nodes(graph.graph)):
        return ""
    for node in _dead_nodes(module.graph):
        if isinstance(node.target, torch._ops.OpOverload) and _is_torch_op(node) and _has_no_kernel(node):
            return f"nobody reads a call of {node.target}, which has no kernel for its operands"
    return ""


def _has_no_kernel(node: torch.fx.Node) -> bool:
    try:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), _make_operand)
    except _CannotMakeOperand:
        return False
    return _kernel_raises(node, args, kwargs)


def _is_complex(node: torch.fx.Node) -> bool:
    """Whether a node that writes to nothing is given complex numbers."""
    if node.op not in ("call_function", "call_method") or may_mutate(node):
        return False
    values = [n.meta.get("example_value") for n in node.all_input_nodes]
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


class _CannotMakeOperand(Exception):
    """An operand that cannot be made."""


def _dead_nodes(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Nodes that neither an output nor a write in place depends on."""
    read: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in read or node.op == "output" or may_mutate(node):
            read.update(node.all_input_nodes)
        elif node.op in ("call_function", "call_method"):
            yield node


def _is_torch_op(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return True
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(node.target).startswith(("aten.", "prims."))
    module = getattr(node.target, "__module__", "") or ""
    return not isinstance(node.target, GraphCallable) and (
        module in ("_operator", "torch") or module.startswith(("torch.nn.functional", "torch._C._nn"))
    )


def _make_operand(node: torch.fx.Node) -> Any:
    value = node.meta.get("example_value", node.meta.get("val"))
    if not isinstance(value, torch.Tensor) or type(value).__name__ != "FakeTensor":
        raise _CannotMakeOperand
    with _disable_current_modes(), torch.no_grad():
        here = with_hint_sizes(value)
        if (
            here._has_symbolic_sizes_strides
            or here.numel() > _MAX_OPERAND_ELEMENTS
            or value.device.type not in _devices()
        ):
            raise _CannotMakeOperand
        reach = 1 + sum((n - 1) * s for n, s in zip(here.shape, here.stride(), strict=True)) if here.numel() else 0
        if reach > _MAX_OPERAND_ELEMENTS:
            raise _CannotMakeOperand
        return torch.ones(reach, dtype=value.dtype, device=value.device).as_strided(here.shape, here.stride())


def _devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _kernel_raises(node: torch.fx.Node, args: Any, kwargs: Any) -> bool:
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices):
            if node.op == "call_method":
                getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                node.target(*args, **kwargs)  # type: ignore[operator]
    except NotImplementedError:
        return True
    except Exception as error:
        # Made of other values, it need not work out; of which type they are does not depend on that.
        return any(word in str(error) for word in _DTYPE_ERROR_WORDS)
    return False
