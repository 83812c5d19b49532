"""Writes a TORCH_TRACE log as one HTML page, without a notebook and without torch."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.errors import NotATrace
from engine.observe.ranks.load_ranks import load_sessions
from engine.records.base import RecordError
from engine.records.findings import find_problems
from engine.records.session import Session
from engine.replace_file import replace_file
from notebook_ext.views.format_text import one_line
from notebook_ext.views.summary import summary
from notebook_ext.widgets.standalone_page import write_page

BAR_WIDTH = 30
MAX_COMPARED = 3
"""Maximum number of groups of ranks that the page compares with the largest one."""
REFRESH_SECONDS = 0.1
"""Minimum seconds between two updates of the bar."""


def write_trace_report(log: Path, page: Path | None = None, *, read_sources: bool = False) -> int:
    """Write the page; print its path and the summary. Return exit status 2 if nothing to show.

    ``read_sources`` adds source files of this machine that the log names.

    The page holds the source code of the model: check it before you share it.
    """
    with _without_garbage_collection():
        return _write_trace_report(log, page or Path(f"{log.name}.html"), read_sources=read_sources)


def _write_trace_report(log: Path, page: Path, *, read_sources: bool) -> int:
    if page.is_dir():
        page = page / f"{log.name}.html"
    try:
        sessions = load_sessions(log, _progress_bar("reading"), read_sources=read_sources)
        name, session = next(iter(sessions.items()))
        other_sessions = dict(list(sessions.items())[1 : 1 + MAX_COMPARED])
        is_torch = session.compiler == "torch"  # Readers of torch's traces expect a list of compilations.
        compiler, view = ("torch.compile", "compilations") if is_torch else ("compile-explorer", "home")
        page.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(page) as stream:
            write_page(
                session,
                stream,
                f"{log.name}, recorded by {compiler}",
                _progress_bar("writing"),
                view=view,
                others=other_sessions,
                name=name,
            )
    except (NotATrace, RecordError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{error.filename or page} cannot be read or written: {error.strerror}.", file=sys.stderr)
        return 2
    finally:
        if sys.stderr.isatty():
            print(end="\r\x1b[K", file=sys.stderr)
    print(summary(session).text)
    for line in _rank_lines(session):
        print(f"  {line}.")
    print(page.resolve())
    return 0


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector: reference counts free the memory.

    A page has no cycles, and looking for them takes a tenth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _rank_lines(session: Session) -> Iterator[str]:
    """Yield how many ranks the page covers, and what differs between them or is missing."""
    if session.ranks is None:
        return
    count, groups = len(session.ranks.ranks), len(session.ranks.groups)
    yield f"{count:,} ranks: {'all equal' if groups == 1 else f'{groups:,} groups; this is the largest one'}"
    yield from (one_line(problem.title, 300) for problem in find_problems(session) if problem.view == "devices")


def _progress_bar(noun: str) -> Callable[[int, int], None]:
    """Return a callback that draws a progress bar; it draws nothing without a terminal."""
    if not sys.stderr.isatty():
        return lambda num_done, total: None
    last = 0.0

    def draw(num_done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < REFRESH_SECONDS and num_done < total:
            return
        last = now
        share = num_done / total if total else 1.0
        filled = round(share * BAR_WIDTH)
        print(
            f"\r\x1b[K{noun} {'#' * filled}{'.' * (BAR_WIDTH - filled)} {share:4.0%}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    return draw
