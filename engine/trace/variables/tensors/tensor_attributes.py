"""Tracing rules for attributes and metadata of tensors that a fake tensor cannot answer."""

from __future__ import annotations

from typing import Any

import torch

from engine.ir.guards.python_values import HasAttrGuard
from engine.ir.register_once import register_each
from engine.ir.sources.attributes import AttrSource
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import binary_op
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, is_none, realize
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.tensor_members import (
    register_tensor_attribute,
    register_tensor_method,
    register_tensor_setter,
)


@register_each(register_tensor_attribute, "data", "T", "mT", "H", "mH", "real", "imag")
def _graph_attribute(name: str, tx: Tracer, tensor: TensorVariable) -> Variable:
    """Read an attribute by a graph node."""
    return emit_node(tx, "call_function", getattr, [tensor, ConstantVariable(name)])


@register_each(
    register_tensor_attribute, "__dict__", "_cdata", "volatile", "_backward_hooks", "__cuda_array_interface__"
)
def _unsupported_attribute(name: str, tx: Tracer, tensor: TensorVariable) -> Variable:
    raise tensor.unsupported_attribute("reading", name)


register_tensor_attribute("__class__")(lambda tx, tensor: tx.wrap_static(tensor.python_type()))


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
        candidate: TensorVariable = value
        if candidate.fake is base and (candidate.real_object is None or candidate.real_object._base is None):
            return candidate
        if base is candidate.fake or base is candidate.fake._base:
            return view_base(tx, candidate)
    node = next((n for n in tx.graph.graph.nodes if n.meta.get("example_value") is base), None)
    if node is None:
        raise tensor.unsupported_attribute("reading", "_base")
    return tx.graph.tensor_variables.get(node) or TensorVariable(node, base)


_WHY = "metadata of the tensor decided what was traced"


@register_each(register_tensor_attribute, "output_nr", "retains_grad")
def _metadata_attribute(name: str, tx: Tracer, of: TensorVariable) -> Variable | None:
    """Return the attribute; None if the fake tensor has the right value."""
    if of.real_object is None or of.source is None:
        return None
    return ConstantVariable(of.guard_member(tx, name, why=_WHY))


@register_tensor_attribute("_version")
def _version(tx: Tracer, of: TensorVariable) -> Variable | None:
    """Return the version counter: an input's value before the call plus the traced mutations."""
    memory = of.fake.untyped_storage()._cdata
    for value, version_before in tx.inputs.input_tensors:
        if value.source is None or value.real_object is None or value.fake.is_inference():
            continue
        if value is of or of.fake._base is value.fake:
            version = value.guard_member(tx, "_version", why=_WHY)
            return ConstantVariable(version + of.fake._version - version_before)
        if value.fake.untyped_storage()._cdata == memory:
            raise of.unsupported_attribute("reading", "_version")
    return None


@register_each(register_tensor_method, "storage_offset", "is_shared")
def _metadata_without_keywords(
    name: str, tx: Tracer, of: TensorVariable, args: Args, kwargs: Kwargs
) -> Variable | None:
    return None if kwargs else _metadata_method(tx, of, name)


def _metadata_method(tx: Tracer, of: TensorVariable, name: str) -> Variable | None:
    """Return ``tensor.storage_offset()`` and similar; None if the fake tensor's value holds.

    In the latter case the inputs that determine the value are guarded.

    Raises:
        Unsupported: the value cannot be determined while tracing.
    """
    if name == "is_shared" and of.real_object is None:
        return None
    is_moved = bool(tx.inputs.data_assigned_inputs)
    if is_moved and name == "is_shared":
        raise of.unsupported_method(name)
    inputs = [of] if of.real_object is not None and not is_moved else [v for v, _ in tx.inputs.input_tensors]
    for value in inputs:
        real = value.real_object
        if value.source is None or real is None or value.fake.layout != value.member_source("layout").read(real):
            raise of.unsupported_method(name)
    results = [value.guard_member(tx, name, (), why=_WHY) for value in inputs]
    if of.real_object is not None and not is_moved:
        if name == "storage_offset" and (entry_layout := tx.inputs.input_layouts.get(id(of.fake))) is not None:
            results[0] += int(of.fake.storage_offset() - entry_layout[2])  # changed in place since
        return ConstantVariable(results[0])
    return ConstantVariable(int(of.fake.storage_offset())) if name == "storage_offset" else None


def has_mark(tx: Tracer, of: TensorVariable, name: str) -> bool:
    """Return True if the attribute marks a tensor of another class as a parameter or buffer."""
    if name in of.attr_writes:
        return of.attr_writes[name].is_truthy(tx)
    if of.real_object is None or of.source is None:
        return False
    attributes = getattr(of.real_object, "__dict__", {})
    tx.guard(HasAttrGuard, of.source, name, name in attributes, why="its dynamic mark decided what was traced")
    return bool(attributes.get(name))
