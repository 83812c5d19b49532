"""Note on the private data in a saved session, shown before the file is shared."""

from __future__ import annotations

from engine.records.session import Session
from notebook_ext.views.format_text import one_line, pluralize

MAX_NAMED_FILES = 6


def privacy_note(session: Session, subject: str = "It") -> str:
    """Return the note: files with source code, other data of the user, and tensor values.

    ``subject`` is what holds the session, as the first word of the sentence.
    """
    names = [one_line(f.name, 40) for f in session.files]
    lines = sum(len(f.text.splitlines()) for f in session.files)
    if not names:
        return f"{subject} contains no source code, but names, shapes and guards of your program."
    has_contents = any(c.call_values for c in session.compilations)
    tensors = (
        "It contains the values of small tensors and the ranges of others"
        if has_contents
        else "It contains no tensor values"
    )
    more = f" and {len(names) - MAX_NAMED_FILES} more" if len(names) > MAX_NAMED_FILES else ""
    return (
        f"{subject} contains {pluralize(lines, 'line')} of source code ({', '.join(names[:MAX_NAMED_FILES])}{more}), names of modules and variables, "
        f"shapes, guards with the values that they compare, and error messages. {tensors}. Check it before you share it."
    )
