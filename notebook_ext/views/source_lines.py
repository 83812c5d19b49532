"""Maps records to user source lines, with their names and their order of first use."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.interrupts.weak_tables import WeakTable
from engine.ir.user_code_files import display_name, is_installed_file
from engine.records.bytecode import SourceFile, Span
from engine.records.graph import NodeRecord
from engine.records.guards import GuardFailure, entry_name
from engine.records.session import CompilationRecord, FrameRecord, Session
from engine.records.trace import BreakRecord
from notebook_ext.views.format_text import one_line, pluralize

MAX_WHOLE_FILE_LINES = 400
"""Maximum number of lines of a file that is shown whole.

Of a longer file only the lines in use and their surroundings are shown.
"""
CONTEXT_LINES = 8
WITHHELD = (
    "… only lines that the log contains; python -m notebook_ext LOG --sources, or "
    "load_torch_trace(LOG, read_sources=True), adds this machine's file"
)

FileLine = tuple[str, int]
"""File id and line number."""
_MODULE_PREFIX = "module:"
"""Start of the file id of a place that is a module instead of a line."""
_CONTAINER = re.compile(r"[\\/]torch[\\/]nn[\\/]modules[\\/](?:container|transformer)\.py$")
"""Library files that call modules of the user: one line of them calls many modules."""


@dataclass(frozen=True)
class SourceRow:
    """One row of the source pane.

    ``file`` is empty for a heading or a count of omitted lines; ``line`` is 0 for these and for a module.
    """

    text: str
    file: str = ""
    line: int = 0


class NodeSpans(NamedTuple):
    """User source behind a graph node.

    ``span`` is the innermost line of the user with its columns, or the place of a module if that line is in
    a library. ``callers`` are the lines that called it, outermost first; ``library`` those of libraries.
    """

    span: Span | None
    callers: tuple[Span, ...] = ()
    library: tuple[Span, ...] = ()


@dataclass
class LineOrdinals:
    """Numbers of source lines in order of first use.

    A line has the same number and color in every view.
    """

    numbers: dict[FileLine, int] = field(default_factory=dict)
    of_session: dict[FileLine, int] = field(default_factory=dict, repr=False)
    """Numbers of the lines of all compilations of the session."""

    def add(self, span: Span) -> None:
        """Give the span's line its number in the session: the next one if it has none."""
        line = (span.file, span.line)
        self.numbers[line] = self.of_session.setdefault(line, len(self.of_session) + 1)

    def of(self, span: Span | None) -> int:
        """Return the number of the span's line; 0 if it has none."""
        return self.numbers.get((span.file, span.line), 0) if span else 0


def node_spans(node: NodeRecord, files: Collection[str]) -> NodeSpans:
    """Return a node's line, its callers' lines and library lines, in files that are shown."""
    span = node.span
    if span is not None and node.stack == (span,) and not is_installed_file(span.file):  # The usual case.
        return NodeSpans(span) if span.file in files else NodeSpans(None)
    file_ids = files if isinstance(files, (set, frozenset)) else set(files)
    spans = [s for s in node.stack if s.file in file_ids]
    if node.span is not None and node.span.file in file_ids and (not spans or spans[-1] != node.span):
        spans.append(node.span)
    if not spans:
        return NodeSpans(None)
    library = tuple(s for s in spans if is_installed_file(s.file))
    users = tuple(s for s in spans if not is_installed_file(s.file))
    if library and spans[-1] is library[-1]:
        return NodeSpans(module_place(node.module), users, library)
    if node.module and _passes_container(node.stack, users[-1]):
        return NodeSpans(module_place(node.module), users, library)
    return NodeSpans(users[-1], users[:-1], library)


def module_place(path: str) -> Span:
    """Return the span that represents a module's library code, by the module's path."""
    return Span(_MODULE_PREFIX + path, 0)


def module_of(file: str) -> str | None:
    """Return the module path in a file id made by ``module_place``; None for a file."""
    return file.removeprefix(_MODULE_PREFIX) if file.startswith(_MODULE_PREFIX) else None


def _passes_container(stack: tuple[Span, ...], user: Span) -> bool:
    """Return True if a container such as ``nn.Sequential`` is called below the user's line."""
    return user in stack and any(_CONTAINER.search(s.file) for s in stack[stack.index(user) + 1 :])


def call_of(session: Session, compilation: CompilationRecord) -> Span | None:
    """Return the user's line that calls a library function; None for other functions."""
    frame = next((f for f in session.frames if f.id == compilation.frame), None)
    if frame is None or not is_installed_file(frame.file):
        return None
    files = {f.id for f in session.files}
    calls = [c for c in session.calls if c.frame == frame.id and c.caller is not None and c.caller.file in files]
    first = next((c for c in calls if c.entry == compilation.id), calls[0] if calls else None)
    return first.caller if first is not None else None


def user_line(session: Session, compilation: CompilationRecord, record: BreakRecord) -> Span | None:
    """Return the user's line of a break: the innermost one outside libraries.

    For a library function that Python called after a break it is the line of the call; for a root that a library
    has, or for an unknown caller, the library's own line.
    """
    if record.span is None or not is_installed_file(record.span.file):
        return record.span
    own = next((s for s in reversed(record.stack) if not is_installed_file(s.file)), None)
    is_callee = any(f.id == compilation.frame and f.role == "callee" for f in session.frames)
    return own or (call_of(session, compilation) if is_callee else None) or record.span


def call_place(session: Session, compilation: CompilationRecord) -> str:
    """Return the user's line that calls a library function, with its text; else ""."""
    span = call_of(session, compilation)
    return f"{line_name(session, span)}: {one_line(source_line(session, span), 60)}" if span is not None else ""


@dataclass
class _SessionOrdinals:
    """Ordinals by compilation, with the record and file count that they depend on."""

    lines: dict[FileLine, int] = field(default_factory=dict)
    made: dict[str, tuple[CompilationRecord, int, LineOrdinals]] = field(default_factory=dict)


_ordinals_cache: WeakTable[Session, _SessionOrdinals] = WeakTable()


def ordinals(session: Session, compilation: CompilationRecord) -> LineOrdinals:
    """Return the numbers of the source lines that one compilation uses.

    All compilations are numbered in their order, so that a number means one line in the whole session. A record
    that was replaced is numbered again if its graphs are others; while kernels compile, most are not.
    """
    cached = _ordinals_cache.setdefault(session, _SessionOrdinals())
    files = {f.id for f in session.files}
    new = () if compilation.id in cached.made else session.compilations
    for record in (*(c for c in new if c.id not in cached.made), compilation):
        entry = cached.made.get(record.id)
        if entry is None or entry[0].graphs is not record.graphs or entry[1] != len(files):
            cached.made[record.id] = (record, len(files), _make_ordinals(session, record, files, cached.lines))
    return cached.made[compilation.id][2]


def _make_ordinals(
    session: Session, compilation: CompilationRecord, files: set[str], lines: dict[FileLine, int]
) -> LineOrdinals:
    numbered = LineOrdinals(of_session=lines)
    if (call := call_of(session, compilation)) is not None:
        numbered.add(call)
    library: list[Span] = []
    for graph in compilation.graphs:
        for node in graph.nodes_by_source:
            spans = node_spans(node, files)
            for span in (*spans.callers, *([spans.span] if spans.span else [])):
                numbered.add(span)
            library.extend(spans.library)
    for span in library:  # Numbered last: the first colors belong to the user's lines and modules.
        numbered.add(span)
    return numbered


@functools.lru_cache(maxsize=64)
def _split_lines(text: str) -> list[str]:
    return text.splitlines()


def source_line(session: Session, span: Span | None) -> str:
    """Return the text of the span's line without indentation; empty if unknown."""
    return line_text(session, span.file, span.line) if span is not None else ""


def line_text(session: Session, file: str, line: int) -> str:
    """Return one line of a file without indentation; empty if unknown."""
    for recorded in session.files:
        if recorded.id == file:
            lines = _split_lines(recorded.text)
            index = line - recorded.first_line
            return lines[index].strip() if 0 <= index < len(lines) else ""
    return ""


def snippet(session: Session, span: Span | None) -> str:
    """Return the text under the span if its columns are known, else its whole line."""
    if span is None:
        return ""
    for file in session.files:
        if file.id == span.file:
            lines = _split_lines(file.text)
            index = span.line - file.first_line
            if not 0 <= index < len(lines):
                return ""
            line = lines[index]
            if 0 <= span.column < span.end_column and span.end_line in (-1, span.line):
                return line[span.column : span.end_column]
            return line[max(span.column, 0) :].strip()
    return ""


def file_name(session: Session, id: str) -> str:
    """Return the display name of a file: its given name, else the last part of its path."""
    name = next((f.name for f in session.files if f.id == id), "") or display_name(id.replace("\\", "/"))
    # A call of a layer of torch is compiled as code of "<linear.py>".
    return name[1:-1] if name.startswith("<") and name.endswith(".py>") else name


def frame_name(session: Session, frame: str, limit: int = 60) -> str:
    """Return the display name of a frame: its function; its id if unknown.

    A resume function also has the line of its graph break. No two functions of a session have one name.
    """
    record = next((f for f in session.frames if f.id == frame), None)
    if record is None:
        return one_line(frame, limit)
    after = record.resumes_after
    names_line = " (from line " in record.name or " after line " in record.name
    rest = f" after line {after.line}" if after is not None and not names_line else ""
    rest += _break_text(session, record) + _distinction(session, record)
    return one_line(record.name, limit - len(rest)) + rest


def _distinction(session: Session, record: FrameRecord) -> str:
    """Return a suffix for a frame that shares its name: its line, or its path after a break."""
    same = [f for f in session.frames if f.name == record.name and f.resumes_after == record.resumes_after]
    if len(same) < 2:
        return ""
    if record.resumes_after is not None:
        return f", path {same.index(record) + 1}"
    has_own_line = len({f.first_line for f in same}) == len(same)
    return f" (line {record.first_line})" if has_own_line else f" ({same.index(record) + 1} of {len(same)})"


def full_name(session: Session, compilation: CompilationRecord) -> str:
    """Return the display name of a cache entry: its function's, and its number ("f entry 0")."""
    return f"{frame_name(session, compilation.frame)} {entry_name(compilation.id)}"


def _break_text(session: Session, record: FrameRecord) -> str:
    """Return what broke the graph before a resume function, if its line is not enough."""
    after = record.resumes_after
    others = (f.resumes_after for f in session.frames if f.name == record.name)
    if after is None or not any(o is not None and o != after and o.line == after.line for o in others):
        return ""
    return f" ({one_line(snippet(session, after), 24) or f'column {after.column + 1}'})"


def frame_line(session: Session, record: FrameRecord) -> str:
    """Return the line where a frame begins, or after which it resumes."""
    if record.resumes_after:
        return line_name(session, record.resumes_after) + _break_text(session, record)
    if not (is_installed_file(record.file) or record.file.endswith(".py>")):
        return f"line {record.first_line}"
    # A decorator such as torch.no_grad runs a wrapper of the library; the reader looks for the function.
    for file in session.files:
        for first, _, name in () if is_installed_file(file.id) else _function_ranges(file.text):
            if name == record.name:
                return line_name(session, Span(file.id, file.first_line + first - 1))
    return f"line {record.first_line} of {file_name(session, record.file)}"


def line_name(session: Session, span: Span | None) -> str:
    """Return ``line 14``, with several files ``line 14 of cell 3``; empty if unknown."""
    if span is None:
        return ""
    if (module := module_of(span.file)) is not None:
        return f"module {module}" if module else "library code"
    return f"line {span.line}" if len(session.files) <= 1 else f"line {span.line} of {file_name(session, span.file)}"


def failure_place(session: Session, failure: GuardFailure) -> str:
    """Return the user's line of a guard failure, then the library's line that read the value."""
    library = line_name(session, failure.library_span)
    return line_name(session, failure.span) + (f" ({library})" if library else "")


def function_of(session: Session, span: Span | None) -> str:
    """Return the qualified name of the function that has a line; empty if unknown or none."""
    file = next((f for f in session.files if span is not None and f.id == span.file), None)
    if file is None or span is None:
        return ""
    line = span.line - file.first_line + 1
    inside = [name for first, last, name in _function_ranges(file.text) if first <= line <= last]
    return one_line(inside[-1], 60) if inside else ""


@functools.lru_cache(maxsize=64)
def _function_ranges(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return first line, last line and qualified name of each function, outer ones first."""
    try:
        return tuple(_functions_in(ast.parse(text), ""))
    except (SyntaxError, ValueError, RecursionError):
        return ()


def _functions_in(node: ast.AST, prefix: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                name = prefix + child.name
                yield child.lineno, child.end_lineno or child.lineno, name
                yield from _functions_in(child, f"{name}.<locals>.")
            case ast.ClassDef():
                yield from _functions_in(child, f"{prefix}{child.name}.")
            case _:
                yield from _functions_in(child, prefix)


def source_rows(session: Session, used: Collection[FileLine], first: str) -> list[SourceRow]:
    """Return the lines of all files in ``used``, with headings between files.

    The file ``first`` comes before the others of the user. Modules follow, then lines of libraries.
    """
    wanted = [f for f in session.files if any(file == f.id for file, _ in used)]
    wanted.sort(key=lambda f: (is_installed_file(f.id), f.id != first))
    modules = [file for file, _ in used if module_of(file) is not None]
    rows: list[SourceRow] = []
    for file in [f for f in wanted if not is_installed_file(f.id)]:
        if len(wanted) > 1 or modules:
            rows.append(SourceRow(file.name))
        rows.extend(_file_rows(file, {line for id, line in used if id == file.id}, CONTEXT_LINES))
    if modules:
        rows.append(SourceRow("Modules"))
        rows.extend(SourceRow(module_of(file) or "", file) for file in modules)
    for file in [f for f in wanted if is_installed_file(f.id)]:
        rows.append(SourceRow(f"{file.name}, library code"))
        rows.extend(_file_rows(file, {line for id, line in used if id == file.id}, 0))
    return rows


def _file_rows(file: SourceFile, used: set[int], context: int) -> list[SourceRow]:
    lines = file.text.splitlines()
    if file.is_withheld:
        return [SourceRow(WITHHELD), *(SourceRow(t, file.id, n) for n, t in enumerate(lines, file.first_line) if t)]
    if context and len(lines) <= MAX_WHOLE_FILE_LINES:
        return [SourceRow(text, file.id, file.first_line + i) for i, text in enumerate(lines)]
    kept = {line + d for line in used for d in range(-context, context + 1)}
    rows: list[SourceRow] = []
    skipped = 0
    for i, text in enumerate(lines):
        line = file.first_line + i
        if line not in kept:
            skipped += 1
            continue
        if skipped:
            rows.append(SourceRow(f"… {pluralize(skipped, 'line')} not used in this compilation"))
            skipped = 0
        rows.append(SourceRow(text, file.id, line))
    if skipped:
        rows.append(SourceRow(f"… {pluralize(skipped, 'line')} not used in this compilation"))
    return rows
