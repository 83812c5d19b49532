"""What a shell keeps between cells: the last session, and compilers whose caches ``--keep`` continues."""

from __future__ import annotations

import weakref

from IPython.core.interactiveshell import InteractiveShell

from engine.records.session import Session
from notebook_ext.subjects import Choice, Subject, subject

LAST = "_compile"
"""The name that the last session is bound to."""
CELLS = 8
"""Cells whose last session is kept, to be compared with the next run of the same cell."""


class Sessions:
    """Sessions of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._subjects: dict[Choice, Subject] = {}
        self._of_cells: dict[str, Session] = {}
        self._before: weakref.WeakKeyDictionary[Session, Session] = weakref.WeakKeyDictionary()

    def subject(self, choice: Choice, *, keep: bool) -> Subject:
        """A compiler for a cell: a new one whose cache is empty, or with ``keep`` the one that the last cell with this choice used.

        Raises:
            UsageError: an unknown backend or target.
        """
        if not keep or choice not in self._subjects:
            self._subjects[choice] = subject(choice)
        return self._subjects[choice]

    def bind(self, session: Session, name: str = "") -> None:
        """Bind a session to ``_compile``, and to ``name`` if given."""
        self._shell.user_ns[LAST] = session
        self._shell.user_ns_hidden[LAST] = session
        if name:
            self._shell.user_ns[name] = session

    def of_cell(self, cell: str, session: Session) -> Session | None:
        """Keep the session of a cell; returns the one of its run before. A cell without an id is never the same again."""
        if not cell:
            return None
        before = self._of_cells.pop(cell, None)
        self._of_cells[cell] = session
        if before is not None:
            self._before[session] = before
            self._before.pop(before, None)  # two runs are compared, not a chain of them
        while len(self._of_cells) > CELLS:
            del self._of_cells[next(iter(self._of_cells))]
        return before

    def before(self, session: Session) -> Session | None:
        """The session of the run before of the same cell."""
        return self._before.get(session)

    @property
    def last(self) -> Session | None:
        """The session of the last cell; None before the first."""
        found = self._shell.user_ns.get(LAST)
        return found if isinstance(found, Session) else None
