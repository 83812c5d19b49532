"""Tracing rules for methods of tensors that are more than a graph node."""

from __future__ import annotations

import math
from typing import Any

import torch

from engine.ir.guards.python_values import EqualsMatch
from engine.ir.register_once import register_each
from engine.options import config
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.operators.arithmetic import call_special_by_name
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import find_rule, register_rule
from engine.trace.variables.containers.sequences import ListVariable
from engine.trace.variables.tensors.eager_value_errors import argument
from engine.trace.variables.tensors.known_items import known_item, remember_item
from engine.trace.variables.tensors.sym_node import has_hint, hint, varies
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.tensor_members import register_tensor_method

_MAX_TOLIST_ELEMENTS = 64
"""Maximum number of elements for which ``tolist()`` is traced."""


_REAL_MEMORY_METHODS = (
    "__array__ __cuda_array_interface__ __deepcopy__ __dlpack__ __reduce_ex__ __setstate__ _typed_storage apply_ backward cpu_ "
    "is_pinned is_set_to map2_ map_ module_load pin_memory record_stream resize_ share_memory_ storage"
).split()


@register_each(register_tensor_method, *_REAL_MEMORY_METHODS)
def _break_at_method(name: str, tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Break the graph: the method needs real memory or changes state of autograd."""
    raise Unsupported("tensor-method", f"Tensor.{name} is called")


@register_tensor_method("tolist")
def _tolist(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    if args or kwargs or not can_tolist(tx, tensor):
        raise Unsupported("data-dependent", "Tensor.tolist is called")
    return tolist(tx, tensor)


def can_tolist(tx: Tracer, tensor: TensorVariable) -> bool:
    """Return True if ``tolist()`` can return symbols: real dtype, few elements, fixed sizes."""
    sizes = tensor.fake.shape
    return (
        config.capture_scalar_outputs
        and not tensor.fake.dtype.is_complex
        and all(has_hint(s) if tx.options.fullgraph else not varies(s) for s in sizes)
        and math.prod(map(hint, sizes)) <= _MAX_TOLIST_ELEMENTS
    )


def tolist(tx: Tracer, tensor: Any) -> Variable:
    """Trace ``tolist()``."""
    if tensor.fake.dim() == 0:
        return tensor.call_method(tx, "item", [], {})  # type: ignore[no-any-return]
    count = tensor.size(tx, 0).as_python_constant(tx)
    return ListVariable([tolist(tx, tensor.get_item(tx, ConstantVariable(n))) for n in range(count)])


@register_tensor_method("dim", "ndimension")
def _dim(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    return None if args or kwargs else ConstantVariable(tensor.fake.dim())


@register_tensor_method("size")
def _size(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    if not args and not kwargs:
        return tensor.shape(tx)
    dim = realize(tx, args[0]).as_python_object() if len(args) == 1 and not kwargs else None
    rank = tensor.fake.dim()
    return tensor.size(tx, dim % rank) if type(dim) is int and -rank <= dim < rank else None


@register_each(register_tensor_method, "__len__", "__iter__", "__bool__", "__getitem__", "__setitem__")
def _protocol_method(name: str, tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace a special method that Python's protocols call too, such as ``__len__``."""
    return call_special_by_name(tx, tensor, name, args, kwargs)


@register_tensor_method("item")
def _item(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable | None:
    known = tensor.known_scalar(tx) or known_item(tx, tensor)
    if known is not None or args or kwargs:
        return known
    return remember_item(tx, tensor, emit_node(tx, "call_method", "item", [tensor]))


@register_tensor_method("detach_")
def _detach_in_place(tx: Tracer, tensor: Any, args: Args, kwargs: Kwargs) -> None:
    """Guard that an input is no view: eager cannot detach views in place."""
    if getattr(tensor, "fake", None) is not None and tensor.source is not None and not tensor.fake._is_view():
        tx.guard(EqualsMatch, tensor.member_source("_base"), None, why="views cannot be detached in place")


@register_rule(torch.detach_)
def _detach_in_place_function(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    tensor: Any = argument(tx, args, kwargs, 0, "input")
    _detach_in_place(tx, tensor, [], {})
    return emit_node(tx, "call_function", torch.detach_, args, kwargs)


@register_each(register_tensor_method, "as_subclass", "new_tensor")
def _method_of_function_rule(name: str, tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Call the rule of the function of ``torch.Tensor``."""
    of_function = find_rule(getattr(torch.Tensor, name))
    assert of_function is not None
    return of_function(tx, [tensor, *args], kwargs)
