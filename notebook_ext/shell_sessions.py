"""State that a shell retains between cells: the last sessions and compilers (``--keep``)."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from engine.interrupts.weak_tables import WeakTable
from engine.records.session import Session
from notebook_ext.compilers import CellCompiler, CompileSettings, make_compiler

LAST_SESSION_NAME = "_compile"
"""Name that the last session is bound to."""
MAX_REMEMBERED_CELLS = 8
"""Number of cells whose last session is retained for comparison with their next run."""


class ShellSessions:
    """Sessions, compilers and earlier runs of the cells of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._compilers: dict[CompileSettings, CellCompiler] = {}
        self._of_cells: dict[str, Session] = {}
        self._previous_runs: WeakTable[Session, Session] = WeakTable()

    def compiler_for(self, choice: CompileSettings, *, keep: bool) -> CellCompiler:
        """Return a compiler for a cell.

        It is new and its cache is empty. With ``keep`` it is the compiler of the last cell with the same
        settings.

        Raises:
            UsageError: an unknown backend or target.
        """
        if not keep or choice not in self._compilers:
            self._compilers[choice] = make_compiler(choice)
        return self._compilers[choice]

    def bind(self, session: Session, name: str = "") -> None:
        """Bind a session to ``_compile``, and to ``name`` if given."""
        self._shell.user_ns[LAST_SESSION_NAME] = session
        self._shell.user_ns_hidden[LAST_SESSION_NAME] = session
        if name:
            self._shell.user_ns[name] = session

    def remember_run(self, cell: str, session: Session) -> Session | None:
        """Store the session of a cell and return the session of its previous run.

        A cell without an id has no previous run.
        """
        if not cell:
            return None
        before = self._of_cells.pop(cell, None)
        self._of_cells[cell] = session
        if before is not None:
            self._previous_runs[session] = before
            self._previous_runs.pop(
                before, None
            )  # Comparison needs two runs; a longer chain would retain every session.
        while len(self._of_cells) > MAX_REMEMBERED_CELLS:
            del self._of_cells[next(iter(self._of_cells))]
        return before

    def previous_run(self, session: Session) -> Session | None:
        """Return the session of the previous run of the same cell, else None."""
        return self._previous_runs.get(session)

    @property
    def last(self) -> Session | None:
        """Session of the last cell; None before the first."""
        session = self._shell.user_ns.get(LAST_SESSION_NAME)
        return session if isinstance(session, Session) else None
