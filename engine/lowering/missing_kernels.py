"""Find operators whose ATen kernel rejects a dtype that a generated kernel could compute.

Fake tensors check sizes and some dtypes, not whether the device has a kernel for a dtype. Eager raises an error there,
so ATen must run the operator. Each operator runs once a process on small tensors of the same dtypes.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
import torch.fx

from engine.ir.aot.aot_graph import AotGraph
from engine.ir.introspection.operator_facts import facts_of, runs_for_effect
from engine.ir.node_metadata import node_id
from engine.ir.node_values import called_overload, tensor_meta, tensors_in
from engine.lowering.ops import has_lowering
from engine.lowering.ops.indexing import aten, prims
from engine.lowering.passes.decompose import all_decompositions
from engine.torch_private.dispatch import disable_current_modes
from engine.torch_private.operators import OpOverload

_MAX_ELEMENTS = 1 << 20
"""Largest number of elements of an example.

Also the largest product of a list of integers, which may be the size of a result.
"""

_ANY_DTYPE = frozenset((aten._to_copy, aten.clone, aten.copy, aten.masked_fill, aten.where, prims.convert_element_type))
"""Operators that only move or convert elements.

They have kernels for all dtypes, and a conversion of complex numbers warns once a process.
"""

_EXAMPLE_SIZES = (2, 4, 1)
"""Sizes of the dimensions of examples, tried until an operator accepts one."""

_DTYPE_ERROR_WORDS = ("not implemented for", "dtype", "scalar type", "output type", "complex", " bool", "overflow")
"""Words in errors raised for the dtype of operands."""

_HAS_KERNELS = {
    "cpu": frozenset((torch.float32, torch.float64)),
    "cuda": frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64)),
}
"""Dtypes for which nearly all operators have a kernel, by device."""


class _Operand(NamedTuple):
    """Metadata of a tensor operand."""

    dtype: torch.dtype
    dim: int
    device: torch.device

    def example(self, size: int) -> torch.Tensor:
        """Return a tensor of zeros, which are valid indices, with a size for all dimensions."""
        size = size if size**self.dim <= _MAX_ELEMENTS else 1
        return torch.zeros((size,) * self.dim, dtype=self.dtype, device=self.device)


class _Number(NamedTuple):
    """A constant argument, with its type: 1, 1.0 and True differ."""

    type: type
    value: Any

    def example(self, size: int) -> Any:
        """Return the constant."""
        return self.value


class _UnknownOperand(Exception):
    """An argument has no example on this machine."""


def nodes_without_kernel(graph: AotGraph) -> dict[str, str]:
    """Return the ids of nodes that have no ATen kernel for their dtypes, with reasons."""
    errors = ((node, _kernel_error(node)) for node in graph.module.graph.nodes if node.op == "call_function")
    return {
        node_id(graph.node_id_prefix, graph.compilation_id, node): f"ATen raises an error for these dtypes: {error}"
        for node, error in errors
        if error
    }


def _kernel_error(node: torch.fx.Node) -> str:
    """Return the dtype error that ATen raises for a node, or ""."""
    called = called_overload(node.target)
    tensors = tensors_in([n.meta.get("val") for n in (node, *node.all_input_nodes)])
    if called is None or all(t.dtype in _HAS_KERNELS.get(t.device.type, ()) for t in tensors):
        return ""
    if not _may_be_lowered(called):
        return ""
    try:
        args = _describe(node.args)
        kwargs = tuple((name, _describe(value)) for name, value in node.kwargs.items())
    except _UnknownOperand:
        return ""
    return _error_of(called, args, kwargs)


@functools.cache
def _may_be_lowered(called: OpOverload) -> bool:
    """Return True for an operator that computes and may become part of a kernel."""
    facts = facts_of(called)
    if (
        called.overloadpacket in _ANY_DTYPE
        or facts.is_view
        or facts.draws_random
        or facts.writes
        or runs_for_effect(called)
    ):
        return False
    return has_lowering(called) or called in all_decompositions()


@functools.singledispatch
def _describe(argument: Any) -> Any:
    """Return a hashable description of an argument.

    Raises:
        _UnknownOperand: it has no example, or the example would be too large.
    """
    return _Number(type(argument), argument)


@_describe.register(tuple)
@_describe.register(list)
def _(argument: Any) -> Any:
    parts = tuple(map(_describe, argument))
    if math.prod(part.value for part in parts if getattr(part, "type", None) is int) > _MAX_ELEMENTS:
        raise _UnknownOperand
    return parts


@_describe.register
def _(argument: torch.fx.Node) -> Any:
    value = tensor_meta(argument)
    if value is None:
        number = getattr(argument.meta.get("val"), "node", None)
        if number is None:
            raise _UnknownOperand
        return _Number(number.pytype, number.pytype(1))
    if value.layout != torch.strided or value.device.type not in _devices():
        raise _UnknownOperand
    return _Operand(value.dtype, value.dim(), value.device)


def _devices() -> tuple[str, ...]:
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def _example(description: Any, size: int) -> Any:
    """Return an argument of the description; tensors have this size in all dimensions."""
    if hasattr(description, "example"):
        return description.example(size)
    return [_example(part, size) for part in description]


@functools.cache
def _error_of(called: OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> str:
    """Return the first line of the dtype error that an operator raises for arguments, or ""."""
    with disable_current_modes(), torch.no_grad():
        for size in _EXAMPLE_SIZES:
            try:
                called(*_example(args, size), **{name: _example(value, size) for name, value in kwargs})
            except Exception as error:
                text = str(error).partition("\n")[0]
                if any(word in text for word in _DTYPE_ERROR_WORDS):
                    return text
            else:
                return ""
    return ""
