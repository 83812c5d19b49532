"""Find dead operators without a kernel, so that the errors eager raises are not lost.

A functional graph drops operators whose results are unused. Fake tensors check sizes and dtypes, not whether a
device has a kernel for a dtype. So each dead operator runs once on small operands. Writes to integral or bool
tensors run too: their functional form may compute in a wider dtype that has a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from engine.aot.checks.base import CheckedCall
from engine.aot.fallback_kinds import AotFallback
from engine.aot.node_properties import may_mutate, written_tensors
from engine.aot.storage_geometry import with_hint_sizes
from engine.ir.fallback import Fallback, FallbackRequired
from engine.ir.graph_callable import NO_CALLABLE, graph_callable_of
from engine.ir.introspection.operator_facts import has_only_effect
from engine.ir.node_values import called_overload, example_tensor, tensor_meta
from engine.torch_private.dispatch import disable_current_modes
from engine.torch_private.operators import OpOverloadPacket

_MAX_OPERAND_ELEMENTS = 1 << 16
"""Maximum number of elements of an operand that is created for a probe."""

_DTYPE_ERROR_WORDS = ("dtype", "scalar type", "complex", "Bool", " bool", "output type", "view size")
"""Words in errors raised for the dtype or layout of operands."""


def check_missing_kernels(call: CheckedCall) -> Fallback | None:
    """Return a fallback if a dead operator has no kernel for its operands: eager raises.

    If the graph mutates something, live operators with complex operands are probed too: eager
    would raise after the earlier writes.
    """
    graph = call.traced
    is_written = any(map(may_mutate, graph.graph.nodes))
    dead = set(_dead_nodes(graph.graph))
    for node in graph.graph.nodes:
        description = _why_probed(node, is_dead=node in dead, is_written=is_written)
        if description and _is_torch_op(node) and _has_no_kernel(node):
            return Fallback(
                AotFallback.MISSING_KERNEL, f"{node.name}{description} has no kernel for its operands", node.name
            )
    return None


def _why_probed(node: torch.fx.Node, *, is_dead: bool, is_written: bool) -> str:
    """Return the part of the reason that follows the node's name; empty if it needs no probe."""
    if is_dead:
        return " (whose result is unused)"
    if _is_view_of_noncontiguous(node):  # over fake tensors it may succeed where torch raises
        return " (a view of a non-contiguous tensor)"
    if is_written and may_mutate(node) and _writes_integral(node):
        return " (an in-place operation)"
    return " (in a graph with in-place operations)" if is_written and _is_complex(node) else ""


def _is_view_of_noncontiguous(node: torch.fx.Node) -> bool:
    operand = example_tensor(node.args[0]) if node.target == "view" else None
    return operand is not None and not with_hint_sizes(operand).is_contiguous()


def _writes_integral(node: torch.fx.Node) -> bool:
    """Return True if a node may mutate a bool or integral tensor."""
    return any(not (t.is_floating_point() or t.is_complex()) for t in written_tensors(node))


def check_missing_kernels_in_callees(graph: torch.fx.GraphModule, module: torch.fx.GraphModule) -> None:
    """Raise if a dead operator inside a called function has no kernel for its operands.

    ``module`` has all operators of these functions, dead ones included.

    Raises:
        FallbackRequired: with the operator.
    """
    if all(graph_callable_of(n) is NO_CALLABLE for n in _dead_nodes(graph.graph)):
        return
    for node in _dead_nodes(module.graph):
        if called_overload(node.target) is not None and _is_torch_op(node) and _has_no_kernel(node):
            raise FallbackRequired(
                AotFallback.MISSING_KERNEL,
                f"{node.target} (whose result is unused) has no kernel for its operands",
                node.name,
            )


def _has_no_kernel(node: torch.fx.Node) -> bool:
    if has_only_effect(node.target):
        return False
    try:
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), _make_operand)
    except _CannotMakeOperand:
        return False
    return _kernel_raises(node, args, kwargs)


def _is_complex(node: torch.fx.Node) -> bool:
    """Return True if a node has complex operands and mutates nothing."""
    if node.op not in ("call_function", "call_method") or may_mutate(node):
        return False
    return any((t := example_tensor(n)) is not None and t.is_complex() for n in node.all_input_nodes)


class _CannotMakeOperand(Exception):
    """An operand has no fake tensor, or would be too large to create."""


def _dead_nodes(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Yield nodes that neither an output nor an in-place write depends on."""
    read: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node in read or node.op == "output" or may_mutate(node):
            read.update(node.all_input_nodes)
        elif node.op in ("call_function", "call_method"):
            yield node


def _is_torch_op(node: torch.fx.Node) -> bool:
    if node.op == "call_method":
        return True
    packet = getattr(node.target, "overloadpacket", node.target)
    if isinstance(packet, OpOverloadPacket):
        return packet._qualified_op_name.partition("::")[0] in ("aten", "prims")
    module = getattr(node.target, "__module__", "") or ""
    return graph_callable_of(node) is NO_CALLABLE and (
        module in ("_operator", "torch") or module.startswith(("torch.nn.functional", "torch._C._nn"))
    )


def _make_operand(node: torch.fx.Node) -> Any:
    value = tensor_meta(node) if example_tensor(node) is None else example_tensor(node)
    if value is None or type(value).__name__ != "FakeTensor":
        raise _CannotMakeOperand
    with disable_current_modes(), torch.no_grad():
        at_hints = with_hint_sizes(value)
        if (
            at_hints._has_symbolic_sizes_strides
            or at_hints.numel() > _MAX_OPERAND_ELEMENTS
            or value.device.type not in _devices()
        ):
            raise _CannotMakeOperand
        reach = (
            1 + sum((n - 1) * s for n, s in zip(at_hints.shape, at_hints.stride(), strict=True))
            if at_hints.numel()
            else 0
        )
        if reach > _MAX_OPERAND_ELEMENTS:
            raise _CannotMakeOperand
        return torch.ones(reach, dtype=value.dtype, device=value.device).as_strided(at_hints.shape, at_hints.stride())


def _devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _kernel_raises(node: torch.fx.Node, args: Any, kwargs: Any) -> bool:
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices):
            if node.op == "call_method":
                getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                node.target(*args, **kwargs)  # type: ignore[operator]
    except NotImplementedError:
        return True
    except Exception as error:
        # The values are made up, so other errors do not count; dtype errors do not depend on values.
        return any(word in str(error) for word in _DTYPE_ERROR_WORDS)
    return False
