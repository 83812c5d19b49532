"""Tracing rules for attributes of tensors that a fake tensor cannot answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.ir.sources.attributes import AttrSource
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import binary_op
from engine.trace.variables.base import NONE, ConstantVariable, Variable, is_none, realize
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.tensor_members import register_tensor_attribute, register_tensor_setter

if TYPE_CHECKING:
    import torch


def _register_graph_attribute(name: str) -> None:
    """Register an attribute that a graph node reads."""

    @register_tensor_attribute(name)
    def rule(tx: Tracer, tensor: TensorVariable) -> Variable:
        return emit_node(tx, "call_function", getattr, [tensor, ConstantVariable(name)])


def _register_unsupported_attribute(name: str) -> None:
    @register_tensor_attribute(name)
    def rule(tx: Tracer, tensor: TensorVariable) -> Variable:
        raise tensor.unsupported_attribute("reading", name)


for _name in ("data", "T", "mT", "H", "mH", "real", "imag"):
    _register_graph_attribute(_name)
for _name in ("__dict__", "_cdata", "volatile", "_backward_hooks", "__cuda_array_interface__"):
    _register_unsupported_attribute(_name)


@register_tensor_attribute("__class__")
def _class(tx: Tracer, tensor: TensorVariable) -> Variable:
    return tx.wrap_static(tensor.python_type())


@register_tensor_attribute("is_leaf")
def _is_leaf(tx: Tracer, tensor: TensorVariable) -> None:
    tensor.guard_is_leaf(tx)


@register_tensor_attribute("nbytes")
def _nbytes(tx: Tracer, tensor: TensorVariable) -> Variable:
    return binary_op(tx, "*", tensor.call_method(tx, "numel", [], {}), ConstantVariable(tensor.fake.element_size()))


@register_tensor_attribute("grad")
def _grad(tx: Tracer, tensor: TensorVariable) -> Variable:
    tensor.guard_is_leaf(tx)
    if tensor.real_object is None or tensor.source is None:
        if tensor.fake.is_leaf or not tensor.fake.requires_grad:
            return NONE
        raise tensor.unsupported("reading .grad of an intermediate tensor", "autograd-grad")
    return tx.wrap(tensor.real_object.grad, AttrSource(tensor.source, "grad"))


@register_tensor_setter("grad")
def _set_grad(tx: Tracer, tensor: TensorVariable, value: Variable) -> None:
    if not _accepts_grad(tensor, realize(tx, value)):
        raise Unsupported("tensor-attribute", "the attribute 'grad' of a tensor is set")
    tensor.write_attr(tx, "grad", value)


def _accepts_grad(tensor: TensorVariable, value: Any) -> bool:
    """Return True if ``.grad`` can be set to the value after the graph.

    True for a leaf, and None or a tensor that torch accepts as its gradient.
    """
    real = tensor.real_object
    if not tensor.fake.is_leaf or (real is not None and (tensor.source is None or "grad" in vars(real))):
        return False
    if is_none(value):
        return True
    if value.fake is None or value is tensor or not value.is_plain:
        return False
    return _metadata(tensor.fake) == _metadata(value.fake)


def _metadata(fake: torch.Tensor) -> tuple[object, ...]:
    return fake.shape, fake.dtype, fake.device, fake.layout


@register_tensor_attribute("_base")
def view_base(tx: Tracer, tensor: TensorVariable) -> Variable | None:
    """Return the tensor that this one is a view of, or Python's None."""
    if tensor.real_object is not None and tensor.source is not None:
        return tx.wrap(tensor.real_object._base, AttrSource(tensor.source, "_base"))
    base = tensor.fake._base
    if base is None:
        return NONE
    for value, _ in tx.inputs.input_tensors:
        given: TensorVariable = value
        if given.fake is base and (given.real_object is None or given.real_object._base is None):
            return given
        if base is given.fake or base is given.fake._base:
            return view_base(tx, given)
    node = next((n for n in tx.graph.graph.nodes if n.meta.get("example_value") is base), None)
    if node is None:
        raise tensor.unsupported_attribute("reading", "_base")
    return tx.graph.tensor_variables.get(node) or TensorVariable(node, base)
