"""Higher-order operators cond, while_loop, map, scan, associative_scan with subgraphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.fx
from torch._higher_order_ops.associative_scan import associative_scan_op
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch.fx.experimental.symbolic_shapes import statically_known_true

from engine.trace.emit.node_results import wrap_result
from engine.trace.exc import Unsupported
from engine.trace.symbols.unbacked_symints import emit_runtime_asserts
from engine.trace.variables.base import Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_rule
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.higher_order.pytrees import LEAF, TreeSpec, flatten_variable, unflatten_variable
from engine.trace.variables.higher_order.subgraph import (
    SubgraphBuilder,
    TracedSubgraph,
    add_parameter_for,
    fake_result_like,
    lift_shared_free_variables,
    shares_storage,
    trace_subgraph,
)
from engine.trace.variables.tensors.sym_node import SymNodeVariable
from engine.trace.variables.tensors.tensor import TensorVariable

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


def _bind_arguments(args: Args, kwargs: Kwargs, names: Sequence[str]) -> list[Variable]:
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name, TupleVariable([])) for name in names]


def _is_int(leaf: Variable) -> bool:
    return type(leaf.as_python_object()) is int


def _subgraph_input(tx: Tracer, builder: SubgraphBuilder, leaf: Variable) -> Variable:
    if not leaf.is_graph_value:  # callers of the body pass the value, but the body itself has it as a constant
        builder.add_parameter(leaf.as_python_constant(tx))
    return add_parameter_for(tx, builder, leaf)


def _emit_higher_order_node(
    tx: Tracer,
    name: str,
    target: Any,
    before: list[Any],
    bodies: dict[str, TracedSubgraph],
    rest: list[Any],
    results: list[Any],
) -> list[Variable]:
    """Emit the node of a higher-order operator with its subgraphs; return its results.

    ``rest`` are the operands. Each list or tuple in it is one argument. Free variables are appended to the last.
    """
    lifted = lift_shared_free_variables(list(bodies.values()))
    functions = [tx.graph.add_subgraph(key, body.module(), tx.node_provenance()) for key, body in bodies.items()]
    *first, last = rest
    args = (*before, *functions, *first, (*last, *lifted))
    node = tx.graph.create_node("call_function", target, args, {}, tx.node_provenance(name))
    tx.fallback.update_op_in_try_block()
    value = wrap_result(tx, node, tuple(results), keep=True)
    return list(sequence_items(tx, value))


def _nodes(tx: Tracer, leaves: Sequence[Variable]) -> tuple[Any, ...]:
    return tuple(leaf.as_node_arg(tx)[0] for leaf in leaves)


def _requires_grad(values: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)


def _fakes(leaves: Sequence[Variable]) -> list[Any]:
    return [v.graph_value for v in leaves if v.is_graph_value]


def _lifted_fakes(bodies: Sequence[TracedSubgraph]) -> list[Any]:
    return [n.meta["example_value"] for body in bodies for n in body.builder.free_variables()]


def _check_no_aliasing(body: TracedSubgraph, given: Sequence[torch.fx.Node], what: str) -> None:
    """Check that a body returns no alias of its inputs and no storage twice."""
    inputs = [n.meta["example_value"] for n in (*given, *body.builder.free_variables())]
    inputs = [i for i in inputs if isinstance(i, torch.Tensor)]
    outputs = [o for o in body.output_fakes() if isinstance(o, torch.Tensor)]
    if any(shares_storage(o, i) for o in outputs for i in inputs):
        raise Unsupported("higher-order-alias", f"a function passed to {what} returns an alias of one of its inputs")
    if any(shares_storage(o, p) for n, o in enumerate(outputs) for p in outputs[:n]):
        raise Unsupported("higher-order-alias", f"a function passed to {what} returns two aliases of one tensor")


def _same_metadata(left: Any, right: Any) -> bool:
    """Return True if two results have equal metadata, except ``requires_grad``."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (left.dtype, left.device, left.shape, left.stride()) == (
            right.dtype,
            right.device,
            right.shape,
            right.stride(),
        )
    return type(left) is type(right)


@register_rule(cond_op)
def _cond(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    pred, true_fn, false_fn, operands = (
        realize(tx, a) for a in _bind_arguments(args, kwargs, ("pred", "true_fn", "false_fn", "operands"))
    )
    items = list(sequence_items(tx, operands))
    if isinstance(pred, ConstantVariable):
        return (true_fn if pred.is_truthy(tx) else false_fn).call(tx, items, {})
    if not pred.is_graph_value:
        raise pred.unsupported("torch.cond", "higher-order-argument")
    if pred.fake is not None and (pred.fake.numel() != 1 or pred.fake.requires_grad):
        raise Unsupported("higher-order-argument", f"torch.cond on a {pred.describe()}")
    leaves: list[Variable] = []
    tree = flatten_variable(tx, TupleVariable(items), leaves)
    if any(type(c) is not int for c in tree.constants()):
        raise Unsupported("higher-order-argument", "torch.cond has an operand that is neither a tensor nor an int")
    pred_node, _ = pred.as_node_arg(tx)
    nodes = _nodes(tx, leaves)

    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        return list(
            sequence_items(tx, unflatten_variable(tx, tree, iter([_subgraph_input(tx, builder, v) for v in leaves])))
        )

    bodies = {
        "cond_true": trace_subgraph(tx, true_fn, parameters),
        "cond_false": trace_subgraph(tx, false_fn, parameters),
    }
    first, second = _unify_int_outputs(*bodies.values())
    bodies = dict(zip(bodies, (first, second), strict=True))
    if first.output_tree != second.output_tree or not all(map(_can_merge, first.output_fakes(), second.output_fakes())):
        raise Unsupported("higher-order-result", "the branches of torch.cond return different kinds of results")
    for body in bodies.values():
        _check_no_aliasing(body, body.builder.parameters, "torch.cond")
    grad = _requires_grad([*_fakes(leaves), *_lifted_fakes([first, second])])
    results = [
        fake_result_like(
            tx,
            a if _same_metadata(a, b) else _merge_tensors(tx, a, b),
            requires_grad=grad and (a.requires_grad or b.requires_grad),
        )
        if isinstance(a, torch.Tensor)
        else _merge_ints(tx, a, b)
        for a, b in zip(first.output_fakes(), second.output_fakes(), strict=True)
    ]
    values = _emit_higher_order_node(tx, "cond", cond_op, [pred_node], bodies, [nodes], results)
    emit_runtime_asserts(tx)
    return unflatten_variable(tx, first.output_tree, iter(values))


BranchOutput = tuple[Variable, Any]
"""Output of a body, as a variable and as a value in its graph."""


def _unify_int_outputs(first: TracedSubgraph, second: TracedSubgraph) -> tuple[TracedSubgraph, TracedSubgraph]:
    """Turn ints that differ between two branches into outputs of their graphs."""
    outputs = [body.builder.graph.output_node() for body in (first, second)]
    given = [iter(zip(b.outputs, o.args[0], strict=True)) for b, o in zip((first, second), outputs, strict=True)]  # type: ignore[arg-type]
    pairs: list[tuple[BranchOutput, BranchOutput]] = []
    tree = _merge_trees(first.output_tree, second.output_tree, given[0], given[1], pairs)
    if tree is None:
        return first, second
    for n, output in enumerate(outputs):
        output.args = (tuple(pair[n][1] for pair in pairs),)
    left, right = (
        replace(body, outputs=tuple(pair[n][0] for pair in pairs), output_tree=tree)
        for n, body in enumerate((first, second))
    )
    return left, right


def _merge_trees(
    left: TreeSpec,
    right: TreeSpec,
    lefts: Iterator[BranchOutput],
    rights: Iterator[BranchOutput],
    pairs: list[tuple[BranchOutput, BranchOutput]],
) -> TreeSpec | None:
    """Return the common tree of both, or None if they differ in more than ints.

    Pairs of leaves are appended to ``pairs``.
    """
    if left.is_leaf or right.is_leaf or (left != right and left.cls is right.cls is None):
        one, other = _leaf_or_int(left, lefts), _leaf_or_int(right, rights)
        if one is None or other is None:
            return None
        pairs.append((one, other))
        return LEAF
    if (left.cls, left.keys, left.constant, len(left.children)) != (
        right.cls,
        right.keys,
        right.constant,
        len(right.children),
    ):
        return None
    parts: list[TreeSpec] = []
    for a, b in zip(left.children, right.children, strict=True):
        part = _merge_trees(a, b, lefts, rights, pairs)
        if part is None:
            return None
        parts.append(part)
    return replace(left, children=tuple(parts))


def _leaf_or_int(tree: TreeSpec, given: Iterator[BranchOutput]) -> BranchOutput | None:
    if tree.is_leaf:
        return next(given)
    if tree.cls is None and type(tree.constant) is int:
        return ConstantVariable(tree.constant), tree.constant
    return None


def _merge_ints(tx: Tracer, left: Any, right: Any) -> Any:
    """Return an unbacked symbol if the two ints may differ, else the int."""
    if isinstance(left, torch.SymInt | int) and not statically_known_true(left == right):
        return tx.symbols.shape_env.create_unbacked_symint()
    return left


def _can_merge(left: Any, right: Any) -> bool:
    """Return True if two branch outputs can be merged.

    They have equal metadata, or are contiguous tensors that differ only in sizes.
    """
    if _same_metadata(left, right):
        return True
    if all(isinstance(v, torch.SymInt) or type(v) is int for v in (left, right)):
        return True
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    same = (left.dtype, left.device, left.dim()) == (right.dtype, right.device, right.dim())
    return same and left.is_contiguous() and right.is_contiguous() and not (left.requires_grad or right.requires_grad)


def _merge_tensors(tx: Tracer, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Merge two branch outputs: sizes that may differ become unbacked symbols."""
    with tx.symbols.fake_mode, torch.no_grad():
        sizes = [
            a if statically_known_true(a == b) else tx.symbols.shape_env.create_unbacked_symint()
            for a, b in zip(left.shape, right.shape, strict=True)
        ]
        for size in sizes:
            torch._check(size >= 0)
        return torch.empty(sizes, dtype=left.dtype, device=left.device)


@register_rule(while_loop_op)
def _while_loop(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    cond_fn, body_fn, carried, additional = (
        realize(tx, a)
        for a in _bind_arguments(args, kwargs, ("cond_fn", "body_fn", "carried_inputs", "additional_inputs"))
    )
    carried_items = [realize(tx, v) for v in sequence_items(tx, carried)]
    more: list[Variable] = [realize(tx, v) for v in sequence_items(tx, additional)]
    is_carried = all(v.fake is not None or _is_int_variable(v) for v in carried_items)
    if not is_carried or not all(v.is_graph_value for v in more):
        raise Unsupported(
            "higher-order-argument", "torch.while_loop carries a value that is neither a tensor nor an int"
        )
    nodes = _nodes(tx, carried_items)
    more_nodes = _nodes(tx, more)

    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        inside = [
            _fresh_loop_int(tx, builder) if _is_int_variable(v) else _subgraph_input(tx, builder, v)
            for v in carried_items
        ]
        return [*inside, *(_subgraph_input(tx, builder, v) for v in more)]

    condition = trace_subgraph(tx, cond_fn, parameters)
    body = trace_subgraph(tx, body_fn, parameters, clone_returned_inputs=True)
    if condition.output_tree != LEAF or not _is_boolean(condition.output_fakes()[0]):
        raise Unsupported("higher-order-result", "the condition of torch.while_loop is not one boolean tensor")
    # the condition's graph returns its result without a tuple
    _unwrap_single_output(condition)
    before = [v.fake for v in carried_items]
    if len(body.outputs) != len(before) or not all(map(_is_valid_carry, body.output_fakes(), before)):
        raise Unsupported("higher-order-result", "the body of torch.while_loop does not return the types that it gets")
    grad = _requires_grad([*before, *_lifted_fakes([condition, body])])
    results = [
        tx.symbols.shape_env.create_unbacked_symint()
        if b is None
        else fake_result_like(tx, f, requires_grad=grad and (f.requires_grad or b.requires_grad))
        for f, b in zip(body.output_fakes(), before, strict=True)
    ]
    bodies = {"while_loop_cond": condition, "while_loop_body": body}
    values = _emit_higher_order_node(tx, "while_loop", while_loop_op, [], bodies, [nodes, more_nodes], results)
    emit_runtime_asserts(tx)
    return unflatten_variable(tx, body.output_tree, iter(values))


def _is_int_variable(value: Variable) -> bool:
    """Return True for an int, constant or symbolic."""
    return _is_int(value) or isinstance(value.sym, torch.SymInt)


def _fresh_loop_int(tx: Tracer, builder: SubgraphBuilder) -> Variable:
    """Create an unbacked int for a loop variable; it differs per iteration."""
    with tx.symbols.shape_env.ignore_fresh_unbacked_symbols():
        number = tx.symbols.shape_env.create_unbacked_symint()
    return SymNodeVariable(builder.add_parameter(number), number)


def _is_boolean(result: Any) -> bool:
    """Return True if a loop condition's result is a boolean scalar."""
    if isinstance(result, torch.Tensor):
        return (result.dtype, tuple(result.shape)) == (torch.bool, ())
    return isinstance(result, torch.SymBool)


def _is_valid_carry(result: Any, carried: torch.Tensor | None) -> bool:
    """Return True if the body's result matches the carried input; None means an int."""
    return isinstance(result, torch.SymInt) if carried is None else _same_metadata(result, carried)


def _unwrap_single_output(body: TracedSubgraph) -> None:
    """Make a graph with one output return it without a tuple."""
    output = body.builder.graph.output_node()
    output.args = (output.args[0][0],)  # type: ignore[index]


def _first_slice(tx: Tracer, leaf: Variable) -> torch.Tensor:
    with tx.symbols.fake_mode, torch.no_grad():
        found: torch.Tensor = leaf.fake.select(0, 0).clone()
    return found.requires_grad_(leaf.fake.requires_grad)


def _stacked_result(tx: Tracer, count: Any, fake: Any, *, grad: bool) -> Any:
    if not isinstance(fake, torch.Tensor):
        raise Unsupported("higher-order-result", "a mapped function returns a value that is not a tensor")
    with tx.symbols.fake_mode, torch.no_grad():
        found = torch.empty((count, *fake.shape), dtype=fake.dtype, device=fake.device)
    return fake_result_like(tx, found, requires_grad=grad and fake.requires_grad)


def _tensors(tx: Tracer, of: Variable, what: str, *, or_ints: bool = False) -> list[Variable]:
    items = [realize(tx, v) for v in sequence_items(tx, of)]
    if not all(v.is_graph_value or (or_ints and _is_int(v)) for v in items):
        raise Unsupported("higher-order-argument", f"{what} gets a value that is not a tensor")
    return items


@register_rule(map_impl)
def _map(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    function, xs, rest = (realize(tx, a) for a in _bind_arguments(args, kwargs, ("f", "xs", "pos_args")))
    mapped, others = _tensors(tx, xs, "map"), _tensors(tx, rest, "map", or_ints=True)
    nodes, other_nodes = _nodes(tx, mapped), _nodes(tx, others)

    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        slices = [_first_slice(tx, v) for v in mapped]
        inside: list[Variable] = [TensorVariable(builder.add_parameter(s), s) for s in slices]
        return [*inside, *(_subgraph_input(tx, builder, v) for v in others)]

    body = trace_subgraph(tx, function, parameters, clone_returned_inputs=True)
    grad = _requires_grad([*_fakes(mapped), *_fakes(others), *_lifted_fakes([body])])
    count = mapped[0].fake.shape[0]
    results = [_stacked_result(tx, count, f, grad=grad) for f in body.output_fakes()]
    values = _emit_higher_order_node(tx, "map", map_impl, [], {"map_body": body}, [nodes, other_nodes], results)
    return unflatten_variable(tx, body.output_tree, iter(values))


@register_rule(scan_op)
def _scan(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    function, init, xs, rest = (
        realize(tx, a) for a in _bind_arguments(args, kwargs, ("combine_fn", "init", "xs", "additional_inputs"))
    )
    carried, scanned, others = (
        _tensors(tx, init, "scan"),
        _tensors(tx, xs, "scan"),
        _tensors(tx, rest, "scan", or_ints=True),
    )
    groups = [_nodes(tx, group) for group in (carried, scanned, others)]

    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        before: list[Variable] = [_subgraph_input(tx, builder, v) for v in carried]
        slices = [_first_slice(tx, v) for v in scanned]
        inside: list[Variable] = [TensorVariable(builder.add_parameter(s), s) for s in slices]
        return [*before, *inside, *(_subgraph_input(tx, builder, v) for v in others)]

    body = trace_subgraph(tx, function, parameters, clone_returned_inputs=True)
    if len(body.output_tree.children) != 2:
        raise Unsupported("higher-order-result", "the function passed to scan does not return a carry and an output")
    found = body.output_fakes()
    before, made = _fakes(carried), found[: len(carried)]
    same = len(made) == len(before) and all(
        (a.dtype, a.shape) == (b.dtype, b.shape) for a, b in zip(made, before, strict=True)
    )
    if not same:
        raise Unsupported(
            "higher-order-result", "the function passed to scan does not return the type of carry that it gets"
        )
    grad = _requires_grad([*before, *_fakes(scanned), *_lifted_fakes([body])])
    count = scanned[0].fake.shape[0]
    results = [fake_result_like(tx, f, requires_grad=grad and f.requires_grad) for f in made]
    results += [_stacked_result(tx, count, f, grad=grad) for f in found[len(carried) :]]
    values = _emit_higher_order_node(tx, "scan", scan_op, [], {"scan_combine": body}, list(groups), results)
    return unflatten_variable(tx, body.output_tree, iter(values))


@register_rule(associative_scan_op)
def _associative_scan(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    function, xs, rest = (
        realize(tx, a) for a in _bind_arguments(args, kwargs, ("combine_fn", "xs", "additional_inputs"))
    )
    scanned, others = _tensors(tx, xs, "associative_scan"), _tensors(tx, rest, "associative_scan", or_ints=True)
    nodes, other_nodes = _nodes(tx, scanned), _nodes(tx, others)

    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        slices = [_first_slice(tx, v) for v in (*scanned, *scanned)]
        inside: list[Variable] = [TensorVariable(builder.add_parameter(s), s) for s in slices]
        return [*inside, *(_subgraph_input(tx, builder, v) for v in others)]

    body = trace_subgraph(tx, function, parameters, clone_returned_inputs=True)
    grad = _requires_grad([*_fakes(scanned), *_lifted_fakes([body])])
    results = [
        _stacked_result(tx, v.fake.shape[0], f, grad=grad) for v, f in zip(scanned, body.output_fakes(), strict=True)
    ]
    values = _emit_higher_order_node(
        tx, "associative_scan", associative_scan_op, [], {"scan_combine": body}, [nodes, other_nodes], results
    )
    return unflatten_variable(tx, body.output_tree, iter(values))
