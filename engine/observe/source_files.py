"""The user's source files that a trace speaks of: read from disk where they are what the trace says, else pieced together from it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from engine.records.bytecode import SourceFile, Span

_FILE_COMMENT = re.compile(
    r"^ *# File: (?P<file>[^\n]{1,1000}?):(?P<line>\d{1,7}) in (?P<function>[^\n]{0,300}?), code: ?(?P<code>.*)$",
    re.MULTILINE,
)
MAX_LINE_NUMBER = 200_000
"""A line number above this is taken for damage."""
MAX_FILE_BYTES = 4_000_000


_NOTEBOOK_FRAME = re.compile(r"[\\/](?:ipykernel|IPython|notebook_ext)[\\/]|[\\/]ipykernel_launcher\.py$")


def strip_notebook_frames(stack: tuple[Span, ...]) -> tuple[Span, ...]:
    """A stack without what a notebook's kernel did to come to the user's code."""
    last = max((n for n, span in enumerate(stack) if _NOTEBOOK_FRAME.search(span.file)), default=-1)
    return stack[last + 1 :]


class SourceFiles:
    """Files by name, and the lines of them that were told. ``read`` gives a file's text, "" where it is not to be had."""

    def __init__(self, library: str, read: Callable[[str], SourceFile], add: Callable[[SourceFile], None]) -> None:
        self.torch_dir = library
        self._read = read
        self._add = add
        self._known_lines: dict[str, dict[int, str]] = {}
        self._texts: dict[str, list[str]] = {}

    def is_user_file(self, file: str) -> bool:
        """Whether a file is neither torch's own nor generated."""
        return not file.startswith("<") and file != "?" and not (self.torch_dir and file.startswith(self.torch_dir))

    def add_line(self, file: str, line: int = 0, code: str = "") -> None:
        """Note a user's file once, and what one of its lines says."""
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
        """Note the places that a printed graph names; returns file, line and function of each, in order, once."""
        found = dict.fromkeys(_FILE_COMMENT.findall(text))
        for file, line, _, code in found:
            self.add_line(file, int(line), code)
        return tuple((file, int(line), function) for file, line, function, _ in found)

    def resolve_suffix(self, end: str) -> str | None:
        """The user's file whose path ends like this (torch prints only the last characters of long paths); None for torch's own."""
        return next((file for file in self._known_lines if file.endswith(end.removeprefix("..."))), None)

    def line(self, file: str, number: int) -> str:
        """One line of a file as far as it is known; empty elsewhere."""
        lines = self._texts.get(file, [])
        return lines[number - 1] if 0 < number <= len(lines) else self._known_lines.get(file, {}).get(number, "")

    def known_lines(self, file: str) -> dict[int, str]:
        """The lines of a file that the trace told."""
        return self._known_lines.get(file, {})

    @property
    def files(self) -> Iterable[str]:
        """Every user's file that was spoken of."""
        return tuple(self._known_lines)

    def set_text(self, file: SourceFile) -> None:
        """Give a file its text once all told lines are known."""
        self._texts[file.id] = [""] * (file.first_line - 1) + file.text.splitlines()
        self._add(file)


def read_matching_file(file: str, told: dict[int, str], name: str) -> SourceFile | None:
    """A Python file of this machine, if every line that a trace told of it stands there; None where it differs or cannot be read.

    A log may name any file: one whose lines it does not know is never read into a session.
    """
    path = Path(file)
    try:
        if not told or path.suffix != ".py" or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    lines = text.splitlines()
    same = all(number <= len(lines) and _same_code(lines[number - 1], code) for number, code in told.items())
    return SourceFile(file, name, text) if same else None


def _same_code(line: str, told: str) -> bool:
    return " ".join(line.split()) == " ".join(told.split())


def reconstruct_file(file: str, told: dict[int, str], name: str) -> SourceFile | None:
    """A file of which only the told lines are known; the rest is empty. None where nothing was told."""
    if not told:
        return None
    first, last = min(told), max(told)
    return SourceFile(file, name, "\n".join(told.get(n, "") for n in range(first, last + 1)), first)
