"""Symbolic numbers in values: sizes, strides and scalars known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sympy
import torch

from engine.torch_private.symbolic_shapes import free_unbacked_symbols
from engine.torch_private.sympy_functions import SymT, symbol_is_type

SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def is_symbolic(value: Any) -> bool:
    """Return True for a symbolic int, float or bool."""
    return isinstance(value, SYMBOLIC_TYPES)


def numbers_in(value: Any, layout_of: Callable[[torch.Tensor], Sequence[Any]] = lambda t: t.shape) -> Iterator[Any]:
    """Yield the scalars in a value, lists and dicts flattened; for a tensor its sizes."""
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from numbers_in(v, layout_of)
    elif isinstance(value, dict):
        yield from numbers_in(list(value.values()), layout_of)
    elif isinstance(value, torch.Tensor):
        yield from layout_of(value)
    else:
        yield value


def symbolic_sizes_in(value: Any) -> list[Any]:
    """Return the symbolic numbers of a value: itself, or sizes of tensors."""
    return _symbolic(numbers_in(value, lambda t: t.shape if t._has_symbolic_sizes_strides else ()))


def symbolic_numbers_in(value: Any) -> list[Any]:
    """Return the symbolic numbers of a value: itself, or sizes, strides and offset of tensors."""
    return _symbolic(numbers_in(value, _symbolic_layout))


def symbols_in(value: Any) -> set[sympy.Symbol]:
    """Return the symbols that the symbolic numbers of a value depend on."""
    return {symbol for n in symbolic_numbers_in(value) for symbol in n.node.expr.free_symbols}


def symbol_of(number: Any) -> sympy.Symbol | None:
    """Return the symbol that a number is; None for known numbers and for expressions."""
    return next((n.node.expr for n in symbolic_numbers_in(number) if n.node.expr.is_Symbol), None)


def has_unbacked_symbols(value: Any) -> bool:
    """Return True if a fake tensor, a symbol or a container of them has unbacked symbols."""
    if not getattr(value, "_has_symbolic_sizes_strides", True):
        return False
    return any(map(free_unbacked_symbols, symbolic_sizes_in(value)))


def is_unbacked_symbol(expression: Any) -> bool:
    """Return True for a symbol of a size or float that depends on data."""
    return bool(expression.is_Symbol) and symbol_is_type(expression, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))


def _symbolic_layout(t: torch.Tensor) -> Sequence[Any]:
    return (*t.shape, *t.stride(), t.storage_offset()) if t._has_symbolic_sizes_strides else ()


def _symbolic(numbers: Iterator[Any]) -> list[Any]:
    return list(filter(is_symbolic, numbers))
