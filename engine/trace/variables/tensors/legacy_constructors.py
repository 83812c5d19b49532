"""torch.FloatTensor and other legacy constructors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nested

from engine.ir.register_once import register_each, register_table
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable

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
    given = [realize(tx, a) for a in args]
    wanted = ConstantVariable(dtype or torch.get_default_dtype())
    if kwargs or (dtype is None and torch.get_default_dtype() is not torch.float32):
        raise Unsupported("tensor-creation", f"{make.__name__} is created")
    if len(given) == 1 and given[0].python_type() is torch.Size:
        return emit_node(tx, "call_function", torch.empty, given, {"dtype": wanted})
    if len(given) == 1 and type(given[0]) in (ListVariable, TupleVariable):
        return tx.wrap_static(torch.tensor).call(tx, list(given), {"dtype": wanted})
    if all((a.sym is not None or a.is_constant) and a.python_type() is int for a in given):
        sizes = TupleVariable(list(given) or [ConstantVariable(0)])
        return emit_node(tx, "call_function", torch.empty, [sizes], {"dtype": wanted})
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
