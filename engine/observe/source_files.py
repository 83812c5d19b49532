"""User source files that a trace names, read from disk if they match, or reconstructed."""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from engine.records.bytecode import SourceFile, Span

_FILE_COMMENT = re.compile(
    r"\n *# File: (?P<file>[^\n]{1,1000}?):(?P<line>\d{1,7}) in (?P<function>[^\n]{0,300}?), code: ?(?P<code>.*)"
)
MAX_LINE_NUMBER = 200_000
"""Line numbers above this are treated as damage."""
MAX_FILE_BYTES = 4_000_000


_NOTEBOOK_FRAME = re.compile(r"(?<!tests)[\\/](?:ipykernel|IPython|notebook_ext)[\\/]|[\\/]ipykernel_launcher\.py$")
_CELL_PREFIX = "<ipython-input-"
"""Start of the file name of a cell that IPython runs in a terminal."""


def is_generated_file(file: str) -> bool:
    """Return True for the file name of generated code; a notebook cell is not generated."""
    return file.startswith("<") and not file.startswith(_CELL_PREFIX)


def strip_notebook_frames(stack: tuple[Span, ...]) -> tuple[Span, ...]:
    """Return a stack without the frames of a notebook kernel above the user's code."""
    last = max((n for n, span in enumerate(stack) if _NOTEBOOK_FRAME.search(span.file)), default=-1)
    return stack[last + 1 :]


class SourceFiles:
    """User files by name, with the lines that the trace contains.

    ``read`` returns a file, with an empty text if it cannot be read.
    """

    def __init__(self, library: str, read: Callable[[str], SourceFile], add: Callable[[SourceFile], None]) -> None:
        self.torch_dir = library
        self._read = read
        self._add = add
        self._known_lines: dict[str, dict[int, str]] = {}
        self._texts: dict[str, list[str]] = {}

    def is_user_file(self, file: str) -> bool:
        """Return True if a file is neither torch's nor generated."""
        return not is_generated_file(file) and file != "?" and not (self.torch_dir and file.startswith(self.torch_dir))

    def add_line(self, file: str, line: int = 0, code: str = "") -> None:
        """Register a user file once, and the text of one of its lines."""
        if not self.is_user_file(file):
            return
        if file not in self._known_lines:
            self._known_lines[file] = {}
            source = self._read(file)
            self._texts[file] = source.text.splitlines()
            if source.text:
                self._add(source)
        if code.strip() and 0 < line <= MAX_LINE_NUMBER:
            self._known_lines[file].setdefault(line, code.strip())

    def add_lines_of_graph(self, text: str) -> tuple[tuple[str, int, str], ...]:
        """Register the lines that a printed graph names; return distinct (file, line, function)."""
        graph_lines = dict.fromkeys(_FILE_COMMENT.findall(text))
        for file, line, _, code in graph_lines:
            self.add_line(file, int(line), code)
        return tuple((file, int(line), function) for file, line, function, _ in graph_lines)

    def resolve_suffix(self, end: str) -> str | None:
        """Return the user file whose path has this suffix; None for torch's own files.

        torch prints only the last characters of long paths.
        """
        return next((file for file in self._known_lines if file.endswith(end.removeprefix("..."))), None)

    def line(self, file: str, number: int) -> str:
        """Return one line of a file; an empty string if the line is unknown."""
        lines = self._texts.get(file, [])
        return lines[number - 1] if 0 < number <= len(lines) else self._known_lines.get(file, {}).get(number, "")

    def known_lines(self, file: str) -> dict[int, str]:
        """Return the lines of a file that the trace contains."""
        return self._known_lines.get(file, {})

    @property
    def files(self) -> Iterable[str]:
        """Names of all user files."""
        return tuple(self._known_lines)

    def set_text(self, file: SourceFile) -> None:
        """Set a file's text, once all its lines in the trace are known."""
        self._texts[file.id] = [""] * (file.first_line - 1) + file.text.splitlines()
        self._add(file)


def read_matching_file(file: str, known_lines: dict[int, str], name: str) -> SourceFile | None:
    """Read a Python file of this machine if it has all lines that a trace has of it.

    None if a line differs or the file cannot be read. A log may name any file, so a file is never added to a
    session without this match.
    """
    path = Path(file)
    try:
        if not known_lines or path.suffix != ".py" or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    lines = text.splitlines()
    same = all(number <= len(lines) and _same_code(lines[number - 1], code) for number, code in known_lines.items())
    return SourceFile(file, name, text) if same else None


def cell_in_memory(file: str, name: str) -> SourceFile | None:
    """Return the source of a notebook cell of this process; no file is read."""
    entry: Any = linecache.cache.get(file, ())
    if len(entry) != 4 or entry[1] is not None:  # not loaded yet, or a file with a time of change
        return None
    return SourceFile(file, name, "".join(entry[2])) if entry[2] else None


def _same_code(line: str, known_code: str) -> bool:
    return " ".join(line.split()) == " ".join(known_code.split())


def reconstruct_file(file: str, known_lines: dict[int, str], name: str) -> SourceFile | None:
    """Reconstruct a file from the known lines, others empty; None if no line is known."""
    if not known_lines:
        return None
    first, last = min(known_lines), max(known_lines)
    return SourceFile(file, name, "\n".join(known_lines.get(n, "") for n in range(first, last + 1)), first)
