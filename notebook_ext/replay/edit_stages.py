"""Edits of stages in the explorer: texts, trials, undo, and files that apply them."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from IPython.core.getipython import get_ipython

from engine.editing.edit_calls import CALL
from engine.editing.edit_graphs import STAGES, edit_file_text, graph_text
from engine.editing.edit_kernels import editable_kernels, is_kernel_text
from engine.editing.try_edits import (
    EditTrial,
    code_of_call,
    editable_call,
    editable_graphs,
    prepare_trial,
    try_call,
    try_edits,
)
from engine.editing.try_kernel_edits import prepare_launch, start_workers, try_kernel_edits
from engine.errors import BadArgument
from engine.forked_run import WaitingRun
from engine.records.format_amounts import format_seconds
from engine.records.runtime import ArtifactRecord
from engine.records.session import CompilationRecord, Session
from engine.runtime.dispatch.recorded_arguments import ValueUnavailable
from notebook_ext.views.cell_edits import CellText
from notebook_ext.views.comparison.session_comparison import STAGE_TITLES, session_differences, stage_differences
from notebook_ext.views.entry_signature import input_texts
from notebook_ext.views.format_text import one_line
from notebook_ext.views.linked.row_links import CPU
from notebook_ext.views.source_lines import frame_name, full_name

CELL = "cell"
"""Entry and stage of the cell's own text."""
TryText = Callable[[str], EditTrial]


class EditGroup(NamedTuple):
    """Edits that stack: those of an entry's graphs, or those of its kernels."""

    entry: str
    kind: str


def group_of(entry: str, stage: str) -> EditGroup:
    """Return the group of edits that an edit of this stage stacks with."""
    return EditGroup(entry, "graphs" if stage in STAGES else stage if stage in (CELL, CALL) else "kernels")


class StageEditor:
    """Edits of one session's graphs and of its cell, each with its history.

    ``tried`` are the sessions of the trials by name, for comparison.
    """

    def __init__(
        self,
        session: Session,
        cell: CellText | None = None,
        try_cell: TryText | None = None,
        prepare_cell: Callable[[], object] = lambda: None,
    ) -> None:
        self._session = session
        self._cell = cell
        self._try_cell = try_cell
        self._prepare_cell = prepare_cell
        self._history: dict[EditGroup, list[dict[str, str]]] = {}
        self._trials: dict[EditGroup, EditTrial] = {}
        self._prepared: tuple[object, WaitingRun] | None = None
        self.tried: dict[str, Session] = {}

    def answer(self, action: str, entry: str, stage: str, text: str) -> dict[str, Any]:
        """Execute the action of a message, and return the data that the view shows.

        ``action``: "open", "apply", "undo" or "keep". An unknown entry or stage is replaced by the first one.
        """
        choices = self._choices()
        places = [(c["entry"], c["stage"]) for c in choices]
        if (entry, stage) not in places:
            entry, stage = next((p for p in places if p[0] == entry), places[0])
        said = ""
        if action == "apply":
            self._apply(entry, stage, text)
        group = group_of(entry, stage)
        if action == "undo" and self._history.get(group):
            self._history[group].pop()
            self._try(group)
        elif action == "keep":
            said = self._write_edit_file(group)
        return {
            "entry": entry,
            "stage": stage,
            "choices": choices,
            "text": self._text(entry, stage),
            "edits": [_title(s) for s in self._edits(group)],
            "trial": self._trial_row(group, stage),
            "other": self._edited_sibling(group),
            "said": said,
            "code": code_of_call(self._session, entry, self._text(entry, stage)) if stage == CALL else "",
        }

    def prepare(self, entry: str, text: str) -> None:
        """Prepare the next trial of a text, after it is sent and while somebody types."""
        if entry == CELL:
            self._prepare_cell()
        elif is_kernel_text(text):
            start_workers(text)
            prepare_launch(self._session, entry, text)
        elif _count_of_cells() is not None and self._prepared_trial(entry) is None:
            with contextlib.suppress(ValueUnavailable, BadArgument):
                self._prepared = (entry, _count_of_cells()), prepare_trial(self._session, entry)

    def _prepared_trial(self, entry: str) -> WaitingRun | None:
        """Return the process that is prepared for an entry, if no cell ran since then."""
        if self._prepared is None or self._prepared[0] != (entry, _count_of_cells()):
            return None
        return self._prepared[1] if self._prepared[1].is_ready else None

    def _choices(self) -> list[dict[str, str]]:
        choices = [{"entry": CELL, "stage": CELL, "title": "The cell"}] if self._cell is not None else []
        for c in self._session.compilations:
            name = full_name(self._session, c)
            choices += [{"entry": c.id, "stage": s, "title": f"{name}: {_title(s)}"} for s in self._graphs(c)]
        return choices

    def _graphs(self, compilation: CompilationRecord) -> dict[str, str]:
        if compilation.compiler != "engine":
            return {}
        kernels = {k.id: graph_text(self._session, compilation.id, k.id) for k in editable_kernels(compilation)}
        call = editable_call(self._session, compilation.id)
        return editable_graphs(self._session, compilation) | ({CALL: call} if call else {}) | kernels

    def _edits(self, group: EditGroup) -> dict[str, str]:
        history = self._history.get(group)
        return history[-1] if history else {}

    def _text(self, entry: str, stage: str) -> str:
        """Return the text to edit: as edited, else as it is after the edits of earlier stages."""
        group = group_of(entry, stage)
        edits = self._edits(group)
        if stage in edits:
            return edits[stage]
        if entry == CELL and self._cell is not None:
            return self._cell.source
        trial = self._trials.get(group)
        if trial is not None and trial.after is not None:
            compilation = trial.compilations(self._session, entry)[1]
            if compilation is not None and stage in (texts := editable_graphs(trial.after, compilation)):
                return texts[stage]
        return self._graphs(self._session.compilation(entry))[stage]

    def _apply(self, entry: str, stage: str, text: str) -> None:
        group = group_of(entry, stage)
        before = self._edits(group)
        if text != before.get(stage):
            self._history.setdefault(group, []).append({**before, stage: text})
        self._try(group)
        trial = self._trials[group]
        if not trial.problem:
            name = _title(stage)
            suffix = "" if entry == CELL else f" {entry}"
            self._session.add_artifact(ArtifactRecord(f"edit of {name[:1].lower()}{name[1:]}{suffix}", text))

    def _try(self, group: EditGroup) -> None:
        """Try the edits of a group; without any, forget its trial."""
        edits = self._edits(group)
        if not edits:
            self._trials.pop(group, None)
            return
        try:
            trial = self._try_edits(group, edits)
        except BadArgument as error:
            trial = EditTrial(problem=str(error), edit=next(reversed(edits)), line=1)
        except SyntaxError as error:
            trial = EditTrial(problem=f"Line {error.lineno}: {error.msg}.", edit=CELL, line=error.lineno or 1)
        self._trials[group] = trial
        if trial.after is not None and not trial.problem:
            self.tried[f"edit {len(self.tried) + 1}"] = trial.after

    def _try_edits(self, group: EditGroup, edits: dict[str, str]) -> EditTrial:
        if group.kind == CELL and self._try_cell:
            return self._try_cell(edits[CELL])
        if group.kind == CALL:
            return try_call(self._session, group.entry, edits[CALL], self._prepared_trial(group.entry))
        if group.kind == "kernels":
            return try_kernel_edits(self._session, group.entry, edits)
        return try_edits(self._session, group.entry, edits, self._prepared_trial(group.entry))

    def _trial_row(self, group: EditGroup, stage: str) -> dict[str, Any] | None:
        entry, trial = group.entry, self._trials.get(group)
        if trial is None:
            return None
        sentence = _cell_sentence(trial) if entry == CELL else trial.sentence
        if trial.problem and trial.edit not in ("", stage):
            sentence = f"{_title(trial.edit)}, which is edited too, fails: {sentence}"
        return {
            "ok": not (trial.problem or trial.difference or trial.unused),
            "sentence": one_line(sentence, 400),
            "stage": trial.edit,
            "line": trial.line,
            "times": [format_seconds(s) for s in trial.seconds],
            "timed": "One launch" if trial.entry else "One call",
            "differences": [] if trial.problem else self._differences(entry, trial),
            "compared": self._compared(entry, stage, trial),
        }

    def _differences(self, entry: str, trial: EditTrial) -> list[dict[str, Any]]:
        if trial.before is None or trial.after is None:
            return []
        if entry == CELL:
            return session_differences(trial.before, trial.after)
        return stage_differences(*trial.compilations(self._session, entry))

    def _compared(self, entry: str, stage: str, trial: EditTrial) -> list[str]:
        """Return the selection of the comparison view that shows a trial; empty if there is none."""
        name = next((n for n, s in self.tried.items() if s is trial.after), "")
        if not name or trial.after is None:
            return []
        if entry == CELL:  # the edited cell is another file: its functions are found by name
            left, right = ({frame_name(s, c.frame): c.id for c in s.compilations} for s in (self._session, trial.after))
            both = next((f for f in left if f in right), None)
            return [f"~{left[both]}", f"{name}~{right[both]}"] if both is not None else []
        after = trial.compilations(self._session, entry)[1]
        target = CPU if any(k.id == stage for k in self._session.compilation(entry).cpu_kernels) else ""
        shown = ["", ""] if stage == CALL else [stage, ""] if stage in STAGES else ["triton", stage]
        return [f"~{entry}~{target}", f"{name}~{after.id}~{target}", *shown] if after is not None else []

    def _edited_sibling(self, group: EditGroup) -> dict[str, str] | None:
        """Return the edited entry of the function, if this one lacks its edits."""
        entry = group.entry
        if entry == CELL or self._edits(group):
            return None
        frame = self._session.compilation(entry).frame
        for (other, kind), history in self._history.items():
            is_other = kind == group.kind and other != entry and history
            if not is_other or self._session.compilation(other).frame != frame:
                continue
            stage, text = next(iter(history[-1].items()))
            return {"entry": other, "stage": stage, "text": self._with_own_header(entry, stage, text)}
        return None

    def _with_own_header(self, entry: str, stage: str, text: str) -> str:
        """Return an edited text with the header of an entry's own graph; empty if it has none."""
        own = self._graphs(self._session.compilation(entry)).get(stage, "")
        return own.partition("\n")[0] + "\n" + text.partition("\n")[2] if own else ""

    def _write_edit_file(self, group: EditGroup) -> str:
        """Write the edits of a group to a file in the working folder; return what was done."""
        entry, edits, trial = group.entry, self._edits(group), self._trials.get(group)
        is_text = group.kind in (CELL, CALL)
        if is_text or not edits or trial is None:
            return "There is no edit to keep: apply one first."
        if trial.problem or trial.unused:
            return f"Not written, as the edits have no result: {trial.sentence}"
        compilation = self._session.compilation(entry)
        name = re.sub(r"\W+", "_", frame_name(self._session, compilation.frame)).strip("_").lower() or "graph"
        path, number = pathlib.Path(f"edited_{name}.py"), 1
        while path.exists():
            number += 1
            path = pathlib.Path(f"edited_{name}_{number}.py")
        try:
            path.write_text(edit_file_text(edits, compilation.backend), encoding="utf-8")
        except OSError as error:
            return f"Not written: {error.strerror or error}."
        return f"Written to {path.name}: 'from {path.stem} import apply', then apply(function). {self._checked(group, trial)}"

    def _checked(self, group: EditGroup, trial: EditTrial) -> str:
        """Say which inputs the edits of a group were checked on, and which not."""
        if trial.difference:
            return f"Its results are not those of {trial.reference if trial.entry else 'eager'}: {trial.difference}."
        compilation = self._session.compilation(group.entry)
        inputs = ", ".join(f"{n} {one_line(t, 60)}" for n, t in input_texts(self._session, compilation).items())
        what = (
            "the values of the compiled call" if group.kind == "kernels" else "new values of the compiled call's inputs"
        )
        said = f"Checked on {what}{f' ({one_line(inputs, 200)})' if inputs else ''} only; other values, shapes and strides were not checked."
        no_check = (
            " In this process, an edited kernel's accesses are not checked either." if group.kind == "kernels" else ""
        )
        return " ".join((f"{said}{no_check}", *trial.not_run))


def _count_of_cells() -> int | None:
    """Return how many cells ran: each may change a trial's values; None if unknown."""
    shell = get_ipython()
    return None if shell is None else int(shell.execution_count)


def _title(stage: str) -> str:
    """Return the name of a stage; other stages than graphs and the cell are kernels."""
    return STAGE_TITLES.get(stage) or {CELL: "The cell", CALL: "Inputs and options"}.get(stage, f"Kernel {stage}")


def _cell_sentence(trial: EditTrial) -> str:
    if trial.problem:
        return trial.problem
    if trial.difference:
        return f"The cell's results differ: {trial.difference}."
    return " ".join(trial.not_run) or "The cell's results are the same."
