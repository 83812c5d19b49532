"""The loop variables that number the elements of a line of memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from engine.ir.loop_ir.index_expr import IndexExpr, LoopVar
from engine.ir.static_sizes import static_sizes

LINE_ELEMENTS = 64
"""Neighbors in memory that are looked at."""
MIN_TILE_SIDE = 16
"""Shorter sides of a tile gain nothing: few elements share a line of memory anyway."""
MIN_INTERLEAVED = 4
"""Fewest elements between two neighbors of the inner loop, for a tile to gain."""


class Digit(NamedTuple):
    """A mixed-radix digit of a loop variable: ``var // low % (high // low)``."""

    var: LoopVar
    low: int
    high: int

    @property
    def extent(self) -> int:
        """Number of values."""
        return self.high // self.low


def line_digits(position: IndexExpr, variables: Iterable[LoopVar]) -> tuple[Digit, ...]:
    """Return the digits that number the elements of a line of memory, the fastest first.

    >>> from engine.ir.loop_ir.index_expr import variable
    >>> c, w = LoopVar("c", 64), LoopVar("w", 32)
    >>> [(d.var.name, d.low, d.high) for d in line_digits(variable(c) * 2 + variable(w).mod(2), (c, w))]
    [('w', 1, 2), ('c', 1, 64)]
    """
    found: list[Digit] = []
    run = 1
    while run < LINE_ELEMENTS:
        atom = next((a for a, coefficient in position.terms.items() if coefficient == run), None)
        digits = [(v, atom.digits_of(v)) for v in variables] if atom is not None else []
        digit = next((Digit(v, *ends) for v, d in digits if d and (ends := static_sizes(d)) and ends[0]), None)
        if digit is None or digit.extent < 2:
            break
        found.append(digit)
        run *= digit.extent
    return tuple(found)


def leading_variables(digits: Sequence[Digit]) -> tuple[LoopVar, ...]:
    """Return the variables of the fastest digits that fill a side of a tile; else none."""
    variables: dict[LoopVar, None] = {}
    extent = 1
    for digit in digits:
        variables[digit.var] = None
        extent *= digit.extent
        if extent >= MIN_TILE_SIDE:
            return tuple(variables)
    return ()


def digits_across(digits: Sequence[Digit], inner: Sequence[LoopVar]) -> tuple[Digit, ...]:
    """Return the digits of other variables than ``inner`` that number neighbors in memory.

    Empty if ``inner`` itself numbers enough of them. A few others suffice if ``inner`` numbers what follows them:
    a pixel shuffle of channels last reads the pixels that a channel becomes before the next channel.
    """
    across = tuple(d for d in digits if d.var not in inner)
    leading = itertools.takewhile(lambda d: d.var in inner, digits)
    if math.prod(d.extent for d in leading) >= MIN_TILE_SIDE:
        return ()
    extent = math.prod(d.extent for d in across)
    is_interleaved = across == digits[:-1] and extent.bit_count() == 1 and extent >= MIN_INTERLEAVED
    return across if extent >= MIN_TILE_SIDE or is_interleaved else ()
