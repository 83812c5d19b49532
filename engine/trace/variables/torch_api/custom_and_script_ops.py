"""Custom operators, script functions, legacy tensor constructors, compiled modules."""

from __future__ import annotations

from typing import Any

import torch
import torch.nested

from engine.ir.graph_callable import GraphCallable
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.torch_private.operators import CustomOpDef, VariableFunctions
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.variables.base import Args, Kwargs, RealObjectVariable, Variable
from engine.trace.variables.builder import register_builder, register_builder_if
from engine.trace.variables.callables.builtin_functions import BuiltinVariable


@register_builder(CustomOpDef)
def _custom_op(tx: Tracer, real: Any, origin: Source) -> Variable:
    tx.guard_identity(real, origin, "the operator was called")
    return BuiltinVariable(real._opoverload, origin)


class ScriptFunctionVariable(BuiltinVariable):
    """A TorchScript function: one graph node."""

    __slots__ = ()

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
    """Unwrap a module under ``torch.compile``."""
    tx.guard_type(real, origin, "the module inside it was used")
    return tx.wrap(real._orig_mod, AttrSource(origin, "_orig_mod"))


class FunctionNamespaceVariable(RealObjectVariable):
    """``torch._C._VariableFunctions``: a namespace of torch functions."""

    __slots__ = ()

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        try:
            return tx.wrap_static(getattr(self.real_object, name))
        except AttributeError as error:
            raise tx.make_user_exception(error) from error


@register_builder(type(VariableFunctions))
def _function_table(tx: Tracer, real: Any, origin: Source) -> Variable:
    return FunctionNamespaceVariable(real, origin)
