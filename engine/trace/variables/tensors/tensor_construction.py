"""torch.tensor, as_tensor, from_numpy and their like; legacy and nested constructors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nested

from engine.ir.register_once import register_each, register_table
from engine.options import config
from engine.torch_private.operators import shape_as_tensor, tensor_from_symbols
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import (
    NONE,
    Args,
    ConstantVariable,
    Kwargs,
    Variable,
    is_none,
    reachable_variables,
    realize,
)
from engine.trace.variables.callable_registry import register_bound_rule, register_rule
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.variables.tensors.numpy_arrays import _PLAIN_TENSOR_TYPES, NumpyNdarrayVariable


@register_rule(torch.from_numpy)
def _from_numpy(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    array: Any = realize(tx, args[0])
    if not array.is_numpy_array or array.is_scalar:
        raise Unsupported("numpy-array", f"torch.from_numpy of {array.describe()}")
    return emit_node(tx, "call_method", "detach", [array.tensor])


def numpy_to_tensor(tx: Tracer, array: NumpyNdarrayVariable, kwargs: Kwargs, *, copy: bool) -> Variable:
    """Trace ``torch.tensor(array)`` or ``torch.as_tensor(array)``."""
    options = {k: v for k, v in kwargs.items() if k in ("dtype", "device")}
    if set(kwargs) != set(options):
        raise Unsupported(
            "tensor-creation", "a tensor is created from an array with options other than dtype and device"
        )
    options = {k: v for k, v in options.items() if not is_none(realize(tx, v))}
    if copy and (copied := array.copy_to_tensor(tx)) is not None:
        return emit_node(tx, "call_method", "to", [copied], options) if options else copied
    if options:
        return emit_node(tx, "call_method", "to", [array.tensor], {**options, "copy": ConstantVariable(copy)})
    return emit_node(tx, "call_method", "clone" if copy else "detach", [array.tensor])


@register_table(register_rule, {torch.tensor: True, torch.as_tensor: False, torch.asarray: False})
def _construct_tensor(make: Any, copy: bool, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    data: Any = realize(tx, args[0] if args else kwargs.get("data", NONE))
    if data.is_numpy_array:
        rest = dict(zip(("dtype", "device"), args[1:], strict=False)) | {k: v for k, v in kwargs.items() if k != "data"}
        return numpy_to_tensor(tx, data, rest, copy=copy)
    if data.python_type() is range:
        numbers = ListVariable([ConstantVariable(n) for n in data.as_python_constant(tx)])
        if args:
            return emit_node(tx, "call_function", make, [numbers, *args[1:]], kwargs)
        return emit_node(tx, "call_function", make, [], {**kwargs, "data": numbers})
    if len(args) == 1 and kwargs.keys() <= {"dtype", "device"} and (dtype := _common_array_dtype(tx, data)) is not None:
        make([np.zeros(1)])  # torch warns once per process that this is slow; emit the warning here
        options = {"dtype": ConstantVariable(dtype)} | {k: v for k, v in kwargs.items() if not is_none(realize(tx, v))}
        return emit_node(tx, "call_method", "to", [_stack_arrays(tx, data)], options)
    if _has_no_dtype(tx, args, kwargs) and _contains_numpy_scalar(tx, data):
        return _tensor_from_numpy_scalars(tx, make, data, args, kwargs)
    if (data.sym is not None or data.is_dynamic_bool or data.argument_items()) and config.capture_scalar_outputs:
        return _tensor_from_scalars(tx, make, data, args, kwargs)
    return emit_node(tx, "call_function", make, args, kwargs)


def _contains_numpy_scalar(tx: Tracer, data: Variable) -> bool:
    """Return True if nested lists contain a numpy scalar."""
    data = realize(tx, data)
    if items := data.argument_items():
        return any(_contains_numpy_scalar(tx, item) for item in items)
    return data.is_constant and issubclass(data.python_type(), np.generic)


def _common_array_dtype(tx: Tracer, value: Variable) -> torch.dtype | None:
    """Return the common dtype of the arrays in nested lists; None if there is anything else."""
    data: Any = realize(tx, value)
    if data.is_numpy_array:
        return None if data.is_scalar else data.tensor.fake.dtype
    kinds = {_common_array_dtype(tx, item) for item in data.argument_items()}
    return kinds.pop() if len(kinds) == 1 else None


def _stack_arrays(tx: Tracer, value: Variable) -> Variable:
    data: Any = realize(tx, value)
    if data.is_numpy_array:
        return data.tensor  # type: ignore[no-any-return]
    rows: list[Variable] = [_stack_arrays(tx, item) for item in data.argument_items()]
    return emit_node(tx, "call_function", torch.stack, [ListVariable(rows)])


def _tensor_from_numpy_scalars(tx: Tracer, make: Any, data: Variable, args: Args, kwargs: Kwargs) -> Variable:
    """Create a tensor from numpy scalars; their types determine its dtype."""
    if len(args) > 1:
        raise Unsupported("tensor-creation", f"{make.__name__} of a numpy scalar with further positional arguments")
    (real,) = tx.as_python_constants([data])
    dtype = make(real).dtype
    plain = tx.from_python(torch.tensor(real).tolist())
    rest = {k: v for k, v in kwargs.items() if k != "data"}
    return emit_node(tx, "call_function", make, [plain], {**rest, "dtype": ConstantVariable(dtype)})


def _tensor_from_scalars(tx: Tracer, make: Any, data: Variable, args: Args, kwargs: Kwargs) -> Variable:
    """Create a tensor from nested sequences; one-element tensors in them count as scalars."""
    kinds: set[torch.dtype] = set()
    plain = _unwrap_scalar_tensors(tx, data, kinds)
    if any(v.sym is not None for v in reachable_variables([plain])):
        if all(leaf.python_type() is bool for leaf in _flat_items(tx, data)):
            kinds.add(torch.bool)
        make = tensor_from_symbols  # unlike the constructors of torch, this one accepts symbols
    elif not kinds:
        return emit_node(tx, "call_function", make, args, kwargs)
    rest = {k: v for k, v in kwargs.items() if k != "data"}
    if kinds and _has_no_dtype(tx, args, kwargs):
        if len(kinds) > 1:
            raise Unsupported("tensor-creation", "a tensor is created from numbers and tensors of several types")
        rest["dtype"] = ConstantVariable(kinds.pop())
    return emit_node(tx, "call_function", make, [plain, *args[1:]], rest)


def _flat_items(tx: Tracer, data: Variable) -> list[Variable]:
    data = realize(tx, data)
    return [leaf for item in data.argument_items() for leaf in _flat_items(tx, item)] or [data]


def _has_no_dtype(tx: Tracer, args: Args, kwargs: Kwargs) -> bool:
    return is_none(realize(tx, kwargs.get("dtype", args[1] if len(args) > 1 else NONE)))


def _unwrap_scalar_tensors(tx: Tracer, value: Variable, kinds: set[torch.dtype]) -> Any:
    data: Any = realize(tx, value)
    if items := data.argument_items():
        return ListVariable([_unwrap_scalar_tensors(tx, item, kinds) for item in items])
    if data.is_numpy_array and data.is_scalar:
        data = data.tensor
    if data.fake is not None and data.fake.numel() == 1:
        kinds.add(data.fake.dtype)
        return data.call_method(tx, "item", [], {})
    if data.is_dynamic_bool:
        data = data.as_symbol(tx)
    if data.sym is not None and data.python_type() is bool:
        return emit_node(tx, "call_function", torch.sym_ite, [data, ConstantVariable(1), ConstantVariable(0)])
    if data.sym is not None or not kinds:
        return data
    kinds.add(torch.get_default_dtype() if data.python_type() is float else torch.int64)
    return data


@register_rule(shape_as_tensor)
def _shape_as_tensor(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    of = realize(tx, args[0])
    if of.fake is None or len(args) > 1 or kwargs:
        return emit_node(tx, "call_function", shape_as_tensor, args, kwargs)
    sizes = ListVariable(list(sequence_items(tx, of.get_attr(tx, "shape"))))
    return realize(tx, tx.wrap_static(torch.tensor).call(tx, [sizes], {"dtype": ConstantVariable(torch.int64)}))


@register_bound_rule(torch.Tensor.new_tensor)
def _new_tensor(tx: Tracer, of: Variable, data: Variable, **options: Variable) -> Variable:
    if _contains_numpy_scalar(tx, data):
        raise Unsupported("tensor-creation", "new_tensor of numpy scalars")
    if of.fake is None or of.python_type() not in _PLAIN_TENSOR_TYPES or not data.argument_items():
        return emit_node(tx, "call_method", "new_tensor", [of, data], options)
    like = {"dtype": ConstantVariable(of.fake.dtype), "device": ConstantVariable(of.fake.device)}
    return realize(tx, tx.wrap_static(torch.tensor).call(tx, [data], like | options))


_LEGACY_TENSOR_TYPES = {
    torch.Tensor: None,
    torch.FloatTensor: torch.float32,
    torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16,
    torch.LongTensor: torch.int64,
    torch.IntTensor: torch.int32,
    torch.ShortTensor: torch.int16,
    torch.CharTensor: torch.int8,
    torch.ByteTensor: torch.uint8,
    torch.BoolTensor: torch.bool,
}


@register_table(register_rule, _LEGACY_TENSOR_TYPES)
def _legacy_constructor(make: Any, dtype: torch.dtype | None, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    arguments = [realize(tx, a) for a in args]
    dtype_variable = ConstantVariable(dtype or torch.get_default_dtype())
    if kwargs or (dtype is None and torch.get_default_dtype() is not torch.float32):
        raise Unsupported("tensor-creation", f"{make.__name__} is created")
    if len(arguments) == 1 and arguments[0].python_type() is torch.Size:
        return emit_node(tx, "call_function", torch.empty, arguments, {"dtype": dtype_variable})
    if len(arguments) == 1 and type(arguments[0]) in (ListVariable, TupleVariable):
        return tx.wrap_static(torch.tensor).call(tx, list(arguments), {"dtype": dtype_variable})
    if all((a.sym is not None or a.is_constant) and a.python_type() is int for a in arguments):
        sizes = TupleVariable(list(arguments) or [ConstantVariable(0)])
        return emit_node(tx, "call_function", torch.empty, [sizes], {"dtype": dtype_variable})
    raise Unsupported("tensor-creation", f"{make.__name__} is created")


@register_each(register_rule, torch.nested.nested_tensor, torch.nested.as_nested_tensor)
def _nested_constructor(make: Any, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace the creation of a jagged nested tensor: one dense tensor and offsets.

    The strided layout holds separate tensors and cannot be in a graph.
    """
    layout = realize(tx, args[3] if len(args) > 3 else kwargs.get("layout", NONE))
    if layout.as_python_object() is not torch.jagged:
        raise Unsupported("nested-tensor", "a nested tensor is created with a layout other than torch.jagged")
    return emit_node(tx, "call_function", make, args, kwargs)
