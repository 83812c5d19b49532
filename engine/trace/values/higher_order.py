"""torch's operators that take functions: ``cond``, ``while_loop``, ``scan``, ``map`` and the like, with their bodies as graphs."""

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

from engine.trace.graph_builder import wrap_result
from engine.trace.signals import Unsupported
from engine.trace.unbacked import check_deferred
from engine.trace.values.base import Const, Value, force
from engine.trace.values.nested import (
    Body,
    NestedBuilder,
    lift_all,
    result_like,
    shares_memory,
    trace_body,
    twin,
)
from engine.trace.values.rules import special
from engine.trace.values.sequences import TupleValue, sequence_items
from engine.trace.values.symbolic import SymValue
from engine.trace.values.tensor import TensorValue
from engine.trace.values.trees import LEAF, Tree, flatten, unflatten

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Args = list[Value]
Words = dict[str, Value]


def _named(args: Args, kwargs: Words, names: Sequence[str]) -> list[Value]:
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name, TupleValue([])) for name in names]


def _is_int(leaf: Value) -> bool:
    return isinstance(leaf, Const) and type(leaf.value) is int


def _leaf_twin(tx: Tracer, builder: NestedBuilder, leaf: Value) -> Value:
    if isinstance(leaf, Const):
        builder.parameter(leaf.value)  # who runs the body passes it; the body knows it
        return leaf
    if isinstance(leaf, SymValue):
        return SymValue(builder.parameter(leaf.sym), leaf.sym)
    assert isinstance(leaf, TensorValue)
    return twin(tx, builder, leaf.fake)


def _joined(
    tx: Tracer, name: str, target: Any, before: list[Any], bodies: dict[str, Body], rest: list[Any], results: list[Any]
) -> list[Value]:
    """The node of a higher-order operator, with its bodies in the graph; its results as values.

    ``rest`` are the operands; each list or tuple in it stays one argument. Free variables are added to the last.
    """
    lifted = lift_all(list(bodies.values()))
    functions = [tx.graph.attach(key, body.module(), tx.node_origin()) for key, body in bodies.items()]
    *first, last = rest
    args = (*before, *functions, *first, (*last, *lifted))
    node = tx.graph.add("call_function", target, args, {}, tx.node_origin(name))
    tx.note_handlers()
    value = wrap_result(tx, node, tuple(results), keep=True)
    return list(sequence_items(tx, value))


def _nodes(tx: Tracer, leaves: Sequence[Value]) -> tuple[Any, ...]:
    return tuple(leaf.graph_arg(tx)[0] for leaf in leaves)


def _requires_grad(values: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)


def _fakes(leaves: Sequence[Value]) -> list[Any]:
    return [v.fake if isinstance(v, TensorValue) else v.sym for v in leaves if isinstance(v, (TensorValue, SymValue))]


def _lifted_fakes(bodies: Sequence[Body]) -> list[Any]:
    return [n.meta["example_value"] for body in bodies for n in body.builder.outside()]


def _check_fresh(body: Body, given: Sequence[torch.fx.Node], what: str) -> None:
    """A body may not return what it was given, or a view of it."""
    inputs = [n.meta["example_value"] for n in (*given, *body.builder.outside())]
    inputs = [i for i in inputs if isinstance(i, torch.Tensor)]
    outputs = [o for o in body.fakes() if isinstance(o, torch.Tensor)]
    if any(shares_memory(o, i) for o in outputs for i in inputs):
        raise Unsupported(
            "unsupported-operation", f"a function given to {what} returns one of its inputs, or a view of it"
        )
    if any(shares_memory(o, p) for n, o in enumerate(outputs) for p in outputs[:n]):
        raise Unsupported("unsupported-operation", f"a function given to {what} returns the same memory twice")


def _alike(left: Any, right: Any) -> bool:
    """Whether two results have the same metadata, up to gradients."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return (left.dtype, left.device, left.shape, left.stride()) == (
            right.dtype,
            right.device,
            right.shape,
            right.stride(),
        )
    return type(left) is type(right)


@special(cond_op)
def _cond(tx: Tracer, args: Args, kwargs: Words) -> Value:
    pred, true_fn, false_fn, operands = (
        force(tx, a) for a in _named(args, kwargs, ("pred", "true_fn", "false_fn", "operands"))
    )
    items = list(sequence_items(tx, operands))
    if isinstance(pred, Const):
        return (true_fn if pred.truth(tx) else false_fn).call(tx, items, {})
    if not isinstance(pred, (TensorValue, SymValue)):
        raise pred.refuse("torch.cond")
    if isinstance(pred, TensorValue) and (pred.fake.numel() != 1 or pred.fake.requires_grad):
        raise Unsupported("unsupported-argument", f"torch.cond on a {pred.describe()}")
    leaves: list[Value] = []
    tree = flatten(tx, TupleValue(items), leaves)
    if any(type(c) is not int for c in tree.constants()):
        raise Unsupported("unsupported-argument", "torch.cond is given what is neither a tensor nor an int")
    pred_node, _ = pred.graph_arg(tx)
    nodes = _nodes(tx, leaves)

    def parameters(builder: NestedBuilder) -> list[Value]:
        return list(sequence_items(tx, unflatten(tx, tree, iter([_leaf_twin(tx, builder, v) for v in leaves]))))

    bodies = {"cond_true": trace_body(tx, true_fn, parameters), "cond_false": trace_body(tx, false_fn, parameters)}
    first, second = _with_numbers(*bodies.values())
    bodies = dict(zip(bodies, (first, second), strict=True))
    if first.tree != second.tree or not all(map(_may_join, first.fakes(), second.fakes())):
        raise Unsupported("unsupported-operation", "the branches of torch.cond return different kinds of results")
    for body in bodies.values():
        _check_fresh(body, body.builder.parameters, "torch.cond")
    grad = _requires_grad([*_fakes(leaves), *_lifted_fakes([first, second])])
    results = [
        result_like(
            tx, a if _alike(a, b) else _either(tx, a, b), requires_grad=grad and (a.requires_grad or b.requires_grad)
        )
        if isinstance(a, torch.Tensor)
        else _either_number(tx, a, b)
        for a, b in zip(first.fakes(), second.fakes(), strict=True)
    ]
    values = _joined(tx, "cond", cond_op, [pred_node], bodies, [nodes], results)
    check_deferred(tx)
    return unflatten(tx, first.tree, iter(values))


Given = tuple[Value, Any]
"""What a body returns, and the same in its graph."""


def _with_numbers(first: Body, second: Body) -> tuple[Body, Body]:
    """Two branches; where they give different ints, known ones or not, these become results of their graphs."""
    outputs = [body.builder.graph.output_node() for body in (first, second)]
    given = [iter(zip(b.outputs, o.args[0], strict=True)) for b, o in zip((first, second), outputs, strict=True)]  # type: ignore[arg-type]
    pairs: list[tuple[Given, Given]] = []
    tree = _side_by_side(first.tree, second.tree, given[0], given[1], pairs)
    if tree is None:
        return first, second
    for n, output in enumerate(outputs):
        output.args = (tuple(pair[n][1] for pair in pairs),)
    left, right = (
        replace(body, outputs=tuple(pair[n][0] for pair in pairs), tree=tree) for n, body in enumerate((first, second))
    )
    return left, right


def _side_by_side(
    left: Tree, right: Tree, lefts: Iterator[Given], rights: Iterator[Given], pairs: list[tuple[Given, Given]]
) -> Tree | None:
    """The tree of both; None where they differ in more than numbers. Pairs of leaves are added to ``pairs``."""
    if left.is_leaf or right.is_leaf or (left != right and left.cls is right.cls is None):
        one, other = _leaf_or_number(left, lefts), _leaf_or_number(right, rights)
        if one is None or other is None:
            return None
        pairs.append((one, other))
        return LEAF
    if (left.cls, left.keys, left.constant, len(left.parts)) != (
        right.cls,
        right.keys,
        right.constant,
        len(right.parts),
    ):
        return None
    parts: list[Tree] = []
    for a, b in zip(left.parts, right.parts, strict=True):
        part = _side_by_side(a, b, lefts, rights, pairs)
        if part is None:
            return None
        parts.append(part)
    return replace(left, parts=tuple(parts))


def _leaf_or_number(tree: Tree, given: Iterator[Given]) -> Given | None:
    if tree.is_leaf:
        return next(given)
    if tree.cls is None and type(tree.constant) is int:
        return Const(tree.constant), tree.constant
    return None


def _either_number(tx: Tracer, left: Any, right: Any) -> Any:
    """A number that is one of these, known once a branch has run."""
    if isinstance(left, torch.SymInt | int) and not statically_known_true(left == right):
        return tx.shape_env.create_unbacked_symint()
    return left


def _may_join(left: Any, right: Any) -> bool:
    """Whether two branches may give these: alike, or contiguous tensors of which only sizes differ."""
    if _alike(left, right):
        return True
    if all(isinstance(v, torch.SymInt) or type(v) is int for v in (left, right)):
        return True
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    same = (left.dtype, left.device, left.dim()) == (right.dtype, right.device, right.dim())
    return same and left.is_contiguous() and right.is_contiguous() and not (left.requires_grad or right.requires_grad)


def _either(tx: Tracer, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A tensor of which the sizes that differ are known once a branch has run."""
    with tx.fake_mode, torch.no_grad():
        sizes = [
            a if statically_known_true(a == b) else tx.shape_env.create_unbacked_symint()
            for a, b in zip(left.shape, right.shape, strict=True)
        ]
        for size in sizes:
            torch._check(size >= 0)
        return torch.empty(sizes, dtype=left.dtype, device=left.device)


@special(while_loop_op)
def _while_loop(tx: Tracer, args: Args, kwargs: Words) -> Value:
    cond_fn, body_fn, carried, additional = (
        force(tx, a) for a in _named(args, kwargs, ("cond_fn", "body_fn", "carried_inputs", "additional_inputs"))
    )
    carried_items = [force(tx, v) for v in sequence_items(tx, carried)]
    more: list[Value] = [force(tx, v) for v in sequence_items(tx, additional)]
    if not all(isinstance(v, TensorValue) or _is_whole(v) for v in carried_items) or not all(
        isinstance(v, (TensorValue, SymValue)) for v in more
    ):
        raise Unsupported("unsupported-argument", "torch.while_loop carries what is neither a tensor nor an int")
    nodes = _nodes(tx, carried_items)
    more_nodes = _nodes(tx, more)

    def parameters(builder: NestedBuilder) -> list[Value]:
        inside = [_any_number(tx, builder) if _is_whole(v) else _leaf_twin(tx, builder, v) for v in carried_items]
        return [*inside, *(_leaf_twin(tx, builder, v) for v in more)]

    condition = trace_body(tx, cond_fn, parameters)
    body = trace_body(tx, body_fn, parameters, copies_inputs=True)
    if condition.tree != LEAF or not _is_truth(condition.fakes()[0]):
        raise Unsupported("unsupported-operation", "the condition of torch.while_loop is not one boolean tensor")
    # The condition's graph gives its one result alone.
    _alone(condition)
    before = [v.fake if isinstance(v, TensorValue) else None for v in carried_items]
    if len(body.outputs) != len(before) or not all(map(_goes_round, body.fakes(), before)):
        raise Unsupported(
            "unsupported-operation", "the body of torch.while_loop returns other kinds of values than it is given"
        )
    grad = _requires_grad([*before, *_lifted_fakes([condition, body])])
    results = [
        tx.shape_env.create_unbacked_symint()
        if b is None
        else result_like(tx, f, requires_grad=grad and (f.requires_grad or b.requires_grad))
        for f, b in zip(body.fakes(), before, strict=True)
    ]
    bodies = {"while_loop_cond": condition, "while_loop_body": body}
    values = _joined(tx, "while_loop", while_loop_op, [], bodies, [nodes, more_nodes], results)
    check_deferred(tx)
    return unflatten(tx, body.tree, iter(values))


def _is_whole(value: Value) -> bool:
    """Whether it is an int, known or not."""
    if isinstance(value, Const):
        return type(value.value) is int
    return isinstance(value, SymValue) and isinstance(value.sym, torch.SymInt)


def _any_number(tx: Tracer, builder: NestedBuilder) -> Value:
    """An int that each round of a loop knows anew."""
    with tx.shape_env.ignore_fresh_unbacked_symbols():
        number = tx.shape_env.create_unbacked_symint()
    return SymValue(builder.parameter(number), number)


def _is_truth(result: Any) -> bool:
    """Whether a loop may go on or not by it."""
    if isinstance(result, torch.Tensor):
        return (result.dtype, tuple(result.shape)) == (torch.bool, ())
    return isinstance(result, torch.SymBool)


def _goes_round(result: Any, carried: torch.Tensor | None) -> bool:
    """Whether a loop's body returns the same kind of value as it was given, None for an int."""
    return isinstance(result, torch.SymInt) if carried is None else _alike(result, carried)


def _alone(body: Body) -> None:
    """Make a graph of one result return it without a tuple around it."""
    output = body.builder.graph.output_node()
    output.args = (output.args[0][0],)  # type: ignore[index]


def _slice_of(tx: Tracer, leaf: Value) -> torch.Tensor:
    assert isinstance(leaf, TensorValue)
    with tx.fake_mode, torch.no_grad():
        found = leaf.fake.select(0, 0).clone()
    return found.requires_grad_(leaf.fake.requires_grad)


def _stacked(tx: Tracer, count: Any, fake: Any, *, grad: bool) -> Any:
    if not isinstance(fake, torch.Tensor):
        raise Unsupported("unsupported-operation", "a mapped function returns what is not a tensor")
    with tx.fake_mode, torch.no_grad():
        found = torch.empty((count, *fake.shape), dtype=fake.dtype, device=fake.device)
    return result_like(tx, found, requires_grad=grad and fake.requires_grad)


def _tensors(tx: Tracer, of: Value, what: str, *, or_ints: bool = False) -> list[Value]:
    items = [force(tx, v) for v in sequence_items(tx, of)]
    if not all(isinstance(v, (TensorValue, SymValue)) or (or_ints and _is_int(v)) for v in items):
        raise Unsupported("unsupported-argument", f"{what} is given what is not a tensor")
    return items


@special(map_impl)
def _map(tx: Tracer, args: Args, kwargs: Words) -> Value:
    function, xs, rest = (force(tx, a) for a in _named(args, kwargs, ("f", "xs", "pos_args")))
    mapped, others = _tensors(tx, xs, "map"), _tensors(tx, rest, "map", or_ints=True)
    nodes, other_nodes = _nodes(tx, mapped), _nodes(tx, others)

    def parameters(builder: NestedBuilder) -> list[Value]:
        slices = [_slice_of(tx, v) for v in mapped]
        inside: list[Value] = [TensorValue(builder.parameter(s), s) for s in slices]
        return [*inside, *(_leaf_twin(tx, builder, v) for v in others)]

    body = trace_body(tx, function, parameters, copies_inputs=True)
    grad = _requires_grad([*_fakes(mapped), *_fakes(others), *_lifted_fakes([body])])
    count = mapped[0].fake.shape[0]  # type: ignore[attr-defined]
    results = [_stacked(tx, count, f, grad=grad) for f in body.fakes()]
    values = _joined(tx, "map", map_impl, [], {"map_body": body}, [nodes, other_nodes], results)
    return unflatten(tx, body.tree, iter(values))


@special(scan_op)
def _scan(tx: Tracer, args: Args, kwargs: Words) -> Value:
    function, init, xs, rest = (
        force(tx, a) for a in _named(args, kwargs, ("combine_fn", "init", "xs", "additional_inputs"))
    )
    carried, scanned, others = (
        _tensors(tx, init, "scan"),
        _tensors(tx, xs, "scan"),
        _tensors(tx, rest, "scan", or_ints=True),
    )
    groups = [_nodes(tx, group) for group in (carried, scanned, others)]

    def parameters(builder: NestedBuilder) -> list[Value]:
        before: list[Value] = [_leaf_twin(tx, builder, v) for v in carried]
        slices = [_slice_of(tx, v) for v in scanned]
        inside: list[Value] = [TensorValue(builder.parameter(s), s) for s in slices]
        return [*before, *inside, *(_leaf_twin(tx, builder, v) for v in others)]

    body = trace_body(tx, function, parameters, copies_inputs=True)
    if len(body.tree.parts) != 2:
        raise Unsupported("unsupported-operation", "the function given to scan does not return a carry and an output")
    found = body.fakes()
    before, made = _fakes(carried), found[: len(carried)]
    same = len(made) == len(before) and all(
        (a.dtype, a.shape) == (b.dtype, b.shape) for a, b in zip(made, before, strict=True)
    )
    if not same:
        raise Unsupported(
            "unsupported-operation", "the function given to scan returns another kind of carry than it is given"
        )
    grad = _requires_grad([*before, *_fakes(scanned), *_lifted_fakes([body])])
    count = scanned[0].fake.shape[0]  # type: ignore[attr-defined]
    results = [result_like(tx, f, requires_grad=grad and f.requires_grad) for f in made]
    results += [_stacked(tx, count, f, grad=grad) for f in found[len(carried) :]]
    values = _joined(tx, "scan", scan_op, [], {"scan_combine": body}, list(groups), results)
    return unflatten(tx, body.tree, iter(values))


@special(associative_scan_op)
def _associative_scan(tx: Tracer, args: Args, kwargs: Words) -> Value:
    function, xs, rest = (force(tx, a) for a in _named(args, kwargs, ("combine_fn", "xs", "additional_inputs")))
    scanned, others = _tensors(tx, xs, "associative_scan"), _tensors(tx, rest, "associative_scan", or_ints=True)
    nodes, other_nodes = _nodes(tx, scanned), _nodes(tx, others)

    def parameters(builder: NestedBuilder) -> list[Value]:
        slices = [_slice_of(tx, v) for v in (*scanned, *scanned)]
        inside: list[Value] = [TensorValue(builder.parameter(s), s) for s in slices]
        return [*inside, *(_leaf_twin(tx, builder, v) for v in others)]

    body = trace_body(tx, function, parameters, copies_inputs=True)
    grad = _requires_grad([*_fakes(scanned), *_lifted_fakes([body])])
    results = [_stacked(tx, v.fake.shape[0], f, grad=grad) for v, f in zip(scanned, body.fakes(), strict=True)]  # type: ignore[attr-defined]
    values = _joined(
        tx, "associative_scan", associative_scan_op, [], {"scan_combine": body}, [nodes, other_nodes], results
    )
    return unflatten(tx, body.tree, iter(values))
