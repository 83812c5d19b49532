"""An operation that becomes a graph node, and the first step: normalize its arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.operator_facts import facts_of
from engine.torch_private.operators import nn_functions
from engine.trace.annotations import Tracer
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, Variable, realize


@dataclass(frozen=True, slots=True)
class Operation:
    """A call, a method call or an attribute read, with its arguments as variables."""

    op: str
    """Kind of the fx node: ``call_function`` or ``call_method``."""
    target: Any
    args: Args
    kwargs: Kwargs
    run: Callable[..., Any] | None = None
    """Callable that evaluates the node on fake tensors (default: the target itself)."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All arguments, positional ones first."""
        return (*self.args, *self.kwargs.values())

    @property
    def own_callable(self) -> GraphCallable | None:
        """The target, if it is the tracer's own: ``__torch_function__`` does not see it."""
        return self.target if isinstance(self.target, GraphCallable) else None


@dataclass(frozen=True, slots=True)
class OperationArguments:
    """Arguments of an operation twice: for its node, and for its evaluation on fake tensors."""

    nodes: tuple[Any, ...]
    keyword_nodes: dict[str, Any]
    fakes: list[Any]
    keyword_fakes: dict[str, Any]

    @property
    def all_fakes(self) -> tuple[Any, ...]:
        """All fakes, positional ones first: in the order of ``Operation.variables``."""
        return (*self.fakes, *self.keyword_fakes.values())


def _functions_named(*names: str) -> frozenset[Any]:
    """Return torch's functions of these names, and the names: the targets of method calls."""
    namespaces: tuple[Any, ...] = (torch, nn_functions, F, torch.ops.aten)
    return frozenset(names).union(getattr(space, n) for space in namespaces for n in names if hasattr(space, n))


_SIZES_FIRST = _functions_named("empty", "full", "ones", "rand", "randn", "zeros")
"""Functions whose arguments are sizes, also as tensors with one integer."""
_SIZES_AFTER_TENSOR = _functions_named(
    *"expand expand_copy new_empty new_full new_ones new_zeros pad repeat reshape tile view".split()
)
"""Functions of a tensor whose further arguments are sizes."""


def check_not_quantized(target: Any) -> None:
    """Raise Unsupported for quantizing functions; their fake results look like floats."""
    if facts_of(target).returns_quantized:
        name = getattr(target, "__name__", target)
        raise Unsupported("tensor-layout", f"{name} returns a quantized tensor")


_OF_SPARSE_TENSORS = frozenset(
    "_sparse_addmm _sparse_log_softmax _sparse_mm _sparse_softmax _sparse_sum addmm clone coalesce dense_dim detach double "
    "element_size float matmul mm mv neg numel size sparse_dim spmm t to to_dense transpose".split()
)
"""Operators whose fake results have the layout of the real ones for sparse operands."""


def check_layouts(target: Any, fakes: list[torch.Tensor]) -> None:
    """Raise Unsupported if the fake result may have another layout than the real one."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    sparse = next((str(t.layout) for t in fakes if t.layout not in (torch.strided, torch.jagged)), None)
    if sparse is not None and name not in _OF_SPARSE_TENSORS:
        raise Unsupported("tensor-layout", f"{name} of a tensor of layout {sparse}")


def normalize_arguments(tx: Tracer, operation: Operation) -> Operation:
    """Convert the arguments as eager does, to values that a graph node can take.

    Tensors with one integer become numbers where the operator takes sizes. Symbolic bools are specialized unless the
    target is a logical operator.
    """
    target = operation.target
    args = [realize(tx, a).as_operand_of(tx, target) for a in operation.args]
    kwargs = {k: realize(tx, v).as_operand_of(tx, target) for k, v in operation.kwargs.items()}
    if operation.op == "call_method" and target == "new" and len(args) == 2 and args[1].python_type() is torch.Size:
        target = "new_empty"  # ``new`` reads a plain tuple, which the graph has, as elements
    first_size = 0 if target in _SIZES_FIRST else 1 if target in _SIZES_AFTER_TENSOR else len(args)
    args[first_size:] = [a.as_sizes(tx) for a in args[first_size:]]
    return replace(operation, target=target, args=args, kwargs=kwargs)


def scalarize_lists(tx: Tracer, operation: Operation) -> Operation | None:
    """Replace tensors with one integer inside list arguments by numbers.

    Return None if there are none. This is for operators that raise: such a list may be a list of sizes.
    """
    args = [a.as_sizes(tx) if a.argument_items() else a for a in operation.args]
    kwargs = {k: v.as_sizes(tx) if v.argument_items() else v for k, v in operation.kwargs.items()}
    changed = replace(operation, args=args, kwargs=kwargs)
    same = all(a is b for a, b in zip(operation.variables, changed.variables, strict=True))
    return None if same else changed


def operation_arguments(tx: Tracer, operation: Operation) -> OperationArguments:
    """Return the arguments for the node and for the evaluation on fake tensors."""
    arguments = OperationArguments((), {}, [], {})
    nodes: list[Any] = []
    for value in operation.args:
        node, fake = realize(tx, value).as_node_arg(tx)
        nodes.append(node)
        arguments.fakes.append(fake)
    for name, value in operation.kwargs.items():
        arguments.keyword_nodes[name], arguments.keyword_fakes[name] = realize(tx, value).as_node_arg(tx)
    return replace(arguments, nodes=tuple(nodes))
