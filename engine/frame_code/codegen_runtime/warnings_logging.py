"""Replay warnings and log messages."""

from __future__ import annotations

import logging
import pathlib
import sys
import types
import warnings
from typing import Any


def warn_at_line(message: Any, category: type[Warning], file: str, line: int, namespace: dict[str, Any]) -> None:
    """Call ``warnings.warn`` as if this line of this file had called it."""
    registry = namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, file, line, namespace.get("__name__") or "<sys>", registry)


def log_at_line(
    logger: logging.Logger, level: int, file: str, line: int, function: str, message: str, *args: Any
) -> None:
    """Call ``logger.log`` as if this line of this file had called it."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, file, line, message, args, None, function))


def warn_at_caller(message: Any, category: type[Warning], above: int) -> None:
    """Call ``warnings.warn`` as if a caller of the compiled frame had called it.

    ``above`` is the number of user frames above the compiled one.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and above:
        frame = frame.f_back
        if frame is not None and not _is_engine_file(frame.f_code.co_filename):
            above -= 1
    if frame is None:
        warnings.warn_explicit(message, category, "sys", 1, "sys", {})
        return
    warn_at_line(message, category, frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


_ENGINE_FOLDER = str(pathlib.Path(__file__).parents[2])


def _is_engine_file(file: str) -> bool:
    return file.startswith(("<engine", _ENGINE_FOLDER))
