"""Edits of stages in the explorer: texts, trials, undo, and files that apply them."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

from engine.editing.edit_graphs import edit_file_text
from engine.editing.try_edits import EditTrial, counterpart, editable_graphs, try_edits
from engine.errors import BadArgument
from engine.records.runtime import ArtifactRecord
from engine.records.session import CompilationRecord, Session
from notebook_ext.views.cell_edits import CellText
from notebook_ext.views.format_text import format_seconds, one_line
from notebook_ext.views.source_lines import frame_name
from notebook_ext.views.stage_differences import STAGE_TITLES, session_differences, stage_differences

CELL = "cell"
"""Entry and stage of the cell's own text."""
TryText = Callable[[str], EditTrial]


class StageEditor:
    """Edits of one session's graphs and of its cell, each with its history.

    ``tried`` are the sessions of the trials by name, for comparison.
    """

    def __init__(self, session: Session, cell: CellText | None = None, try_cell: TryText | None = None) -> None:
        self._session = session
        self._cell = cell
        self._try_cell = try_cell
        self._history: dict[str, list[dict[str, str]]] = {}
        self._trials: dict[str, EditTrial] = {}
        self.tried: dict[str, Session] = {}

    def answer(self, action: str, entry: str, stage: str, text: str) -> dict[str, Any]:
        """Do what a message requests, and return what the view shows.

        ``action``: "open", "apply", "undo" or "keep". An unknown entry or stage is replaced by the first one.
        """
        choices = self._choices()
        places = [(c["entry"], c["stage"]) for c in choices]
        if (entry, stage) not in places:
            entry, stage = next((p for p in places if p[0] == entry), places[0])
        said = ""
        if action == "apply":
            self._apply(entry, stage, text)
        elif action == "undo" and self._history.get(entry):
            self._history[entry].pop()
            self._try(entry)
        elif action == "keep":
            said = self._keep(entry)
        return {
            "entry": entry,
            "stage": stage,
            "choices": choices,
            "text": self._text(entry, stage),
            "edits": [STAGE_TITLES.get(s, "The cell") for s in self._edits(entry)],
            "trial": self._shown(entry),
            "other": self._other(entry),
            "said": said,
            "head": "" if self._cell is None else f"%%compile {self._cell.options}".rstrip() + "\n",
        }

    def _choices(self) -> list[dict[str, str]]:
        found = [{"entry": CELL, "stage": CELL, "title": "The cell"}] if self._cell is not None else []
        for c in self._session.compilations:
            name = f"{frame_name(self._session, c.frame)} entry {c.id.rpartition('/')[2]}"
            found += [{"entry": c.id, "stage": s, "title": f"{name}: {STAGE_TITLES[s]}"} for s in self._graphs(c)]
        return found

    def _graphs(self, compilation: CompilationRecord) -> dict[str, str]:
        return editable_graphs(self._session, compilation) if compilation.compiler == "engine" else {}

    def _edits(self, entry: str) -> dict[str, str]:
        history = self._history.get(entry)
        return history[-1] if history else {}

    def _text(self, entry: str, stage: str) -> str:
        """Return the text to edit: as edited, else as it is after the edits of earlier stages."""
        edits = self._edits(entry)
        if stage in edits:
            return edits[stage]
        if entry == CELL and self._cell is not None:
            return self._cell.body
        trial = self._trials.get(entry)
        if trial is not None and trial.after is not None:
            found = counterpart(self._session, entry, trial.after)
            if found is not None and stage in (texts := editable_graphs(trial.after, found)):
                return texts[stage]
        return self._graphs(self._session.compilation(entry))[stage]

    def _apply(self, entry: str, stage: str, text: str) -> None:
        before = self._edits(entry)
        if text != before.get(stage):
            self._history.setdefault(entry, []).append({**before, stage: text})
        self._try(entry)
        trial = self._trials[entry]
        if not trial.problem:
            name = (
                f"edit of {STAGE_TITLES.get(stage, 'the cell').lower()} {entry}"
                if entry != CELL
                else "edit of the cell"
            )
            self._session.add_artifact(ArtifactRecord(name, text))

    def _try(self, entry: str) -> None:
        """Try the edits of an entry; without any, forget its trial."""
        edits = self._edits(entry)
        if not edits:
            self._trials.pop(entry, None)
            return
        try:
            trial = (
                self._try_cell(edits[CELL])
                if entry == CELL and self._try_cell
                else try_edits(self._session, entry, edits)
            )
        except BadArgument as error:
            trial = EditTrial(problem=str(error), edit=next(reversed(edits)), line=1)
        except SyntaxError as error:
            trial = EditTrial(problem=f"Line {error.lineno}: {error.msg}.", edit=CELL, line=error.lineno or 1)
        self._trials[entry] = trial
        if trial.after is not None and not trial.problem:
            self.tried[f"edit {len(self.tried) + 1}"] = trial.after

    def _shown(self, entry: str) -> dict[str, Any] | None:
        trial = self._trials.get(entry)
        if trial is None:
            return None
        return {
            "ok": not (trial.problem or trial.difference or trial.unused),
            "sentence": one_line(_cell_sentence(trial) if entry == CELL else trial.sentence, 400),
            "stage": trial.edit,
            "line": trial.line,
            "times": [format_seconds(s) for s in trial.seconds],
            "differences": [] if trial.problem else self._differences(entry, trial),
            "name": next((n for n, s in self.tried.items() if s is trial.after), ""),
        }

    def _differences(self, entry: str, trial: EditTrial) -> list[dict[str, Any]]:
        if trial.before is None or trial.after is None:
            return []
        if entry == CELL:
            return session_differences(trial.before, trial.after)
        return stage_differences(*(counterpart(self._session, entry, s) for s in (trial.before, trial.after)))

    def _other(self, entry: str) -> dict[str, str] | None:
        """Return the edited entry of the function, if this one lacks its edits."""
        if entry == CELL or self._edits(entry):
            return None
        frame = self._session.compilation(entry).frame
        for other, history in self._history.items():
            if other in (CELL, entry) or not history or self._session.compilation(other).frame != frame:
                continue
            stage, text = next(iter(history[-1].items()))
            return {"entry": other, "stage": stage, "text": self._carried(entry, stage, text)}
        return None

    def _carried(self, entry: str, stage: str, text: str) -> str:
        """Return an edited text under the head of another entry's graph; empty without one."""
        own = self._graphs(self._session.compilation(entry)).get(stage, "")
        return own.partition("\n")[0] + "\n" + text.partition("\n")[2] if own else ""

    def _keep(self, entry: str) -> str:
        """Write the edits of an entry to a file in the working folder; return what was done."""
        edits, trial = self._edits(entry), self._trials.get(entry)
        if entry == CELL or not edits or trial is None or trial.problem or trial.unused:
            return "There is no edit to keep: apply one first."
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
        checked = "Checked on new inputs of the recorded shapes; other inputs were not checked."
        if trial.difference:
            checked = f"Its results are not those of eager: {trial.difference}."
        return f"Written to {path.name}: 'from {path.stem} import apply', then apply(function). {checked}"


def _cell_sentence(trial: EditTrial) -> str:
    if trial.problem:
        return trial.problem
    return f"The cell's results differ: {trial.difference}." if trial.difference else "The cell's results are the same."
