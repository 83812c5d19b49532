"""Guards on symbolic sizes: relations that torch's ShapeEnv recorded, over sources."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from engine.graph.fake_tensors.recording_shape_env import RecordingShapeEnv
from engine.ir.guards.base import Cause, Guard
from engine.ir.guards.python_values import EqualsMatch
from engine.ir.guards.symbolic_shapes import SymbolicShapeGuard
from engine.ir.guards.sympy_printer import relation_display
from engine.ir.introspection.fakeable_tensors import inner_tensors
from engine.ir.sources.attributes import AttrSource
from engine.ir.sources.base import Source
from engine.ir.sources.tensors import TensorMemberSource
from engine.torch_private.symbolic_shapes import is_nested_int
from engine.torch_private.sympy_functions import FloorDiv, Mod, SingletonInt
from engine.trace.annotations import Tracer
from engine.trace.exc import SkipFrame
from engine.trace.state import GuardSet
from engine.trace.variables.tensors.tensor_inputs import symbolic_layout

DimSource = tuple[Source, int]
"""Source of a tensor with a dimension, or of a number with -1."""
SymbolicLayout = tuple[Sequence[Any], Sequence[Any], Any]
"""Sizes, strides and storage offset of a tensor."""
_Symbols = tuple[tuple[sympy.Symbol, Source, int], ...]


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


@dataclass(frozen=True)
class _ScalarInput:
    """An int or float input that is a symbol."""

    source: Source
    number: Any
    symbol: Any
    python_type: type

    @property
    def expression(self) -> Any:
        return self.number.node.expr


@dataclass(frozen=True)
class ShapeInputs:
    """Inputs and shape environment of a frame, from which its shape guards are made.

    A backend may add assumptions to the environment after the trace. The object refers to no tracer.
    """

    env: RecordingShapeEnv
    layouts: tuple[tuple[Source, SymbolicLayout], ...]
    """Each input and each of its inner tensors with its original layout."""
    scalars: tuple[_ScalarInput, ...]
    subclasses: frozenset[Source]
    """The inputs whose class may override how they are read."""

    @classmethod
    def of(cls, tx: Tracer) -> ShapeInputs:
        """Return the inputs and the shape environment of a traced frame."""
        scalars = (
            _ScalarInput(number.source, number.sym, number.symbol, number.python_type())
            for number in tx.symbols.symbolic_input_scalars
        )
        subclasses = frozenset(value.source for value, _ in tx.inputs.input_tensors if value.may_have_torch_function)
        return cls(tx.symbols.shape_env, tuple(_input_layouts(tx)), tuple(scalars), subclasses)

    def add_guards(self, guards: GuardSet) -> None:
        """Add guards for relations that tracing assumed, and for strides that depend on sizes."""
        if self.env.var_to_sources:
            _ShapeGuardBuilder(self, guards).run()

    def guards_added_since(self, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        """Return the guards for assumptions made after these guards.

        Raises:
            SkipFrame: an assumption cannot be read from the call's arguments.
        """
        earlier_guards = GuardSet(guards)
        self.add_guards(earlier_guards)
        return tuple(earlier_guards.since(len(guards)))


class _ShapeGuardBuilder:
    """Adds the shape guards of a frame to its guards."""

    def __init__(self, inputs: ShapeInputs, guards: GuardSet) -> None:
        self._env, self._layouts, self._scalars = inputs.env, inputs.layouts, inputs.scalars
        self._guards, self._subclasses = guards, inputs.subclasses
        self._sources = self._symbol_sources()
        self._locations = {
            symbol: _SymbolSource(symbol, sources[0]) for symbol, sources in self._sources.items() if sources
        }

    def run(self) -> None:
        env = self._env
        self._guard_derived_sizes()
        for guard in env.guards:
            if not _is_trivial_for_ragged(env, guard.expr):
                cause = env.guard_causes.get(guard.expr)
                self._guard_relation(guard.expr, cause or "the traced code assumed this relation between symbols")
        self._guard_bounds()
        for symbol, locations in self._sources.items():
            for n, location in enumerate(locations[1:]):
                other = sympy.Symbol(f"{symbol.name}_{n}", integer=True)
                symbols = ((symbol, *locations[0]), (other, *location))
                self._add(sympy.Eq(symbol, other), symbols, "the two sizes were equal, so they share one symbol")
        self._guard_strides()

    def _add(self, relation: Any, symbols: _Symbols, why: str | Cause) -> None:
        self._guards.add(SymbolicShapeGuard(symbols[0][1], relation, symbols, cause=self._env.cause(why)))

    def _guard_bounds(self) -> None:
        why = "the compiled code is valid for these sizes and numbers"
        for symbol in list(self._locations):
            if _is_ragged(self._env, symbol):
                continue
            low, high = symbol_bounds(self._env, symbol)
            if low is not None:
                self._guard_relation(sympy.Ge(symbol, low), why)
            if high is not None:
                self._guard_relation(sympy.Le(symbol, high), why)

    def _guard_relation(self, relation: Any, why: str | Cause) -> None:
        # Of two equal symbols ShapeEnv retains one, and only that one has a source.
        relation = self._env.replace(relation)
        if relation in (sympy.true, True):
            return
        relation, symbols = self._over_inputs(relation)
        if symbols:
            self._add(relation, symbols, why)

    def _over_inputs(self, relation: Any) -> tuple[Any, _Symbols]:
        """Rewrite a relation over input sizes and numbers, and return it with their sources.

        Raises:
            SkipFrame: no input has one of its symbols.
        """
        free = sorted(relation.free_symbols, key=lambda s: s.name)
        unbound = [s for s in free if s not in self._locations]
        if unbound:
            raise SkipFrame(
                "internal", f"the code assumes {relation_display(relation)}, but no input has the size {unbound[0]}"
            )
        readings = [self._locations[s] for s in free]
        changed = relation.xreplace({s: r.expression for s, r in zip(free, readings, strict=True) if r.multiple != 1})
        return changed, tuple((r.symbol, *r.source) for r in readings)

    def _guard_derived_sizes(self) -> None:
        """Guard input sizes and numbers that are expressions.

        A symbol without a source of its own is read from an input that is a multiple of it.
        """
        composed = [
            (source, dim, size.node.expr)
            for source, layout in self._layouts
            for dim, size in enumerate(layout[0])
            if _is_symbolic(size) and _is_composed(size.node.expr)
        ]
        composed += [
            (number.source, -1, number.expression)
            for number in self._scalars
            if number.python_type is int and _is_composed(number.expression)
        ]
        for n, (source, dim, expression) in enumerate(composed):
            size_symbol = sympy.Symbol(f"size_{n}_{dim}" if dim >= 0 else f"number_{n}", integer=True)
            factor, factor_free = expression.as_coeff_Mul()
            location = (size_symbol, source, dim)
            if factor_free.is_Symbol and factor_free not in self._locations and factor.is_integer and factor > 0:
                self._locations[factor_free] = _SymbolSource(size_symbol, (source, dim), int(factor))
                why = "this size was assumed to be a multiple of a number"
                self._add(sympy.Eq(Mod(size_symbol, int(factor)), 0), (location,), why)
                continue
            relation, symbols = self._over_inputs(expression)
            why = "this size was assumed to follow from other sizes"
            self._add(sympy.Eq(size_symbol, relation), (location, *symbols), why)

    def _symbol_sources(self) -> dict[sympy.Symbol, list[DimSource]]:
        number_sources: dict[sympy.Symbol, list[DimSource]] = {}
        other_sources: dict[sympy.Symbol, list[DimSource]] = {}
        """Strides that depend on no size, such as those of a slice, and storage offsets."""
        for source, (sizes, strides, offset) in self._layouts:
            for dim, size in enumerate(sizes):
                expression: Any = getattr(getattr(size, "node", None), "expr", None)
                if isinstance(expression, sympy.Symbol):  # ragged sizes too
                    number_sources.setdefault(expression, []).append((source, dim))
                elif _is_symbolic(size) and expression.is_number:
                    size_symbol = sympy.Symbol(f"size_{dim}", integer=True)
                    why = "this size decided what was traced"
                    self._add(sympy.Eq(size_symbol, expression), ((size_symbol, source, dim),), why)
            layout = [(stride, self._layout_source(source, "stride", (dim,))) for dim, stride in enumerate(strides)]
            for value, value_source in [*layout, (offset, self._layout_source(source, "storage_offset", ()))]:
                if _is_symbolic(value) and value.node.expr.is_Symbol:
                    other_sources.setdefault(value.node.expr, []).append((value_source, -1))
        for number in self._scalars:
            expression = number.expression
            if expression.is_Symbol:
                number_sources.setdefault(expression, []).append((number.source, -1))
            elif expression.is_number:
                specialization_cause = self._env.specialization_causes.get(number.symbol)
                cause = self._env.cause(specialization_cause or "its value decided what was traced")
                self._guards.add(EqualsMatch(number.source, number.python_type(expression), cause=cause))
        return {**self._base_symbol_sources(), **other_sources, **number_sources}

    def _layout_source(self, of: Source, member: str, arguments: tuple[int, ...] | None) -> TensorMemberSource:
        return TensorMemberSource(of, member, arguments, of in self._subclasses)

    def _base_symbol_sources(self) -> dict[sympy.Symbol, list[DimSource]]:
        """Return the sources of symbols that belong to the bases of input views.

        torch creates symbols for the sizes and layouts of these bases too.
        """
        sources_by_symbol: dict[sympy.Symbol, list[DimSource]] = {}
        for symbol, sources in self._env.var_to_sources.items():
            for source in sources:
                viewed = getattr(source, "base", None)
                of = getattr(viewed, "base", None)
                if getattr(viewed, "member", "") == "_base" and isinstance(of, Source):
                    base = self._layout_source(of, "_base", None)
                    sources_by_symbol.setdefault(symbol, []).append(_property_source(base, source))
        return sources_by_symbol

    def _guard_strides(self) -> None:
        for source, (_, strides, _) in self._layouts:
            for dim, stride in enumerate(strides):
                if not _is_symbolic(stride):
                    continue
                location = (self._layout_source(source, "stride", (dim,)), -1)
                reading = self._locations.get(stride.node.expr)
                if reading is not None and reading.source == location:
                    continue
                stride_symbol = sympy.Symbol(f"stride_{dim}", integer=True)
                expression, symbols = self._over_inputs(stride.node.expr)
                why = "the strides were assumed to follow from the sizes"
                self._add(sympy.Eq(stride_symbol, expression), ((stride_symbol, *location), *symbols), why)


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


def _is_composed(expression: Any) -> bool:
    """Return True for an expression over symbols that is not a symbol itself."""
    return not expression.is_Symbol and not expression.is_number


def _is_symbolic(size: Any) -> bool:
    """Return True if a size is an expression over symbols; a ragged size (nested int) is not."""
    return not isinstance(size, int) and not is_nested_int(size)


def _property_source(of: Source, source: Any) -> DimSource:
    """Return the source of the size, stride or storage offset that a torch source names."""
    match source.prop.name:
        case "SIZE":
            return of, source.idx
        case "STRIDE":
            return TensorMemberSource(of, "stride", (source.idx,)), -1
    return TensorMemberSource(of, "storage_offset", ()), -1


def _input_layouts(tx: Tracer) -> Iterator[tuple[Source, SymbolicLayout]]:
    """Yield each input and each of its inner tensors with its original layout.

    Guards compare the call's arguments with this layout.
    """
    for value, _ in tx.inputs.input_tensors:
        yield from _with_inner_tensors(tx, value.fake, value.source)


def _with_inner_tensors(tx: Tracer, fake: Any, source: Any) -> Iterator[tuple[Source, SymbolicLayout]]:
    yield source, tx.inputs.input_layouts.get(id(fake)) or symbolic_layout(fake)
    for name, part in inner_tensors(fake):
        yield from _with_inner_tensors(tx, part, AttrSource(source, name))
