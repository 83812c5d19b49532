"""Folds the warnings of stock torch.compile into one sentence of the session.

Uncollected, each is several red lines above the result of the cell.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from engine.records.runtime import ArtifactRecord
from engine.records.session import Session

ARTIFACT_NAME = "warnings of torch.compile"
SHOWN_LENGTH = 120
"""Characters of the first warning that the sentence shows."""


class _WarningFilter(logging.Filter):
    """Logging filter that keeps warnings from the screen and remembers each text once."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self._last: logging.LogRecord | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a warning; errors and logs at other levels pass."""
        if record.levelno != logging.WARNING:
            return True
        if record is not self._last:  # Several handlers receive one record.
            self._last = record
            text = record.getMessage()
            self.counts[text] = self.counts.get(text, 0) + 1
        return False


@contextlib.contextmanager
def fold_torch_warnings(session: Session) -> Iterator[None]:
    """Turn warnings of torch's loggers into an artifact and a note of the session."""
    collected = _WarningFilter()
    handlers = _screen_handlers()
    for handler in handlers:
        handler.addFilter(collected)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(collected)
        _add_to_session(session, collected.counts)


def _screen_handlers() -> list[logging.Handler]:
    """Return the handlers of torch's loggers that write to the screen, not to a file."""
    loggers = logging.root.manager.loggerDict
    handlers = [
        h for name in loggers if name.partition(".")[0] == "torch" for h in getattr(loggers[name], "handlers", ())
    ]
    return list({id(h): h for h in handlers if not hasattr(h, "baseFilename")}.values())


def _add_to_session(session: Session, counts: dict[str, int]) -> None:
    if not counts:
        return
    total = sum(counts.values())
    text = "\n\n".join(t + (f"\n(logged {n} times)" if n > 1 else "") for t, n in counts.items())
    session.add_artifact(ArtifactRecord(ARTIFACT_NAME, text))
    lines = [line.strip() for line in next(iter(counts)).splitlines() if line.strip()]
    first = " ".join(lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")
    shown = first if len(first) <= SHOWN_LENGTH else first[: SHOWN_LENGTH - 1] + "…"
    session.add_note(
        f"torch.compile logged {total} warning{'s' if total > 1 else ''}: {shown}. "
        "The Compilations view holds all of the text, below Trace artifacts."
    )
