"""Notes what a rewrite changes in a graph, line by line, while a session records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.fx

from engine.graph.text import line_of
from engine.ir.context import current_session
from engine.records.graph import PassRecord

PASSES = "engine_passes"
"""In a module's ``meta``: what is recorded of the rewrites that it went through."""
MOST = 100
"""Lines that are kept of what a pass took away, and of what it made."""


class Watch:
    """The passes that were watched so far; a pass sets ``module`` where it makes a new graph."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.records: list[PassRecord] = []

    @contextlib.contextmanager
    def watching(self, name: str) -> Iterator[None]:
        """Compare the graph before with the graph after; without a session that records, do nothing."""
        if current_session() is None:
            yield
            return
        before = _lines(self.module)
        yield
        after = _lines(self.module)
        gone = [text for node, text in before.items() if after.get(node) != text]
        made = [text for node, text in after.items() if before.get(node) != text]
        kept = {"removed": tuple(gone[:MOST]), "added": tuple(made[:MOST])}
        self.records.append(PassRecord(name, len(before), len(after), len(gone), len(made), **kept))


def _lines(module: torch.fx.GraphModule) -> dict[str, str]:
    return {node.name: line_of(node) for node in module.graph.nodes}
