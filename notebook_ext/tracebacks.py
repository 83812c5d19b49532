"""Strips internal frames from exceptions: the user sees the traceback of plain Python."""

from __future__ import annotations

import os
import pathlib
from types import TracebackType

HOME = pathlib.Path(__file__).resolve().parent.parent
INTERNAL_DIRS = (str(HOME / "engine") + os.sep, str(HOME / "notebook_ext") + os.sep)
COMPILING_FILES = frozenset(
    str(HOME / "engine" / file) for file in ("pipeline.py", "backends/call_backend.py", "backends/triton.py")
)
"""Files of the functions that compile frames, captured backwards and lowered backwards."""
GENERATED_FILE_PREFIXES = ("<engine", "<eval_with_key>")
"""File names of code generated while compiling: guard checks, dispatchers, graphs."""


def strip_internal_frames(error: BaseException, cell: str) -> TracebackType | None:
    """Strip internal frames from ``error`` and its chained exceptions; return its traceback.

    The traceback starts in the file ``cell``. An exception that never passed through the cell is an
    internal error and retains all its frames.
    """
    visited: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        _forget_internal_context(current)
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
        current.__traceback__ = _without_internal_frames(_from_cell(current.__traceback__, cell))
    return error.__traceback__


def passes_through_cell(error: BaseException, cell: str) -> bool:
    """Return True if the exception's traceback has a frame of the cell."""
    return cell in _files(error)


def was_compiling(error: BaseException) -> bool:
    """Return True if the error was raised while compiling.

    Call it before ``strip_internal_frames``.
    """
    return not COMPILING_FILES.isdisjoint(_files(error))


def _files(error: BaseException) -> list[str]:
    """Return the file names of the frames on the exception's traceback, outermost first."""
    files = []
    link = error.__traceback__
    while link is not None:
        files.append(link.tb_frame.f_code.co_filename)
        link = link.tb_next
    return files


def _from_cell(tb: TracebackType | None, cell: str) -> TracebackType | None:
    start = tb
    while start is not None and start.tb_frame.f_code.co_filename != cell:
        start = start.tb_next
    return start or tb


def _without_internal_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return the chain without internal frames and without torch frames that they called.

    Plain Python would not have had these frames.
    """
    user_frames: list[TracebackType] = []
    after_ours = False
    link = tb
    while link is not None:
        file = link.tb_frame.f_code.co_filename
        if is_internal_file(file):
            after_ours = True
        elif not (after_ours and _is_torch(file)):
            after_ours = False
            user_frames.append(link)
        link = link.tb_next
    if not user_frames:
        return tb
    chain: TracebackType | None = None
    for link in reversed(user_frames):
        chain = TracebackType(chain, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return chain


def _forget_internal_context(error: BaseException) -> None:
    """Unchain exceptions that the compiler raised and handled while user code was suspended."""
    while (
        error.__context__ is not None and error.__context__ is not error.__cause__ and _is_internal(error.__context__)
    ):
        error.__context__ = error.__context__.__context__


def _is_internal(error: BaseException) -> bool:
    files = _files(error)
    return bool(files) and is_internal_file(files[0]) and all(is_internal_file(f) or _is_torch(f) for f in files)


def is_internal_file(file: str) -> bool:
    """Return True for a file name of the compiler, or of code that it generated."""
    return file.startswith(INTERNAL_DIRS) or file.startswith(GENERATED_FILE_PREFIXES)


def _is_torch(file: str) -> bool:
    return f"{os.sep}site-packages{os.sep}torch{os.sep}" in file
