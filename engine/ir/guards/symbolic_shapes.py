"""Guard on a sympy relation over sizes and strides."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import sympy
import torch

from engine.ir.guards.base import Guard, ImpliedFacts, ValueCode, user_expr
from engine.ir.guards.sympy_printer import relation_code, relation_display
from engine.ir.introspection import describe_values
from engine.ir.introspection.tensor_spec import is_spec
from engine.ir.sources.base import ConstName, Source
from engine.records.guards import Fix
from engine.torch_private.torch_function import DisableTorchFunction

NUMBER_TYPES = (int, float)
"""The exact types of numbers that are symbols."""
MAX_FLOAT = 1e308
"""Largest magnitude of a symbolic float. Excludes infinity and NaN."""


class SymbolicShapeGuard(Guard):
    """Guard on a sympy relation over sizes.

    ``symbol_sources`` holds (symbol, source, dimension) for each symbol; dimension -1 means the value of an int
    itself. ``source`` is the first symbol's.
    """

    kind: ClassVar[str] = "shape relation"
    rank: ClassVar[int] = 70
    is_relational: ClassVar[bool] = True

    relation: sympy.Basic
    symbol_sources: tuple[tuple[sympy.Symbol, Source, int], ...]

    def is_redundant(self, implied: ImpliedFacts) -> bool:
        return self.relation is sympy.true

    @property
    def sources(self) -> tuple[Source, ...]:
        return (self.source, *dict.fromkeys(o for _, o, _ in self._used_symbols if o != self.source))

    @property
    def _used_symbols(self) -> tuple[tuple[sympy.Symbol, Source, int], ...]:
        """The ``symbol_sources`` of the symbols that occur in the relation."""
        free = self.relation.free_symbols
        return tuple(location for location in self.symbol_sources if location[0] in free)

    def condition(self, code: ValueCode) -> str:
        texts = dict(zip(self.sources, (code.expr, *code.others), strict=True))
        size = code.const(size_at, "size_at")
        return self.condition_on_sizes(tuple(f"{size}({texts[o]}, {d})" for o, d in self.size_reads), code.const)

    @property
    def size_reads(self) -> tuple[tuple[Source, int], ...]:
        return tuple((origin, dimension) for _, origin, dimension in self._used_symbols)

    def condition_on_sizes(self, sizes: tuple[str, ...], const: ConstName) -> str:
        reads = {s: text for (s, _, _), text in zip(self._used_symbols, sizes, strict=True)}
        if self.relation.has(sympy.Or, sympy.Not, sympy.ITE, sympy.Piecewise):
            # Evaluate all reads: short-circuiting could accept a value that lacks one of the sizes.
            return f"{const(_compile_relation(self.relation, tuple(reads)), 'relation')}({', '.join(reads.values())})"
        return relation_code(self.relation, reads, const)

    def test(self, value: Any, other_values: tuple[Any, ...] = ()) -> bool:
        sizes = self._sizes(value, other_values)
        return bool(_compile_relation(self.relation, tuple(sizes))(*sizes.values()))

    def _sizes(self, value: Any, other_values: tuple[Any, ...]) -> dict[sympy.Symbol, int | float]:
        values = dict(zip(self.sources, (value, *other_values), strict=True))
        return {s: size_at(values[o], d) for s, o, d in self._used_symbols}

    @property
    def _float_names(self) -> dict[sympy.Symbol, str]:
        """The user's names of the numbers whose symbols have no name that the field knows."""
        return {s: user_expr(o) for s, o, d in self._used_symbols if d < 0 and not s.is_integer}

    def expected_text(self) -> str:
        names = self._float_names
        if names and {abs(n) for n in self.relation.atoms(sympy.Number)} == {MAX_FLOAT}:
            return f"{next(iter(names.values()))} is finite"
        return relation_display(self.relation, names)

    def actual_text(self, value: Any, other_values: tuple[Any, ...] = ()) -> str:
        try:
            sizes = self._sizes(value, other_values)
        except (TypeError, IndexError, RuntimeError):
            return describe_values.describe(value)
        return ", ".join(f"{self._float_names.get(s, s.name)} = {v}" for s, v in sizes.items())

    @property
    def _viewed(self) -> str:
        """The user's name of the view whose base has the first size; empty for other sizes."""
        return user_expr(self.source.chain()[-2]) if getattr(self.source, "member", "") == "_base" else ""

    def failure_message(self, actual: str) -> str:
        if actual == "None" and self._viewed:
            return f"{self._viewed} is not a view of another tensor in this call; it was one in the compiled code."
        names = self._float_names
        where = ", ".join(f"{s.name} is {_size_text(o, d)}" for s, o, d in self._used_symbols if s not in names)
        return (
            f"The compiled code requires {self.expected_text()}{f' ({where})' if where else ''}; in this call {actual}."
        )

    def fixes(self, value: Any, other_values: tuple[Any, ...] = ()) -> tuple[Fix, ...]:
        if value is None and self._viewed:
            return (Fix(f"Pass {self._viewed} as a view in every call or in none, or accept two cache entries."),)
        if any(dimension >= 0 for _, _, dimension in self._used_symbols):
            text = (
                f"Make all sizes satisfy {self.expected_text()}, for example by padding, or accept two cache entries."
            )
        else:
            named = {s: sympy.Symbol(user_expr(origin)) for s, origin, _ in self._used_symbols}
            text = f"Two cache entries are enough: one where {relation_display(self.relation.xreplace(named))}, one where not."
        return (Fix(text),)


def _size_text(origin: Source, dimension: int) -> str:
    return user_expr(origin) if dimension < 0 else f"{user_expr(origin)}.shape[{dimension}]"


def size_at(value: Any, dimension: int) -> int | float:
    """Return one size of a tensor, or a number itself (dimension -1).

    Raises:
        TypeError: not a tensor, or not a number.
        IndexError: no such dimension.
    """
    if dimension >= 0 and is_spec(value):
        return int(value.shape[dimension])
    if dimension >= 0:
        with DisableTorchFunction():
            size: int = torch.Tensor.size(value)[dimension]
            return size
    if type(value) not in NUMBER_TYPES:
        raise TypeError(f"{type(value).__name__} is not a number")
    number: int | float = value
    return number


@functools.lru_cache(maxsize=4096)
def _compile_relation(relation: sympy.Basic, symbols: tuple[sympy.Symbol, ...]) -> Callable[..., bool]:
    names = [f"v{i}" for i in range(len(symbols))]
    space: dict[str, Any] = {}

    def const(value: object, name: str) -> str:
        space[name] = value
        return name

    text = relation_code(relation, dict(zip(symbols, names, strict=True)), const)
    check: Callable[..., bool] = eval(f"lambda {', '.join(names)}: {text}", space)
    return check
