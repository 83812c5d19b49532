"""``autograd.grad``, tensor hooks and ``requires_grad_`` in traced code.

They become nodes that call eager autograd when the graph runs as traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
import torch.utils.hooks

from engine.ir.graph_callable import GraphCallable
from engine.torch_private.functorch import is_functorch_wrapped_tensor
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit.effects import append_node, emit_effect
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.callables.methods import VariableWithMethods
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.higher_order.pytrees import TreeSpec, unflatten_python
from engine.trace.variables.higher_order.subgraph import (
    SubgraphBuilder,
    fake_leaf_like,
    lift_shared_free_variables,
    trace_subgraph,
)
from engine.trace.variables.slotted_type import SlottedType
from engine.trace.variables.tensors.tensor import TensorVariable
from engine.trace.variables.tensors.tensor_members import (
    register_tensor_attribute,
    register_tensor_method,
    register_tensor_setter,
)
from engine.trace.variables.torch_api.torch_contexts import real_hook_function


@register_rule(torch.autograd.grad)
def _grad(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    args = [_as_tuple(tx, a) if i < 2 else a for i, a in enumerate(args)]
    kwargs = {n: _as_tuple(tx, a) if n in ("outputs", "inputs") else a for n, a in kwargs.items()}
    named = {**dict(zip(("outputs", "inputs"), args, strict=False)), **kwargs}
    _, inputs = (_realized_tensors(tx, named.get(n, NONE)) for n in ("outputs", "inputs"))
    is_from_outside = any(
        v.real_object is not None and v.real_object.grad_fn is not None for v, _ in tx.inputs.input_tensors
    )
    own = (v.fake is not None and v.as_python_object() is NotImplemented and v.fake.grad_fn is not None for v in inputs)
    if is_from_outside and not all(own):  # gradients of other tensors may flow into the outer history
        raise Unsupported(
            "autograd-grad", "torch.autograd.grad on a tensor whose autograd history began outside the function"
        )
    if tx.in_subgraph() and not tx.graph.is_autograd_function_body:
        raise Unsupported("autograd-grad", "torch.autograd.grad in the body of a higher-order operator")
    return emit_node(tx, "call_function", torch.autograd.grad, args, kwargs)


def _realized_tensors(tx: Tracer, tensors: Variable) -> list[Variable]:
    """Realize the tensors passed to ``autograd.grad``, so that they become graph inputs."""
    tensors = realize(tx, tensors)
    return [realize(tx, v) for v in tensors.argument_items() or [tensors]]


def _as_tuple(tx: Tracer, tensors: Variable) -> Variable:
    """Convert an iterable of tensors to a tuple, as ``torch.autograd.grad`` does."""
    tensors = realize(tx, tensors)
    if tensors.fake is not None or tensors.argument_items() or tensors.lacks_methods("__iter__", "__getitem__"):
        return tensors
    return TupleVariable(sequence_items(tx, tensors))


class GraphObjectVariable(Variable):
    """A node output that is not a tensor or number, such as a hook handle or autograd node."""

    node: torch.fx.Node
    cls: type

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, None

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_graph_output(self.node)


_REMOVE_HOOK = GraphCallable("remove_hook", torch.utils.hooks.RemovableHandle.remove, changes_state=True)


class TensorHookHandleVariable(VariableWithMethods, GraphObjectVariable):
    """The handle of a tensor hook registered in traced code."""

    methods = ("remove",)

    def call_method(self, tx: Tracer, name: str, args: Args, kwargs: Kwargs) -> Variable:
        if name != "remove":
            return super().call_method(tx, name, args, kwargs)
        emit_effect(tx, _REMOVE_HOOK, [self.node])
        return NONE


@register_tensor_method("register_hook")
def _register_hook(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``tensor.register_hook(hook)``. The hook becomes a subgraph that autograd runs.

    Raises:
        Unsupported: the hook has side effects, or the tensor does not require gradients.
    """
    hook = realize(tx, args[0] if args else kwargs["hook"])
    if not tensor.fake.requires_grad or tx.in_subgraph():
        raise Unsupported("tensor-hook", "Tensor.register_hook is called")
    nodes = [tensor.node(tx)]

    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        gradient = fake_leaf_like(tx, tensor.fake.detach())
        return [TensorVariable(builder.add_parameter(gradient), gradient)]

    with torch.no_grad():
        body = trace_subgraph(tx, hook, parameters)
    nodes += lift_shared_free_variables([body])
    return _emit_registration(tx, _RegisterHook(body.module(), body.output_tree), nodes)


@register_tensor_method("register_post_accumulate_grad_hook")
def _register_post_accumulate_grad_hook(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``tensor.register_post_accumulate_grad_hook(hook)``. The hook remains Python.

    Raises:
        Unsupported: the hook depends on objects of this call, or the tensor is not a leaf that requires gradients.
    """
    hook = realize(tx, args[0] if args else kwargs["hook"])
    if not tensor.fake.requires_grad or not tensor.fake.is_leaf or tx.in_subgraph():
        raise Unsupported("tensor-hook", "Tensor.register_post_accumulate_grad_hook is called")
    tensor.guard_is_leaf(tx)
    real = real_hook_function(tx, hook, "after it accumulates a gradient")
    return _emit_registration(tx, lambda t: t.register_post_accumulate_grad_hook(real), [tensor.node(tx)])


def _emit_registration(tx: Tracer, register: Callable[..., Any], nodes: list[torch.fx.Node]) -> Variable:
    node = emit_effect(tx, GraphCallable("register_hook", register, changes_state=True), nodes)
    return TensorHookHandleVariable(node, torch.utils.hooks.RemovableHandle)


class _RegisterHook(metaclass=SlottedType):
    """Callable of a node: registers a traced hook on a tensor."""

    _body: Callable[..., Any]
    _tree: TreeSpec

    def __call__(self, tensor: torch.Tensor, *lifted: Any) -> Any:
        return tensor.register_hook(lambda gradient: unflatten_python(self._tree, iter(self._body(gradient, *lifted))))


@register_tensor_method("retain_grad")
def _retain_grad(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    return emit_grad_flag_change(tx, tensor, "retain_grad", args, kwargs)


@register_tensor_method("requires_grad_")
def _requires_grad_(tx: Tracer, tensor: TensorVariable, args: Args, kwargs: Kwargs) -> Variable:
    requires_grad = realize(tx, args[0] if args else kwargs.get("requires_grad", ConstantVariable(value=True)))
    if _requires_grad_is_noop(tx, tensor, requires_grad):
        return tensor
    return emit_grad_flag_change(tx, tensor, "requires_grad_", args, kwargs)


@register_tensor_setter("requires_grad")
def _set_requires_grad(tx: Tracer, tensor: TensorVariable, value: Variable) -> None:
    requires_grad = realize(tx, value)
    if _requires_grad_is_noop(tx, tensor, requires_grad):
        return
    if requires_grad.python_type() is not bool:
        raise Unsupported("requires-grad", "requires_grad of a tensor is set to a value that is not a bool")
    emit_grad_flag_change(tx, tensor, "requires_grad_", [requires_grad], {})


def _requires_grad_is_noop(tx: Tracer, tensor: TensorVariable, requires_grad: Variable) -> bool:
    """Return True if setting ``requires_grad`` would change nothing."""
    tensor.guard_is_leaf(tx)
    return requires_grad.as_python_object() is tensor.fake.requires_grad and tensor.fake.is_leaf


def emit_grad_flag_change(tx: Tracer, tensor: TensorVariable, name: str, args: Args, kwargs: Kwargs) -> Variable:
    """Emit ``requires_grad_`` or ``retain_grad`` as a node that is never dead code.

    Raises:
        Unsupported: the tensor is an input, unless ``requires_grad_`` is called on a leaf that is not a view.
    """
    if tensor.source is not None and not (name == "requires_grad_" and _can_change_requires_grad(tx, tensor)):
        raise Unsupported("requires-grad", f"Tensor.{name} of an argument is called")
    constants, named = tx.as_python_constants(args), tx.as_python_keywords(kwargs)
    node = tx.graph.create_node("call_method", name, (tensor.node(tx), *constants), named, tx.node_provenance())
    tx.fallback.update_op_in_try_block()
    tx.side_effects.mutation_count += 1
    try:
        getattr(tensor.fake, name)(*constants, **named)
    except RuntimeError:
        tx.graph.erase_last_node(node)
        raise Unsupported("requires-grad", f"Tensor.{name} raises") from None
    node.meta["example_value"] = tensor.fake
    if tensor.source is not None:
        tx.side_effects.external_mutation_count += 1
    return tensor if name == "requires_grad_" else NONE


def _can_change_requires_grad(tx: Tracer, tensor: TensorVariable) -> bool:
    """Return True if the graph may change ``requires_grad`` of an input.

    The fake tensor then behaves as the input does afterwards.
    """
    real = tensor.real_object
    if real is None or type(real) not in (torch.Tensor, torch.nn.Parameter) or tx.in_subgraph():
        return False
    if real.is_inference() or real._base is not None or not real.is_leaf or not tensor.fake.is_leaf:
        return False
    if is_functorch_wrapped_tensor(real):
        return False
    tensor.guard_is_leaf(tx)
    return True


@register_tensor_attribute("grad_fn")
def grad_fn(tx: Tracer, tensor: TensorVariable) -> Variable:
    """Trace ``tensor.grad_fn``."""
    node = tensor.fake.grad_fn
    if tensor.real_object is not None:
        if tensor.real_object.grad_fn is not None or node is not None:
            raise tensor.unsupported_attribute("reading", "grad_fn")
        tensor.guard_is_leaf(tx)
    if node is None:
        return NONE
    return GraphObjectVariable(append_node(tx, getattr, (tensor.node(tx), "grad_fn")), type(node))
