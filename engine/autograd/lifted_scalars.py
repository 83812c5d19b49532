"""Sizes and scalars that a captured graph takes as inputs: symbols while torch walks, values of the graph afterwards."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from engine.ir.sources.roots import LocalSource

if TYPE_CHECKING:
    from engine.autograd.capture import CapturedValue


@dataclass(frozen=True)
class SizeExpression:
    """A number computed from sizes: ``run(*args)``."""

    run: Any
    args: tuple[Any, ...]


class UntracedSize(Exception):
    """A number that cannot be traced back to the graph's inputs."""


class LiftedScalars:
    """The symbols of one capture."""

    def __init__(self) -> None:
        self._shape_env: ShapeEnv | None = None
        self._by_name: dict[str, CapturedValue] = {}

    @property
    def has_symbols(self) -> bool:
        """Whether there are any."""
        return self._shape_env is not None

    def create_symbol(self, number: Any, value: CapturedValue) -> Any:
        """A symbolic number for an input of the graph, an int or a float."""
        env: Any = self._shape_env or ShapeEnv()
        self._shape_env = env
        source = LocalSource(f"{value.source}_{value.index}")
        if isinstance(number, float):
            symbol = env.create_unspecified_symbol(number, source=source, dynamic_dim=DimDynamic.DYNAMIC)
            made = env.create_symfloatnode(symbol, hint=number, source=source)
        else:
            made = env.create_unspecified_symint_and_symbol(number, source, DimDynamic.DYNAMIC)
        self._by_name[str(made.node.expr)] = value
        return made

    def graph_value(self, number: Any) -> Any:
        """What computes a symbolic number from the graph's inputs.

        Raises:
            NotASize: nothing that is known here does.
        """
        return self._expression(number.node.expr)

    def has_guards(self) -> bool:
        """Whether torch took a decision by a size's value: the capture then holds for that value only."""
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
            raise UntracedSize(f"a size is computed as {expr}")
        first, *rest = map(self._expression, expr.args)
        for other in rest:
            first = SizeExpression(run, (first, other))
        return first
