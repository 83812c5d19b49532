"""Replay of a cell in a forked process: its compiles, its graph breaks and its results."""

from __future__ import annotations

import ast
import contextlib
import sys
from concurrent.futures import Future
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from engine.editing.try_edits import EditTrial
from engine.forked_run import ForkedResult, start_in_fork
from engine.records.base import from_jsonable
from engine.records.counts import counts
from engine.records.session import Session, SessionData
from engine.session_jobs import stop_event_of
from notebook_ext import run_cell
from notebook_ext.cell_arguments import parse_arguments, to_settings
from notebook_ext.compilers import CellCompiler, CompileSettings, make_compiler
from notebook_ext.views.cell_edits import CellText

MAX_ELEMENTS = 1_000_000
"""Number of elements of a tensor that are compared; of a larger one the first."""
TOLERANCE = 1e-4
"""Relative difference of equal results: an edit may change the order of a sum."""

NO_RESULTS = "the cell neither shows nor assigns a tensor or float"


@dataclass(frozen=True)
class ReplayCounts:
    """Counts of a replayed cell, and why it has none."""

    compiles: int = 0
    breaks: int = 0
    graphs: int = 0
    recompiles: int = 0
    problem: str = ""


@dataclass(frozen=True)
class ReplayResult:
    """Counts of the cell as it is and as edited, and the first difference of their results."""

    before: ReplayCounts
    after: ReplayCounts
    difference: str = ""
    is_compared: bool = True
    """False if the cell neither shows nor assigns a tensor or float, and raises nothing."""

    @property
    def problem(self) -> str:
        """Why nothing is verified; empty if both replays finished."""
        return self.before.problem or self.after.problem

    @property
    def helps(self) -> bool:
        """True if the edited cell compiles or breaks less and its results are the same."""
        pairs = zip(astuple(self.before)[:2], astuple(self.after)[:2], strict=True)
        changes = [b - a for b, a in pairs]
        return not self.problem and not self.difference and max(changes) > 0 and min(changes) >= 0

    @property
    def text(self) -> str:
        """The counts that an edit changed in one line, or why it was not verified."""
        if self.problem:
            return f"not verified: {self.problem}"
        changes = [
            f"{name} {b} -> {a}"
            for name, b, a in (
                ("compiles", self.before.compiles, self.after.compiles),
                ("graph breaks", self.before.breaks, self.after.breaks),
                ("graphs", self.before.graphs, self.after.graphs),
            )
            if a != b
        ]
        counted = ", ".join(changes) or "the counts do not change"
        if self.difference:
            return f"not verified: the results differ ({self.difference}); {counted}"
        results = "same results" if self.is_compared else f"no results to compare: {NO_RESULTS}"
        return f"verified: {counted}, {results}" if self.helps else f"no effect: {counted}"


class _Replay:
    """A cell that runs in a forked process with an empty cache, from when this is made."""

    def __init__(
        self, shell: InteractiveShell, settings: CompileSettings, names: tuple[str, ...], cell: CellText
    ) -> None:
        self._future: Future[ForkedResult] = start_in_fork(lambda: _replay_here(shell, settings, names, cell))

    def result(self) -> Any:
        """Return counts, results and session as JSON values, or the problem as text."""
        forked = self._future.result()
        return forked.problem or forked.value


def compare_replays(before: Any, after: Any) -> ReplayResult:
    """Return the result of replaying a cell and its edited text."""
    sides = [ReplayCounts(problem=x) if isinstance(x, str) else ReplayCounts(*x["counts"]) for x in (before, after)]
    if isinstance(before, str) or isinstance(after, str):
        return ReplayResult(sides[0], sides[1])
    if after["error"] and not before["error"]:
        return ReplayResult(sides[0], ReplayCounts(problem=f"the edited cell raises {after['error'].splitlines()[0]}"))
    difference = first_difference(before["values"], after["values"])
    return ReplayResult(sides[0], sides[1], difference, has_results(before["values"]))


def _replay_here(shell: InteractiveShell, settings: CompileSettings, names: tuple[str, ...], cell: CellText) -> Any:
    """Run a cell in this process, whose shell then shows nothing."""
    shown: list[Any] = []
    torch.manual_seed(0)  # replays at other times draw the same numbers
    _silence(shell, shown)
    subject = make_compiler(settings)
    parsed = run_cell.parse_cell(shell, cell.body)
    ids_before = {name: id(value) for name, value in shell.user_ns.items()}
    error = ""
    with subject.record() as session:
        stop_event_of(session).set()  # no kernels are compiled in worker processes
        try:
            run_cell.run_cell(shell, parsed, subject, session, names)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    bound = {n: v for n, v in shell.user_ns.items() if ids_before.get(n) != id(v) and not n.startswith("_")}
    values = [*describe_values("result", shown), *([("exception", error)] if error else [])]
    values += [row for name, value in sorted(bound.items()) for row in describe_values(name, value)]
    return {"counts": _counts(session), "values": values, "session": session.to_dict(), "error": error}


def _counts(session: Session) -> tuple[int, int, int, int]:
    totals = counts(session)
    return (totals.compiles, totals.breaks, totals.graphs, totals.recompiles)


def _silence(shell: InteractiveShell, shown: list[Any]) -> None:
    """Collect what the cell displays instead of sending it from this process."""
    collector: Any = _DisplayCollector(shown)
    sys.displayhook = shell.displayhook = collector
    display_pub: Any = shell.display_pub
    display_pub.publish = lambda *_args, **_kwargs: None
    with contextlib.suppress(AttributeError):
        display_pub.clear_output = lambda *_args, **_kwargs: None


class _DisplayCollector:
    """Display hook that keeps the displayed values."""

    exec_result = None

    def __init__(self, shown: list[Any]) -> None:
        self._shown = shown

    def __call__(self, value: Any = None) -> None:
        """Keep a displayed value."""
        self._shown.append(value)


class CellReplay:
    """Runs a cell again with edits.

    The run without edits, to compare with, is made once for the values that the notebook has after a cell.
    """

    def __init__(self, shell: InteractiveShell, subject: CellCompiler, names: tuple[str, ...], cell: CellText) -> None:
        self._shell = shell
        self._settings: CompileSettings = subject.settings
        self._names = names
        self._cell = cell
        self._before: dict[tuple[CompileSettings, int], _Replay] = {}

    def prepare(self) -> None:
        """Start the run without edits, which the first trial needs; return at once."""
        self._replay_once(self._settings)

    def verify(self, edited: CellText) -> ReplayResult:
        """Replay the edited cell; return its counts and results beside those of the cell as it is."""
        # Tracing, guards and breaks of the backend eager are those of every backend.
        return compare_replays(*self._replays(edited, replace(self._settings, backend="eager", target=None)))

    def try_text(self, text: str) -> EditTrial:
        """Replay the cell with another text, whose first line may have other options.

        Raises:
            SyntaxError: the text is no Python.
        """
        head, _, rest = text.partition("\n")
        is_headed = head.startswith("%%compile")
        body, settings, names = (rest if is_headed else text), self._settings, self._names
        try:
            ast.parse(self._shell.transform_cell(body))
        except SyntaxError as error:
            error.lineno = (error.lineno or 1) + is_headed
            raise
        if is_headed:
            try:
                settings, names = self._read_options(head.removeprefix("%%compile"))
            except UsageError as error:
                return EditTrial(problem=f"Line 1: {error}", edit="cell", line=1)
        runs = (
            self._replay_once(self._settings),
            _Replay(self._shell, settings, names, replace(self._cell, body=body)),
        )
        before, after = (run.result() for run in runs)
        for side in (before, after):
            if isinstance(side, str) or side["error"]:
                reason = side if isinstance(side, str) else side["error"]
                return EditTrial(problem=f"The cell has no result: {reason.rstrip(': ')}.")
        first, second = (Session.from_data(from_jsonable(SessionData, x["session"], "replay")) for x in (before, after))
        not_run = () if has_results(before["values"]) else (f"No results were compared: {NO_RESULTS}.",)
        difference = first_difference(before["values"], after["values"])
        return EditTrial(first, second, difference=difference, not_run=not_run)

    def _replays(self, edited: CellText, settings: CompileSettings) -> tuple[Any, Any]:
        """Replay the cell as it is, once, and edited."""
        is_dynamic = "--dynamic" in edited.options.split()
        changed = replace(settings, dynamic=True) if is_dynamic else settings
        runs = self._replay_once(settings), _Replay(self._shell, changed, self._names, edited)
        return runs[0].result(), runs[1].result()

    def _replay_once(self, settings: CompileSettings) -> _Replay:
        """Replay the cell as it is, once for equal settings and values of the notebook."""
        count = self._shell.execution_count
        self._before = {key: run for key, run in self._before.items() if key[1] == count}
        if (settings, count) not in self._before:
            self._before[settings, count] = _Replay(self._shell, settings, self._names, self._cell)
        return self._before[settings, count]

    def _read_options(self, line: str) -> tuple[CompileSettings, tuple[str, ...]]:
        """Return the settings and names of an edited ``%%compile`` line.

        Raises:
            UsageError: an option does not exist, or its value is invalid.
        """
        magic = self._shell.find_cell_magic("compile")
        arguments = parse_arguments(magic, line, "%%compile")
        settings = to_settings(arguments)
        make_compiler(settings)  # raises for unknown backends and targets
        return settings, tuple(arguments.names)

    @property
    def cell(self) -> CellText:
        """The cell without edits."""
        return self._cell


def describe_values(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return rows (name, description) of the tensors and numbers in a value."""
    if isinstance(value, torch.Tensor):
        if value.is_complex() or value.layout is not torch.strided or value.device.type == "meta":
            return [(name, f"{value.dtype}{list(value.shape)}")]
        flat = value.detach().reshape(-1)[:MAX_ELEMENTS].double()
        finite = flat[flat.isfinite()]
        sums = [float(finite.sum()), float(finite.abs().sum()), float(finite.square().sum())]
        return [(name, [f"{value.dtype}{list(value.shape)}", flat.numel() - finite.numel(), *sums])]
    if isinstance(value, (bool, int, float, str)):
        return [(name, value if isinstance(value, float) else repr(value)[:200])]
    if isinstance(value, (list, tuple)):
        return [row for i, item in enumerate(value[:50]) for row in describe_values(f"{name}[{i}]", item)]
    return []


def first_difference(before: list[Any], after: list[Any]) -> str:
    """Return the first value of the cell that the edited cell changes or does not make."""
    edited = dict(map(tuple, after))
    for name, value in before:
        if name not in edited:
            return f"{name} is missing"
        if not _close(value, edited[name]):
            return f"{name} changes"
    return ""


def has_results(values: list[Any]) -> bool:
    """Return True if a cell has a tensor, a float or an exception as a result."""
    return any(name == "exception" or isinstance(value, (list, float)) for name, value in values)


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        scale = max(abs(a[3]), abs(b[3]), 1e-12)
        return a[:2] == b[:2] and all(
            abs(x - y) <= TOLERANCE * max(scale, abs(x)) for x, y in zip(a[2:], b[2:], strict=True)
        )
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= TOLERANCE * max(abs(a), abs(b))
    return bool(a == b)
