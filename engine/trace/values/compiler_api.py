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

from engine.ir.in_graph import InGraph
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Const, NotConstant, Value, force
from engine.trace.values.graph_contexts import BreakPolicy, IdleContext
from engine.trace.values.mappings import DictValue
from engine.trace.values.rules import BY_NAME, special
from engine.trace.values.sequences import ListValue, TupleValue, sequence_items
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.trees import LEAF, Tree, leaves_of, pack, unflatten, unpack

if TYPE_CHECKING:
    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


# Operators that others hold as a node around a body: here the body is traced like any call.


@special(wrap)
def _wrap(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return force(tx, args[0]).call(tx, args[1:], kwargs)


@special(dynamo_bypassing_wrapper)
def _bypassing(tx: Tracer, args: Args, kwargs: Words) -> Value:
    wrapper = force(tx, args[0])
    if isinstance(wrapper, Const):
        raise Unsupported("unknown-call", "dynamo_bypassing_wrapper is called with the name of a wrapper")
    return force(tx, wrapper.call(tx, [args[1]], {})).call(tx, args[2:], kwargs)


@special(hints_wrapper)
def _hints(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("body_fn", "args", "kwargs"), args, strict=False)) | kwargs
    words, hints = force(tx, given.get("kwargs", NONE)), force(tx, given.get("hints", NONE))
    named = tx.entries(words) if isinstance(words, DictValue) else {}
    positional = [force(tx, a) for a in sequence_items(tx, given["args"])] if "args" in given else []
    told = [force(tx, h) for h in hints.values()] if isinstance(hints, DictValue) else [NONE]
    if not all(isinstance(a, (TensorValue, SymValue, Const)) for a in positional) or not all(
        isinstance(h, Const) and isinstance(h.value, (int, float, str)) for h in told
    ):
        raise Unsupported("unknown-call", "hints_wrapper is given what it refuses")
    return force(tx, given["body_fn"]).call(tx, positional, named)


@special(strict_mode_op)
def _strict(tx: Tracer, args: Args, kwargs: Words) -> Value:
    given = dict(zip(("callable", "operands"), args, strict=False)) | kwargs
    return force(tx, given["callable"]).call(tx, list(sequence_items(tx, given["operands"])), {})


@special(BaseHOP.__call__)
def _own_operator(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """An operator of the user's around a subgraph: without a rule of its own for this device it runs the subgraph."""
    return force(tx, args[1]).call(tx, args[2:], {})


@special(out_dtype)
def _out_dtype(tx: Tracer, args: Args, kwargs: Words) -> Value:
    op, dtype = (force(tx, a).real() for a in args[:2])
    return emit(tx, "call_function", InGraph("out_dtype", lambda *rest: out_dtype(op, dtype, *rest)), args[2:])


@special(torch.func.functionalize)
def _functionalize(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """The same values, with writes in place taken out: who compiles the graph does that anyway."""
    return force(tx, args[0])


def _is_false(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return Const(value=False)


for _flag in ("is_fx_tracing", "is_fx_symbolic_tracing"):
    if hasattr(torch.fx._symbolic_trace, _flag):
        special(getattr(torch.fx._symbolic_trace, _flag))(_is_false)


# Contexts and calls that say something to torch.compile.


def _idle(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return IdleContext()


BY_NAME[("torch._dynamo.decorators", "patch_dynamo_config")] = _idle


def _break_policy(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """Who calls it has loaded where it lives."""
    given = [force(tx, a) for a in (*args, *kwargs.values())]
    if len(given) != 1 or set(kwargs) - {"error_on_graph_break"} or not isinstance(given[0], Const):
        raise Unsupported("unknown-call", "error_on_graph_break is not given one constant")
    make: type = sys.modules["torch._dynamo.decorators"].ErrorOnGraphBreakDecoratorContextManager
    return BreakPolicy(make, bool(given[0].value))


BY_NAME[("torch._dynamo.decorators", "error_on_graph_break")] = _break_policy


def _at_compile_time(tx: Tracer, args: Args, kwargs: Words) -> Value:
    """``comptime(look, otherwise)``: plain Python calls ``otherwise``."""
    fallback = args[2] if len(args) > 2 else kwargs.get("fallback_fn")
    return NONE if fallback is None else force(tx, fallback).call(tx, [], {})


BY_NAME[("torch._dynamo.comptime", "__call__")] = _at_compile_time


# Functions that are not looked into.


def opaque_call(tx: Tracer, function: Any, args: Args, kwargs: Words, fake: Any = None) -> Value:
    """One node that calls ``function`` as it is, on containers of tensors, modules and constants; ``fake`` tells its results over fakes."""
    leaves: Args = []
    words = DictValue.of(kwargs)
    tree = _taken_apart(tx, TupleValue([TupleValue(list(args)), words]), leaves)
    node = _OpaqueCall(function, tree, fake or function)
    target = InGraph(
        function.__name__, node, changes_state=True, is_python=True, effect="runs a function that is not looked into"
    )
    found = list(sequence_items(tx, emit(tx, "call_function", target, leaves, run=node.first)))
    return unflatten(tx, node.returned, iter(found))


def made_wrapper(tx: Tracer, cls: type, args: Args, kwargs: Words) -> Value:
    """One node that makes a tensor of a subclass around other tensors."""
    leaves: Args = []
    words = DictValue.of(kwargs)
    tree = _taken_apart(tx, TupleValue([TupleValue(list(args)), words]), leaves)

    def make(*inside: Any) -> Any:
        positional, named = pack(tree, iter(inside))
        return cls(*positional, **named)

    return emit(tx, "call_function", InGraph(cls.__name__, make), leaves)


class _OpaqueCall:
    """What the node runs; over fakes, it also finds out how results are packed."""

    def __init__(self, function: Any, given: Tree, fake: Any) -> None:
        self._function = function
        self._fake = fake
        self._given = given
        self.returned = LEAF

    def __call__(self, *leaves: Any) -> tuple[Any, ...]:
        args, kwargs = pack(self._given, iter(leaves))
        found: list[Any] = []
        leaves_of(self.returned, self._function(*args, **kwargs), found)
        return tuple(found)

    def first(self, *leaves: Any) -> tuple[Any, ...]:
        """The call over fakes; tensors that the function holds itself are taken as they are."""
        args, kwargs = pack(self._given, iter(leaves))
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        assert mode is not None
        before, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
        found: list[Any] = []
        try:
            self.returned = unpack(self._fake(*args, **kwargs), found)
        finally:
            mode.allow_non_fake_inputs = before
        return tuple(found)


def _taken_apart(tx: Tracer, value: Value, leaves: Args) -> Tree:
    value = force(tx, value)
    if isinstance(value, (TensorValue, SymValue)):
        leaves.append(value)
        return LEAF
    if isinstance(value, (TupleValue, ListValue)):
        return Tree(value.cls, parts=tuple(_taken_apart(tx, i, leaves) for i in value.items))
    if isinstance(value, DictValue):
        keys = tuple(force(tx, k).python(tx) for k in list(value.keys()))
        return Tree(value.cls, keys, tuple(_taken_apart(tx, v, leaves) for v in value.values()))
    node = SUPPORTED_NODES.get(value.type())
    if node is not None and isinstance(node.flatten_fn, FunctionType):
        return _registered(tx, value, node, leaves)
    real = tx.real_of(value)
    if isinstance(real, torch.nn.Module) and value.origin is not None:
        tx.guard_object(real, value.origin, "a function that is not looked into is called with it")
        return Tree(constant=real)
    try:
        return Tree(constant=value.python(tx))
    except NotConstant:
        raise Unsupported(
            "unsupported-argument", f"a {value.type().__name__} is given to a function that is not looked into"
        ) from None


def _registered(tx: Tracer, value: Value, node: Any, leaves: Args) -> Tree:
    """An object of a class that says how it is taken apart; it is made again where the function runs."""
    parts, context = sequence_items(tx, force(tx, tx.fixed(node.flatten_fn)).call(tx, [value], {}))
    constant = force(tx, context).python(tx)
    inside = tuple(_taken_apart(tx, p, leaves) for p in sequence_items(tx, parts))
    return Tree(value.type(), parts=inside, constant=constant, make=node.unflatten_fn)


class OpaqueFunction(Value):
    """``torch._dynamo.nonstrict_trace(fn)``, called in traced code."""

    def __init__(self, function: Value, real: Any) -> None:
        self.function = function
        self.held = real

    def type(self) -> type:
        return self.function.type()

    def children(self) -> list[Value]:
        return [self.function]

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        return opaque_call(tx, self.held, args, kwargs)


def _nonstrict(tx: Tracer, args: Args, kwargs: Words) -> Value:
    function = force(tx, args[0] if args else kwargs["traceable_fn"])
    real = function.real()
    if real is NotImplemented:
        raise Unsupported("unknown-call", "nonstrict_trace is given a function that was made here")
    if function.origin is not None:
        tx.guard_object(real, function.origin, "it is called without being looked into")
    return OpaqueFunction(function, real)


BY_NAME[("torch._dynamo.decorators", "nonstrict_trace")] = _nonstrict


def leaf_call(tx: Tracer, of: Any, args: Args, kwargs: Words) -> Value:
    """What ``torch._dynamo.decorators.leaf_function`` makes of a function: called as it is, with a function of its own for fakes."""
    real = of.real()
    fake = getattr(real, "_torchdynamo_leaf_fake_fn", None)
    if fake is None:
        raise Unsupported("unknown-call", f"{real.__name__} is called, of which nothing tells what it makes of fakes")
    if of.origin is not None:
        tx.guard_object(real, of.origin, "it is called without being looked into")
    return opaque_call(tx, real, args, kwargs, fake)


# torch.compile itself: what is compiled anyway.


class CompiledInside(Value):
    """What ``torch.compile`` or ours made of a function or module in traced code."""

    def __init__(self, make: Any, function: Value, words: dict[str, Any]) -> None:
        self.make = make
        self.function = function
        self.words = words

    def type(self) -> type:
        return self.function.type()

    def truth(self, tx: Tracer) -> bool:
        return True

    def children(self) -> list[Value]:
        return [self.function]

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return self.function.get_attr(tx, name)

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        return self.function.call(tx, args, kwargs)

    def reconstruct(self, cg: Codegen) -> None:
        cg.out.callable(lambda: cg.const(self.make))
        cg.load(self.function)
        for value in self.words.values():
            cg.const(value)
        cg.call_keywords(1, tuple(self.words))


class _Decorator(Value):
    """``torch.compile(**options)``, without a function yet."""

    def __init__(self, make: Any, words: dict[str, Any]) -> None:
        self.make = make
        self.words = words

    def type(self) -> type:
        return FunctionType

    def call(self, tx: Tracer, args: Args, kwargs: Words) -> Value:
        return CompiledInside(self.make, force(tx, args[0]), self.words)


def compiled_inside(tx: Tracer, make: Any, args: Args, kwargs: Words) -> Value:
    """What ``make``, torch.compile or ours, makes of a function that traced code hands it, or of options alone."""
    given = dict(kwargs)
    function = args[0] if args else given.pop("model", given.pop("fn_or_module", None))
    words = {name: tx.real_of(force(tx, value)) for name, value in given.items()}
    if any(v is NotImplemented for v in words.values()):
        raise Unsupported("unknown-call", "torch.compile is called with options that are made here")
    return _Decorator(make, words) if function is None else CompiledInside(make, force(tx, function), words)


@special(torch.compile)
def _compile(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return compiled_inside(tx, torch.compile, args, kwargs)


def _compile_ours(tx: Tracer, args: Args, kwargs: Words) -> Value:
    return compiled_inside(tx, sys.modules["engine.api"].compile, args, kwargs)


BY_NAME[("engine.api", "compile")] = _compile_ours
