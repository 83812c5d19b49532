"""``torch.compile``'s own API in traced code: decorators, wrappers, opaque functions."""

from __future__ import annotations

import dataclasses
import functools
import sys
from types import FunctionType
from typing import Any

import torch
import torch.fx

from engine.ir.annotations import is_allowed_in_graph, is_nonstrict_traced
from engine.ir.graph_callable import GraphCallable
from engine.torch_private.dispatch import TorchDispatchModeKey, get_dispatch_mode
from engine.torch_private.global_state import loaded_dynamo_module
from engine.torch_private.higher_order_ops import (
    BaseHOP,
    dynamo_bypassing_wrapper,
    hints_wrapper,
    out_dtype,
    strict_mode_op,
    wrap,
)
from engine.torch_private.pytree import SUPPORTED_NODES
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import BreakGraph, Unsupported
from engine.trace.variables.base import NONE, Args, Kwargs, NotPythonConstant, Variable, is_none, realize
from engine.trace.variables.callable_registry import (
    RULES_BY_NAME,
    register_bound_rule,
    register_marked_function_rule,
    register_rule,
    register_rule_by_name,
)
from engine.trace.variables.callables.function_wrappers import FunctionWrapperVariable
from engine.trace.variables.containers.sequences import sequence_items
from engine.trace.variables.higher_order.pytrees import (
    FlatCall,
    TreeSpec,
    arguments_variable,
    emit_flat_call,
    flatten_variable,
    unflatten_python,
)
from engine.trace.variables.torch_api.context_managers import null_context
from engine.trace.variables.torch_api.torch_contexts import ErrorOnGraphBreakVariable

# Operators that other compilers represent as a node around a body: here the body is inlined.


register_rule(wrap)(lambda tx, args, kwargs: realize(tx, args[0]).call(tx, args[1:], kwargs))


@register_bound_rule(dynamo_bypassing_wrapper)
def _bypassing(tx: Tracer, wrapper: Variable, function: Variable, *args: Variable, **kwargs: Variable) -> Variable:
    if wrapper.is_constant:
        raise Unsupported("compiler-api", "dynamo_bypassing_wrapper is called with the name of a wrapper")
    return realize(tx, wrapper.call(tx, [function], {})).call(tx, list(args), kwargs)


@register_bound_rule(hints_wrapper)
def _hints(
    tx: Tracer, body_fn: Variable, args: Variable | None = None, kwargs: Variable = NONE, hints: Variable = NONE
) -> Variable:
    named = {} if is_none(kwargs) else tx.unpack_string_mapping(kwargs)
    positional = [] if args is None else [realize(tx, a) for a in sequence_items(tx, args)]
    hint_values = [] if is_none(hints) else [realize(tx, h) for h in tx.unpack_string_mapping(hints).values()]
    if not all(a.is_graph_value or a.is_constant for a in positional) or not (
        hint_values and all(isinstance(h.constant, (int, float, str)) for h in hint_values)
    ):
        raise Unsupported("compiler-api", "hints_wrapper has unsupported arguments")
    return body_fn.call(tx, positional, named)


@register_bound_rule(strict_mode_op)
def _strict_mode(tx: Tracer, function: Variable, operands: Variable) -> Variable:
    return function.call(tx, list(sequence_items(tx, operands)), {})


@register_rule(BaseHOP.__call__)
def _base_hop_call(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Inline the subgraph of a user-defined ``BaseHOP``, as its default implementation does."""
    return realize(tx, args[1]).call(tx, args[2:], {})


@register_rule(out_dtype)
def _out_dtype(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    op, dtype = (realize(tx, a).as_python_object() for a in args[:2])
    return emit_node(
        tx, "call_function", GraphCallable("out_dtype", lambda *rest: out_dtype(op, dtype, *rest)), args[2:]
    )


@register_rule(torch.func.functionalize)
def _functionalize(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``functionalize`` as the identity: the graph's compiler functionalizes anyway."""
    return realize(tx, args[0])


# Contexts and calls that configure torch.compile.


RULES_BY_NAME["torch._dynamo.decorators", "patch_dynamo_config"] = null_context


@register_rule(torch.compiler.cudagraph_mark_step_begin)
def _mark_step_begin(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace the mark as a no-op: CUDA graphs of this engine do not need marked steps."""
    return NONE


@register_rule_by_name(("torch._dynamo.decorators", "error_on_graph_break"))
def _error_on_graph_break(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``error_on_graph_break(...)``. Its caller has already imported its module."""
    settings = [realize(tx, a) for a in (*args, *kwargs.values())]
    if len(settings) != 1 or set(kwargs) - {"error_on_graph_break"} or not settings[0].is_constant:
        raise Unsupported("compiler-api", "error_on_graph_break needs one constant argument")
    make: type = loaded_dynamo_module("decorators").ErrorOnGraphBreakDecoratorContextManager
    return ErrorOnGraphBreakVariable(make, bool(settings[0].constant))


@register_rule_by_name(("torch._dynamo.comptime", "__call__"))
def _comptime(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``comptime(fn, fallback_fn)`` as eager does: call ``fallback_fn``."""
    fallback = args[2] if len(args) > 2 else kwargs.get("fallback_fn")
    return NONE if fallback is None else realize(tx, fallback).call(tx, [], {})


# Opaque functions.


def opaque_call(tx: Tracer, function: Any, args: Args, kwargs: Kwargs, fake: Any = None) -> Variable:
    """Emit one node that calls ``function`` opaquely.

    Arguments are containers of tensors, modules and constants. ``fake`` computes the results on fake tensors.
    """
    tx.side_effects.check_opaque_call(function.__name__)
    leaves: Args = []
    tree = _flatten_opaque_arguments(tx, args, kwargs, leaves)
    fake = fake or function

    def call_on_fakes(packed: Any) -> Any:
        """Call on fakes. Real tensors that the function holds are allowed."""
        mode = get_dispatch_mode(TorchDispatchModeKey.FAKE)
        assert mode is not None
        allowed_before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
        try:
            return fake(*packed[0], **packed[1])
        finally:
            mode.allow_non_fake_inputs = allowed_before

    call = FlatCall(lambda packed: function(*packed[0], **packed[1]), tree, call_on_fakes)
    target = GraphCallable(
        function.__name__, call, changes_state=True, is_python=True, effect="runs a function that is not inlined"
    )
    return emit_flat_call(tx, target, call, leaves)


def construct_wrapper_subclass(tx: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Variable:
    """Emit one node that constructs a wrapper tensor subclass."""
    leaves: Args = []
    tree = _flatten_opaque_arguments(tx, args, kwargs, leaves)

    def make(*inside: Any) -> Any:
        positional, named = unflatten_python(tree, iter(inside))
        return cls(*positional, **named)

    return emit_node(tx, "call_function", GraphCallable(cls.__name__, make), leaves)


def _frozen_fields(value: Variable) -> tuple[str, ...]:
    """Return the fields of an instance of a frozen dataclass without bases; else ()."""
    cls = value.python_type()
    parameters = getattr(cls, "__dataclass_params__", None)
    if not value.is_user_object or parameters is None or not parameters.frozen or cls.__bases__ != (object,):
        return ()
    return tuple(field.name for field in dataclasses.fields(cls))


def _make_frozen(cls: type, fields: tuple[str, ...], values: Any, _: object) -> Any:
    """Make an instance of a frozen dataclass without calling its constructor."""
    instance: Any = object.__new__(cls)
    for name, value in zip(fields, values, strict=True):
        object.__setattr__(instance, name, value)
    return instance


def _flatten_opaque_arguments(tx: Tracer, args: Args, kwargs: Kwargs, leaves: Args) -> TreeSpec:
    """Flatten arguments that may also be modules and objects of registered pytree classes."""

    def flatten(value: Variable) -> TreeSpec:
        return flatten_variable(tx, value, leaves, other=flatten_other)

    def flatten_other(tx: Tracer, value: Variable) -> TreeSpec:
        fields = _frozen_fields(value)
        if fields:
            inside = tuple(flatten(realize(tx, value.get_attr(tx, name))) for name in fields)
            make = functools.partial(_make_frozen, value.python_type(), fields)
            return TreeSpec(value.python_type(), children=inside, unflatten_fn=make)
        node = SUPPORTED_NODES.get(value.python_type())
        if node is not None and isinstance(node.flatten_fn, FunctionType):  # the node of the graph unflattens it
            parts, context = sequence_items(tx, tx.wrap_static(node.flatten_fn).call(tx, [value], {}))
            constant = realize(tx, context).as_python_constant(tx)
            inside = tuple(map(flatten, sequence_items(tx, parts)))
            return TreeSpec(value.python_type(), children=inside, constant=constant, unflatten_fn=node.unflatten_fn)
        real = tx.objects.real_object(value)
        if isinstance(real, torch.nn.Module) and value.source is not None:
            tx.guard_identity(real, value.source, "it is an argument of a function that is not inlined")
            return TreeSpec(constant=real)
        what = f"a {value.python_type().__name__} is passed to a function that is not inlined"
        with BreakGraph("compiler-api", what, NotPythonConstant):
            return TreeSpec(constant=value.as_python_constant(tx))

    return flatten(arguments_variable(args, kwargs))


class OpaqueFunctionVariable(FunctionWrapperVariable):
    """``torch._dynamo.nonstrict_trace(fn)``, called in traced code."""

    real_object: Any

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return opaque_call(tx, self.real_object, args, kwargs)


@register_rule_by_name(("torch._dynamo.decorators", "nonstrict_trace"))
def _nonstrict(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    function = realize(tx, args[0] if args else kwargs["traceable_fn"])
    real = function.as_python_object()
    if real is NotImplemented:
        raise Unsupported("compiler-api", "nonstrict_trace gets a function that traced code created")
    if function.source is not None:
        tx.guard_identity(real, function.source, "it is called without being inlined")
    return OpaqueFunctionVariable(function, real)


@register_marked_function_rule(lambda function: function.__dict__.get("_dynamo_marked_constant", False))
def _constant_result(tx: Tracer, of: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Implement ``assume_constant_result``: call the function now and embed its result.

    External objects are passed in their state before the traced call, so none may be mutated yet.
    """
    values = [realize(tx, a) for a in (*args, *kwargs.values())]
    are_constant = [tx.is_python_constant(v) for v in values]
    arguments = [
        v.as_python_constant(tx) if c else tx.objects.real_object(v) for v, c in zip(values, are_constant, strict=True)
    ]
    if any(g is NotImplemented for g in arguments) or (not all(are_constant) and tx.side_effects.mutated_variables):
        raise Unsupported("compiler-api", f"{of.describe()} is called with arguments that are not constants")
    keywords = dict(zip(kwargs, arguments[len(args) :], strict=True))
    return tx.fold_constant(of.real_object, *arguments[: len(args)], **keywords)


@register_marked_function_rule(lambda function: "_torchdynamo_leaf_real_fn" in function.__dict__)
def _leaf_function_call(tx: Tracer, of: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Call a ``leaf_function`` of ``torch._dynamo``: opaque, with its own fake implementation."""
    real = of.as_python_object()
    fake = getattr(real, "_torchdynamo_leaf_fake_fn", None)
    if fake is None:
        raise Unsupported("compiler-api", f"{real.__name__} is called, and it has no fake implementation")
    if of.source is not None:
        tx.guard_identity(real, of.source, "it is called without being inlined")
    return opaque_call(tx, real, args, kwargs, fake)


@register_marked_function_rule(is_nonstrict_traced)
def _nonstrict_call(tx: Tracer, of: Any, args: Args, kwargs: Kwargs) -> Variable:
    return opaque_call(tx, of.real_object, args, kwargs)


@register_marked_function_rule(is_allowed_in_graph)
def _call_in_graph(tx: Tracer, of: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Emit one node for a function that ``allow_in_graph`` marked.

    Frozen dataclasses in its arguments are rebuilt there.
    """
    tx.side_effects.check_opaque_call(of.describe())
    try:
        return emit_node(tx, "call_function", of.real_object, args, kwargs)
    except Unsupported as error:
        if error.kind != "unsupported-argument" or not any(map(_frozen_fields, (realize(tx, a) for a in args))):
            raise
    return opaque_call(tx, of.real_object, args, kwargs)


# torch.compile itself: its argument is compiled anyway.


class NestedCompileVariable(FunctionWrapperVariable):
    """Result of ``torch.compile`` or ``engine.api.compile`` called in traced code."""

    make: Any
    options: dict[str, Any]

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return self.function.get_attr(tx, name)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(self.make, self.function, **self.options)


class _CompileDecoratorVariable(Variable):
    """``torch.compile(**options)`` before it decorates a function."""

    make: Any
    options: dict[str, Any]
    cls = FunctionType

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return NestedCompileVariable(realize(tx, args[0]), self.make, self.options)


def nested_compile(tx: Tracer, make: Any, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``torch.compile`` or ``engine.api.compile``, on a function or with options only."""
    keywords = dict(kwargs)
    function = args[0] if args else keywords.pop("model", keywords.pop("fn_or_module", None))
    options = {name: tx.objects.real_object(realize(tx, value)) for name, value in keywords.items()}
    if any(v is NotImplemented for v in options.values()):
        raise Unsupported("compiler-api", "torch.compile is called with options that traced code created")
    if function is None:
        return _CompileDecoratorVariable(make, options)
    return NestedCompileVariable(realize(tx, function), make, options)


register_rule(torch.compile)(lambda tx, args, kwargs: nested_compile(tx, torch.compile, args, kwargs))


@register_rule_by_name(("engine.api", "compile"))
def _engine_compile(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return nested_compile(tx, sys.modules["engine.api"].compile, args, kwargs)
