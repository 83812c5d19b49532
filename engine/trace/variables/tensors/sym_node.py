"""Symbolic sizes and numbers: ``ShapeEnv`` symbols, each with a graph node.

Also decides which dimensions and numbers become dynamic.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import sympy
import torch
import torch.fx

from engine.ir.graph_callable import GraphCallable
from engine.ir.introspection.python_operators import Operator
from engine.ir.sources.base import Source
from engine.torch_private.symbolic_shapes import GuardOnDataDependentSymNode
from engine.trace.annotations import PyCodegen, Tracer
from engine.trace.computed_conditions import compute_before_graph, fold_condition, fold_zero
from engine.trace.emit_node import build_node_result
from engine.trace.exc import Unsupported
from engine.trace.operators.operand import OperatorResult
from engine.trace.symbols.symbol_locations import describe_symbolic
from engine.trace.symbols.unbacked_symints import branch_break, data_dependent_break, describe_number, is_unbacked_float
from engine.trace.symbols.value_names import name_value
from engine.trace.variables.base import ConstantVariable, Variable, realize
from engine.trace.variables.slotted_type import state
from engine.trace.variables.tensors import sym_operators

PYTHON_TYPES: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""Python type of each class of symbolic numbers."""


class SymNodeVariable(Variable):
    """A SymInt, SymFloat or SymBool. Reading its Python value specializes it with a guard."""

    is_symbolic = True
    is_copied_by_reference = True
    node: torch.fx.Node
    sym: Any
    depends_on_unbacked_float: bool = False
    """True if it depends on a float known only at run time.

    That float may be NaN, which sympy cannot represent.
    """
    rounding_symbols: frozenset[Any] = frozenset()
    """Symbols of an expression that sympy may evaluate differently from Python.

    Python rounds at each step; sympy reorders. Reading the value specializes these symbols.
    """
    source: Source | None = state(None)
    symbol: Any = state(None)
    """The symbol created for this number, before ``ShapeEnv`` simplified it."""

    def python_type(self) -> type:
        of = type(self.sym)  # a function if a subgraph lifts the pullback of a ``vjp``
        return PYTHON_TYPES.get(of, of)

    def describe(self) -> str:
        return describe_symbolic(self.sym, self.node)

    def as_python_constant(self, tx: Tracer) -> Any:
        return self._specialize(tx, self.python_type())

    def _specialize(self, tx: Tracer, kind: Callable[[Any], Any]) -> Any:
        """Return the value in this call and specialize to it.

        Raises:
            Unsupported: the value is known only at run time.
        """
        try:
            if (
                self.rounding_symbols
                and not self.depends_on_unbacked_float
                and self.rounding_symbols <= tx.symbols.shape_env.backed_var_to_val.keys()
            ):
                for symbol in self.rounding_symbols:
                    _specialize_symbol(tx, symbol)
                return kind(self.sym.node.hint)
            if not self.depends_on_unbacked_float and not self.rounding_symbols:
                if kind is bool and self.python_type() is float:
                    return bool(self.sym != 0)
                value = kind(self.sym)
                return fold_zero(tx, self.node) if kind is float and value == 0 else value
        except GuardOnDataDependentSymNode:
            pass
        what = f"Python needs the value of {name_value(tx, self)}"
        raise data_dependent_break(tx, self.sym, Unsupported("data-dependent", what))

    def binary(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return sym_operators.operate(tx, op, self, right)

    def reflected(self, tx: Tracer, op: Operator, left: Variable) -> OperatorResult:
        return sym_operators.operate(tx, op, left, self)

    def compare(self, tx: Tracer, op: Operator, right: Variable) -> OperatorResult:
        return sym_operators.compare(tx, op, self, right)

    def unary(self, tx: Tracer, op: Operator) -> Variable:
        return sym_operators.unary(tx, op, self)

    def as_graph_operand(self, tx: Tracer) -> Variable | None:
        return self

    def is_same_as(self, tx: Tracer, other: Variable) -> bool | None:
        if other.python_type() is not self.python_type():
            return None
        values = tx.as_python_constants([self, other])
        return ConstantVariable(values[0]).is_same_as(tx, ConstantVariable(values[1]))

    def hash_key(self, tx: Tracer) -> Any:
        return self.as_python_constant(tx)

    def is_truthy(self, tx: Tracer) -> bool:
        try:
            return bool(self._specialize(tx, bool))
        except Unsupported:
            decided = fold_condition(tx, self.node)
            if decided is not None:
                return decided
            raise branch_break(tx, self.sym) from None

    def as_node_arg(self, tx: Tracer) -> tuple[Any, Any]:
        return self.node, self.sym

    def as_operand_of(self, tx: Tracer, target: Any) -> Variable:
        """Specialize a SymBool that has a hint, unless the target is a logical operator."""
        if self.python_type() is not bool or target in _SYMBOOL_OPS or not has_hint(self.sym):
            return self
        return self if isinstance(target, GraphCallable) else ConstantVariable(self.as_python_constant(tx))

    def get_attr(self, tx: Tracer, name: str) -> Variable:
        return tx.get_constant_attr(ConstantVariable(self.as_python_constant(tx)), name)

    def reconstruct(self, cg: PyCodegen) -> None:
        cg.load_graph_output(self.node)


@build_node_result.register(torch.SymInt)
@build_node_result.register(torch.SymFloat)
@build_node_result.register(torch.SymBool)
def _number_result(result: Any, tx: Tracer, node: torch.fx.Node) -> Variable:
    _check_no_float_canceled(tx, node, result)
    number = SymNodeVariable(
        node,
        result,
        depends_on_unbacked_float=_derives_from_unbacked_float(node, result),
        rounding_symbols=collect_rounding_symbols(node, result),
    )
    if not number.rounding_symbols or number.python_type() is not int:
        return number
    computed = compute_before_graph(tx, None, [node])
    return ConstantVariable(number.as_python_constant(tx)) if computed is None else realize(tx, tx.wrap(*computed))


def _check_no_float_canceled(tx: Tracer, node: torch.fx.Node, result: Any) -> None:
    """Break the graph where algebra drops an unbacked float.

    ``k - k`` and ``k * 0`` are NaN if ``k`` is infinite, and 0 to sympy.

    Raises:
        Unsupported: the result does not depend on an unbacked float operand.
    """
    for operand in node.all_input_nodes:
        sym: Any = operand.meta.get("example_value")
        if is_unbacked_float(sym) and not sym.node.expr.free_symbols <= result.node.expr.free_symbols:
            what = f"algebra cancels {describe_number(tx, sym.node.expr)}, which may be NaN or infinite"
            raise data_dependent_break(tx, sym, Unsupported("data-dependent", what))


def _derives_from_unbacked_float(node: torch.fx.Node, result: Any) -> bool:
    """Return True if the symbol is, or was computed from, an unbacked float."""
    is_opaque = is_unbacked_float(result) or any(n.meta.get("is_opaque") for n in node.all_input_nodes)
    node.meta["is_opaque"] = is_opaque
    return is_opaque


_SYMBOOL_OPS = frozenset((operator.and_, operator.or_, operator.iand, operator.ior, torch.sym_not, torch.sym_ite))
"""Logical operators, which take symbolic bools unchanged."""
_ROUNDING_OPS = frozenset(
    (operator.add, operator.sub, operator.mul, operator.iadd, operator.isub, operator.imul, operator.neg)
)


def collect_rounding_symbols(node: torch.fx.Node, result: Any) -> frozenset[Any]:
    """Collect the symbols of a result that sympy may evaluate differently from Python.

    A sum or product of floats that are sums or products themselves is reordered by sympy, and each step rounds.
    """
    symbols: frozenset[Any] = frozenset().union(*(n.meta.get("rounded", ()) for n in node.all_input_nodes))
    kind = PYTHON_TYPES.get(type(result))
    if kind is float and node.target in _ROUNDING_OPS:
        operands: list[Any] = [n.meta.get("example_value") for n in node.all_input_nodes]
        expressions = [v.node.expr for v in operands if PYTHON_TYPES.get(type(v)) in (int, float)]
        if any((e.is_Add or e.is_Mul) and not e.is_integer for e in expressions):
            symbols = symbols.union(*(e.free_symbols for e in expressions))
    if kind is int and node.target in _REMAINDER_OPS and result.node.expr == 0:
        symbols = symbols.union(_wrongly_simplified_symbols(node.args[0], node.args[1], node.all_input_nodes))
    node.meta["rounded"] = symbols
    return symbols


_REMAINDER_OPS = frozenset((operator.mod, operator.imod))


def _wrongly_simplified_symbols(dividend: Any, divisor: Any, nodes: list[torch.fx.Node]) -> set[sympy.Symbol]:
    """Return the symbols of a dividend that sympy wrongly simplified to a multiple.

    sympy treats a product of sums as a multiple: ``(2n + 2)**2 % 100`` becomes 0.
    """
    value = dividend.meta["example_value"] if dividend in nodes else dividend
    if PYTHON_TYPES.get(type(value)) is not int or not value.node.expr.has(sympy.Add):
        return set()
    terms = sympy.expand(value.node.expr).as_coefficients_dict()
    is_multiple = divisor not in nodes and all(coefficient % divisor == 0 for coefficient in terms.values())
    return set() if is_multiple else value.node.expr.free_symbols


def _specialize_symbol(tx: Tracer, symbol: sympy.Symbol) -> None:
    """Specialize a symbol to its value in this call."""
    env = tx.symbols.shape_env
    kind: Any = int if symbol.is_integer else float
    make: Any = env.create_symintnode if kind is int else env.create_symfloatnode
    kind(make(symbol, hint=kind(env.backed_var_to_val[symbol]), source=None))


def has_hint(number: Any) -> bool:
    """Return True if the value of a size or number in this call is known."""
    return PYTHON_TYPES.get(type(number)) is None or bool(number.node.has_hint())


def varies(number: Any) -> bool:
    """Return True for a symbol that no guard has specialized."""
    return PYTHON_TYPES.get(type(number)) is not None and bool(getattr(number.node.expr, "free_symbols", ()))


def hint(number: Any) -> Any:
    """Return the size hint: the value in this call, without specialization."""
    return number if PYTHON_TYPES.get(type(number)) is None else number.node.hint
