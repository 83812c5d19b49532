"""Custom operators, script functions, legacy tensor constructors, compiled modules."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nested

from engine.cache.custom_op_key import is_triton_op_rule
from engine.ir.graph_callable import GraphCallable
from engine.ir.node_values import tensors_in
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.unwrap_compiled import unwrap_torch_compile
from engine.torch_private.fake_tensors import FakeTensor
from engine.torch_private.operators import CustomOpDef, VariableFunctions
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import Args, Kwargs, RealObjectVariable, UserErrors, Variable, realize
from engine.trace.variables.builder import guarded_builder, register_builder, register_builder_if
from engine.trace.variables.callable_registry import register_marked_function_rule
from engine.trace.variables.callables.builtin_functions import BuiltinVariable


@register_builder(CustomOpDef)
def _custom_op(tx: Tracer, real: Any, source: Source) -> Variable:
    tx.guard_identity(real, source, "the operator was called")
    if any(is_triton_op_rule(rule) for rule in real._torch_dispatch_fns.values()):
        return TritonOpVariable(real._opoverload, source, real)
    return BuiltinVariable(real._opoverload, source)


class TritonOpVariable(BuiltinVariable):
    """A ``triton_op``: its function is inlined, so that its kernels are nodes of the graph.

    It is one node where a kernel for the device or a gradient formula replaces the function.
    """

    definition: CustomOpDef

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        fakes = tensors_in([realize(tx, v).fake for v in (*args, *kwargs.values())])
        has_own_kernel = any(fake.device.type in self.definition._backend_fns for fake in fakes)
        needs_gradient = torch.is_grad_enabled() and any(fake.requires_grad for fake in fakes)
        if has_own_kernel or needs_gradient or {*map(type, fakes)} != {FakeTensor}:
            return super().call(tx, args, kwargs)
        written = inspect.getclosurevars(self.definition._init_fn).nonlocals["fn"]
        return tx.wrap_static(written).call(tx, args, kwargs)


class ScriptFunctionVariable(BuiltinVariable):
    """A TorchScript function: one graph node."""

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return emit_node(tx, "call_function", GraphCallable(str(self.real_object.name), self.real_object), args, kwargs)


register_builder(torch.jit.ScriptFunction)(guarded_builder(ScriptFunctionVariable, "the script function was called"))


@register_builder_if(0, lambda x: type(x).__name__ == "OptimizedModule" and unwrap_torch_compile(x) is not None)
def _compiled_module(tx: Tracer, real: Any, source: Source) -> Variable:
    """Unwrap a module under ``torch.compile``."""
    tx.guard_type(real, source, "the module inside it was used")
    return tx.wrap(real._orig_mod, AttrSource(source, "_orig_mod"))


def _is_call_of_torch_wrapper(function: Any) -> bool:
    names = (function.__module__, function.__qualname__)
    return names == ("torch._dynamo.eval_frame", "OptimizedModule.__call__")


@register_marked_function_rule(_is_call_of_torch_wrapper)
def _call_disabled_module(tx: Tracer, function: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Break the graph at a module under ``torch.compiler.disable``.

    One under ``torch.compile`` is unwrapped before.

    Raises:
        Unsupported: always.
    """
    module = realize(tx, args[0]).as_module() if args else None
    inside = type(vars(module.real_object)["_modules"].get("_orig_mod")).__name__ if module else "module"
    raise Unsupported("disabled", f"a {inside} is called, which torch.compiler.disable wrapped")


class FunctionNamespaceVariable(RealObjectVariable):
    """``torch._C._VariableFunctions``: a namespace of torch functions."""

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        with UserErrors(tx, AttributeError):
            return tx.wrap_static(getattr(self.real_object, name))


register_builder(type(VariableFunctions))(lambda tx, real, source: FunctionNamespaceVariable(real, source))
