"""Trace assignments to ``tensor.data`` and calls of ``Tensor.set_``."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable
from engine.trace.annotations import Tracer
from engine.trace.emit.effects import emit_effect
from engine.trace.exc import Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.variables.base import Args, Kwargs, Variable, realize
from engine.trace.variables.tensors.storages import UntypedStorageVariable, record_input_storages
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.tensor_members import register_tensor_method, register_tensor_setter


def _set_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    tensor.data = data


_SET_DATA = GraphCallable("set_data", _set_data, changes_state=True)


@register_tensor_setter("data")
def set_data(tx: Tracer, tensor: TensorVariable, value: Variable) -> None:
    """Trace ``tensor.data = value``.

    Raises:
        Unsupported: the value is not a plain tensor of the same device and layout.
    """
    data: Any = realize(tx, value)
    graph_break = Unsupported("set-data", "the attribute 'data' of a tensor is set")
    if data is tensor and tensor.python_type() in (torch.Tensor, torch.nn.Parameter):
        return  # a conversion without effect: the tensor already has this data
    if data.fake is None or data is tensor or tx.in_subgraph():
        raise graph_break
    fake, new_fake = tensor.fake, data.fake
    is_compatible = fake.device == new_fake.device and fake.layout == new_fake.layout
    if not is_compatible or (fake._is_view() and fake.requires_grad) or fake.is_inference() or new_fake.is_inference():
        raise graph_break
    if any(v.python_type() not in (torch.Tensor, torch.nn.Parameter) for v in (tensor, data)):
        raise graph_break
    if fake.requires_grad and not (new_fake.dtype.is_floating_point or new_fake.dtype.is_complex):
        raise graph_break
    record_input_storages(tx)
    emit_effect(tx, _SET_DATA, (tensor.node(tx), data.node(tx)))
    tx.side_effects.mutation_count += 1
    with tx.symbols.fake_mode:
        fake.data = new_fake
    tensor.size_cache.clear()
    if tensor.source is not None and tensor not in tx.inputs.data_assigned_inputs:
        tx.inputs.data_assigned_inputs.append(tensor)


def _set_from_tensor(tensor: torch.Tensor, *source: Any) -> None:
    with torch.no_grad():
        tensor.set_(*source)


def _set_from_storage(tensor: torch.Tensor, other: torch.Tensor, *geometry: Any) -> None:
    with torch.no_grad():
        tensor.set_(other.untyped_storage(), *geometry)


_SET_FROM_TENSOR = GraphCallable("set_from_tensor", _set_from_tensor, changes_state=True)


_SET_FROM_STORAGE = GraphCallable("set_from_storage", _set_from_storage, changes_state=True)


@register_tensor_method("set_")
def set_tensor(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``tensor.set_(...)`` of a tensor created in traced code.

    Raises:
        Unsupported: a tensor requires gradients, the tensor is an input or a view, or the dtype or device differs.
    """
    graph_break = Unsupported("set-data", "Tensor.set_ is called")
    names = ("source", "storage_offset", "size", "stride")
    if len(args) > len(names) or kwargs.keys() - set(names[len(args) :]) or tx.in_subgraph():
        raise graph_break
    arguments = dict(zip(names, args, strict=False)) | kwargs
    if len(arguments) not in (0, 1, 4):
        raise graph_break
    source = realize(tx, arguments["source"]) if arguments else None
    storage = source if isinstance(source, UntypedStorageVariable) else None
    by_storage = storage is not None
    other: Any = source if storage is None else storage.current_tensor()
    if other is not None and other.fake is None:
        raise graph_break
    tensors: list[Any] = [tensor] if other is None else [tensor, other]
    if (
        tensor.source is not None
        or any(v.python_type() is not torch.Tensor or v.fake.is_inference() for v in tensors[: 1 + (not by_storage)])
        or any(v.fake.requires_grad for v in tensors[: 1 + (not by_storage)])
        or any(v.fake.dtype != tensor.fake.dtype or v.fake.device != tensor.fake.device for v in tensors)
        or tensor.fake._is_view()
    ):
        raise graph_break
    record_input_storages(tx)
    geometry = [realize(tx, arguments[n]).as_node_arg(tx) for n in names[1:] if n in arguments]
    target = _SET_FROM_STORAGE if by_storage else _SET_FROM_TENSOR
    node = emit_effect(tx, target, (*(v.node(tx) for v in tensors), *(p[0] for p in geometry)))
    try:
        evaluate_on_fakes(tx, "call_function", target.fn, [*(v.fake for v in tensors), *(p[1] for p in geometry)], {})
    except BaseException:
        tx.graph.erase_last_node(node)
        raise
    tx.side_effects.mutation_count += 1
    tensor.size_cache.clear()
    if other is not None and other.source is not None:
        tx.inputs.graph_sets_data = True
    return tensor
