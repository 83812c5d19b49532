"""Readable lines of kernel listings: debug information and imports are removed.

Line numbers stay those of the listing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.records.kernels import Listing
from notebook_ext.views.format_text import sanitize

_DEBUG_LINE = {
    "mlir": re.compile(r"#loc\d*\b|\s*$"),
    "llir": re.compile(r"!\S+ = |!llvm|source_filename|target |; ModuleID|attributes #|\s*#dbg|\s*$"),
    "ptx": re.compile(r"\s*(?:\.loc\b|\.file\b|\$L__tmp\d+:|\$L__func\w+:|//|$)"),
    "amdgcn": re.compile(r"\s*(?:\.loc\b|\.file\b|\.cfi_|\.Ltmp\d+:|\.Lfunc\w+:|;|$)"),
    "sass": re.compile(r"\s*$"),
}
"""Lines that are empty or hold only debug information, by kind of listing."""
_DEBUG_SUFFIX = {
    "mlir": re.compile(r""" loc\((?:#loc\d*|unknown|"[^"]*"\(#loc\d*\))\)"""),
    "llir": re.compile(r",? !(?:dbg|srcloc) !\d+"),
    "ptx": re.compile(r"\s+// .*$"),
}
"""Debug information at the end of a line, by kind of listing."""
_ADDRESS = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s*")
_TABS = re.compile(r" *\t[ \t]*")
_DEBUG_SECTION = re.compile(r"\s*\.section\s+\.debug")


def readable_lines(listing: Listing) -> Iterator[tuple[int, str]]:
    """Yield the readable lines with their numbers; tabs become spaces."""
    kind = "mlir" if listing.stage in ("ttir", "ttgir") else listing.stage
    debug, tail = _DEBUG_LINE.get(kind), _DEBUG_SUFFIX.get(kind)
    for number, line in enumerate(sanitize(listing.text).split("\n"), 1):
        if _DEBUG_SECTION.match(line):
            return
        if debug is None or not debug.match(line):
            yield number, _normalize_columns(tail.sub("", line) if tail else line, listing.stage)


def _normalize_columns(line: str, stage: str) -> str:
    """Return an assembly line without wide tabs; a SASS line has its address as plain digits."""
    if stage == "sass":
        return _ADDRESS.sub(r"\1  ", line)
    if stage not in ("ptx", "amdgcn", "asm"):
        return line.expandtabs(4)
    body = _TABS.sub(" ", line.strip())
    return f"  {body}" if line[:1].isspace() else body


def kernel_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a kernel's text without imports and declarations.

    A Triton module starts with its first decorator.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("@")), 0)
    yield from ((i, line) for i, line in enumerate(lines[start:], start + 1) if not line.startswith("declare "))


def coverage_text(instructions: int, linked: int, labelled: int, language: str = "a Triton") -> str:
    """Return how many instructions of a listing are attributed; empty if none were counted."""
    if not instructions:
        return ""
    rest = instructions - linked - labelled
    tail = f", {rest:,} unknown" if rest else ""
    return f"{linked:,} of {instructions:,} instructions reach {language} line, {labelled:,} labelled{tail}"
