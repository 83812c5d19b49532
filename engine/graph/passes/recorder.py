"""Records the edits of passes to a graph, line by line, while a session records."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch.fx

from engine.graph.format_node import format_node
from engine.interrupts.deferred_interrupts import deliver_interrupts
from engine.ir.current_session import current_session
from engine.records.bytecode import Span
from engine.records.graph import EditRecord, PassRecord

EDIT_DIGEST_KEY = "engine_edit_digest"
"""Key of a module's ``meta``: digest of its graph where edits are applied."""
PASS_RECORDS_KEY = "engine_passes"  # noqa: S105 -- a key of node.meta
"""Key of a module's ``meta``: records of the passes that ran on it."""
MAX_LINES = 100
"""Maximum number of removed lines, and of added lines, in the record of a pass."""
MAX_NODES_WITH_EDITS = 4_000
"""Maximum number of nodes of a graph whose passes are recorded with edits."""


@dataclass
class PassNotes:
    """Facts about a pass for its record, filled in while it runs."""

    is_user: bool = False
    failure: str = ""
    detail: str = ""
    difference: str = ""
    span: Span | None = None


class PassRecorder:
    """Records of the passes so far; a pass that creates a new graph sets ``module``."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self.records: list[PassRecord] = []
        self._last_graph: tuple[str, ...] | None = None
        """Lines of the graph after the last pass."""

    @contextlib.contextmanager
    def record_pass(self, name: str) -> Iterator[PassNotes]:
        """Record the edits of a pass; do nothing if no session records."""
        deliver_interrupts()
        notes = PassNotes()
        if current_session() is None:
            yield notes
            return
        module, before = self.module, _lines(self.module)
        yield notes
        # A user's pass gets a copy: if it returned no new module, the graph is unchanged.
        after = before if notes.is_user and self.module is module else _lines(self.module)
        gone = [text for node, text in before.items() if after.get(node) != text]
        added = [text for node, text in after.items() if before.get(node) != text]
        record = PassRecord(
            name, len(before), len(after), len(gone), len(added), tuple(gone[:MAX_LINES]), tuple(added[:MAX_LINES])
        )
        record = replace(
            record,
            is_user=notes.is_user,
            failure=notes.failure,
            detail=notes.detail,
            difference=notes.difference,
            span=notes.span,
        )
        self.records.append(self._with_edits(record, tuple(before.values()), tuple(after.values())))

    def _with_edits(self, record: PassRecord, before: tuple[str, ...], after: tuple[str, ...]) -> PassRecord:
        """Add the edits to a record if the graph is small enough."""
        if max(len(before), len(after)) > MAX_NODES_WITH_EDITS:
            self._last_graph = None
            return record
        start = () if before == self._last_graph else before
        self._last_graph = after
        return replace(record, has_exact_edits=True, edits=diff_lines(before, after), lines_before=start)


def diff_lines(before: tuple[str, ...], after: tuple[str, ...]) -> tuple[EditRecord, ...]:
    """Return the edits that turn one text into the other, from top to bottom."""
    if before == after:
        return ()
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return tuple(EditRecord(j1, i2 - i1, after[j1:j2]) for tag, i1, i2, j1, j2 in opcodes if tag != "equal")


def _lines(module: torch.fx.GraphModule) -> dict[str, str]:
    return {node.name: format_node(node) for node in module.graph.nodes}
