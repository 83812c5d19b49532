"""``torch.func`` transforms: vmap, grad, jvp, vjp.

The function becomes a subgraph, the transform one node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable
from engine.ir.register_once import register_table
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.emit_node import build_node_result
from engine.trace.exc import BreakGraph, Unsupported
from engine.trace.graph_builder import VMAP_META
from engine.trace.variables.base import Args, Kwargs, NotPythonConstant, Variable, realize
from engine.trace.variables.callable_registry import RULES_BY_CODE, register_break, register_rule
from engine.trace.variables.callables.function_wrappers import FunctionWrapperVariable
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.higher_order.pytrees import (
    LEAF,
    FlatCall,
    TreeSpec,
    arguments_variable,
    emit_flat_call,
    flatten_python,
    flatten_variable,
    unflatten_python,
    unflatten_variable,
)
from engine.trace.variables.higher_order.subgraph import (
    SubgraphBuilder,
    TracedSubgraph,
    add_parameter_for,
    add_parameter_like,
    fake_leaf_like,
    lift_shared_free_variables,
    trace_subgraph,
    variable_for_node,
)
from engine.trace.variables.tensors.tensor import TensorVariable


@dataclass(frozen=True)
class FunctorchTransform:
    """A ``torch.func`` transform, its options, and whether it differentiates its arguments."""

    transform: Callable[..., Any]
    options: tuple[str, ...]
    differentiates: bool


_TRANSFORMS = (
    FunctorchTransform(torch.func.vmap, ("in_dims", "out_dims", "randomness", "chunk_size"), False),
    FunctorchTransform(torch.func.grad, ("argnums", "has_aux"), True),
    FunctorchTransform(torch.func.grad_and_value, ("argnums", "has_aux"), True),
    FunctorchTransform(torch.func.jacrev, ("argnums", "has_aux", "chunk_size"), True),
    FunctorchTransform(torch.func.jacfwd, ("argnums", "has_aux", "randomness"), True),
    FunctorchTransform(torch.func.hessian, ("argnums",), True),
)


class FunctorchFunctionVariable(FunctionWrapperVariable):
    """A transformed function, such as ``torch.func.vmap(f)``."""

    transform: FunctorchTransform
    options: dict[str, Any]

    def python_type(self) -> type:
        return type(torch.func.vmap)

    def describe(self) -> str:
        return f"{self.transform.transform.__name__} of {self.function.describe()}"

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        make, options = self.transform.transform, self.options

        def run(function: Callable[..., Any], positional: Any, named: dict[str, Any]) -> Any:
            return make(function, **options)(*positional, **named)

        flat = _FlatArguments(tx, args, kwargs)
        # Fake tensors need gradients; the graph records no change of grad mode.
        with torch.set_grad_enabled(torch.is_grad_enabled() or self.transform.differentiates):
            body = _trace_transformed_body(
                tx, self.function, flat, self._dims(flat), differentiates=self.transform.differentiates
            )
        return emit_transform_node(tx, make.__name__, body, flat, run)

    def _dims(self, flat: _FlatArguments) -> list[int | None] | None:
        """Return the mapped dimension of each argument leaf, for vmap only."""
        if self.transform.transform is not torch.func.vmap:
            return None
        dims = _broadcast_in_dims(self.options.get("in_dims", 0), flat.tree.children[0])
        dims += [0] * flat.tree.children[1].num_leaves()
        return dims

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.call(self.transform.transform, self.function, **self.options)


class _FlatArguments:
    """Flattened positional and keyword arguments of a transformed function."""

    def __init__(self, tx: Tracer, args: Args, kwargs: Kwargs) -> None:
        self.leaves: list[Variable] = []
        self.tree = flatten_variable(tx, arguments_variable(args, kwargs), self.leaves)
        for leaf in self.leaves:
            leaf.as_node_arg(tx)  # create the inputs of the outer graph in the order of the arguments


def _broadcast_in_dims(dims: Any, tree: TreeSpec) -> list[Any]:
    """Return one entry per leaf; ``dims`` may be a prefix of the tree."""
    if isinstance(dims, (tuple, list)) and tree.children and len(dims) == len(tree.children):
        return [d for sub, part in zip(dims, tree.children, strict=True) for d in _broadcast_in_dims(sub, part)]
    if isinstance(dims, dict) and set(dims) == set(tree.keys):
        return [
            d for key, part in zip(tree.keys, tree.children, strict=True) for d in _broadcast_in_dims(dims[key], part)
        ]
    if dims is None or type(dims) is int:
        return [dims] * tree.num_leaves()
    raise Unsupported("functorch-argument", "in_dims does not fit the arguments of vmap")


def _trace_transformed_body(
    tx: Tracer, function: Variable, flat: _FlatArguments, dims: list[Any] | None, *, differentiates: bool
) -> TracedSubgraph:
    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        inputs = [
            _subgraph_input(tx, builder, leaf, None if dims is None else dims[n], dims is not None, differentiates)
            for n, leaf in enumerate(flat.leaves)
        ]
        packed = unflatten_variable(tx, flat.tree, iter(inputs))
        return [packed]

    return trace_subgraph(
        tx, _ArgumentUnpackingVariable(function), parameters, allow_side_effects=True, allow_input_mutation=True
    )


class _ArgumentUnpackingVariable(FunctionWrapperVariable):
    """Call a function with the arguments in one tuple: (positional, keywords)."""

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        positional, named = sequence_items(tx, args[0])
        return self.function.call(tx, list(sequence_items(tx, positional)), tx.unpack_string_mapping(named))


def _subgraph_input(
    tx: Tracer, builder: SubgraphBuilder, leaf: Variable, dim: int | None, is_mapped: bool, differentiates: bool
) -> Variable:
    """Create the subgraph input of an argument leaf."""
    fake = leaf.fake
    if fake is None:
        return add_parameter_for(tx, builder, leaf)
    if is_mapped:
        if dim is None:
            return add_parameter_like(tx, builder, fake)
        if not -fake.dim() <= dim < fake.dim():
            raise Unsupported("functorch-argument", "in_dims does not fit the arguments of vmap")
        shape, strides = list(fake.shape), list(fake.stride())
        del shape[dim], strides[dim]
        with tx.symbols.fake_mode, torch.no_grad():
            row = torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device)
        node = builder.add_parameter(row.requires_grad_(fake.requires_grad))
        node.meta[VMAP_META] = True
        return TensorVariable(node, row)
    copy = fake_leaf_like(tx, fake.detach())
    if differentiates and (copy.is_floating_point() or copy.is_complex()):
        copy.requires_grad_()
    return TensorVariable(builder.add_parameter(copy), copy)


TransformRun = Callable[[Callable[..., Any], Any, dict[str, Any]], Any]


def emit_transform_node(
    tx: Tracer, name: str, body: TracedSubgraph, flat: _FlatArguments, run: TransformRun
) -> Variable:
    """Emit the node that calls ``run(function, args, kwargs)`` and unflatten its result."""
    lifted_nodes = lift_shared_free_variables([body])
    module = body.module()

    def call(packed: Any) -> Any:
        (positional, named), lifted = packed

        def function(*args: Any, **kwargs: Any) -> Any:
            inside: list[Any] = []
            flatten_python((args, kwargs), inside)
            return unflatten_python(body.output_tree, iter(module(*inside, *lifted)))

        return run(function, positional, named)

    packed_tree = TreeSpec(tuple, (), (flat.tree, TreeSpec(tuple, (), (LEAF,) * len(lifted_nodes))))
    runner = FlatCall(call, packed_tree)
    leaves = (*flat.leaves, *(variable_for_node(n) for n in lifted_nodes))
    return emit_flat_call(tx, GraphCallable(name, runner), runner, leaves)


def _options(tx: Tracer, name: str, arguments: dict[str, Variable]) -> dict[str, Any]:
    with BreakGraph("functorch-argument", f"an option of {name} is not constant", NotPythonConstant):
        return tx.as_python_keywords(arguments)


@register_table(register_rule, {kind.transform: kind for kind in _TRANSFORMS})
def _transform(function: Any, kind: FunctorchTransform, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    arguments = dict(zip(("func", *kind.options), args, strict=False)) | kwargs
    function = realize(tx, arguments.pop("func"))
    return FunctorchFunctionVariable(function, kind, _options(tx, kind.transform.__name__, arguments))


def _register_transformed_functions(kind: FunctorchTransform) -> None:
    """Register functions transformed outside: the closure of their wrapper holds the parts."""
    code = kind.transform(torch.dot).__code__

    def rule(tx: Tracer, of: Any, args: Args, kwargs: Kwargs) -> Variable:
        cells = {c: cell.content for c, cell in zip(of.code.co_freevars, of.cells(tx), strict=True)}
        options = {name: cells[name] for name in kind.options if name in cells}
        function = realize(tx, cells["func"])
        transformed = FunctorchFunctionVariable(function, kind, _options(tx, kind.transform.__name__, options))
        return transformed.call(tx, args, kwargs)

    RULES_BY_CODE[id(code)] = (code, rule)


for _kind in _TRANSFORMS:
    if _kind.transform is not torch.func.hessian:  # hessian is composed of the others
        _register_transformed_functions(_kind)


@register_rule(torch.func.jvp)
def _jvp(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    names = ("func", "primals", "tangents")
    keywords = dict(zip(names, args, strict=False)) | kwargs
    function, primals, tangents = (realize(tx, keywords.pop(name)) for name in names)
    options = _options(tx, "jvp", keywords)
    point = list(sequence_items(tx, primals))
    with torch.enable_grad():
        body = _trace_transformed_body(tx, function, _FlatArguments(tx, point, {}), None, differentiates=False)

    def run(function: Callable[..., Any], positional: Any, named: dict[str, Any]) -> Any:
        return torch.func.jvp(function, *positional, **options)

    return emit_transform_node(tx, "jvp", body, _FlatArguments(tx, [TupleVariable(point), tangents], {}), run)


@register_rule(torch.func.vjp)
def _vjp(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    keywords = dict(kwargs)
    function = realize(tx, args[0] if args else keywords.pop("func"))
    options = _options(tx, "vjp", keywords)
    flat = _FlatArguments(tx, list(args[1:]), {})
    with torch.enable_grad():
        body = _trace_transformed_body(tx, function, flat, None, differentiates=True)

    def run(function: Callable[..., Any], positional: Any, named: dict[str, Any]) -> Any:
        return torch.func.vjp(function, *positional, **options)

    return emit_transform_node(tx, "vjp", body, flat, run)


register_break("functorch-state", "torch.func.linearize is called", torch.func.linearize)


class GraphFunctionVariable(Variable):
    """A function returned by a graph node, such as ``vjp``'s pullback. A call is a new node."""

    node: torch.fx.Node
    function: Callable[..., Any]

    def python_type(self) -> type:
        return type(self.function)

    def describe(self) -> str:
        return f"the function {self.node.name}"

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, self.function

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
        leaves: list[Variable] = []
        call = TupleVariable([self, arguments_variable(args, kwargs)])
        tree = flatten_variable(tx, call, leaves, lambda v: v is self or v.is_graph_value)
        caller = FlatCall(lambda packed: packed[0](*packed[1][0], **packed[1][1]), tree)
        return emit_flat_call(tx, GraphCallable("call", caller), caller, leaves)

    def reconstruct(self, cg: PyCodegen) -> None:
        if cg.tx.options.backend != "eager":  # other backends may run the graph only once, while compiling
            raise Unsupported("functorch-state", "rebuilding the function that vjp returned after the graph")
        cg.load_graph_output(self.node)


_ANY_CALLABLE: Any = Callable
build_node_result.register(_ANY_CALLABLE, lambda result, tx, node: GraphFunctionVariable(node, result))
