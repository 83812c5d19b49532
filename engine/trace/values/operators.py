"""Operators that are objects: custom operators, script functions, old constructors of tensors, modules that torch compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nested
from torch._library.custom_ops import CustomOpDef

from engine.ir.in_graph import InGraph
from engine.ir.origin import Attr, Origin
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, Value, force
from engine.trace.values.methods import BuiltinValue
from engine.trace.values.rules import special
from engine.trace.values.sequences import ListValue, TupleValue
from engine.trace.values.symbolic import SymValue
from engine.trace.values.wrap import wraps, wraps_if

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


@wraps(CustomOpDef)
def _custom_op(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_object(real, origin, "the operator was called")
    return BuiltinValue(real._opoverload, origin)


class ScriptFunction(BuiltinValue):
    """A function that TorchScript compiled: one node."""

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        return emit(tx, "call_function", InGraph(str(self.held.name), self.held), args, kwargs)


@wraps(torch.jit.ScriptFunction)
def _script_function(tx: Tracer, real: Any, origin: Origin) -> Value:
    tx.guard_object(real, origin, "the script function was called")
    return ScriptFunction(real, origin)


def _is_compiled_module(real: Any) -> bool:
    kind = type(real)
    return kind.__name__ == "OptimizedModule" and kind.__module__ == "torch._dynamo.eval_frame"


@wraps_if(0, _is_compiled_module)
def _compiled_module(tx: Tracer, real: Any, origin: Origin) -> Value:
    """A module under ``torch.compile``: the module inside it."""
    tx.guard_type(real, origin, "the module inside it was used")
    return tx.wrap(real._orig_mod, Attr(origin, "_orig_mod"))


_CONSTRUCTORS = {
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


def _constructor(make: Any, dtype: torch.dtype | None) -> None:
    @special(make)
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        given = [force(tx, a) for a in args]
        wanted = Const(dtype or torch.get_default_dtype())
        if kwargs or (dtype is None and torch.get_default_dtype() is not torch.float32):
            raise Unsupported("unknown-call", f"{make.__name__} is created")
        if len(given) == 1 and given[0].type() is torch.Size:
            return emit(tx, "call_function", torch.empty, given, {"dtype": wanted})
        if len(given) == 1 and type(given[0]) in (ListValue, TupleValue):
            return tx.fixed(torch.tensor).call(tx, list(given), {"dtype": wanted})
        if all(isinstance(a, (Const, SymValue)) and a.type() is int for a in given):
            sizes = TupleValue(list(given) or [Const(0)])
            return emit(tx, "call_function", torch.empty, [sizes], {"dtype": wanted})
        raise Unsupported("unknown-call", f"{make.__name__} is created")


_constructor(torch.Tensor, None)
for _make, _dtype in _CONSTRUCTORS.items():
    _constructor(_make, _dtype)


def _makes_nested(make: Any) -> None:
    @special(make)
    def rule(tx: Tracer, args: Args, kwargs: Words) -> Value:
        """One dense tensor and offsets are captured; tensors beside each other, which no graph can hold, are not."""
        layout = force(tx, args[3] if len(args) > 3 else kwargs.get("layout", NONE))
        if not isinstance(layout, Const) or layout.value is not torch.jagged:
            raise Unsupported("unknown-call", "a nested tensor is created whose layout is not torch.jagged")
        return emit(tx, "call_function", make, args, kwargs)


_makes_nested(torch.nested.nested_tensor)
_makes_nested(torch.nested.as_nested_tensor)


class FunctionTable(Value):
    """``torch._C._VariableFunctions``: torch's functions as attributes."""

    def __init__(self, held: Any, origin: Origin) -> None:
        self.held = held
        self.origin = origin

    def type(self) -> type:
        return type(self.held)

    def get_attr(self, tx: Tracer, name: str) -> Value:
        try:
            return tx.fixed(getattr(self.held, name))
        except AttributeError as error:
            raise tx.user_exception(error) from error


@wraps(type(torch._C._VariableFunctions))
def _function_table(tx: Tracer, real: Any, origin: Origin) -> Value:
    return FunctionTable(real, origin)
