"""Serializes symbolic sizes: expressions, and facts about symbols that a graph assumes."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from engine.cache.fallback_kinds import CacheFallback, NotCached
from engine.ir.introspection.symbols import is_unbacked_symbol, symbolic_numbers_in
from engine.ir.static_sizes import static_size
from engine.torch_private.symbolic_shapes import ShapeEnv
from engine.torch_private.sympy_functions import SymT, int_oo, symbol_is_type
from engine.torch_private.sympy_functions import sympy_functions as functions

Data = Any

_KINDS: Mapping[str, type] = {"int": torch.SymInt, "float": torch.SymFloat, "bool": torch.SymBool}
_TORCH_FUNCTIONS = (
    "FloorDiv ModularIndexing Where PythonMod Mod CleanDiv CeilToInt FloorToInt CeilDiv LShift RShift Max Min PowByNatural FloatPow "
    "FloatTrueDiv IntTrueDiv TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat Identity"
).split()
_SYMPY_FUNCTIONS = (
    "Add Mul Pow Equality Unequality LessThan StrictLessThan GreaterThan StrictGreaterThan And Or Not Piecewise ITE "
    "ExprCondPair ceiling floor"
).split()
_EXPRESSION_TYPES: Mapping[str, Any] = {
    **{name: getattr(functions, name) for name in _TORCH_FUNCTIONS if hasattr(functions, name)},
    **{name: getattr(sympy, name) for name in _SYMPY_FUNCTIONS if hasattr(sympy, name)},
}


def serialize_expression(expression: sympy.Basic) -> Data:
    """Return an expression over symbols as JSON: a number, a name, or a type with arguments.

    Raises:
        NotCached: A part of it has an unsupported type.
    """
    value: Any = expression
    if value.is_Integer:
        return int(value)
    if value.is_Symbol:
        return value.name
    if expression in (sympy.true, sympy.false):
        return {"bool": bool(expression)}
    if value.is_Rational:
        return {"ratio": [int(value.p), int(value.q)]}
    if value.is_Float:
        return {"float": repr(float(value))}
    name = type(expression).__name__
    if _EXPRESSION_TYPES.get(name) is not type(expression):
        raise NotCached(
            CacheFallback.UNSERIALIZABLE_SIZE, f"a size is computed with {name}, which cannot be serialized"
        )
    return [name, *map(serialize_expression, expression.args)]


def deserialize_expression(data: Data, symbols: Mapping[str, sympy.Symbol]) -> Any:
    """Return the expression that ``serialize_expression`` serialized, over these symbols.

    Raises:
        KeyError: A symbol or an expression type does not exist.
    """
    match data:
        case builtins.bool():
            raise KeyError(data)
        case int():
            return sympy.Integer(data)
        case str():
            return symbols[data]
        case {"bool": value}:
            return sympy.true if value else sympy.false
        case {"ratio": [p, q]}:
            return sympy.Rational(p, q)
        case {"float": text}:
            return sympy.Float(float(text))
        case [name, *args]:
            return _EXPRESSION_TYPES[name](*(deserialize_expression(a, symbols) for a in args))
    raise KeyError(str(data))


def serialize_symbolic_number(number: Any) -> Data:
    """Return a symbolic number as JSON: its type and its expression."""
    kind = next(name for name, k in _KINDS.items() if isinstance(number, k))
    return [kind, serialize_expression(number.node.expr)]


class SymbolTable:
    """Symbols of one call by name; creates numbers over them in the call's ShapeEnv."""

    def __init__(self, env: ShapeEnv | None, values: Sequence[Any]) -> None:
        self.shape_env = env
        self._known = {s.name: s for v in values for n in symbolic_numbers_in(v) for s in n.node.expr.free_symbols}

    def recreate_unbacked(self, data: Data, traced: Sequence[Any]) -> None:
        """Recreate the symbols that ``serialize_unbacked_symbols`` serialized.

        In the call's ShapeEnv, they replace the symbols of ``traced``.
        """
        env = self.shape_env
        if not data or env is None:
            return
        before = {s.name: s for v in traced for n in symbolic_numbers_in(v) for s in n.node.expr.free_symbols}
        for name, is_fraction, is_size, bounds, stands_for, _ in data:
            with env.ignore_fresh_unbacked_symbols():
                number = env.create_unbacked_symfloat() if is_fraction else env.create_unbacked_symint()
            symbol: Any = number.node.expr
            self._known[name] = symbol
            if not is_fraction:
                low, high = bounds
                env.constrain_symbol_range(symbol, -int_oo if low is None else low, int_oo if high is None else high)
            for old in stands_for:
                env._set_replacement(before[old], symbol, "loaded from disk")
            if is_size:
                env.size_like.add(symbol)
        for *_, facts in data:
            for fact in facts:
                env.guard_or_defer_runtime_assert(self.deserialize(fact), "loaded from disk")

    def deserialize_number(self, data: Data) -> Any:
        """Return the number that ``serialize_symbolic_number`` serialized.

        Raises:
            KeyError: The call does not have its symbols.
        """
        kind, plain = data
        if self.shape_env is None:
            raise KeyError(kind)
        expression = self.deserialize(plain)
        if kind == "int":
            return self.shape_env.create_symintnode(expression, hint=None)
        if kind == "float":
            return self.shape_env.create_symfloatnode(expression, hint=None)
        return self.shape_env.create_symboolnode(expression)

    def deserialize(self, data: Data) -> Any:
        """Return the expression that ``serialize_expression`` serialized.

        Raises:
            KeyError: The call does not have its symbols.
        """
        return deserialize_expression(data, self._known)


def serialize_unbacked_symbols(env: ShapeEnv | None, values: Sequence[Any], traced: Sequence[Any]) -> Data:
    """Return the unbacked symbols in ``values`` as JSON.

    Each comes with its facts and with the symbols of ``traced`` that it replaces.

    Raises:
        NotCached: A fact cannot be serialized.
    """
    if env is None:
        return []
    before = {s.name for v in traced for n in symbolic_numbers_in(v) for s in n.node.expr.free_symbols}
    symbols_by_name = {
        s.name: s
        for v in values
        for n in symbolic_numbers_in(v)
        for s in n.node.expr.free_symbols
        if is_unbacked_symbol(s)
    }
    return [
        [
            *(name, symbol_is_type(s, SymT.UNBACKED_FLOAT), s in env.size_like),
            [static_size(b) for b in _bounds(env, s)],
            sorted(str(old) for old, new in env.replacements.items() if new == s and str(old) in before),
            [serialize_expression(env.replace(a.expr)) for a in env.deferred_runtime_asserts.get(s, ())],
        ]
        for name, s in sorted(symbols_by_name.items())
    ]


def _bounds(env: ShapeEnv, symbol: sympy.Symbol) -> tuple[Any, Any]:
    value_range = env.var_to_range[symbol]
    return value_range.lower, value_range.upper


def shape_env_facts(values: Sequence[Any]) -> Data:
    """Return the facts that a compiled graph assumes of sizes: value ranges and relations."""
    envs = {id(n.node.shape_env): n.node.shape_env for v in values for n in symbolic_numbers_in(v)}
    return [_facts_of(env) for env in envs.values()]


def _facts_of(env: ShapeEnv) -> Data:
    ranges = sorted((str(s), str(r.lower), str(r.upper)) for s, r in env.var_to_range.items())
    replaced = sorted((str(s), str(r)) for s, r in env.replacements.items())
    divisible = sorted(map(str, env.divisible))
    later = sorted({str(a.expr) for facts in env.deferred_runtime_asserts.values() for a in facts})
    sizes = sorted(map(str, env.size_like))
    return [ranges, [str(g.expr) for g in env.guards], replaced, divisible, later, sizes]
