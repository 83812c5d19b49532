"""Rebind unbacked symbols when a graph is retraced: new symbols replace the old ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from engine.ir.introspection.symbols import has_unbacked_symbols, is_unbacked_symbol, numbers_in, symbolic_sizes_in


def has_unbacked_values(graph: torch.fx.GraphModule) -> bool:
    """Return True if a value of the traced graph has unbacked symbols."""
    return any(has_unbacked_symbols(n.meta.get("example_value")) for n in graph.graph.nodes)


def rebind_unbacked(traced: Any, again: Any) -> None:
    """Replace the unbacked symbols of a traced value by those of its retraced value."""
    for old, new in zip(numbers_in(traced), numbers_in(again), strict=False):
        if len(symbolic_sizes_in((old, new))) < 2:
            continue
        was, now = old.node.expr, new.node.expr
        env = old.node.shape_env
        if was != now and is_unbacked_symbol(was) and is_unbacked_symbol(now):
            env._set_replacement(was, now, "traced again")
