"""What torch.compile's own API means in traced code: marks for other compilers, operators whose body is traced like a call, opaque functions."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._higher_order_ops.base_hop import BaseHOP
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.strict_mode import strict_mode_op
from torch._higher_order_ops.wrap import dynamo_bypassing_wrapper, wrap
from torch.utils._pytree import SUPPORTED_NODES

from engine.ir.graph_callable import GraphCallable
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, ConstantVariable, NotPythonConstant, Variable, realize
from engine.trace.variables.callable_registry import RULES_BY_NAME, register_rule
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import ListVariable, TupleVariable, sequence_items
from engine.trace.variables.higher_order.pytrees import (
    LEAF,
    TreeSpec,
    collect_leaves,
    flatten_python,
    unflatten_python,
    unflatten_variable,
)
from engine.trace.variables.tensors.sym_node import SymNodeVariable
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.torch_api.torch_contexts import ErrorOnGraphBreakVariable, NullContextVariable

if TYPE_CHECKING:
    from engine.trace.codegen import PyCodegen
    from engine.trace.tracer import Tracer

Args = list[Variable]
Kwargs = dict[str, Variable]


# Operators that others hold as a node around a body: here the body is traced like any call.


@register_rule(wrap)
def _wrap(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return realize(tx, args[0]).call(tx, args[1:], kwargs)


@register_rule(dynamo_bypassing_wrapper)
def _bypassing(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    wrapper = realize(tx, args[0])
    if isinstance(wrapper, ConstantVariable):
        raise Unsupported("unknown-call", "dynamo_bypassing_wrapper is called with the name of a wrapper")
    return realize(tx, wrapper.call(tx, [args[1]], {})).call(tx, args[2:], kwargs)


@register_rule(hints_wrapper)
def _hints(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    given = dict(zip(("body_fn", "args", "kwargs"), args, strict=False)) | kwargs
    words, hints = realize(tx, given.get("kwargs", NONE)), realize(tx, given.get("hints", NONE))
    named = tx.unpack_string_mapping(words) if isinstance(words, DictVariable) else {}
    positional = [realize(tx, a) for a in sequence_items(tx, given["args"])] if "args" in given else []
    told = [realize(tx, h) for h in hints.values()] if isinstance(hints, DictVariable) else [NONE]
    if not all(isinstance(a, (TensorVariable, SymNodeVariable, ConstantVariable)) for a in positional) or not all(
        isinstance(h, ConstantVariable) and isinstance(h.value, (int, float, str)) for h in told
    ):
        raise Unsupported("unknown-call", "hints_wrapper is given what it refuses")
    return realize(tx, given["body_fn"]).call(tx, positional, named)


@register_rule(strict_mode_op)
def _strict_mode(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    given = dict(zip(("callable", "operands"), args, strict=False)) | kwargs
    return realize(tx, given["callable"]).call(tx, list(sequence_items(tx, given["operands"])), {})


@register_rule(BaseHOP.__call__)
def _base_hop_call(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """An operator of the user's around a subgraph: without a rule of its own for this device it runs the subgraph."""
    return realize(tx, args[1]).call(tx, args[2:], {})


@register_rule(out_dtype)
def _out_dtype(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    op, dtype = (realize(tx, a).as_python_object() for a in args[:2])
    return emit_node(
        tx, "call_function", GraphCallable("out_dtype", lambda *rest: out_dtype(op, dtype, *rest)), args[2:]
    )


@register_rule(torch.func.functionalize)
def _functionalize(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """The same values, with writes in place taken out: who compiles the graph does that anyway."""
    return realize(tx, args[0])


def _is_false(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return ConstantVariable(value=False)


for _flag in ("is_fx_tracing", "is_fx_symbolic_tracing"):
    if hasattr(torch.fx._symbolic_trace, _flag):
        register_rule(getattr(torch.fx._symbolic_trace, _flag))(_is_false)


# Contexts and calls that say something to torch.compile.


def _null_context(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return NullContextVariable()


RULES_BY_NAME[("torch._dynamo.decorators", "patch_dynamo_config")] = _null_context


def _error_on_graph_break(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Who calls it has loaded where it lives."""
    given = [realize(tx, a) for a in (*args, *kwargs.values())]
    if len(given) != 1 or set(kwargs) - {"error_on_graph_break"} or not isinstance(given[0], ConstantVariable):
        raise Unsupported("unknown-call", "error_on_graph_break is not given one constant")
    make: type = sys.modules["torch._dynamo.decorators"].ErrorOnGraphBreakDecoratorContextManager
    return ErrorOnGraphBreakVariable(make, bool(given[0].value))


RULES_BY_NAME[("torch._dynamo.decorators", "error_on_graph_break")] = _error_on_graph_break


def _comptime(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """``comptime(look, otherwise)``: plain Python calls ``otherwise``."""
    fallback = args[2] if len(args) > 2 else kwargs.get("fallback_fn")
    return NONE if fallback is None else realize(tx, fallback).call(tx, [], {})


RULES_BY_NAME[("torch._dynamo.comptime", "__call__")] = _comptime


# Functions that are not looked into.


def opaque_call(tx: Tracer, function: Any, args: Args, kwargs: Kwargs, fake: Any = None) -> Variable:
    """One node that calls ``function`` as it is, on containers of tensors, modules and constants; ``fake`` tells its results over fakes."""
    leaves: Args = []
    words = DictVariable.from_str_keys(kwargs)
    tree = _flatten_opaque_argument(tx, TupleVariable([TupleVariable(list(args)), words]), leaves)
    node = _OpaqueCall(function, tree, fake or function)
    target = GraphCallable(
        function.__name__, node, changes_state=True, is_python=True, effect="runs a function that is not looked into"
    )
    found = list(sequence_items(tx, emit_node(tx, "call_function", target, leaves, run=node.run_on_fakes)))
    return unflatten_variable(tx, node.output_tree, iter(found))


def construct_wrapper_subclass(tx: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Variable:
    """One node that makes a tensor of a subclass around other tensors."""
    leaves: Args = []
    words = DictVariable.from_str_keys(kwargs)
    tree = _flatten_opaque_argument(tx, TupleVariable([TupleVariable(list(args)), words]), leaves)

    def make(*inside: Any) -> Any:
        positional, named = unflatten_python(tree, iter(inside))
        return cls(*positional, **named)

    return emit_node(tx, "call_function", GraphCallable(cls.__name__, make), leaves)


class _OpaqueCall:
    """What the node runs; over fakes, it also finds out how results are packed."""

    def __init__(self, function: Any, given: TreeSpec, fake: Any) -> None:
        self._function = function
        self._fake = fake
        self._given = given
        self.output_tree = LEAF

    def __call__(self, *leaves: Any) -> tuple[Any, ...]:
        args, kwargs = unflatten_python(self._given, iter(leaves))
        found: list[Any] = []
        collect_leaves(self.output_tree, self._function(*args, **kwargs), found)
        return tuple(found)

    def run_on_fakes(self, *leaves: Any) -> tuple[Any, ...]:
        """The call over fakes; tensors that the function holds itself are taken as they are."""
        args, kwargs = unflatten_python(self._given, iter(leaves))
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        assert mode is not None
        before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
        found: list[Any] = []
        try:
            self.output_tree = flatten_python(self._fake(*args, **kwargs), found)
        finally:
            mode.allow_non_fake_inputs = before
        return tuple(found)


def _flatten_opaque_argument(tx: Tracer, value: Variable, leaves: Args) -> TreeSpec:
    value = realize(tx, value)
    if isinstance(value, (TensorVariable, SymNodeVariable)):
        leaves.append(value)
        return LEAF
    if isinstance(value, (TupleVariable, ListVariable)):
        return TreeSpec(value.cls, children=tuple(_flatten_opaque_argument(tx, i, leaves) for i in value.items))
    if isinstance(value, DictVariable):
        keys = tuple(realize(tx, k).as_python_constant(tx) for k in list(value.keys()))
        return TreeSpec(value.cls, keys, tuple(_flatten_opaque_argument(tx, v, leaves) for v in value.values()))
    node = SUPPORTED_NODES.get(value.python_type())
    if node is not None and isinstance(node.flatten_fn, FunctionType):
        return _flatten_registered_class(tx, value, node, leaves)
    real = tx.real_object(value)
    if isinstance(real, torch.nn.Module) and value.source is not None:
        tx.guard_identity(real, value.source, "a function that is not looked into is called with it")
        return TreeSpec(constant=real)
    try:
        return TreeSpec(constant=value.as_python_constant(tx))
    except NotPythonConstant:
        raise Unsupported(
            "unsupported-argument", f"a {value.python_type().__name__} is given to a function that is not looked into"
        ) from None


def _flatten_registered_class(tx: Tracer, value: Variable, node: Any, leaves: Args) -> TreeSpec:
    """An object of a class that says how it is taken apart; it is made again where the function runs."""
    parts, context = sequence_items(tx, realize(tx, tx.wrap_static(node.flatten_fn)).call(tx, [value], {}))
    constant = realize(tx, context).as_python_constant(tx)
    inside = tuple(_flatten_opaque_argument(tx, p, leaves) for p in sequence_items(tx, parts))
    return TreeSpec(value.python_type(), children=inside, constant=constant, unflatten_fn=node.unflatten_fn)


class OpaqueFunctionVariable(Variable):
    """``torch._dynamo.nonstrict_trace(fn)``, called in traced code."""

    def __init__(self, function: Variable, real: Any) -> None:
        self.function = function
        self.real_object = real

    def python_type(self) -> type:
        return self.function.python_type()

    def child_variables(self) -> list[Variable]:
        return [self.function]

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return opaque_call(tx, self.real_object, args, kwargs)


def _nonstrict(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    function = realize(tx, args[0] if args else kwargs["traceable_fn"])
    real = function.as_python_object()
    if real is NotImplemented:
        raise Unsupported("unknown-call", "nonstrict_trace is given a function that was made here")
    if function.source is not None:
        tx.guard_identity(real, function.source, "it is called without being looked into")
    return OpaqueFunctionVariable(function, real)


RULES_BY_NAME[("torch._dynamo.decorators", "nonstrict_trace")] = _nonstrict


def leaf_function_call(tx: Tracer, of: Any, args: Args, kwargs: Kwargs) -> Variable:
    """What ``torch._dynamo.decorators.leaf_function`` makes of a function: called as it is, with a function of its own for fakes."""
    real = of.as_python_object()
    fake = getattr(real, "_torchdynamo_leaf_fake_fn", None)
    if fake is None:
        raise Unsupported("unknown-call", f"{real.__name__} is called, of which nothing tells what it makes of fakes")
    if of.source is not None:
        tx.guard_identity(real, of.source, "it is called without being looked into")
    return opaque_call(tx, real, args, kwargs, fake)


# torch.compile itself: what is compiled anyway.


class NestedCompileVariable(Variable):
    """What ``torch.compile`` or ours made of a function or module in traced code."""

    def __init__(self, make: Any, function: Variable, options: dict[str, Any]) -> None:
        self.make = make
        self.function = function
        self.options = options

    def python_type(self) -> type:
        return self.function.python_type()

    def is_truthy(self, tx: Tracer) -> bool:
        return True

    def child_variables(self) -> list[Variable]:
        return [self.function]

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return self.function.get_attr(tx, name)

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return self.function.call(tx, args, kwargs)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.body.callable(lambda: cg.load_const(self.make))
        cg.load(self.function)
        for value in self.options.values():
            cg.load_const(value)
        cg.call_with_keywords(1, tuple(self.options))


class _CompileDecoratorVariable(Variable):
    """``torch.compile(**options)``, without a function yet."""

    def __init__(self, make: Any, options: dict[str, Any]) -> None:
        self.make = make
        self.options = options

    def python_type(self) -> type:
        return FunctionType

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        return NestedCompileVariable(self.make, realize(tx, args[0]), self.options)


def nested_compile(tx: Tracer, make: Any, args: Args, kwargs: Kwargs) -> Variable:
    """What ``make``, torch.compile or ours, makes of a function that traced code hands it, or of options alone."""
    given = dict(kwargs)
    function = args[0] if args else given.pop("model", given.pop("fn_or_module", None))
    words = {name: tx.real_object(realize(tx, value)) for name, value in given.items()}
    if any(v is NotImplemented for v in words.values()):
        raise Unsupported("unknown-call", "torch.compile is called with options that are made here")
    return (
        _CompileDecoratorVariable(make, words)
        if function is None
        else NestedCompileVariable(make, realize(tx, function), words)
    )


@register_rule(torch.compile)
def _compile(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return nested_compile(tx, torch.compile, args, kwargs)


def _engine_compile(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    return nested_compile(tx, sys.modules["engine.api"].compile, args, kwargs)


RULES_BY_NAME[("engine.api", "compile")] = _engine_compile
