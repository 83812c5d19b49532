"""Sizes and scalars that a captured graph takes as inputs.

They are symbols during torch's walk, and graph values afterwards.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.autograd.fallback_kinds import CaptureFallback
from engine.ir.fallback import FallbackRequired
from engine.ir.sources.roots import LocalSource
from engine.torch_private.symbolic_shapes import DimDynamic, ShapeEnv

if TYPE_CHECKING:
    from engine.autograd.capture import CapturedValue


@dataclass(frozen=True)
class SizeExpression:
    """A number computed from sizes: ``run(*args)``."""

    run: Any
    args: tuple[Any, ...]


class LiftedScalars:
    """Sizes and Python numbers of a capture, as symbols of one ``ShapeEnv``."""

    def __init__(self) -> None:
        self._shape_env: ShapeEnv | None = None
        self._by_name: dict[str, CapturedValue] = {}

    @property
    def has_symbols(self) -> bool:
        """True if the capture has symbols."""
        return self._shape_env is not None

    def create_symbol(self, number: Any, value: CapturedValue) -> Any:
        """Create a symbolic int or float for an input of the graph."""
        env: Any = self._shape_env or ShapeEnv()
        self._shape_env = env
        source = LocalSource(f"{value.source}_{value.index}")
        if isinstance(number, float):
            symbol = env.create_unspecified_symbol(number, source=source, dynamic_dim=DimDynamic.DYNAMIC)
            symbolic_number = env.create_symfloatnode(symbol, hint=number, source=source)
        else:
            symbolic_number = env.create_unspecified_symint_and_symbol(number, source, DimDynamic.DYNAMIC)
        self._by_name[str(symbolic_number.node.expr)] = value
        return symbolic_number

    def graph_value(self, number: Any) -> Any:
        """Return the captured value or expression that computes a symbolic number.

        Raises:
            FallbackRequired: The number does not derive from the graph's inputs.
        """
        return self._expression(number.node.expr)

    def has_guards(self) -> bool:
        """Return True if torch guarded on a size, which limits the capture to that size."""
        return self._shape_env is not None and bool(self._shape_env.guards)

    def _expression(self, expr: Any) -> Any:
        if expr.is_Symbol:
            return self._by_name[str(expr)]
        if expr.is_Integer:
            return int(expr)
        if expr.is_Float:
            return float(expr)
        run = {"Add": operator.add, "Mul": operator.mul}.get(type(expr).__name__)
        if run is None:
            raise FallbackRequired(CaptureFallback.UNTRACED_SIZE, f"a size is computed as {expr}")
        first, *others = map(self._expression, expr.args)
        for operand in others:
            first = SizeExpression(run, (first, operand))
        return first
