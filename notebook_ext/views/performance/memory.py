"""Memory view: live bytes over the steps of a compilation's programs."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Iterable
from typing import Any

from engine.records.aot import CheckpointTrial
from engine.records.format_amounts import format_bytes
from engine.records.graph import NodeRecord, operator_name
from engine.records.lowering import MemoryBlock, MemoryRecord, MemoryStep
from engine.records.session import CompilationRecord, Session
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import UNKNOWN_SIZE, one_line, pluralize, sanitize

_ITEM = re.compile(r"= \w+\[(\d+)\]$")
"""Node that reads one result of an operator, as one line of Python."""
HELD = {"saved": "saved by the forward", "tangent": "gradient of an output", "output": "returned"}
"""Why a block of this kind is live, if not for a later step."""

checkpoint_trials: weakref.WeakKeyDictionary[Session, dict[str, tuple[CheckpointTrial, ...]]] = (
    weakref.WeakKeyDictionary()
)
"""Trials of activation checkpoints, by session and compilation."""


def memory(session: Session, entry: str) -> dict[str, Any]:
    """Return the steps of the programs in one row, forward then backward, with their blocks.

    A step has its live bytes and the numbers of its source lines. A block has the first and the last step that it is
    live at, counted over all programs.
    """
    compilation = session.compilation(entry)
    lines = _NodeLines(session, compilation)
    steps: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    programs = []
    for record in compilation.memory:
        start = len(steps)
        steps += [{"name": lines.step_name(s), "bytes": s.live_bytes, "lines": lines.of(s.nodes)} for s in record.steps]
        saved = _saved_names(compilation) if record.stage == "forward" else set()
        blocks += [
            _block_data(b, start, record, lines, saved)
            for b in record.blocks
            if b.kind != "input" and (b.bytes or b.unknown_bytes)
        ]
        programs.append(_program_data(record, start))
    peak = max(range(len(steps)), key=lambda n: steps[n]["bytes"], default=-1)
    return {
        "compilation": compilation.id,
        "target": "this CPU"
        if compilation.memory is compilation.cpu_program.memory
        else one_line(compilation.lowering.target if compilation.lowering else session.target, 40),
        "programs": programs,
        "steps": steps,
        "blocks": blocks,
        "peak": peak,
        "source": lines.texts if steps else {},
        "outcome": _peak_sentence(compilation, lines, steps, peak),
        "recompute": _recompute_text(compilation),
        "checkpoints": _checkpoint_rows(compilation, checkpoint_trials.get(session, {}).get(entry, ())),
    }


def _program_data(record: MemoryRecord, start: int) -> dict[str, Any]:
    held = sum(b.bytes for b in record.blocks if b.kind == "input")
    return {
        "name": record.stage,
        "first": start,
        "count": len(record.steps),
        "peak": _peak_text(record),
        "held": format_bytes(held),
    }


def _peak_text(record: MemoryRecord) -> str:
    """Return the peak; a lower bound, or none, if some sizes are known only at run time."""
    if not any(b.unknown_bytes and b.kind != "input" for b in record.blocks):
        return format_bytes(record.peak_bytes)
    return f"at least {format_bytes(record.peak_bytes)}" if record.peak_bytes else UNKNOWN_SIZE


def _block_data(
    block: MemoryBlock, start: int, record: MemoryRecord, lines: _NodeLines, saved: set[str]
) -> dict[str, Any]:
    name = lines.block_name(block)
    last = lines.step_name(record.steps[block.last]) if 0 <= block.last < len(record.steps) else ""
    return {
        "name": one_line(name, 40),
        "bytes": block.bytes,
        "text": f"{one_line(block.unknown_bytes, 40)} B" if block.unknown_bytes else format_bytes(block.bytes),
        "kind": block.kind,
        "why": "saved for the backward"
        if name in saved
        else HELD.get(block.kind, "") or one_line(f"read by {last}", 60),
        "first": start + block.first,
        "last": start + max(block.first, block.last),
        "lines": lines.of((block.node or f"aten:{lines.entry}:{block.name}",)),
    }


def _peak_sentence(compilation: CompilationRecord, lines: _NodeLines, steps: list[dict[str, Any]], peak: int) -> str:
    """Return one sentence: the peak, where it is, and what it consists of."""
    if peak < 0:
        return "No program was recorded, so its memory is not known."
    start = 0
    for record in compilation.memory:
        if peak < start + len(record.steps):
            live = record.live_blocks(peak - start)
            if not live:
                return f"The peak is {_peak_text(record)}."
            largest = ", ".join(f"{one_line(lines.block_name(b), 40)} {format_bytes(b.bytes)}" for b in live[:3])
            step = f"step {peak - start + 1} of {len(record.steps)} of the {record.stage}, {steps[peak]['name']}"
            return f"The peak is {_peak_text(record)}, at {step}: {pluralize(len(live), 'tensor')} live, the largest {largest}."
        start += len(record.steps)
    return ""


def _saved_names(compilation: CompilationRecord) -> set[str]:
    partition = compilation.aot.partition if compilation.aot else None
    return {v.name for v in partition.values if v.action == "saved"} if partition else set()


def _recompute_text(compilation: CompilationRecord) -> str:
    """Return what recomputing values in the backward saves; empty without a backward."""
    partition = compilation.aot.partition if compilation.aot else None
    if partition is None:
        return ""
    saved, without = partition.saved_bytes, partition.bytes_without_recompute
    if unknown := partition.unknown_saved_bytes:
        return f"The forward saves {format_bytes(saved)} and {one_line(unknown, 60)} B for the backward: these symbols are {UNKNOWN_SIZE}."
    if without <= saved:
        return f"The forward saves {format_bytes(saved)} for the backward, which recomputes nothing."
    return f"The forward saves {format_bytes(saved)} for the backward; without recomputing it would save {format_bytes(without)}."


def _checkpoint_rows(compilation: CompilationRecord, trials: Iterable[CheckpointTrial]) -> list[dict[str, str]]:
    """Return one row for the compiled call and one for each trial; none without trials."""
    partition = compilation.aot.partition if compilation.aot else None
    rows = [_checkpoint_row(trial) for trial in trials]
    if not rows or partition is None:
        return []
    peaks = tuple(record.peak_bytes for record in compilation.memory)
    return [_checkpoint_row(CheckpointTrial("As compiled", "", partition.saved_bytes, peaks)) | {"verdict": ""}, *rows]


def _checkpoint_row(trial: CheckpointTrial) -> dict[str, str]:
    largest = trial.largest
    forward, backward = (*map(format_bytes, trial.peaks), "–", "–")[:2]
    return {
        "policy": trial.policy,
        "code": trial.code,
        "largest": f"{one_line(largest.name, 40)} {format_bytes(largest.bytes)}" if largest else "",
        "saved": "–" if trial.problem else format_bytes(trial.saved_bytes),
        "forward": forward,
        "backward": backward,
        "verdict": sanitize(trial.problem or trial.difference) or "✓ those of eager",
    }


def _line_text(file: str, line: int) -> str:
    module = source_lines.module_of(file)
    if module is None:
        return f"line {line}"
    return f"module {one_line(module, 60)}" if module else "library code"


class _NodeLines:
    """Numbers of the source lines of nodes, as in the other views."""

    def __init__(self, session: Session, compilation: CompilationRecord) -> None:
        self._session = session
        self._compilation = compilation
        self.entry = compilation.id
        self._files = {f.id for f in session.files}

    @functools.cached_property
    def _nodes(self) -> dict[str, NodeRecord]:
        return {n.id: n for g in self._compilation.graphs for n in g.nodes}

    @functools.cached_property
    def _result_names(self) -> dict[str, str]:
        """Names of the nodes that read one of several results, by the operator's id and number."""
        return {
            f"{node.inputs[0]}_{read[1]}": node.name
            for node in self._nodes.values()
            if len(node.inputs) == 1 and (read := _ITEM.search(node.text))
        }

    def block_name(self, block: MemoryBlock) -> str:
        """Return the name that the graph and the other views have for a block."""
        prefix = block.node.rpartition(":")[0]
        return self._result_names.get(f"{prefix}:{block.name}", block.name)

    @functools.cached_property
    def _ordinals(self) -> source_lines.LineOrdinals:
        return source_lines.ordinals(self._session, self._compilation)

    @property
    def texts(self) -> dict[int, list[Any]]:
        """Line number (0 for a module), place and text by ordinal."""
        return {
            number: [line, _line_text(file, line), sanitize(source_lines.line_text(self._session, file, line)).strip()]
            for (file, line), number in self._ordinals.numbers.items()
        }

    def step_name(self, step: MemoryStep) -> str:
        """Return the kernel or the operator that a step runs."""
        return one_line(operator_name(step.name, self._nodes.get(step.nodes[0]) if step.nodes else None), 60)

    def of(self, nodes: tuple[str, ...]) -> list[int]:
        """Return the numbers of the lines that these nodes come from."""
        spans = (source_lines.node_spans(self._nodes[n], self._files).span for n in nodes if n in self._nodes)
        return sorted({self._ordinals.of(span) for span in spans} - {0})
