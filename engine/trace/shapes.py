"""Guards on symbolic sizes: torch's ShapeEnv gathered them, here they become relations over origins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy

from engine.ir.guard import Equals, ShapeRelation
from engine.ir.origin import Origin, Stride

if TYPE_CHECKING:
    from engine.trace.state import Tracer

Place = tuple[Origin, int]


def shape_guards(tx: Tracer) -> None:
    """Add a guard for each relation that tracing assumed of symbols, and for how strides follow from sizes."""
    env = tx.shape_env
    if not env.var_to_sources:
        return
    places = _places(tx)
    first = {symbol: found[0] for symbol, found in places.items() if found}
    why = "a size is a symbol, and tracing took this relation for granted"
    relations: list[Any] = [g.expr for g in env.guards]
    for symbol in first:
        bounds = env.var_to_range.get(symbol)
        if bounds is not None and isinstance(bounds.lower, sympy.Integer):
            relations.append(sympy.Ge(symbol, bounds.lower))
    for relation in relations:
        _relation(tx, relation, first, why)
    for symbol, found in places.items():
        for n, place in enumerate(found[1:]):
            other = sympy.Symbol(f"{symbol.name}_{n}", integer=True)
            symbols = ((symbol, *found[0]), (other, *place))
            tx.guard(
                ShapeRelation(
                    found[0][0],
                    sympy.Eq(symbol, other),
                    symbols,
                    cause=tx.cause("two sizes were equal, so one symbol stands for both"),
                )
            )
    _strides(tx, first)


def _relation(tx: Tracer, relation: Any, first: dict[sympy.Symbol, Place], why: str) -> None:
    # Two symbols found equal have become one since: only that one has a place to be read from.
    relation = tx.shape_env.replace(relation)
    if relation in (sympy.true, True):
        return
    symbols = tuple((s, *first[s]) for s in sorted(relation.free_symbols, key=lambda s: s.name) if s in first)
    if symbols:
        tx.guard(ShapeRelation(symbols[0][1], relation, symbols, cause=tx.cause(why)))


def _places(tx: Tracer) -> dict[sympy.Symbol, list[Place]]:
    found: dict[sympy.Symbol, list[Place]] = {}
    for value, _ in tx.input_tensors:
        for dim, size in enumerate(value.fake.shape):
            if not isinstance(size, int):
                expression = size.node.expr
                if isinstance(expression, sympy.Symbol):
                    found.setdefault(expression, []).append((value.origin, dim))
    for number in tx.input_ints:
        expression = number.sym.node.expr
        if isinstance(expression, sympy.Symbol):
            found.setdefault(expression, []).append((number.origin, -1))
        elif number.origin is not None and expression.is_number:
            tx.guard(Equals(number.origin, int(expression), cause=tx.cause("its value decided what was traced")))
    return found


def _strides(tx: Tracer, first: dict[sympy.Symbol, Place]) -> None:
    why = "memory layout was taken to follow from the sizes"
    for value, _ in tx.input_tensors:
        for dim, stride in enumerate(value.fake.stride()):
            if isinstance(stride, int):
                continue
            own = sympy.Symbol(f"stride_{dim}", integer=True)
            expression = stride.node.expr
            symbols = tuple((s, *first[s]) for s in sorted(expression.free_symbols, key=lambda s: s.name) if s in first)
            place = (own, Stride(value.origin, dim), -1)
            tx.guard(ShapeRelation(value.origin, sympy.Eq(own, expression), (place, *symbols), cause=tx.cause(why)))
