"""Guards on symbolic sizes: relations that torch's ShapeEnv recorded, over sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sympy
from torch.fx.experimental.symbolic_shapes import is_nested_int
from torch.utils._sympy.functions import FloorDiv, Mod
from torch.utils._sympy.singleton_int import SingletonInt

from engine.ir.guards.base import Cause, Guard
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.guards.symbolic_shapes import SymbolicShapeGuard
from engine.ir.guards.sympy_printer import relation_display
from engine.ir.sources.attributes import AttrSource, MethodResultSource
from engine.ir.sources.base import Source
from engine.ir.sources.tensors import StrideSource
from engine.trace.exc import SkipFrame
from engine.trace.symbols.shape_env import RecordingShapeEnv
from engine.trace.variables.tensors.automatic_dynamic import inner_tensors
from engine.trace.variables.tensors.tensor import symbolic_layout

if TYPE_CHECKING:
    from engine.trace.tracer import Tracer


DimSource = tuple[Source, int]


SymbolicLayout = tuple[Sequence[Any], Sequence[Any], Any]


@dataclass(frozen=True)
class _SymbolSource:
    """Source of a symbol's value: the size or number ``symbol``, divided by ``multiple``.

    The division leaves no remainder.
    """

    symbol: sympy.Symbol
    source: DimSource
    multiple: int = 1

    @property
    def expression(self) -> sympy.Expr:
        return self.symbol if self.multiple == 1 else FloorDiv(self.symbol, self.multiple)


def add_shape_guards(tx: Tracer) -> None:
    """Add guards for relations that tracing assumed, and for strides that depend on sizes."""
    env = tx.symbols.shape_env
    if not env.var_to_sources:
        return
    places = _symbol_sources(tx)
    first = {symbol: _SymbolSource(symbol, found[0]) for symbol, found in places.items() if found}
    _guard_derived_sizes(tx, first)
    why = "the traced code assumed this relation between symbols"
    for guard in env.guards:
        if _is_trivial_for_ragged(env, guard.expr):
            continue
        _guard_relation(tx, guard.expr, first, env.guard_causes.get(guard.expr) or tx.guard_cause(why))
    for symbol in list(first):
        if _is_ragged(env, symbol):
            continue
        low, high = symbol_bounds(env, symbol)
        for bound in [
            *([] if low is None else [sympy.Ge(symbol, low)]),
            *([] if high is None else [sympy.Le(symbol, high)]),
        ]:
            _guard_relation(tx, bound, first, tx.guard_cause("the compiled code is valid for these sizes and numbers"))
    for symbol, found in places.items():
        for n, place in enumerate(found[1:]):
            other = sympy.Symbol(f"{symbol.name}_{n}", integer=True)
            symbols = ((symbol, *found[0]), (other, *place))
            tx.add_guard(
                SymbolicShapeGuard(
                    found[0][0],
                    sympy.Eq(symbol, other),
                    symbols,
                    cause=tx.guard_cause("the two sizes were equal, so they share one symbol"),
                )
            )
    _guard_strides(tx, first)


def shape_guards_since(tx: Tracer, count: int) -> tuple[Guard, ...]:
    """Return shape guards for assumptions made after the first ``count`` guards.

    Raises:
        SkipFrame: an assumption cannot be read from the call's arguments.
    """
    add_shape_guards(tx)
    return tuple(tx.guards.since(count))


def _is_trivial_for_ragged(env: RecordingShapeEnv, relation: Any) -> bool:
    """Return True if a relation over ragged sizes needs no guard.

    One ragged size differs from every number. Ragged sizes created while tracing cannot be read from inputs.
    """
    ragged = [s for s in relation.free_symbols if _is_ragged(env, s)]
    return bool(ragged) and (len(ragged) == 1 or any(_is_intermediate_ragged(env, s) for s in ragged))


def _is_ragged(env: RecordingShapeEnv, symbol: Any) -> bool:
    """Return True if the symbol is the ragged size of a nested tensor."""
    return _is_intermediate_ragged(env, symbol) or isinstance(env.backed_var_to_val.get(symbol), SingletonInt)


def _is_intermediate_ragged(env: RecordingShapeEnv, symbol: Any) -> bool:
    """Return True if the symbol is the ragged size of a nested tensor created while tracing."""
    sources = env.var_to_sources.get(symbol, [])
    return bool(sources) and all(getattr(s, "desc", "") == "intermediate_offsets_or_lengths" for s in sources)


def symbol_bounds(env: RecordingShapeEnv, symbol: sympy.Symbol) -> tuple[int | None, int | None]:
    """Return the lower and upper bound of a symbol; None where it has none."""
    bounds = env.var_to_range.get(symbol)
    if bounds is None:
        return None, None
    low, high = (int(b) if isinstance(b, sympy.Integer) else None for b in (bounds.lower, bounds.upper))
    return low, None if high is not None and high >= NO_UPPER_BOUND else high


NO_UPPER_BOUND = sys.maxsize - 1
"""Upper bound that ShapeEnv uses for sizes of unknown range."""


def _guard_relation(tx: Tracer, relation: Any, first: dict[sympy.Symbol, _SymbolSource], cause: Cause) -> None:
    # Of two equal symbols ShapeEnv retains one, and only that one has a source.
    relation = tx.symbols.shape_env.replace(relation)
    if relation in (sympy.true, True):
        return
    relation, symbols = _over_inputs(relation, first)
    if symbols:
        tx.add_guard(SymbolicShapeGuard(symbols[0][1], relation, symbols, cause=cause))


def _over_inputs(
    relation: Any, first: dict[sympy.Symbol, _SymbolSource]
) -> tuple[Any, tuple[tuple[sympy.Symbol, Source, int], ...]]:
    """Rewrite a relation over input sizes and numbers, and return it with their sources.

    Raises:
        SkipFrame: no input has one of its symbols.
    """
    free = sorted(relation.free_symbols, key=lambda s: s.name)
    unbound = [s for s in free if s not in first]
    if unbound:
        raise SkipFrame(
            "internal", f"the code assumes {relation_display(relation)}, but no input has the size {unbound[0]}"
        )
    readings = [first[s] for s in free]
    changed = relation.xreplace({s: r.expression for s, r in zip(free, readings, strict=True) if r.multiple != 1})
    return changed, tuple((r.symbol, *r.source) for r in readings)


def _guard_derived_sizes(tx: Tracer, first: dict[sympy.Symbol, _SymbolSource]) -> None:
    """Guard input sizes and numbers that are expressions.

    A symbol without a source of its own is read from an input that is a multiple of it.
    """
    composed = [
        (origin, dim, size.node.expr)
        for origin, layout in _input_layouts(tx)
        for dim, size in enumerate(layout[0])
        if _is_symbolic(size) and not isinstance(size.node.expr, sympy.Symbol) and not size.node.expr.is_number
    ]
    composed += [
        (number.source, -1, number.sym.node.expr)
        for number in tx.symbols.symbolic_input_scalars
        if number.python_type() is int
        and not isinstance(number.sym.node.expr, sympy.Symbol)
        and not number.sym.node.expr.is_number
    ]
    for n, (origin, dim, expression) in enumerate(composed):
        own = sympy.Symbol(f"size_{n}_{dim}" if dim >= 0 else f"number_{n}", integer=True)
        factor, rest = expression.as_coeff_Mul()
        place = (own, origin, dim)
        if isinstance(rest, sympy.Symbol) and rest not in first and factor.is_integer and factor > 0:
            first[rest] = _SymbolSource(own, (origin, dim), int(factor))
            cause = tx.guard_cause("this size was assumed to be a multiple of a number")
            tx.add_guard(SymbolicShapeGuard(origin, sympy.Eq(Mod(own, int(factor)), 0), (place,), cause=cause))
            continue
        relation, symbols = _over_inputs(expression, first)
        cause = tx.guard_cause("this size was assumed to follow from other sizes")
        tx.add_guard(SymbolicShapeGuard(origin, sympy.Eq(own, relation), (place, *symbols), cause=cause))


def _is_symbolic(size: Any) -> bool:
    """Return True if a size is an expression over symbols; a ragged size (nested int) is not."""
    return not isinstance(size, int) and not is_nested_int(size)


def _is_ragged_symbol(size: Any) -> bool:
    """Return True if a size is ragged and a symbol: it may differ between calls."""
    return is_nested_int(size) and isinstance(getattr(size.node, "expr", None), sympy.Symbol)


def _symbol_sources(tx: Tracer) -> dict[sympy.Symbol, list[DimSource]]:
    found: dict[sympy.Symbol, list[DimSource]] = {}
    apart: dict[
        sympy.Symbol, list[DimSource]
    ] = {}  # strides that depend on no size, e.g. of a slice, and storage offsets
    for origin, (sizes, strides, offset) in _input_layouts(tx):
        for dim, size in enumerate(sizes):
            if _is_symbolic(size) or _is_ragged_symbol(size):
                expression = size.node.expr
                if isinstance(expression, sympy.Symbol):
                    found.setdefault(expression, []).append((origin, dim))
                elif expression.is_number:
                    own = sympy.Symbol(f"size_{dim}", integer=True)
                    cause = tx.guard_cause("this size decided what was traced")
                    place = (own, origin, dim)
                    tx.add_guard(SymbolicShapeGuard(origin, sympy.Eq(own, expression), (place,), cause=cause))
        for dim, stride in enumerate(strides):
            if _is_symbolic(stride) and isinstance(stride.node.expr, sympy.Symbol):
                apart.setdefault(stride.node.expr, []).append((StrideSource(origin, dim), -1))
        if _is_symbolic(offset) and isinstance(offset.node.expr, sympy.Symbol):
            apart.setdefault(offset.node.expr, []).append((MethodResultSource(origin, "storage_offset"), -1))
    for number in tx.symbols.symbolic_input_scalars:
        expression = number.sym.node.expr
        if isinstance(expression, sympy.Symbol):
            found.setdefault(expression, []).append((number.source, -1))
        elif number.source is not None and expression.is_number:
            tx.add_guard(
                EqualsMatch(
                    number.source,
                    number.python_type()(expression),
                    cause=_specialization_cause(tx, number.symbol, "its value decided what was traced"),
                )
            )
    return {**_base_symbol_sources(tx), **apart, **found}


def _base_symbol_sources(tx: Tracer) -> dict[sympy.Symbol, list[DimSource]]:
    """Return the sources of symbols that belong to the bases of input views.

    torch creates symbols for the sizes and layouts of these bases too.
    """
    found: dict[sympy.Symbol, list[DimSource]] = {}
    for symbol, sources in tx.symbols.shape_env.var_to_sources.items():
        for source in sources:
            viewed = getattr(source, "base", None)
            of = getattr(viewed, "base", None)
            if getattr(viewed, "member", "") == "_base" and isinstance(of, Source):
                found.setdefault(symbol, []).append(_property_source(AttrSource(of, "_base"), source))
    return found


def _property_source(of: Source, source: Any) -> DimSource:
    """Return the source of the size, stride or storage offset that a torch source names."""
    match source.prop.name:
        case "SIZE":
            return of, source.idx
        case "STRIDE":
            return StrideSource(of, source.idx), -1
    return MethodResultSource(of, "storage_offset"), -1


def _guard_strides(tx: Tracer, first: dict[sympy.Symbol, _SymbolSource]) -> None:
    why = "the strides were assumed to follow from the sizes"
    for origin, (_, strides, _) in _input_layouts(tx):
        for dim, stride in enumerate(strides):
            if not _is_symbolic(stride):
                continue
            reading = first.get(stride.node.expr)
            if reading is not None and reading.source == (StrideSource(origin, dim), -1):
                continue
            own = sympy.Symbol(f"stride_{dim}", integer=True)
            expression, symbols = _over_inputs(stride.node.expr, first)
            place = (own, StrideSource(origin, dim), -1)
            tx.add_guard(
                SymbolicShapeGuard(origin, sympy.Eq(own, expression), (place, *symbols), cause=tx.guard_cause(why))
            )


def _input_layouts(tx: Tracer) -> Iterator[tuple[Source, SymbolicLayout]]:
    """Yield each input and each of its inner tensors with its original layout.

    Guards compare the call's arguments with this layout.
    """
    for value, _ in tx.inputs.input_tensors:
        yield from _with_inner_tensors(tx, value.fake, value.source)


def _with_inner_tensors(tx: Tracer, fake: Any, origin: Any) -> Iterator[tuple[Source, SymbolicLayout]]:
    yield origin, tx.inputs.input_layouts.get(id(fake)) or symbolic_layout(fake)
    for name, part in inner_tensors(fake):
        yield from _with_inner_tensors(tx, part, AttrSource(origin, name))


def _specialization_cause(tx: Tracer, symbol: Any, why: str) -> Cause:
    return tx.symbols.shape_env.specialization_causes.get(symbol) or tx.guard_cause(why)
