"""Unbacked symbols: numbers and sizes without a hint, and runtime assertions on them."""

from __future__ import annotations

import operator
from typing import Any

import sympy
import torch
import torch.fx
from torch.fx.proxy import GraphAppendingTracer

from engine.bytecode.source_positions import expression_text
from engine.ir.guards.sympy_printer import relation_display
from engine.ir.introspection.symbols import has_unbacked_symbols, is_symbolic
from engine.ir.node_metadata import USER_TEXT, provenance_of, set_provenance
from engine.ir.node_values import tensors_in
from engine.torch_private.sympy_functions import PythonReferenceAnalysis, SymT, symbol_is_type, sympy_interp
from engine.trace.annotations import Tracer
from engine.trace.exc import InlinedBreakpoint, Unsupported
from engine.trace.graph_breaks.inlined_breakpoints import find_inlined_breakpoint


class _RuntimeAsserts:
    """Unbacked symbols of one trace, and the assertions on them that the graph checks."""

    def __init__(self) -> None:
        self.created_at: dict[Any, tuple[int, InlinedBreakpoint | None]] = {}
        """The root instruction that created each unbacked symbol, and the point inside its calls."""
        self.count = 0
        """Number of runtime assertions of the shape environment that were handled."""
        self.exprs: set[Any] = set()
        """Expressions of those assertions."""


def is_unbacked_float(value: Any) -> bool:
    """Return True for an unbacked float.

    It may be NaN, which symbolic algebra does not cover.
    """
    return isinstance(value, torch.SymFloat) and has_unbacked_symbols(value)


def emit_runtime_asserts(tx: Tracer, *, are_implied: bool = False) -> None:
    """Emit runtime assertions for new assumptions on unbacked symbols.

    If one fails, Python runs the original code. If they are implied by an assumed condition, none is emitted.

    Raises:
        Unsupported: in a subgraph body, where nothing can be asserted.
    """
    env, asserted = tx.symbols.shape_env, tx.state_of(_RuntimeAsserts)
    for symbol in env.pending_fresh_unbacked_symbols:
        asserted.created_at[symbol] = tx.instruction_counter.root_instruction_number, find_inlined_breakpoint(tx)
    env.pending_fresh_unbacked_symbols.clear()
    if env.num_deferred_runtime_asserts == asserted.count:
        return
    asserts = [a for group in env.deferred_runtime_asserts.values() for a in group]
    new_asserts = asserts if asserted.count == 0 else [a for a in asserts if a.expr not in asserted.exprs]
    asserted.count = env.num_deferred_runtime_asserts
    for assumed in new_asserts:
        asserted.exprs.add(assumed.expr)
        if all(symbol_is_type(s, SymT.UNBACKED_FLOAT) for s in assumed.expr.free_symbols):
            continue  # tracing concludes nothing from assumptions on unbacked floats
        if _is_true_of_every_tensor(tx, assumed.expr):
            continue
        if tx.in_subgraph():
            raise Unsupported(
                "unbacked-size", "the body of a higher-order operator assumes something about a tensor's values"
            )
        if not are_implied:
            tx.fallback.assume_condition(_emit_relation(tx, assumed.expr), truth=True)


def _is_true_of_every_tensor(tx: Tracer, relation: Any) -> bool:
    """Return True if a relation says that a size or a storage offset is not negative."""
    symbols = relation.free_symbols
    if len(symbols) != 1:
        return False
    (symbol,) = symbols
    if relation not in (sympy.Ge(symbol, 0), sympy.Le(0, symbol)):
        return False
    values = [node.meta.get("example_value") for node in tx.graph.graph.nodes]
    if any(_is_symbol(value, symbol) for value in values):
        return False
    return any(_dim_of(t, symbol) is not None or _is_symbol(t.storage_offset(), symbol) for t in tensors_in(values))


def data_dependent_break(tx: Tracer, number: Any, graph_break: Unsupported) -> Unsupported:
    """Move the graph break of code that needs a concrete number.

    It is then at the instruction that created the number, so that all later code knows it. For a random number,
    the break is another one.
    """
    expression = number.node.expr if is_symbolic(number) else number
    symbols = getattr(expression, "free_symbols", ())
    if symbols and symbols <= tx.random_state.drawn_symbols:
        what = f"Python needs the value of {describe_number(tx, expression)}, which is random"
        graph_break = Unsupported("random-value", what)
    created_at = tx.state_of(_RuntimeAsserts).created_at
    points = [created_at[s] for s in symbols if s in created_at]
    graph_break.created_at, inside = max(
        points, key=lambda p: (p[0], p[1] is not None and p[1].instruction_number), default=(0, None)
    )
    tensors = tensors_in([node.meta.get("example_value") for node in tx.graph.graph.nodes])
    dims = (next((d for d in (_dim_of(t, s) for t in tensors) if d is not None), None) for s in symbols)
    graph_break.result_dims = frozenset(d for d in dims if d is not None)
    frames = tx.call_stack.frames
    if inside is not None and (inside.depth >= len(frames) or frames[inside.depth].code is not inside.code):
        graph_break.created_inside = inside  # that call is over: all of its callers use the number
    return graph_break


def branch_break(tx: Tracer, number: Any) -> Unsupported:
    """Return a graph break for a condition on a number that is known only at run time."""
    kind = "size-branch" if _is_about_sizes(tx, number.node.expr) else "tensor-jump"
    return data_dependent_break(tx, number, Unsupported(kind, f"bool() of {describe_number(tx, number.node.expr)}"))


def operator_break(tx: Tracer, name: str, condition: sympy.Basic | None) -> Unsupported:
    """Return a graph break for an operator that needs a data-dependent value or size."""
    reason = Unsupported("data-dependent", f"{name} needs the value of a tensor")
    if condition is not None and condition.free_symbols:
        verb = "needs to know if" if condition.is_Boolean or condition.is_Relational else "needs the value of"
        what = f"{name} {verb} {describe_number(tx, condition)}"
        reason = Unsupported("size-branch" if _is_about_sizes(tx, condition) else "data-dependent", what)
    return data_dependent_break(tx, condition, reason)


def describe_number(tx: Tracer, expression: Any) -> str:
    """Return an expression with the calls that compute its symbols: ``sum_1.item() < 3``."""
    return relation_display(expression, {s: _computed_by(tx, s)[1] for s in expression.free_symbols})


def _is_about_sizes(tx: Tracer, expression: Any) -> bool:
    return all(_computed_by(tx, s)[0] for s in expression.free_symbols)


def _computed_by(tx: Tracer, symbol: sympy.Symbol) -> tuple[bool, str]:
    """Return True for the size of a result, and the call that computes the symbol."""
    for node in tx.graph.graph.nodes:
        value = node.meta.get("example_value")
        if _is_symbol(value, symbol):
            return False, call_text(node)
        dims = [_dim_of(tensor, symbol) for tensor in tensors_in([value])]
        if (dim := next((d for d in dims if d is not None), None)) is not None:
            return True, f"{call_text(node)}.size({dim})"
    return False, symbol.name


def expression_of(node: torch.fx.Node) -> str:
    """Return the user's expression whose value a node is; empty if it is not certain."""
    span = provenance_of(node).span
    inside = [node]
    for n in inside:
        inside += [i for i in n.all_input_nodes if i not in inside and provenance_of(i).span == span]
    others = {user for n in inside for of in (n, *n.all_input_nodes) for user in of.users}.difference(inside)
    text = "" if any(provenance_of(n).span == span for n in others) else expression_text(span)
    is_conversion = node.op == "call_method" and node.all_input_nodes[0].op != "placeholder"  # one that Python makes
    return "" if is_conversion and f".{node.target}(" not in text else text


def call_text(node: torch.fx.Node, depth: int = 3) -> str:
    """Return the user's expression of a node, else its call and those of its inputs."""
    if text := expression_of(node):
        return text
    first = next(iter(node.all_input_nodes), None)
    if first is None or not depth:
        return str(node.meta.get(USER_TEXT, node.name))
    if node.target is operator.getitem:
        return f"{call_text(first, depth - 1)}[{node.args[1]}]"
    if node.op == "call_method":
        return f"{call_text(first, depth - 1)}.{node.target}()"
    return f"{getattr(node.target, '__name__', node.name)}({call_text(first, depth - 1)})"


def _emit_relation(tx: Tracer, relation: Any) -> torch.fx.Node:
    """Emit nodes that compute a relation over symbols."""
    graph = tx.graph.graph
    tracer = GraphAppendingTracer(graph)
    symbols = sorted(relation.free_symbols, key=lambda symbol: symbol.name)
    proxies = {symbol: torch.fx.Proxy(_symbol_node(tx, symbol), tracer) for symbol in symbols}
    last = next(iter(reversed(graph.nodes)))
    result = sympy_interp(PythonReferenceAnalysis, proxies, relation)
    added = last.next
    while added.op != "root":
        _complete_node(tx, added)
        added = added.next
    if not isinstance(result, torch.fx.Proxy):
        raise Unsupported("unbacked-size", f"{describe_number(tx, relation)} is assumed, which depends on data")
    node: torch.fx.Node = result.node
    return node


def _complete_node(tx: Tracer, node: torch.fx.Node) -> None:
    """Add the fake value and the provenance to a node that fx appended."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["example_value"])
    target: Any = node.target
    with tx.symbols.fake_mode:
        node.meta["example_value"] = target(*args, **kwargs)
    set_provenance(node, tx.node_provenance("an assumption about a tensor's values"))
    tx.graph.op_count += 1


def _symbol_node(tx: Tracer, symbol: sympy.Symbol) -> torch.fx.Node:
    """Return the node that computes a symbol; add one if the symbol is the size of a tensor."""
    nodes: list[torch.fx.Node] = list(tx.graph.graph.nodes)
    for node in nodes:
        value = node.meta.get("example_value")
        if _is_symbol(value, symbol):
            return node
    for node in nodes:
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor):
            continue
        if (dim := _dim_of(value, symbol)) is not None:
            return _emit_size(tx, node, value, dim)
        if _is_symbol(value.storage_offset(), symbol):
            return _emit_method(tx, "storage_offset", (node,), value.storage_offset())
    for value, _ in tx.inputs.input_tensors:
        if (dim := _dim_of(value.fake, symbol)) is not None:
            return _emit_size(tx, value.node(tx), value.fake, dim)
    raise Unsupported("unbacked-size", "the code assumes something about a size that the graph does not compute")


def _dim_of(fake: torch.Tensor, symbol: sympy.Symbol) -> int | None:
    for dim, size in enumerate(fake.shape):
        if _is_symbol(size, symbol):
            return dim
    return None


def _is_symbol(value: Any, symbol: sympy.Symbol) -> bool:
    if not is_symbolic(value) or value.node.is_nested_int():
        return False
    return symbol in (value.node._expr, value.node.expr)


def _emit_size(tx: Tracer, node: torch.fx.Node, fake: torch.Tensor, dim: int) -> torch.fx.Node:
    return _emit_method(tx, "size", (node, dim), fake.shape[dim])


def _emit_method(tx: Tracer, method: str, args: tuple[Any, ...], value: Any) -> torch.fx.Node:
    node = tx.graph.create_node("call_method", method, args, {}, tx.node_provenance("a size that depends on values"))
    node.meta["example_value"] = value
    return node
