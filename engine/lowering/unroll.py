"""Sums of a few elements that only other reductions read are written out, so that the long one walks over what the short ones are made of.

Distances of points are the example: three coordinates are summed for each pair, of which a row then keeps the nearest. As a reduction of its
own every pair's distance would have to be in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

from engine.ir.index import Index, is_same, product
from engine.ir.loops import Builder, Coordinates, Def, Op
from engine.lowering.fuse import probed

FEW = 8
"""Elements up to which a sum is written out."""


def unroll(defs: list[Def], kept: Collection[Def]) -> None:
    """Make such sums elementwise; the Defs are changed."""
    short = [made for made in defs if made.reduction == "sum" and made.kind == "reduction" and _is_short(made)]
    if not short:
        return
    readers: dict[Def, list[Def]] = {}
    for made in defs:
        for source in probed(made).reads.values() if made.is_computed else ():
            readers.setdefault(source, []).append(made)
    for made in short:
        if _is_reduced_again(made, made, readers, kept):
            _write_out(made)


def _is_short(made: Def) -> bool:
    count = product(made.ranges)
    return isinstance(count, int) and 1 < count <= FEW


def _is_reduced_again(made: Def, short: Def, readers: dict[Def, list[Def]], kept: Collection[Def]) -> bool:
    """Whether nobody reads a Def but reductions that walk over each element of the short sum once."""
    own = product(short.shape)
    if made in kept or made not in readers:
        return False
    for reader in readers[made]:
        if not is_same(product((*reader.walked, *reader.ranges)), own):
            return False
        if reader.kind == "pointwise":
            if not _is_reduced_again(reader, short, readers, kept):
                return False
        elif reader.kind != "reduction" or is_same(product(reader.ranges), 1):
            return False
    return True


def _write_out(made: Def) -> None:
    body, places = made.body, list(itertools.product(*(range(int(n)) for n in made.ranges)))

    def total(b: Builder, index: Coordinates) -> Op:
        parts = [body(b, index, tuple(Index({}, k) for k in place)) for place in places]
        found: Op = parts[0]
        for part in parts[1:]:
            found = b.call("add", found, part)
        return found

    made.kind, made.body, made.ranges, made.reduction = "pointwise", total, (), ""
