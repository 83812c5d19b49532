"""Steps of the tracer as columns of numbers over interned strings.

The front end can rebuild any step from them, forward and backward.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from engine.ir.user_code_files import is_installed_file
from engine.records.bytecode import Span
from engine.records.graph import NodeRecord
from engine.records.session import CompilationRecord, Session
from engine.records.trace import StepRecord
from notebook_ext.views import source_lines
from notebook_ext.views.format_text import one_line, sanitize, shorten_paths, tensor_type
from notebook_ext.views.graph.node_table import node_values

HOW_TO_RECORD = (
    'No steps were recorded. Run the cell with %%compile --steps, or record with engine.record(level="steps").'
)
MAX_STEPS = 20_000
"""Maximum number of steps that the tracer records for one trace."""

_CODE_OBJECT = re.compile(r"<code object (\S+) at 0x[^>]*>?")
_EVENTS = ("", "inline", "return", "raise", "break")


def tracer_steps(session: Session, compilation: str) -> dict[str, Any]:
    """Return the steps of one compilation; if none, ``empty`` says how to record them.

    ``frame``, ``depth``, ``op``, ``event``, ``stack`` and ``caller`` have one number for each step.
    ``stack`` and ``caller`` hold after the step, in the frame that executes next. A stack is a cell
    ``[below, text, node]`` (-1: the empty stack). A caller is the step that entered the frame (-1: the
    root). ``locals`` are the changes ``[step, frame, name, text, node]``; ``nodes``, ``guards`` and
    ``effects`` are ``[step, text]``. All are in order.

    Raises:
        KeyError: there is no such compilation.
    """
    record = session.compilation(compilation)
    steps = record.trace.steps if record.trace else ()
    if not steps:
        return {"compilation": record.id, "empty": HOW_TO_RECORD, "count": 0}
    return _StepColumns(session, record).build(steps)


@dataclass
class _Interner:
    """Values numbered in order of first use."""

    numbers: dict[Any, int] = field(default_factory=dict)

    def of(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))

    def values(self) -> list[Any]:
        return list(self.numbers)


class _StepColumns:
    """Builds the step table of one compilation; texts are indices into shared lists."""

    def __init__(self, session: Session, record: CompilationRecord) -> None:
        self.session = session
        self.record = record
        self.strings = _Interner()
        self.cells = _Interner()
        self.ops = _Interner()
        self.ordinals = source_lines.ordinals(session, record)

    def build(self, steps: tuple[StepRecord, ...]) -> dict[str, Any]:
        used = {(s.span.file, s.span.line) for s in steps if s.span is not None}
        rows = source_lines.source_rows(self.session, used, steps[0].span.file if steps[0].span else "")
        self.rows = {(r.file, r.line): i for i, r in enumerate(rows) if r.line}
        frames, codes = _Interner(), _Interner()
        of_step = [frames.of(s.frame) for s in steps]
        of_code = [codes.of((s.code, s.span.file if s.span else "")) for s in steps]
        ops = [self._op_number(code, s) for code, s in zip(of_code, steps, strict=True)]
        self._rest_of_root(of_code[0])
        return {
            "compilation": self.record.id,
            "empty": "",
            "count": len(steps),
            # A decorator such as torch.no_grad begins in the library: the reader begins at the function.
            "first": next((i for i, s in enumerate(steps) if s.span and not is_installed_file(s.span.file)), 0),
            "is_cut": len(steps) >= MAX_STEPS,
            "frame": of_step,
            "depth": [s.depth for s in steps],
            "op": ops,
            "event": [_EVENTS.index(s.event) if s.event in _EVENTS else 0 for s in steps],
            "stack": [-1 if s is None else self._stack_number(s) for s in _stack_states(steps)],
            "caller": _caller_steps(steps),
            "locals": self._local_changes(steps, of_step),
            "codes": [one_line(name, 80) for name, _ in codes.values()],
            "nodes": [[i, self._text_number(n)] for i, s in enumerate(steps) for n in s.nodes],
            "guards": [[i, self._text_number(g)] for i, s in enumerate(steps) for g in s.guards],
            "effects": [[i, self._text_number(e)] for i, s in enumerate(steps) for e in s.side_effects],
            "described": self._node_rows(steps),
            "source": [sanitize(r.text) for r in rows],
            "lines": [r.line for r in rows],
            "ordinals": {
                str(row): self.ordinals.numbers[file_line]
                for file_line, row in self.rows.items()
                if file_line in self.ordinals.numbers
            },
            "stop": self._stop_reason(),
            "ops": self.ops.values(),
            "cells": self.cells.values(),
            "strings": self.strings.values(),
        }

    def _text_number(self, text: str) -> int:
        return self.strings.of(one_line(shorten_paths(_CODE_OBJECT.sub(r"<code object \1>", text)), 160))

    def _op_number(self, code: int, step: StepRecord) -> int:
        return self._instruction_number(code, step.offset, step.opname, step.argument, step.span)

    def _instruction_number(self, code: int, offset: int, opname: str, argument: str, span: Span | None) -> int:
        row = self.rows.get((span.file, span.line), -1) if span else -1
        is_piece = span is not None and 0 <= span.column < span.end_column and span.end_line in (-1, span.line)
        piece = (span.column, span.end_column) if span is not None and is_piece else (-1, -1)
        name = self.strings.of(sanitize(opname))
        return self.ops.of((code, offset, name, self._text_number(argument), row, span.line if span else 0, *piece))

    def _rest_of_root(self, code: int) -> None:
        """Add the instructions of the root that were not executed.

        Of inlined functions only the executed instructions are known.
        """
        executed = {(op[0], op[1]) for op in self.ops.values()}
        for i in self.record.trace.instructions if self.record.trace else ():
            if (code, i.offset) not in executed:
                self._instruction_number(code, i.offset, i.opname, i.argument, i.span)

    def _stack_number(self, step: StepRecord) -> int:
        cell = -1
        nodes = step.stack_nodes or ("",) * len(step.stack)
        for text, node in zip(step.stack, nodes, strict=True):
            cell = self.cells.of((cell, self._text_number(text), self.strings.of(sanitize(node)) if node else -1))
        return cell

    def _local_changes(self, steps: tuple[StepRecord, ...], frames: list[int]) -> list[list[int]]:
        """Return the changes of local variables.

        The first changes of a frame belong to the step before, which entered the frame. A deleted variable has
        text -1.
        """
        seen: set[int] = set()
        ends = _last_inner_steps(steps)
        changes: list[list[int]] = []
        for i, step in enumerate(steps):
            at = ends[i] if step.frame in seen else max(i - 1, 0)
            seen.add(step.frame)
            nodes = step.locals_nodes or {}
            for name, text in step.locals_changed.items():
                node = self.strings.of(sanitize(nodes[name])) if name in nodes else -1
                words = self._text_number(text) if text else -1
                changes.append([at, frames[i], self.strings.of(one_line(name, 60)), words, node])
        return sorted(changes, key=lambda change: change[0])

    def _node_rows(self, steps: tuple[StepRecord, ...]) -> dict[str, list[Any]]:
        """Return expression, type, line ordinal and recorded values by node name.

        A node that is missing was removed as unused.
        """
        graph = next((g for g in self.record.graphs if g.stage == "fx"), None)
        node_by_name: dict[str, NodeRecord] = {n.name: n for n in graph.nodes} if graph else {}
        files = {f.id for f in self.session.files}
        new_names = dict.fromkeys(name for s in steps for name in s.nodes)
        values = node_values(self.record, graph) if graph else {}
        of_name = {n.name: values[i] for i, n in enumerate(graph.nodes) if i in values} if graph else {}
        return {
            sanitize(n): [*self._node_row(node_by_name[n], files), of_name.get(n)]
            for n in new_names
            if n in node_by_name
        }

    def _node_row(self, node: NodeRecord, files: set[str]) -> list[Any]:
        ordinal = self.ordinals.of(source_lines.node_spans(node, files).span)
        text = "input" if node.op == "placeholder" else node.text.partition(" = ")[2] or node.text
        return [one_line(text, 120), tensor_type(node.dtype, node.shape) if node.dtype else "", ordinal]

    def _stop_reason(self) -> str:
        """Return why the trace ended before the function did, else ""."""
        breaks = self.record.trace.breaks if self.record.trace else ()
        return one_line(breaks[0].title, 120) if breaks else ""


def _stack_states(steps: tuple[StepRecord, ...]) -> list[StepRecord | None]:
    """Return for each step the step whose stack is current after it.

    This is the latest step of the frame that executes next, or None if that frame is about to start.
    """
    latest: dict[int, StepRecord] = {}
    states: list[StepRecord | None] = []
    for step, after in zip(steps, (*steps[1:], steps[-1]), strict=True):
        if step.event != "break":  # The instruction did not run: its operands are still on the stack.
            latest[step.frame] = step
        states.append(latest.get(after.frame))
    return states


def _caller_steps(steps: tuple[StepRecord, ...]) -> list[int]:
    """Return for each step the step that entered the next executing frame; -1 for the root."""
    latest: dict[int, int] = {}
    callers: list[int] = []
    for i, (step, after) in enumerate(zip(steps, (*steps[1:], steps[-1]), strict=True)):
        latest[step.depth] = i
        callers.append(latest.get(after.depth - 1, -1))
    return callers


def _last_inner_steps(steps: tuple[StepRecord, ...]) -> list[int]:
    """Return for each step the last step before its frame continued.

    An inlined call changes its caller's variables when it returns.
    """
    ends = list(range(len(steps)))
    waiting: dict[int, int] = {}
    for i, step in enumerate(steps):
        if step.frame in waiting:
            ends[waiting[step.frame]] = i - 1
        waiting[step.frame] = i
    for i in waiting.values():
        if steps[i].event == "inline":
            ends[i] = len(steps) - 1
    return ends
