"""Locations of symbols in inputs, and expressions of symbols in the user's names."""

from __future__ import annotations

from typing import Any

import torch.fx

from engine.ir.guards.base import STACK_VALUE_TEXT, user_expr
from engine.ir.guards.sympy_printer import relation_display
from engine.ir.kernels.symbol_locations import NUMBER, OFFSET, stride_location, symbol_expr
from engine.ir.sources.base import Source
from engine.records.guards import name_accessors
from engine.trace.symbols.unbacked_symints import call_text


def describe_symbolic(number: Any, computed_by: torch.fx.Node) -> str:
    """Return an expression over inputs, ``2*x.shape[0]``, or the call that computes it."""
    node = getattr(number, "node", None)  # None: a function, if a subgraph lifts the pullback of a ``vjp``
    sources = {s: node.shape_env.var_to_sources.get(s, ()) for s in node.expr.free_symbols} if node is not None else {}
    origins = {s: next(filter(None, map(location_of, of)), None) for s, of in sources.items()}
    if node is None or None in origins.values():
        return f"the number {call_text(computed_by)}"
    return relation_display(node.expr, {s: location_text(*origin) for s, origin in origins.items() if origin})


def location_text(source: Source, at: int) -> str:
    """Return where an input holds a symbol, in the user's names: ``x.shape[0]``."""
    return name_accessors(symbol_expr(user_expr(source), at), STACK_VALUE_TEXT)


def location_of(source: Any) -> tuple[Source, int] | None:
    """Return the source from which a symbol is read; None for a symbol that no input holds.

    The number is its location, as in ``symbol_locations``.
    """
    if isinstance(source, Source):
        return source, NUMBER
    of = getattr(source, "base", None)
    if not isinstance(of, Source):
        return None
    method = source.prop.method_name()
    if method == "stride":
        return of, stride_location(source.idx)
    return of, OFFSET if method == "storage_offset" else source.idx
