"""Operators that are objects: custom operators, script functions, old constructors of tensors, modules that torch compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nested
from torch._library.custom_ops import CustomOpDef

from engine.ir.in_graph import GraphCallable
from engine.ir.origin import AttrSource, Source
from engine.trace.graph_builder import emit_node
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, ConstantVariable, Variable, realize
from engine.trace.values.methods import BuiltinVariable
from engine.trace.values.rules import register_rule
from engine.trace.values.sequences import ListVariable, TupleVariable
from engine.trace.values.symbolic import SymNodeVariable
from engine.trace.values.wrap import register_builder, register_builder_if

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]


@register_builder(CustomOpDef)
def _custom_op(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_identity(real, origin, "the operator was called")
    return BuiltinVariable(real._opoverload, origin)


class ScriptFunctionVariable(BuiltinVariable):
    """A function that TorchScript compiled: one node."""

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return emit_node(tx, "call_function", GraphCallable(str(self.real_object.name), self.real_object), args, kwargs)


@register_builder(torch.jit.ScriptFunction)
def _script_function(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_identity(real, origin, "the script function was called")
    return ScriptFunctionVariable(real, origin)


def _is_compiled_module(real: Any) -> bool:
    kind = type(real)
    return kind.__name__ == "OptimizedModule" and kind.__module__ == "torch._dynamo.eval_frame"


@register_builder_if(0, _is_compiled_module)
def _compiled_module(tx: Tracer, real: Any, origin: Source) -> Variable:
    """A module under ``torch.compile``: the module inside it."""
    tx.guard_type(real, origin, "the module inside it was used")
    return tx.wrap(real._orig_mod, AttrSource(origin, "_orig_mod"))


_LEGACY_TENSOR_TYPES = {
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


def _register_legacy_constructor(make: Any, dtype: torch.dtype | None) -> None:
    @register_rule(make)
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        given = [realize(tx, a) for a in args]
        wanted = ConstantVariable(dtype or torch.get_default_dtype())
        if kwargs or (dtype is None and torch.get_default_dtype() is not torch.float32):
            raise Unsupported("unknown-call", f"{make.__name__} is created")
        if len(given) == 1 and given[0].python_type() is torch.Size:
            return emit_node(tx, "call_function", torch.empty, given, {"dtype": wanted})
        if len(given) == 1 and type(given[0]) in (ListVariable, TupleVariable):
            return tx.wrap_static(torch.tensor).call(tx, list(given), {"dtype": wanted})
        if all(isinstance(a, (ConstantVariable, SymNodeVariable)) and a.python_type() is int for a in given):
            sizes = TupleVariable(list(given) or [ConstantVariable(0)])
            return emit_node(tx, "call_function", torch.empty, [sizes], {"dtype": wanted})
        raise Unsupported("unknown-call", f"{make.__name__} is created")


_register_legacy_constructor(torch.Tensor, None)
for _make, _dtype in _LEGACY_TENSOR_TYPES.items():
    _register_legacy_constructor(_make, _dtype)


def _register_nested_constructor(make: Any) -> None:
    @register_rule(make)
    def rule(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        """One dense tensor and offsets are captured; tensors beside each other, which no graph can hold, are not."""
        layout = realize(tx, args[3] if len(args) > 3 else kwargs.get("layout", NONE))
        if not isinstance(layout, ConstantVariable) or layout.value is not torch.jagged:
            raise Unsupported("unknown-call", "a nested tensor is created whose layout is not torch.jagged")
        return emit_node(tx, "call_function", make, args, kwargs)


_register_nested_constructor(torch.nested.nested_tensor)
_register_nested_constructor(torch.nested.as_nested_tensor)


class FunctionNamespaceVariable(Variable):
    """``torch._C._VariableFunctions``: torch's functions as attributes."""

    def __init__(self, real_object: Any, source: Source) -> None:
        self.real_object = real_object
        self.source = source

    def python_type(self) -> type:
        return type(self.real_object)

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        try:
            return tx.wrap_static(getattr(self.real_object, name))
        except AttributeError as error:
            raise tx.make_user_exception(error) from error


@register_builder(type(torch._C._VariableFunctions))
def _function_table(tx: Tracer, real: Any, origin: Source) -> Variable:
    return FunctionNamespaceVariable(real, origin)
