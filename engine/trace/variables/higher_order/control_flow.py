"""Higher-order operators cond, while_loop, map, scan, associative_scan with subgraphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from engine.torch_private.higher_order_ops import associative_scan_op, cond_op, map_impl, scan_op, while_loop_op
from engine.torch_private.operators import torch_check
from engine.torch_private.symbolic_shapes import statically_known_true
from engine.trace.annotations import Tracer
from engine.trace.emit_node import wrap_result
from engine.trace.exc import Unsupported
from engine.trace.symbols.unbacked_symints import emit_runtime_asserts
from engine.trace.variables.base import ConstantVariable, Variable, realize
from engine.trace.variables.callable_registry import register_bound_rule
from engine.trace.variables.containers.sequences import TupleVariable, sequence_items
from engine.trace.variables.higher_order.pytrees import LEAF, TreeSpec, flatten_variable, unflatten_variable
from engine.trace.variables.higher_order.subgraph import (
    SubgraphBuilder,
    TracedSubgraph,
    add_parameter_for,
    fake_result_like,
    lift_shared_free_variables,
    shares_storage,
    tensor_values,
    trace_subgraph,
)
from engine.trace.variables.tensors.sym_node import SymNodeVariable
from engine.trace.variables.tensors.tensor import TensorVariable


def _is_int(leaf: Variable) -> bool:
    return type(leaf.as_python_object()) is int


def _subgraph_input(tx: Tracer, builder: SubgraphBuilder, leaf: Variable) -> Variable:
    if not leaf.is_graph_value:  # callers of the body pass the value, but the body itself has it as a constant
        builder.add_parameter(leaf.as_python_constant(tx))
    return add_parameter_for(tx, builder, leaf)


def _emit_higher_order_node(
    tx: Tracer,
    target: Any,
    leading_args: list[Any],
    bodies: dict[str, TracedSubgraph],
    operands: Sequence[Sequence[Variable]],
    results: list[Any],
) -> Variable:
    """Emit the node of a higher-order operator with its subgraphs; return its results.

    Each list of operands is one argument. Free variables are appended to the last. All bodies, or the last one,
    determine the structure of the result.
    """
    *first, last = (tuple(leaf.as_node_arg(tx)[0] for leaf in leaves) for leaves in operands)
    lifted = lift_shared_free_variables(list(bodies.values()))
    functions = [tx.graph.add_subgraph(key, body.module(), tx.node_provenance()) for key, body in bodies.items()]
    args = (*leading_args, *functions, *first, (*last, *lifted))
    node = tx.graph.create_node(
        "call_function", target, args, {}, tx.node_provenance(str(target.__name__).removesuffix("_impl"))
    )
    tx.fallback.update_op_in_try_block()
    values = sequence_items(tx, wrap_result(tx, node, tuple(results), keep=True))
    emit_runtime_asserts(tx)
    return unflatten_variable(tx, list(bodies.values())[-1].output_tree, iter(values))


def _check_no_aliasing(body: TracedSubgraph, what: str) -> None:
    """Check that a body returns no alias of its inputs and no storage twice."""
    inputs = tensor_values([*body.builder.parameters, *body.builder.free_variables()])
    outputs = [v.fake for v in body.outputs if v.fake is not None]
    if any(shares_storage(o, i) for o in outputs for i in inputs):
        raise Unsupported("higher-order-alias", f"a function passed to {what} returns an alias of one of its inputs")
    if any(shares_storage(o, p) for n, o in enumerate(outputs) for p in outputs[:n]):
        raise Unsupported("higher-order-alias", f"a function passed to {what} returns two aliases of one tensor")


def _metadata(fake: torch.Tensor) -> tuple[Any, ...]:
    """Return the metadata of a result, without ``requires_grad``."""
    return fake.dtype, fake.device, fake.shape, fake.stride()


@register_bound_rule(cond_op)
def _cond(
    tx: Tracer, pred: Variable, true_fn: Variable, false_fn: Variable, operands: Variable | None = None
) -> Variable:
    items = _optional_items(tx, operands)
    if pred.is_constant:
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
    for leaf in leaves:
        leaf.as_node_arg(tx)  # create the inputs of the outer graph in the order of the operands

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
    pairs = list(zip(first.outputs, second.outputs, strict=False))
    if first.output_tree != second.output_tree or not all(_can_merge(a, b) for a, b in pairs):
        raise Unsupported("higher-order-result", "the branches of torch.cond return different kinds of results")
    for body in bodies.values():
        _check_no_aliasing(body, "torch.cond")
    results = [_merge_ints(tx, a, b) if a.fake is None else _merge_tensors(tx, a.fake, b.fake) for a, b in pairs]
    return _emit_higher_order_node(tx, cond_op, [pred_node], bodies, [leaves], results)


BranchOutput = tuple[Variable, Any]
"""Output of a body, as a variable and as a value in its graph."""


def _unify_int_outputs(first: TracedSubgraph, second: TracedSubgraph) -> tuple[TracedSubgraph, TracedSubgraph]:
    """Turn ints that differ between two branches into outputs of their graphs."""
    outputs = [body.builder.graph.output_node() for body in (first, second)]
    iterators = [iter(zip(b.outputs, o.args[0], strict=True)) for b, o in zip((first, second), outputs, strict=True)]  # type: ignore[arg-type]
    pairs: list[tuple[BranchOutput, BranchOutput]] = []
    tree = _merge_trees(first.output_tree, second.output_tree, iterators[0], iterators[1], pairs)
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
        leaf, other_leaf = _leaf_or_int(left, lefts), _leaf_or_int(right, rights)
        if leaf is None or other_leaf is None:
            return None
        pairs.append((leaf, other_leaf))
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


def _leaf_or_int(tree: TreeSpec, outputs: Iterator[BranchOutput]) -> BranchOutput | None:
    if tree.is_leaf:
        return next(outputs)
    if tree.cls is None and type(tree.constant) is int:
        return ConstantVariable(tree.constant), tree.constant
    return None


def _merge_ints(tx: Tracer, left: Variable, right: Variable) -> Any:
    """Return an unbacked symbol if the two ints may differ, else the number."""
    left_number, right_number = (v.as_python_object() if v.sym is None else v.sym for v in (left, right))
    if left.python_type() is int and not statically_known_true(left_number == right_number):
        return tx.symbols.shape_env.create_unbacked_symint()
    return left_number


def _can_merge(left: Variable, right: Variable) -> bool:
    """Return True if two branch outputs can be merged.

    They have equal metadata, are ints, or are contiguous tensors that differ only in sizes.
    """
    if left.fake is None or right.fake is None:
        is_same = left.sym is not None and right.sym is not None and left.sym.node.expr == right.sym.node.expr
        return is_same or (_is_int_variable(left) and _is_int_variable(right))
    if _metadata(left.fake) == _metadata(right.fake):
        return True
    fakes = (left.fake, right.fake)
    is_alike = len({(f.dtype, f.device, f.dim()) for f in fakes}) == 1
    return is_alike and all(f.is_contiguous() and not f.requires_grad for f in fakes)


def _merge_tensors(tx: Tracer, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Merge two branch outputs: sizes that may differ become unbacked symbols."""
    if _metadata(left) == _metadata(right):
        return _result_like(tx, left, requires_grad=left.requires_grad or right.requires_grad)
    with tx.symbols.fake_mode, torch.no_grad():
        sizes = [
            a if statically_known_true(a == b) else tx.symbols.shape_env.create_unbacked_symint()
            for a, b in zip(left.shape, right.shape, strict=True)
        ]
        for size in sizes:
            torch_check(size >= 0)
        return torch.empty(sizes, dtype=left.dtype, device=left.device)


def _result_like(tx: Tracer, fake: torch.Tensor, *, requires_grad: bool) -> torch.Tensor:
    return fake_result_like(tx, fake, requires_grad=torch.is_grad_enabled() and requires_grad)


@register_bound_rule(while_loop_op)
def _while_loop(
    tx: Tracer,
    cond_fn: Variable,
    body_fn: Variable,
    carried_inputs: Variable,
    additional_inputs: Variable | None = None,
) -> Variable:
    carried_items, additional = _optional_items(tx, carried_inputs), _optional_items(tx, additional_inputs)
    is_carried = all(v.fake is not None or _is_int_variable(v) for v in carried_items)
    if not is_carried or not all(v.is_graph_value for v in additional):
        raise Unsupported(
            "higher-order-argument", "torch.while_loop carries a value that is neither a tensor nor an int"
        )
    for value in (*carried_items, *additional):
        value.as_node_arg(tx)  # create the inputs of the outer graph in the order of the arguments

    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        inside = [
            _fresh_loop_int(tx, builder) if _is_int_variable(v) else _subgraph_input(tx, builder, v)
            for v in carried_items
        ]
        return [*inside, *(_subgraph_input(tx, builder, v) for v in additional)]

    condition = trace_subgraph(tx, cond_fn, parameters)
    body = trace_subgraph(tx, body_fn, parameters, clone_returned_inputs=True)
    if condition.output_tree != LEAF or not _is_boolean(condition.outputs[0]):
        raise Unsupported("higher-order-result", "the condition of torch.while_loop is not one boolean tensor")
    condition.unwrap_single_output()
    pairs = list(zip(body.outputs, carried_items, strict=False))
    if len(body.outputs) != len(carried_items) or not all(_is_valid_carry(result, before) for result, before in pairs):
        raise Unsupported("higher-order-result", "the body of torch.while_loop does not return the types that it gets")
    results = [
        tx.symbols.shape_env.create_unbacked_symint()
        if before.fake is None
        else _result_like(tx, result.fake, requires_grad=result.fake.requires_grad or before.fake.requires_grad)
        for result, before in pairs
    ]
    bodies = {"while_loop_cond": condition, "while_loop_body": body}
    return _emit_higher_order_node(tx, while_loop_op, [], bodies, [carried_items, additional], results)


def _is_int_variable(value: Variable) -> bool:
    """Return True for an int, constant or symbolic."""
    return _is_int(value) or (value.sym is not None and value.python_type() is int)


def _fresh_loop_int(tx: Tracer, builder: SubgraphBuilder) -> Variable:
    """Create an unbacked int for a loop variable; it differs per iteration."""
    with tx.symbols.shape_env.ignore_fresh_unbacked_symbols():
        number = tx.symbols.shape_env.create_unbacked_symint()
    return SymNodeVariable(builder.add_parameter(number), number)


def _is_boolean(result: Variable) -> bool:
    """Return True if a loop condition's result is a boolean scalar."""
    if result.fake is not None:
        return (result.fake.dtype, tuple(result.fake.shape)) == (torch.bool, ())
    return result.sym is not None and result.python_type() is bool


def _is_valid_carry(result: Variable, carried: Variable) -> bool:
    """Return True if the body's result has the type of the carried input."""
    if carried.fake is None or result.fake is None:
        return carried.fake is None and result.sym is not None and result.python_type() is int
    return _metadata(result.fake) == _metadata(carried.fake)


def _first_slice(tx: Tracer, leaf: Variable) -> torch.Tensor:
    with tx.symbols.fake_mode, torch.no_grad():
        first: torch.Tensor = leaf.fake.select(0, 0).clone()
    return first.requires_grad_(leaf.fake.requires_grad)


def _stacked_result(tx: Tracer, count: Any, result: Variable) -> Any:
    if result.fake is None:
        raise Unsupported("higher-order-result", "a mapped function returns a value that is not a tensor")
    with tx.symbols.fake_mode, torch.no_grad():
        stacked = torch.empty((count, *result.fake.shape), dtype=result.fake.dtype, device=result.fake.device)
    return _result_like(tx, stacked, requires_grad=result.fake.requires_grad)


def _trace_step(
    tx: Tracer, function: Variable, carried: list[Variable], sliced: list[Variable], others: list[Variable]
) -> TracedSubgraph:
    """Trace one step of a loop, on carried values, one slice of tensors, and other values."""
    for value in (*carried, *sliced, *others):
        value.as_node_arg(tx)  # create the inputs of the outer graph in the order of the arguments

    def parameters(builder: SubgraphBuilder) -> list[Variable]:
        before: list[Variable] = [_subgraph_input(tx, builder, v) for v in carried]
        slices = [_first_slice(tx, v) for v in sliced]
        inside: list[Variable] = [TensorVariable(builder.add_parameter(s), s) for s in slices]
        return [*before, *inside, *(_subgraph_input(tx, builder, v) for v in others)]

    return trace_subgraph(tx, function, parameters, clone_returned_inputs=True)


def _optional_items(tx: Tracer, of: Variable | None) -> list[Variable]:
    return [] if of is None else [realize(tx, v) for v in sequence_items(tx, of)]


def _tensors(tx: Tracer, of: Variable | None, what: str, *, or_ints: bool = False) -> list[Variable]:
    items = _optional_items(tx, of)
    if not all(v.is_graph_value or (or_ints and _is_int(v)) for v in items):
        raise Unsupported("higher-order-argument", f"{what} gets a value that is not a tensor")
    return items


@register_bound_rule(map_impl)
def _map(tx: Tracer, f: Variable, xs: Variable, pos_args: Variable | None = None) -> Variable:
    mapped, others = _tensors(tx, xs, "map"), _tensors(tx, pos_args, "map", or_ints=True)
    body = _trace_step(tx, f, [], mapped, others)
    results = [_stacked_result(tx, mapped[0].fake.shape[0], v) for v in body.outputs]
    return _emit_higher_order_node(tx, map_impl, [], {"map_body": body}, [mapped, others], results)


@register_bound_rule(scan_op)
def _scan(
    tx: Tracer, combine_fn: Variable, init: Variable, xs: Variable, additional_inputs: Variable | None = None
) -> Variable:
    carried, scanned = _tensors(tx, init, "scan"), _tensors(tx, xs, "scan")
    others = _tensors(tx, additional_inputs, "scan", or_ints=True)
    body = _trace_step(tx, combine_fn, carried, scanned, others)
    if len(body.output_tree.children) != 2:
        raise Unsupported("higher-order-result", "the function passed to scan does not return a carry and an output")
    new_carry = body.outputs[: len(carried)]
    if [(v.fake.dtype, v.fake.shape) for v in new_carry if v.fake is not None] != [
        (v.fake.dtype, v.fake.shape) for v in carried
    ]:
        raise Unsupported(
            "higher-order-result", "the function passed to scan does not return the type of carry that it gets"
        )
    results = [_result_like(tx, v.fake, requires_grad=v.fake.requires_grad) for v in new_carry]
    results += [_stacked_result(tx, scanned[0].fake.shape[0], v) for v in body.outputs[len(carried) :]]
    return _emit_higher_order_node(tx, scan_op, [], {"scan_combine": body}, [carried, scanned, others], results)


@register_bound_rule(associative_scan_op)
def _associative_scan(
    tx: Tracer, combine_fn: Variable, xs: Variable, additional_inputs: Variable | None = None
) -> Variable:
    scanned = _tensors(tx, xs, "associative_scan")
    others = _tensors(tx, additional_inputs, "associative_scan", or_ints=True)
    body = _trace_step(tx, combine_fn, [], [*scanned, *scanned], others)
    results = [_stacked_result(tx, v.fake.shape[0], result) for v, result in zip(scanned, body.outputs, strict=True)]
    return _emit_higher_order_node(tx, associative_scan_op, [], {"scan_combine": body}, [scanned, others], results)
