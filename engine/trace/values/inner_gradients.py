"""Gradients computed inside traced code, and hooks on tensors: nodes that run eager autograd where the graph runs as traced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx
import torch.utils.hooks

from engine.ir.in_graph import InGraph
from engine.trace.graph_builder import emit
from engine.trace.signals import Unsupported
from engine.trace.values.base import NONE, Value, force
from engine.trace.values.graph_contexts import as_it_is
from engine.trace.values.methods import MethodOf
from engine.trace.values.nested import NestedBuilder, lift_all, looks_like, trace_body
from engine.trace.values.refusals import is_iterable
from engine.trace.values.rules import special
from engine.trace.values.sequences import SequenceValue, TupleValue, sequence_items
from engine.trace.values.tensor import TensorValue
from engine.trace.values.trees import Tree, pack

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.trace.codegen import Codegen
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


@special(torch.autograd.grad)
def _grad(tx: Tracer, args: Args, kwargs: Words) -> Value:
    args = [_as_tuple(tx, a) if i < 2 else a for i, a in enumerate(args)]
    kwargs = {n: _as_tuple(tx, a) if n in ("outputs", "inputs") else a for n, a in kwargs.items()}
    named = {**dict(zip(("outputs", "inputs"), args, strict=False)), **kwargs}
    _, inputs = (_looked_at(tx, named.get(n, NONE)) for n in ("outputs", "inputs"))
    is_from_outside = any(v.held is not None and v.held.grad_fn is not None for v, _ in tx.input_tensors)
    if is_from_outside and not all(map(_is_made_inside, inputs)):
        raise Unsupported("unknown-call", "torch.autograd.grad where a tensor has a history from outside")
    if isinstance(tx.graph, NestedBuilder) and not tx.graph.is_function_body:
        raise Unsupported("unknown-call", "torch.autograd.grad in the body of a higher-order operation")
    return emit(tx, "call_function", torch.autograd.grad, args, kwargs)


def _looked_at(tx: Tracer, given: Value) -> list[Value]:
    """The tensors that are given: only what has been looked at is known to the tracer as an argument of the call."""
    given = force(tx, given)
    return [force(tx, v) for v in (sequence_items(tx, given) if isinstance(given, SequenceValue) else [given])]


def _is_made_inside(value: Value) -> bool:
    """Whether what a gradient is wanted of was made here: then no way to it leads through what came before."""
    return isinstance(value, TensorValue) and value.held is None and value.fake.grad_fn is not None


def _as_tuple(tx: Tracer, given: Value) -> Value:
    """Tensors from whatever gives them one by one, as ``torch.autograd.grad`` takes its first arguments."""
    given = force(tx, given)
    if isinstance(given, (TensorValue, SequenceValue, GraphObject)) or not is_iterable(given):
        return given
    return TupleValue(sequence_items(tx, given))


class GraphObject(Value):
    """Something that is neither a tensor nor a number and that a node gives: a hook's handle, a node of autograd's."""

    def __init__(self, node: torch.fx.Node, cls: type) -> None:
        self.node = node
        self.cls = cls

    def type(self) -> type:
        return self.cls

    def truth(self, tx: Tracer) -> bool:
        return True

    def key(self, tx: Tracer) -> Any:
        return self

    def graph_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, None

    def reconstruct(self, cg: Codegen) -> None:
        cg.graph_output(self.node)


class HookHandle(GraphObject):
    """What registering a hook returned."""

    def get_attr(self, tx: Tracer, name: str) -> Value:
        return MethodOf(self, name) if name == "remove" else super().get_attr(tx, name)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Words) -> Value:
        if name != "remove":
            return super().call_method(tx, name, args, kwargs)
        _effect(tx, "remove_hook", torch.utils.hooks.RemovableHandle.remove, [self.node])
        return NONE


def _effect(tx: Tracer, name: str, run: Callable[..., Any], nodes: list[torch.fx.Node]) -> torch.fx.Node:
    node = tx.graph.add("call_function", InGraph(name, run, changes_state=True), tuple(nodes), {}, tx.node_origin())
    node.meta["example_value"] = None
    tx.note_handlers()
    return node


def register_hook(tx: Tracer, tensor: TensorValue, hook: Value) -> Value:
    """``tensor.register_hook(hook)``: the hook becomes a graph of its own, run by autograd.

    Raises:
        Unsupported: the hook does more than compute, or the tensor wants no gradient.
    """
    if not tensor.fake.requires_grad or isinstance(tx.graph, NestedBuilder):
        raise Unsupported("unknown-call", "Tensor.register_hook is called")
    nodes = [tensor.node(tx)]

    def parameters(builder: NestedBuilder) -> list[Value]:
        gradient = looks_like(tx, tensor.fake.detach())
        return [TensorValue(builder.parameter(gradient), gradient)]

    grad = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        body = trace_body(tx, hook, parameters)
    finally:
        torch._C._set_grad_enabled(grad)
    nodes += lift_all([body])
    return HookHandle(
        _effect(tx, "register_hook", _Registers(body.module(), body.tree), nodes), torch.utils.hooks.RemovableHandle
    )


def register_after_accumulation(tx: Tracer, tensor: TensorValue, hook: Value) -> Value:
    """``tensor.register_post_accumulate_grad_hook(hook)``: autograd calls the hook itself, as Python.

    Raises:
        Unsupported: the hook holds what only this call knows, or the tensor is no leaf that wants a gradient.
    """
    if not tensor.fake.requires_grad or not tensor.fake.is_leaf or isinstance(tx.graph, NestedBuilder):
        raise Unsupported("unknown-call", "Tensor.register_post_accumulate_grad_hook is called")
    tensor.guard_leaf(tx)
    real = as_it_is(tx, hook, "after it added to a gradient")
    node = _effect(tx, "register_hook", lambda t: t.register_post_accumulate_grad_hook(real), [tensor.node(tx)])
    return HookHandle(node, torch.utils.hooks.RemovableHandle)


class _Registers:
    """Registers a traced hook on a tensor."""

    def __init__(self, body: Callable[..., Any], tree: Tree) -> None:
        self._body = body
        self._tree = tree

    def __call__(self, tensor: torch.Tensor, *lifted: Any) -> Any:
        return tensor.register_hook(lambda gradient: pack(self._tree, iter(self._body(gradient, *lifted))))


def change_in_place(tx: Tracer, tensor: TensorValue, name: str, args: Args, kwargs: Words) -> Value:
    """``requires_grad_`` or ``retain_grad`` of a tensor: a node that is kept, although no data changes.

    Raises:
        Unsupported: it is an argument's, and none that is known to be a leaf with memory of its own.
    """
    if tensor.origin is not None and not (name == "requires_grad_" and _may_switch(tx, tensor)):
        raise Unsupported("unknown-call", f"Tensor.{name} of an argument is called")
    given = [force(tx, a) for a in args]
    words = {k: force(tx, v) for k, v in kwargs.items()}
    constants, named = tx.constants(given), dict(zip(words, tx.constants(words.values()), strict=True))
    node = tx.graph.add("call_method", name, (tensor.node(tx), *constants), named, tx.node_origin())
    tx.note_handlers()
    tx.changes += 1
    try:
        getattr(tensor.fake, name)(*constants, **named)
    except RuntimeError:
        tx.graph.forget(node)
        raise Unsupported("unknown-call", f"Tensor.{name} raises") from None
    node.meta["example_value"] = tensor.fake
    if tensor.origin is not None:
        tx.outside_changes += 1
    return tensor if name == "requires_grad_" else NONE


def _may_switch(tx: Tracer, tensor: TensorValue) -> bool:
    """Whether the graph may tell an argument to require gradients, or not to: its fake is then as the argument will be."""
    held = tensor.held
    if held is None or type(held) not in (torch.Tensor, torch.nn.Parameter) or isinstance(tx.graph, NestedBuilder):
        return False
    if held.is_inference() or held._base is not None or not held.is_leaf or not tensor.fake.is_leaf:
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(held):
        return False
    tensor.guard_leaf(tx)
    return True


def grad_fn(tx: Tracer, tensor: TensorValue) -> Value:
    """``tensor.grad_fn``."""
    found = tensor.fake.grad_fn
    if tensor.held is not None:
        if tensor.held.grad_fn is not None or found is not None:
            raise tensor.refuse("reading the attribute 'grad_fn'")
        tensor.guard_leaf(tx)
    if found is None:
        return NONE
    node = tx.graph.add("call_function", getattr, (tensor.node(tx), "grad_fn"), {}, tx.node_origin())
    node.meta["example_value"] = None
    return GraphObject(node, type(found))
