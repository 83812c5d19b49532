"""torch._check and the symbolic-shape helpers in traced code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from engine.ir.introspection.symbols import has_unbacked_symbols
from engine.ir.register_once import register_each, register_table
from engine.torch_private import operators, symbolic_shapes
from engine.trace.annotations import Tracer
from engine.trace.emit_node import emit_node
from engine.trace.exc import Unsupported
from engine.trace.fake_tensors.evaluate import evaluate_on_fakes
from engine.trace.operators.arithmetic import binary_op
from engine.trace.symbols.unbacked_symints import emit_runtime_asserts
from engine.trace.variables.base import NONE, Args, ConstantVariable, Kwargs, Variable, realize
from engine.trace.variables.callable_registry import register_bound_rule, register_rule


@register_rule(
    operators.torch_check,
    operators.torch_check_value,
    operators.torch_check_index,
    operators.torch_check_type,
    operators.torch_check_not_implemented,
    operators.torch_assert,
)
def _check(tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    condition: Any = realize(tx, args[0] if args else kwargs.get("cond", kwargs.get("condition", NONE)))
    if condition.as_python_object() is True:
        return NONE
    if condition.sym is not None and condition.python_type() is bool:
        if not condition.depends_on_unbacked_float and not has_unbacked_symbols(condition.sym):
            if condition.is_truthy(tx):
                return NONE
        elif not condition.depends_on_unbacked_float or not tx.in_subgraph():
            assume_of_number(tx, condition, truth=True)
            return NONE
    raise Unsupported("torch-check", "torch._check or torch._assert of a condition that is not known while tracing")


def assume_of_number(tx: Tracer, condition: Any, *, truth: bool) -> None:
    """Assume that a condition on unbacked symbols has this value; generated code checks it."""
    if condition.python_type() is bool and not condition.depends_on_unbacked_float:
        assumed = condition.sym if truth else torch.sym_not(condition.sym)
        evaluate_on_fakes(tx, "call_function", operators.torch_check, [assumed], {})
        emit_runtime_asserts(tx, are_implied=True)
    if not tx.in_subgraph():
        tx.fallback.assume_condition(condition.node, truth=truth)


@register_bound_rule(operators.torch_check_tensor_all)
def _check_tensor_all(tx: Tracer, cond: Variable = NONE, message: Variable = NONE) -> Variable:
    """Assume that all elements are true; code after the graph checks it."""
    if cond.fake is None or cond.fake.dtype is not torch.bool or tx.in_subgraph():
        raise Unsupported("torch-check", "torch._check_tensor_all is called")
    holds = emit_node(tx, "call_method", "all", [cond])
    tx.fallback.assume_condition(holds.as_node_arg(tx)[0], truth=True)
    return NONE


@register_each(register_bound_rule, symbolic_shapes.guard_or_false, symbolic_shapes.guard_or_true)
def _guard_or(ask: Callable[[Any], bool], tx: Tracer, a: Variable) -> Variable:
    """Trace ``guard_or_true`` or ``guard_or_false``.

    For an unbacked condition it returns the static answer, else the default in its name. Callers accept either.
    """
    if a.sym is not None and has_unbacked_symbols(a.sym):
        return ConstantVariable(ask(a.sym))
    return ConstantVariable(a.is_truthy(tx))


@register_each(
    register_rule,
    symbolic_shapes.statically_known_true,
    symbolic_shapes.statically_known_false,
    symbolic_shapes.has_static_value,
    symbolic_shapes.is_nested_int,
    symbolic_shapes.is_concrete_int,
)
def _query_symbol(ask: Callable[[Any], Any], tx: Tracer, args: Args, kwargs: Kwargs) -> Variable:
    """Query ``ShapeEnv`` about a symbol; eager has a plain number there."""
    of = realize(tx, [*args, *kwargs.values()][0])
    return ConstantVariable(bool(ask(of.as_python_constant(tx) if of.sym is None else of.sym)))


register_bound_rule(symbolic_shapes.guard_size_oblivious)(lambda tx, expr: ConstantVariable(expr.is_truthy(tx)))


@register_table(register_bound_rule, {symbolic_shapes.sym_and: "&", symbolic_shapes.sym_or: "|"})
def _chain_operator(function: Any, symbol: str, tx: Tracer, result: Variable, *others: Variable) -> Variable:
    for other in others:
        result = realize(tx, binary_op(tx, symbol, result, other))
    return result


@register_bound_rule(symbolic_shapes.has_free_unbacked_symbols)
def _has_unbacked_symbols(tx: Tracer, x: Variable) -> Variable:
    if x.fake is not None:
        return ConstantVariable(any(has_unbacked_symbols(s) for s in x.fake.shape))
    if x.sym is not None:
        return ConstantVariable(has_unbacked_symbols(x.sym))
    raise Unsupported("torch-check", "has_free_unbacked_symbols of an object other than a tensor or a number")


@register_each(register_bound_rule, symbolic_shapes.advise_is_size, symbolic_shapes.advise_is_bounded)
def _advise_size(tell: Callable[..., None], tx: Tracer, size: Variable, *bounds: Variable) -> Variable:
    if size.sym is not None:
        limits = [b.as_python_constant(tx) if b.sym is None else b.sym for b in bounds]
        evaluate_on_fakes(tx, "call_function", tell, [size.sym, *limits], {})
        emit_runtime_asserts(tx)
    return NONE
