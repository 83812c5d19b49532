"""Rebind unbacked symbols when a graph is retraced: new symbols replace the old ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch
import torch.fx

from engine.ir.introspection.unbacked_symbols import has_unbacked_symbols
from engine.torch_private.symbolic_shapes import ShapeEnv

_SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def has_unbacked_values(graph: torch.fx.GraphModule) -> bool:
    """Return True if a value of the traced graph has unbacked symbols."""
    return any(has_unbacked_symbols(n.meta.get("example_value")) for n in graph.graph.nodes)


def rebind_unbacked(traced: Any, again: Any) -> None:
    """Replace the unbacked symbols of a traced value by those of its retraced value."""
    for old, new in zip(_flat_scalars(traced), _flat_scalars(again), strict=False):
        if not isinstance(old, _SYMBOLIC_TYPES) or not isinstance(new, _SYMBOLIC_TYPES):
            continue
        was, now = old.node.expr, new.node.expr
        env = old.node.shape_env
        if was != now and _is_unbacked_symbol(env, was) and _is_unbacked_symbol(env, now):
            env._set_replacement(was, now, "traced again")


def _is_unbacked_symbol(env: ShapeEnv, expression: Any) -> bool:
    return isinstance(expression, sympy.Symbol) and env.is_unbacked_symint(expression)


def _flat_scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _flat_scalars(item)
    elif isinstance(value, torch.Tensor):
        yield from value.shape
    else:
        yield value
