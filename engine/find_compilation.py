"""Look up a compilation that a person named by its id."""

from __future__ import annotations

from engine.errors import BadArgument
from engine.records.session import CompilationRecord, Session

MAX_LISTED = 12
"""Maximum number of ids that the error lists."""


def find_compilation(session: Session, compilation: str) -> CompilationRecord:
    """Return the compilation with this id.

    Raises:
        BadArgument: there is none; the message lists those that exist.
    """
    records = {c.id: c for c in session.compilations}
    if compilation in records:
        return records[compilation]
    ids = list(records)
    more = f" and {len(ids) - MAX_LISTED} more" if len(ids) > MAX_LISTED else ""
    raise BadArgument(
        f"The session has no compilation {compilation!r}. It has {', '.join(ids[:MAX_LISTED]) or 'none'}{more}."
    )
