"""One run of ``%%compile``: record the cell, check its results, save and show the session."""

from __future__ import annotations

import contextlib
import pathlib
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from engine import api
from engine.errors import EngineError
from engine.records.counts import errors_of
from engine.records.runtime import SkippedRecord
from engine.records.session import Session
from engine.replace_file import replace_file
from notebook_ext import display, module_shadowing
from notebook_ext.call_recorder import CallRecorder
from notebook_ext.cell_arguments import RunOptions
from notebook_ext.compare_with_torch import TorchComparison, compare_with_torch
from notebook_ext.compilers import CellCompiler
from notebook_ext.progress import CompileProgress
from notebook_ext.replay.edit_stages import StageEditor
from notebook_ext.replay.replay_cell import CellReplay
from notebook_ext.run_cell import Cell, run_cell
from notebook_ext.shell_sessions import LAST_SESSION_NAME, ShellSessions
from notebook_ext.tracebacks import passes_through_cell, strip_internal_frames, was_compiling
from notebook_ext.views.cell_edits import CellError, CellText, cell_errors, cell_texts
from notebook_ext.views.format_text import one_line
from notebook_ext.views.home import Replay, Replayed
from notebook_ext.views.privacy_note import privacy_note

SAVE_WAIT_SECONDS = 60.0
"""Seconds to wait for kernels that are still compiling before a page is saved."""


def save_page(session: Session, path: pathlib.Path, view: str, others: Mapping[str, Session] | None = None) -> None:
    """Save the explorer as a standalone page that opens at ``view``."""
    # The page needs the explorer's widgets, which a cell without --save may run without.
    from notebook_ext.widgets.standalone_page import write_page

    with replace_file(path) as stream:
        write_page(session, stream, path.stem, view=view, others=others, name="this run")


class ExecutingCell:
    """Source and result of the cell that a shell executes now."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._result: Any = shell.displayhook.exec_result

    @property
    def _info(self) -> Any:
        return self._result.info if isinstance(self._result, ExecutionResult) else None

    @property
    def is_cell_magic(self) -> bool:
        """True if the cell is a cell magic, so that no other output follows."""
        return str(getattr(self._info, "raw_cell", "") or "").lstrip().startswith("%%")

    @property
    def id(self) -> str:
        """The front end's id of the cell, the same when it runs again; empty if it has none."""
        return str(getattr(self._info, "cell_id", "") or "")

    def mark_failed(self, error: BaseException) -> None:
        """Mark the cell as failed without showing its error a second time."""
        if isinstance(error, SystemExit):
            raise error
        self._result.error_in_exec = error

        def remember(_: object = None) -> None:
            self._shell.events.unregister("post_run_cell", remember)
            self._shell.last_execution_succeeded = False

        self._shell.events.register("post_run_cell", remember)


class CompileRun:
    """One run of a cell; its methods are called in the order of their definition.

    After an error of the cell the session is still saved and shown.
    """

    session: Session

    def __init__(
        self,
        shell: InteractiveShell,
        options: RunOptions,
        compiler: CellCompiler,
        cell: Cell,
        names: tuple[str, ...],
        text: CellText | None,
    ) -> None:
        self._shell = shell
        self._options = options
        self._compiler = compiler
        self._cell = cell
        self._names = names
        self._text = text
        self._executing = ExecutingCell(shell)
        self._calls = CallRecorder() if options.compare else None
        self._comparison: TorchComparison | None = None
        self._previous: Session | None = None
        """Session of the previous run of the same cell."""
        self._error: BaseException | None = None

    def record(self, sessions: ShellSessions) -> None:
        """Run the cell and record it in a new session."""
        with self._compiler.record() as self.session:
            sessions.bind(self.session, self._options.output)
            if self._text is not None:
                cell_texts[self.session] = self._text
            self._note_shadowing()
            with self._catch_error():
                run_cell(self._shell, self._cell, self._compiler, self.session, self._names, self._calls)
            if self._error is not None and not (self.session.frames or self.session.skipped):
                kind = type(self._error).__name__
                reason = f"{kind} was raised before it called a function or module that computes with tensors"
                self.session.add_skipped(SkippedRecord("the cell", reason))
        self._note_error()
        self._previous = sessions.remember_run(self._executing.id, self.session)

    def check(self) -> None:
        """Verify kernels and compare with torch.compile as the options say, if nothing was raised.

        The recording is over: the session's time must not include the checks.
        """
        if self._error is None:
            with self._catch_error():
                self._verify()
                self._compare()
        if self._error is not None:
            self._show_error(self._error)

    def save(self) -> None:
        """Save as a standalone page or as JSON, and note which private data the file holds."""
        if self._options.save is None:
            return
        path = self._options.save.expanduser()
        try:
            self._write(path)
        except OSError as error:
            self.session.add_note(f"Not saved as {path.name}: {error.strerror or error}.")
        else:
            self.session.add_note(f"Saved as {path.name}. {privacy_note(self.session)}")

    def show(self) -> None:
        """Display the session, and beside it what torch.compile made of the same calls."""
        if not isinstance(self._error, SystemExit):
            static = not self._options.no_static
            other_sessions, after, replayed = self._other_sessions(), self._previous, self._make_cell_replay()
            display.show_session(
                self._shell,
                self.session,
                static=static,
                others=other_sessions,
                name="this run",
                after=after,
                replay=self._make_replay(replayed),
                editor=self._make_editor(replayed),
            )
        if self._comparison is not None and self._comparison.session is not None:
            self._shell.user_ns[f"{LAST_SESSION_NAME}_torch"] = self._comparison.session
            display.show_torch_comparison(self.session, self._comparison)

    def _make_cell_replay(self) -> CellReplay | None:
        return CellReplay(self._shell, self._compiler, self._names, self._text) if self._text is not None else None

    def _make_editor(self, cell: CellReplay | None) -> StageEditor | None:
        return None if cell is None else StageEditor(self.session, cell.cell, cell.try_text, cell.prepare)

    def _make_replay(self, cell: CellReplay | None) -> Replay | None:
        """Return the function that replays the cell and an edited text of it; None without a cell."""
        if cell is None:
            return None

        def replay(edited: CellText) -> Replayed:
            verified = cell.verify(edited)
            return Replayed(verified.text, verified.helps)

        return replay

    def finish(self) -> None:
        """Raise the cell's error, or mark a cell magic as failed, whose error is already shown."""
        if self._error is None:
            return
        if not self._executing.is_cell_magic:
            raise self._error
        self._executing.mark_failed(self._error)

    @contextlib.contextmanager
    def _catch_error(self) -> Iterator[None]:
        """Show progress inside the block, and remember the error that ends it."""
        with CompileProgress(self._shell, self.session):
            try:
                yield
            except BaseException as error:
                self._error = error

    def _note_error(self) -> None:
        """Note the exception of the cell, unless the tracer met it and recorded it."""
        error = self._error
        if error is None or isinstance(error, (SystemExit, EngineError)) or not self.session.compilations:
            return
        if errors_of(self.session.compilations):
            return
        lines = [f.lineno or 0 for f in traceback.extract_tb(error.__traceback__) if f.filename == self._cell.file]
        found = CellError(type(error).__name__, one_line(str(error), 200), lines[-1] if lines else 0)
        cell_errors[self.session] = found
        self.session.add_note(f"The cell raised {found}.")

    def _note_shadowing(self) -> None:
        if path := module_shadowing.shadowing_module_on_path():
            self.session.add_note(
                f"'import engine' gave you the compiler's package, not your own {path}: rename yours and restart the kernel."
            )

    def _verify(self) -> None:
        if self._options.verify:
            api.verify(self.session)

    def _compare(self) -> None:
        if self._calls is None:
            return
        self.session.set_stage("compare")
        self._comparison = compare_with_torch(self._calls)
        self.session.set_stage("")
        self.session.add_note(self._comparison.text)

    def _show_error(self, error: BaseException) -> None:
        """Show the user's traceback without internal frames.

        Outside a cell magic, only strip the frames: ``finish`` raises the error again.
        """
        if isinstance(error, KeyboardInterrupt) and was_compiling(error):
            self.session.add_note(
                "Interrupted while compiling: the partial compilation was discarded; the next call recompiles."
            )
        is_syntax = isinstance(error, SyntaxError) and not passes_through_cell(error, self._cell.file)
        try:
            raise error  # IPython's printer of exception groups reads the exception that is being handled.
        except SystemExit:
            return
        except BaseException:
            tb = strip_internal_frames(error, self._cell.file)
            if not self._executing.is_cell_magic:
                return
            if is_syntax:
                self._shell.showsyntaxerror()
            else:
                self._shell.showtraceback((type(error), error, tb), tb_offset=0)

    def _other_sessions(self) -> dict[str, Session]:
        """Sessions by name that the explorer can compare with this one."""
        theirs = None if self._comparison is None else self._comparison.session
        named = {"stock torch.compile": theirs, "the previous run": self._previous}
        return {name: session for name, session in named.items() if session is not None}

    def _write(self, path: pathlib.Path) -> None:
        if path.suffix.lower() not in (".html", ".htm"):
            self.session.save(path)
            return
        if not api.wait(self.session, SAVE_WAIT_SECONDS):
            self.session.add_note("The saved page lacks kernels that were still being compiled.")
        save_page(self.session, path, "home", self._other_sessions())
