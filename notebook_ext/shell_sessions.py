"""What a shell keeps between cells: the last session, and compilers whose caches ``--keep`` continues."""

from __future__ import annotations

import weakref

from IPython.core.interactiveshell import InteractiveShell

from engine.records.session import Session
from notebook_ext.compilers import CellCompiler, CompileSettings, make_compiler

LAST_SESSION_NAME = "_compile"
"""The name that the last session is bound to."""
MAX_REMEMBERED_CELLS = 8
"""Cells whose last session is kept, to be compared with the next run of the same cell."""


class ShellSessions:
    """Sessions of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._compilers: dict[CompileSettings, CellCompiler] = {}
        self._of_cells: dict[str, Session] = {}
        self._previous_runs: weakref.WeakKeyDictionary[Session, Session] = weakref.WeakKeyDictionary()

    def compiler_for(self, choice: CompileSettings, *, keep: bool) -> CellCompiler:
        """A compiler for a cell: a new one whose cache is empty, or with ``keep`` the one that the last cell with this choice used.

        Raises:
            UsageError: an unknown backend or target.
        """
        if not keep or choice not in self._compilers:
            self._compilers[choice] = make_compiler(choice)
        return self._compilers[choice]

    def bind(self, session: Session, name: str = "") -> None:
        """Bind a session to ``_compile_backward``, and to ``name`` if given."""
        self._shell.user_ns[LAST_SESSION_NAME] = session
        self._shell.user_ns_hidden[LAST_SESSION_NAME] = session
        if name:
            self._shell.user_ns[name] = session

    def remember_run(self, cell: str, session: Session) -> Session | None:
        """Keep the session of a cell; returns the one of its run before. A cell without an id is never the same again."""
        if not cell:
            return None
        before = self._of_cells.pop(cell, None)
        self._of_cells[cell] = session
        if before is not None:
            self._previous_runs[session] = before
            self._previous_runs.pop(before, None)  # two runs are compared, not a chain of them
        while len(self._of_cells) > MAX_REMEMBERED_CELLS:
            del self._of_cells[next(iter(self._of_cells))]
        return before

    def previous_run(self, session: Session) -> Session | None:
        """The session of the run before of the same cell."""
        return self._previous_runs.get(session)

    @property
    def last(self) -> Session | None:
        """The session of the last cell; None before the first."""
        found = self._shell.user_ns.get(LAST_SESSION_NAME)
        return found if isinstance(found, Session) else None
