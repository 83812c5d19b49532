"""Operators whose results nobody reads: a functional graph leaves them out, and with them the errors that they would raise.

Fake tensors know sizes and types, not which types a device's kernel was written for. So what is to be left out is tried out once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from engine.aot.analyse import is_mutating
from engine.ir.in_graph import InGraph

_LARGE = 1 << 16
"""Elements up to which operands are made to try an operator out."""


def unwritten_kernel(graph: torch.fx.GraphModule) -> str:
    """Which unread operator has no kernel for what it is given, or not for such types, so that eager raises; empty when none is known."""
    for node in _unread(graph.graph):
        if not _is_torchs(node):
            continue
        try:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), _made)
        except _Unknown:
            continue
        if _raises(node, args, kwargs):
            return f"nobody reads {node.name}, which has no kernel for its operands"
    return ""


class _Unknown(Exception):
    """An operand that cannot be made."""


def _unread(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Nodes that neither an output nor a write in place depends on."""
    read: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in read or node.op == "output" or is_mutating(node):
            read.update(node.all_input_nodes)
        elif node.op in ("call_function", "call_method"):
            yield node


def _is_torchs(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return True
    if isinstance(node.target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(node.target).startswith(("aten.", "prims."))
    module = getattr(node.target, "__module__", "") or ""
    return not isinstance(node.target, InGraph) and (
        module in ("_operator", "torch") or module.startswith(("torch.nn.functional", "torch._C._nn"))
    )


def _made(node: torch.fx.Node) -> Any:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or type(value).__name__ != "FakeTensor":
        raise _Unknown
    if value._has_symbolic_sizes_strides or value.numel() > _LARGE or value.device.type not in _devices():
        raise _Unknown
    with _disable_current_modes(), torch.no_grad():
        return torch.ones(value.shape, dtype=value.dtype, device=value.device)


def _devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _raises(node: torch.fx.Node, args: Any, kwargs: Any) -> bool:
    draws = torch.get_rng_state()
    try:
        with _disable_current_modes(), torch.no_grad():
            if node.op == "call_method":
                getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                node.target(*args, **kwargs)  # type: ignore[operator]
    except NotImplementedError:
        return True
    except Exception as error:
        # Made of other values, it need not work out; of which type they are does not depend on that.
        return "dtype" in str(error) or "scalar type" in str(error)
    finally:
        torch.set_rng_state(draws)
    return False
