"""Source lines of graph modules, which torch stores in a table of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice

from engine.ir.generated_sources import drop_oldest, line_tables
from engine.torch_private.entries import Feature, why_off
from engine.torch_private.fx import graph_sources

_IS_OFF = bool(why_off(Feature.SOURCE_LIMIT))

if not _IS_OFF:
    line_tables.append(graph_sources.eval_cache)


@contextlib.contextmanager
def limit_graph_sources() -> Iterator[None]:
    """Count the sources of graph modules that are made in the block.

    Those that the user makes outside it are never dropped.
    """
    if _IS_OFF:
        yield
        return
    first = graph_sources.next_id
    try:
        yield
    finally:
        for file in tuple(islice(reversed(graph_sources.eval_cache), graph_sources.next_id - first)):
            drop_oldest(file)
